"""SGD's chromosomal features and gene names: the genes, their standard names and aliases.

`SGD_features.tab` of the Saccharomyces Genome Database (columns in its `SGD_features.README`), and
`SGDgeneNames.tsv` as yeast-GEM keeps it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tclab.errors import InputError
from tclab.readers._gene_names import Genes
from tclab.readers._read_report import Report
from tclab.readers._source import LIMIT_BYTES, bad_file, quoted
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
    standard: dict[str, set[str]] = {}
    aliases: dict[str, set[str]] = {}
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
                standard.setdefault(standard_name, set()).add(name)
            for other in filter(None, alias.split("|")):
                aliases.setdefault(other, set()).add(name)
    return _genes(path, rows, names, standard, aliases, dropped)


def sgd_gene_names(path: str | Path, *, limit_bytes: int = LIMIT_BYTES) -> Genes:
    """Return the genes of `SGDgeneNames.tsv`: header `Systematic_name`, `Standard_name`, tab between.

    **Raises:** `ReadError` with the line for a bad row; for a gene that appears twice.
    """
    names: list[str] = []
    standard: dict[str, set[str]] = {}
    for name, standard_name in Table(path, limit_bytes=limit_bytes).rows("Systematic_name", "Standard_name"):
        names.append(name)
        if standard_name and standard_name != name:
            standard.setdefault(standard_name, set()).add(name)
    return _genes(path, len(names), names, standard, {}, Counter())


def _genes(
    path: str | Path,
    rows: int,
    names: list[str],
    standard: dict[str, set[str]],
    aliases: dict[str, set[str]],
    dropped: Counter[str],
) -> Genes:
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice or "" in names:
        raise bad_file(path, f"gene {quoted(min(twice, default=''))} appears twice or has no name")
    if not names:
        raise bad_file(path, f"none of its {rows:,} rows is a gene")
    shared = sum(len(owners) > 1 for owners in aliases.values())
    shadowed = sum(len(owners - standard[alias]) for alias, owners in aliases.items() if alias in standard)
    return Genes(
        tuple(sorted(names)),
        {name: tuple(sorted(owners)) for name, owners in standard.items()},
        {name: tuple(sorted(owners)) for name, owners in aliases.items()},
        report=Report(
            str(path),
            rows,
            len(names),
            dict(dropped),
            notes=tuple(
                note
                for number, note in (
                    (shared, f"{shared:,} aliases belong to several genes"),
                    (shadowed, f"{shadowed:,} aliases are another gene's standard name"),
                )
                if number
            ),
        ),
    )
