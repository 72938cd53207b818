"""YEASTRACT's regulation tables: which transcription factor regulates which gene.

The "Regulation Matrix" page of yeastract.com exports `RegulationTwoColumnTable_<kind>.tsv`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tclab.graph import Network
from tclab.readers._edge_table import load_network, network_of
from tclab.readers._gene_names import UNKNOWN_LIMIT, Genes, Lookup, owners_of
from tclab.readers._old_source import LIMIT_BYTES, bad_file, quoted, text_lines
from tclab.readers._read_report import Report
from tclab.readers._table import Table, first_line, no_rows

NAMES_FILE = "orftogene.txt"
MATRIX_FILE = re.compile(r"RegulationMatrix_(?P<kind>\w+)\.csv(\.gz)?")
PAIRS_FILE = re.compile(r".*yeastract_orf_tf.*\.csv(\.gz)?")
TWO_COLUMN_FILE = re.compile(r"RegulationTwoColumnTable_(?P<kind>\w+)\.tsv(\.gz)?")


def yeastract_names(path: str | Path) -> Genes:
    """Return the genes of `orftogene.txt`: header `Name`, `ORF`, tab between.

    A name with two ORFs is ambiguous, and so unknown in a lookup.

    **Raises:** `ReadError` with the line for another header or a bad row.
    """
    table = Table(path)
    if table.columns != ["Name", "ORF"]:
        raise bad_file(path, f"the header is {quoted(table.columns)}, expected Name and ORF, tab between", line=1)
    pairs = list(table.rows("Name", "ORF"))
    names = tuple(sorted({orf for _, orf in pairs}))
    return Genes(names, owners_of((name, orf) for name, orf in pairs), report=Report(str(path), len(pairs), len(pairs)))


def yeastract(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    names: Genes | None = None,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
) -> Network:
    """Return one of YEASTRACT's three tables as the directed network `yeastract_<kind>`, from factor to target.

    The file's name says which one it is, `.gz` or not; where it says nothing, the first line does:

    - `RegulationTwoColumnTable_<kind>.tsv`: two columns between semicolons, no header: transcription factor, target,
      by standard name.
    - `RegulationMatrix_<kind>.csv`: between semicolons. The first line names the targets after an empty cell; each
      further line begins with a factor (as a gene, `GCN4`, or as its protein, `Gcn4p`) and has a 1 for each target
      that it regulates, a 0 for each other.
    - `…yeastract_orf_tf….csv`, the network `yeastract_orf_tf`: two columns between commas, no header: the target's
      systematic name, and the factor as its protein.

    A factor that regulates its own gene is a self-loop, kept and counted.

    **Arguments:**

    - `path`: the table.
    - `genes`: the nodes of the network; None takes those of `names`.
    - `names`: which gene a standard name means; None takes `orftogene.txt` in the same folder, if it exists. Names that
      are not in it are looked up in `genes`.
    - `unknown_limit`: the share of rows that may be lost to unknown names.
    - `limit_bytes`: how much the file may unpack to.

    **Raises:** `ReadError` with the line for a wrong number of columns or a cell of a matrix that is neither 0 nor 1;
    for too many unknown names, or no genes.
    """
    layout = _layout(Path(path), limit_bytes)
    if layout is MATRIX_FILE:
        return _matrix(path, _lookup(path, genes, names), unknown_limit, limit_bytes)
    if layout is PAIRS_FILE:
        if genes is None:
            raise bad_file(path, "has systematic names; expected genes to find them in")
        name, separator, columns = "yeastract_orf_tf", ",", ("target", "TF")
        lookup = Lookup(Genes.of(genes), respell=_gene_of_protein)
    else:
        name, separator, columns = _network_name(path, TWO_COLUMN_FILE), ";", ("TF", "target")
        lookup = _lookup(path, genes, names)
    table = Table(path, separator=separator, columns=columns, limit_bytes=limit_bytes)
    return load_network(table, name, ("TF", "target"), lookup, directed=True, unknown_limit=unknown_limit)


def _layout(path: Path, limit_bytes: int) -> re.Pattern[str]:
    """Return the pattern of the file's name, or the one whose tables begin as this file does."""
    for pattern in (TWO_COLUMN_FILE, MATRIX_FILE, PAIRS_FILE):
        if pattern.fullmatch(path.name):
            return pattern
    _, first = first_line(path, limit_bytes=limit_bytes)
    if first.lstrip('"').startswith(";"):
        return MATRIX_FILE
    return PAIRS_FILE if "," in first and ";" not in first else TWO_COLUMN_FILE


def _matrix(path: str | Path, lookup: Lookup, unknown_limit: float, limit_bytes: int) -> Network:
    lookup.respell = _gene_of_protein
    lines = text_lines(path, limit_bytes=limit_bytes)
    number, first = next(lines, (0, ""))
    columns = [cell.strip().strip('"') for cell in first.split(";")]
    if len(columns) < 2 or columns[0]:
        raise bad_file(path, f"{quoted(first)}, expected an empty cell and then targets, semicolons between", line=1)
    targets = lookup.places(columns[1:])
    ends = []
    for number, line in lines:
        factor, *cells = line.split(";")
        if len(cells) != len(targets):
            why = f"{len(cells) + 1} columns between semicolons, expected {len(columns)}"
            raise bad_file(path, why, line=number)
        if odd := set(cells) - {"0", "1"}:
            raise bad_file(path, f"a cell is {quoted(min(odd))}, expected 0 or 1", line=number)
        regulated = targets[np.array(cells) == "1"]
        ends.append(np.stack([np.full(len(regulated), lookup.place(factor.strip('"'))), regulated]))
    if not ends:
        raise no_rows(path)
    source, target = np.concatenate(ends, axis=1)
    name = _network_name(path, MATRIX_FILE)
    return network_of(name, source, target, lookup, path=path, directed=True, unknown_limit=unknown_limit)


def _gene_of_protein(protein: str) -> str:
    """Return the gene of a protein in SGD's nomenclature: `Gcn4p` is the product of GCN4."""
    return protein[:-1].upper() if protein.endswith("p") else protein


def _lookup(path: str | Path, genes: Genes | Iterable[str] | None, names: Genes | None) -> Lookup:
    """Return the lookup in `genes` after `names`, or after the list in the file's folder."""
    names_file = Path(path).with_name(NAMES_FILE)
    if names is None and names_file.exists():
        names = yeastract_names(names_file)
    if genes is not None:
        return Lookup(Genes.of(genes), first=names)
    if names is None:
        raise bad_file(path, f"has standard names; expected {NAMES_FILE} in the same folder, or genes")
    return Lookup(names)


def _network_name(path: str | Path, pattern: re.Pattern[str]) -> str:
    name = Path(path).name
    match = pattern.fullmatch(name)
    return f"yeastract_{match['kind'] if match else name.split('.')[0]}"
