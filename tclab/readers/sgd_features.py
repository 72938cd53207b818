"""SGD's chromosomal features and gene names: which genes there are, and how else they are called.

`SGD_features.tab` of the Saccharomyces Genome Database (columns in `SGD_features.README` beside it), and
`SGDgeneNames.tsv` as yeast-GEM keeps it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tclab.errors import InputError
from tclab.readers.errors import bad_file, shown
from tclab.readers.genes import Genes
from tclab.readers.report import Report
from tclab.readers.source import LIMIT_BYTES
from tclab.readers.table import TEXT, batches, header, required

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

    Standard names and aliases become names of their genes. An alias that several genes have (hundreds do: SGD
    lists free text such as `acetyltransferase` there) is in `genes.ambiguous` and is unknown to whoever looks
    it up; a note in the report counts them, and the aliases that are another gene's standard name.

    **Arguments:**

    - `path`: `SGD_features.tab`, or the same compressed.
    - `feature_types`: the second column's values that are genes.
    - `qualifiers`: `Verified`, `Uncharacterized`, `Dubious`, …; None takes all.
    - `limit_bytes`: how much the file may unpack to.

    **Raises:** `ReadError` with the line for a wrong number of columns; for a gene without a name or that
    stands twice, and where no row is a gene.
    """
    if isinstance(feature_types, str) or isinstance(qualifiers, str):
        raise InputError("feature_types and qualifiers are lists of words, such as ['ORF']")
    names: list[str] = []
    standard: dict[str, set[str]] = {}
    aliases: dict[str, set[str]] = {}
    dropped: Counter[str] = Counter()
    rows = 0
    for batch in batches(
        path, _COLUMNS, dict.fromkeys(_READ, TEXT), separator="\t", has_header=False, limit_bytes=limit_bytes
    ):
        rows += batch.num_rows
        for sgdid, kind, qualifier, name, standard_name, alias in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            if kind not in feature_types:
                dropped[f"feature type {kind}"] += 1
            elif qualifiers is not None and not set(qualifier.split("|")) & set(qualifiers):
                dropped[f"qualifier {qualifier or 'missing'}"] += 1
            elif not name:
                raise bad_file(path, f"{kind} {shown(sgdid)} has no feature name, expected one such as YAL001C")
            else:
                names.append(name)
                if standard_name:
                    standard.setdefault(standard_name, set()).add(name)
                for other in filter(None, alias.split("|")):
                    aliases.setdefault(other, set()).add(name)
    return _genes(path, rows, names, standard, aliases, dropped)


def sgd_gene_names(path: str | Path, *, limit_bytes: int = LIMIT_BYTES) -> Genes:
    """Return the genes of `SGDgeneNames.tsv`: header `Systematic_name`, `Standard_name`, tab between.

    **Raises:** `ReadError` with the line where a row is not that; for a gene that stands twice.
    """
    columns = header(path, separator="\t")
    wanted = ("Systematic_name", "Standard_name")
    required(path, columns, wanted, separator="\t")
    names: list[str] = []
    standard: dict[str, set[str]] = {}
    for batch in batches(
        path, columns, dict.fromkeys(wanted, TEXT), separator="\t", has_header=True, limit_bytes=limit_bytes
    ):
        for name, standard_name in zip(*(column.to_pylist() for column in batch.columns), strict=True):
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
        raise bad_file(path, f"gene {shown(min(twice, default=''))} stands twice or has no name")
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
