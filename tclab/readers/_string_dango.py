"""STRING v9.1 as DANGO's authors publish it: one adjacency for each channel, and the gene list.

Zhang et al., *DANGO* (Cell Systems 2024), folder `data/yeast_network` of its repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tclab.graph import Network
from tclab.readers._edge_table import network_of
from tclab.readers._gene_names import Genes, Lookup
from tclab.readers._old_source import LIMIT_BYTES, ReadError, bad_file, quoted, text_lines
from tclab.readers._read_report import Report
from tclab.readers._table import INTEGER, NUMBER, Table

GENES_FILE = "yeast_string_genes.txt"
ADJACENCY_FILE = re.compile(r"yeast_string_(?P<channel>[a-z]+)_adjacency\.txt(\.gz)?")

_COLUMNS = ("first gene", "second gene", "score")


def dango_genes(path: str | Path) -> Genes:
    """Return DANGO's gene list: one systematic name a line; the adjacencies refer to its line numbers.

    **Raises:** `ReadError` with the line for a line that is not one name, or a name that appears twice.
    """
    line_of: dict[str, int] = {}
    for number, line in text_lines(path):
        name = line.strip()
        if len(name.split()) != 1 or any(sign in name for sign in ",;"):
            raise bad_file(path, f"{quoted(line)}, expected one systematic name such as YAL001C", line=number)
        if name in line_of:
            raise bad_file(path, f"gene {name!r} is already on line {line_of[name]}", line=number)
        line_of[name] = number
    if not line_of:
        raise bad_file(path, "holds no gene")
    return Genes(tuple(line_of), report=Report(str(path), len(line_of), len(line_of)))


def string_dango(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    counted_in: Genes | Iterable[str] | None = None,
    limit_bytes: int = LIMIT_BYTES,
) -> Network:
    """Return one channel, `yeast_string_<channel>_adjacency.txt[.gz]`, as the network `string9_1_<channel>`.

    Three columns between tabs, no header: two genes as row numbers of the gene list, counted from 1, and a
    score, 0 to 1. The file has each edge in both directions, with one score; it is kept once, from the
    lower index to the higher. The scores are in `network.report.scores`.

    **Arguments:**

    - `path`: the channel's file.
    - `genes`: the nodes of the network; None takes `counted_in`.
    - `counted_in`: the list whose line numbers the file has; None takes `yeast_string_genes.txt` in the same folder.
    - `limit_bytes`: how much the file may unpack to.

    **Raises:** `ReadError` with the line for a gene outside the list, a score outside 0 to 1, an edge whose
    reverse is missing (the file was cut) or has another score, and an edge that appears more than twice.
    """
    path = Path(path)
    match = ADJACENCY_FILE.fullmatch(path.name)
    name = f"string9_1_{match['channel'] if match else path.name.split('.')[0]}"
    list_file = path.with_name(GENES_FILE)
    if counted_in is None and not list_file.exists():
        why = f"has line numbers of a gene list; expected {GENES_FILE} in the same folder, or the list as counted_in"
        raise bad_file(path, why)
    listed = dango_genes(list_file) if counted_in is None else Genes.of(counted_in)
    table = Table(path, columns=_COLUMNS, limit_bytes=limit_bytes)
    types = dict(zip(_COLUMNS, (INTEGER, INTEGER, NUMBER), strict=True))
    parts = [
        np.stack([column.to_numpy().astype(np.float64) for column in batch.columns]) for batch in table.batches(types)
    ]
    columns = np.concatenate(parts, axis=1)
    ends, scores = columns[:2].astype(np.int64), columns[2]
    expected = f"1 to {len(listed)}, a line of the gene list"
    for column in (0, 1):
        _check(table, (ends[column] >= 1) & (ends[column] <= len(listed)), ends[column], _COLUMNS[column], expected)
    _check(table, (scores >= 0) & (scores <= 1), scores, "score", "0 to 1")
    if error := _not_mirrored(table, ends, scores):
        raise error
    lookup = Lookup(listed if genes is None else Genes.of(genes))
    place_of = np.full(len(listed), -1, dtype=np.int64)
    for row in np.unique(ends).tolist():
        place_of[row - 1] = lookup.place(listed.names[row - 1])
    source, target = place_of[ends - 1]
    return network_of(name, source, target, lookup, path=path, directed=False, scores=scores)


def _check(table: Table, good: np.ndarray, values: np.ndarray, column: str, expected: str) -> None:
    if not good.all():
        row = int(np.argmin(good))
        raise table.bad_row(row, f"{column} is {values[row]:g}, expected {expected}")


def _not_mirrored(table: Table, ends: np.ndarray, scores: np.ndarray) -> ReadError | None:
    """Return the error for the first row without exactly one reverse of the same score, or None."""
    low, high = np.sort(ends, axis=0)
    order = np.lexsort((ends[0], high, low))
    pairs = np.stack([low, high, ends[0]])[:, order]
    if pairs.shape[1] % 2 == 0:
        first, second = pairs[:, 0::2], pairs[:, 1::2]
        mirrored = (first[:2] == second[:2]).all(axis=0) & (first[2] < second[2])
        same = scores[order][0::2] == scores[order][1::2]
        if (mirrored & same).all():
            return None
    row_of: dict[tuple[int, int], int] = {}
    for row, (one, other) in enumerate(ends.T.tolist()):
        if (one, other) in row_of:
            return table.bad_row(row, f"edge {one} to {other} appears again")
        row_of[one, other] = row
    for (one, other), row in row_of.items():
        reverse = row_of.get((other, one))
        if one == other:
            why = f"gene {one} is joined to itself, which STRING never has"
        elif reverse is None:
            why = f"edge {one} to {other} has no reverse, though the format has both directions: the file was cut"
        elif scores[row] != scores[reverse]:
            why = f"edge {one} to {other} has score {scores[row]:g}, its reverse {scores[reverse]:g}"
        else:
            continue
        return table.bad_row(row, why)
    return None
