"""SGD's chromosomal features and gene names: the genes, their standard names and aliases.

`SGD_features.tab` of the Saccharomyces Genome Database (columns in its `SGD_features.README`), and
`SGDgeneNames.tsv` as yeast-GEM keeps it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tclab.errors import InputError
from tclab.readers._gene_names import Genes, owners_of
from tclab.readers._old_source import LIMIT_BYTES, bad_file, quoted
from tclab.readers._read_report import Report
from tclab.readers._table import Table

FEATURES_FILE = re.compile(r"SGD_features.*\.tab(\.gz)?")
GENE_NAMES_FILE = "SGDgeneNames.tsv"

_COLUMNS = (
    "SGDID",
    "feature type",
    "feature qualifier",
    "feature name",
    "standard gene name",
    "alias",
    "parent feature name",
    "secondary SGDID",
    "chromosome",
    "start",
    "stop",
    "strand",
    "genetic position",
    "coordinate version",
    "sequence version",
    "description",
)
_READ = ("SGDID", "feature type", "feature qualifier", "feature name", "standard gene name", "alias")


def sgd_features(
    path: str | Path,
    *,
    feature_types: Sequence[str] = ("ORF",),
    qualifiers: Sequence[str] | None = None,
    limit_bytes: int = LIMIT_BYTES,
) -> Genes:
    """Return the genes of `SGD_features.tab`: 16 columns between tabs, no header.

    Standard names and aliases become names of their genes. An alias of several genes (hundreds are: SGD lists free text
    such as `acetyltransferase` there) is in `genes.ambiguous` and unknown in a lookup; notes in the report count such
    aliases, and the aliases that are another gene's standard name.

    **Arguments:**

    - `path`: `SGD_features.tab`, gzipped or not.
    - `feature_types`: the values of the second column that are genes.
    - `qualifiers`: `Verified`, `Uncharacterized`, `Dubious`, …; None takes all.
    - `limit_bytes`: how much the file may unpack to.

    **Raises:** `ReadError` with the line for a wrong number of columns; for a gene without a name or that appears
    twice, and where no row is a gene.
    """
    if isinstance(feature_types, str) or isinstance(qualifiers, str):
        raise InputError("feature_types and qualifiers are lists of words, such as ['ORF']")
    names: list[str] = []
    standard: list[tuple[str, str]] = []
    aliases: list[tuple[str, str]] = []
    dropped: Counter[str] = Counter()
    rows = 0
    table = Table(path, columns=_COLUMNS, limit_bytes=limit_bytes)
    for sgdid, kind, qualifier, name, standard_name, alias in table.rows(*_READ):
        rows += 1
        if kind not in feature_types:
            dropped[f"feature type {kind}"] += 1
        elif qualifiers is not None and not set(qualifier.split("|")) & set(qualifiers):
            dropped[f"qualifier {qualifier or 'missing'}"] += 1
        elif not name:
            raise bad_file(path, f"{kind} {quoted(sgdid)} has no feature name, expected one such as YAL001C")
        else:
            names.append(name)
            if standard_name:
                standard.append((standard_name, name))
            aliases += [(other, name) for other in alias.split("|") if other]
    return _genes(path, rows, names, standard, aliases, dropped)


def sgd_gene_names(path: str | Path, *, limit_bytes: int = LIMIT_BYTES) -> Genes:
    """Return the genes of `SGDgeneNames.tsv`: header `Systematic_name`, `Standard_name`, tab between.

    **Raises:** `ReadError` with the line for a bad row; for a gene that appears twice.
    """
    rows = list(Table(path, limit_bytes=limit_bytes).rows("Systematic_name", "Standard_name"))
    standard = [(other, name) for name, other in rows if other and other != name]
    return _genes(path, len(rows), [name for name, _ in rows], standard, [], {})


def _genes(
    path: str | Path,
    rows: int,
    names: list[str],
    standard: Iterable[tuple[str, str]],
    aliases: Iterable[tuple[str, str]],
    dropped: Mapping[str, int],
) -> Genes:
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice or "" in names:
        raise bad_file(path, f"gene {quoted(min(twice, default=''))} appears twice or has no name")
    if not names:
        raise bad_file(path, f"none of its {rows:,} rows is a gene")
    first, also = owners_of(standard), owners_of(aliases)
    shared = sum(len(owners) > 1 for owners in also.values())
    shadowed = sum(len({*owners} - {*first[alias]}) for alias, owners in also.items() if alias in first)
    notes = [f"{shared:,} aliases belong to several genes"] if shared else []
    notes += [f"{shadowed:,} aliases are another gene's standard name"] if shadowed else []
    report = Report(str(path), rows, len(names), dict(dropped), notes=tuple(notes))
    return Genes(tuple(sorted(names)), first, also, report)
