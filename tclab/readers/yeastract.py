"""YEASTRACT's regulation tables: which transcription factor regulates which gene.

The "Regulation Matrix" page of yeastract.com exports `RegulationTwoColumnTable_<kind>.tsv`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tclab.graph import Network
from tclab.readers.edges import UNKNOWN_LIMIT, Lookup, network_of
from tclab.readers.errors import bad_file, shown
from tclab.readers.genes import Genes
from tclab.readers.report import Report
from tclab.readers.source import LIMIT_BYTES, text_lines
from tclab.readers.table import NAME, TEXT, batches, header, no_rows

NAMES_FILE = "orftogene.txt"
MATRIX_FILE = re.compile(r"RegulationMatrix_(?P<kind>\w+)\.csv(\.gz)?")
PAIRS_FILE = re.compile(r".*yeastract_orf_tf.*\.csv(\.gz)?")
TWO_COLUMN_FILE = re.compile(r"RegulationTwoColumnTable_(?P<kind>\w+)\.tsv(\.gz)?")

_COLUMNS = ("TF", "target")


def yeastract_names(path: str | Path) -> Genes:
    """Return the genes of `orftogene.txt`: header `Name`, `ORF`, tab between.

    A name that stands with two ORFs is ambiguous, and so unknown to whoever looks it up.

    **Raises:** `ReadError` with the line where the header or a row is not that.
    """
    found = header(path, separator="\t")
    if found != ["Name", "ORF"]:
        raise bad_file(path, f"the header is {shown(found)}, expected Name and ORF, tab between", line=1)
    owners: dict[str, set[str]] = {}
    rows = 0
    for batch in batches(path, found, {"Name": TEXT, "ORF": TEXT}, separator="\t", has_header=True):
        rows += batch.num_rows
        for name, orf in zip(*(batch.column(place).to_pylist() for place in range(2)), strict=True):
            owners.setdefault(name, set()).add(orf)
    standard = {name: tuple(sorted(orfs)) for name, orfs in owners.items()}
    names = tuple(sorted({orf for orfs in standard.values() for orf in orfs}))
    return Genes(names, standard, report=Report(str(path), rows, rows))


def yeastract(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    names: Genes | None = None,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
) -> Network:
    """Return `RegulationTwoColumnTable_<kind>.tsv[.gz]` as the directed network `yeastract_<kind>`.

    Two columns between semicolons, no header: transcription factor, target, by standard name. A factor that
    regulates its own gene is a self-loop, kept and counted.

    **Arguments:**

    - `path`: the table.
    - `genes`: the nodes of the network; without it, those of `names`.
    - `names`: which gene a name means; without it, `orftogene.txt` beside the file, where there is one. What
      it does not know is looked up in `genes`.
    - `unknown_limit`: the share of rows that may be lost to unknown names.
    - `limit_bytes`: how much the file may unpack to.

    **Raises:** `ReadError` with the line for a wrong number of columns; for too many unknown names.
    """
    lookup = _lookup(Path(path), genes, names)
    sources, targets = [], []
    for batch in batches(
        path,
        _COLUMNS,
        dict.fromkeys(_COLUMNS, NAME),
        separator=";",
        has_header=False,
        limit_bytes=limit_bytes,
    ):
        sources.append(lookup.places(batch.column(0)))
        targets.append(lookup.places(batch.column(1)))
    return network_of(
        _name(Path(path), TWO_COLUMN_FILE),
        np.concatenate(sources),
        np.concatenate(targets),
        lookup,
        path=path,
        directed=True,
        unknown_limit=unknown_limit,
    )


def yeastract_matrix(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    names: Genes | None = None,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
) -> Network:
    """Return `RegulationMatrix_<kind>.csv[.gz]` as the directed network `yeastract_<kind>`.

    Between semicolons: the first line names the targets after an empty cell, each further line begins with a
    factor (as a gene, `GCN4`, or as its protein, `Gcn4p`) and has a 1 for each target that it regulates, a 0
    for each other.

    **Arguments:** as `yeastract`.

    **Raises:** `ReadError` with the line for a wrong number of columns or a cell that is neither 0 nor 1; for
    too many unknown names.
    """
    lookup = _lookup(Path(path), genes, names)
    lines = text_lines(path, limit_bytes=limit_bytes)
    number, first = next(lines, (0, ""))
    columns = [cell.strip().strip('"') for cell in first.split(";")]
    if len(columns) < 2 or columns[0]:
        raise bad_file(path, f"{shown(first)}, expected an empty cell and then targets, semicolons between", line=1)
    targets = lookup.places(columns[1:])
    ends = []
    for number, line in lines:
        factor, *cells = line.split(";")
        if len(cells) != len(targets):
            why = f"{len(cells) + 1} columns between semicolons, expected {len(columns)}"
            raise bad_file(path, why, line=number)
        if odd := set(cells) - {"0", "1"}:
            raise bad_file(path, f"a cell is {shown(min(odd))}, expected 0 or 1", line=number)
        here = targets[np.array(cells) == "1"]
        ends.append(np.stack([np.full(len(here), lookup.place(_gene_of(factor.strip('"'), lookup))), here]))
    if not ends:
        raise no_rows(path)
    source, target = np.concatenate(ends, axis=1)
    return network_of(
        _name(Path(path), MATRIX_FILE),
        source,
        target,
        lookup,
        path=path,
        directed=True,
        unknown_limit=unknown_limit,
    )


def yeastract_pairs(
    path: str | Path,
    genes: Genes | Iterable[str],
    *,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
) -> Network:
    """Return a table of `ORF,factor` pairs, the target first, as the directed network `yeastract_orf_tf`.

    Two columns between commas, no header: the target's systematic name, and the factor as its protein
    (`Gcn4p`).

    **Raises:** `ReadError` with the line for a wrong number of columns; for too many unknown names.
    """
    lookup = Lookup(Genes.of(genes))
    sources, targets = [], []
    for batch in batches(
        path,
        ("ORF", "TF"),
        {"ORF": NAME, "TF": TEXT},
        separator=",",
        has_header=False,
        limit_bytes=limit_bytes,
    ):
        targets.append(lookup.places(batch.column(0)))
        sources.append(lookup.places([_gene_of(name, lookup) for name in batch.column(1).to_pylist()]))
    return network_of(
        "yeastract_orf_tf",
        np.concatenate(sources),
        np.concatenate(targets),
        lookup,
        path=path,
        directed=True,
        unknown_limit=unknown_limit,
    )


def _gene_of(protein: str, lookup: Lookup) -> str:
    """Return the gene of a protein written as SGD's nomenclature has it: `Gcn4p` is made from GCN4."""
    gene = protein[:-1].upper()
    is_protein = protein.endswith("p") and lookup.genes.place(protein) < 0
    return gene if is_protein else protein


def _lookup(path: Path, genes: Genes | Iterable[str] | None, names: Genes | None) -> Lookup:
    beside = path.with_name(NAMES_FILE)
    if names is None and beside.exists():
        names = yeastract_names(beside)
    if genes is not None:
        return Lookup(Genes.of(genes), first=names)
    if names is None:
        raise bad_file(path, f"names its genes by standard name; expected {NAMES_FILE} beside it, or genes")
    return Lookup(names)


def _name(path: Path, pattern: re.Pattern[str]) -> str:
    named = pattern.fullmatch(path.name)
    return f"yeastract_{named['kind'] if named else path.name.split('.')[0]}"
