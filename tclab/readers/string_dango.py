"""The STRING v9.1 channels as DANGO's authors publish them: one adjacency a channel, and the gene list.

Zhang et al., *DANGO* (Cell Systems 2024), folder `data/yeast_network` of its repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tclab.graph import Network
from tclab.readers.edges import Lookup, network_of
from tclab.readers.errors import ReadError, bad_file, shown
from tclab.readers.genes import Genes
from tclab.readers.report import Report
from tclab.readers.source import LIMIT_BYTES, text_lines
from tclab.readers.table import INTEGER, NUMBER, bad_row, batches

GENES_FILE = "yeast_string_genes.txt"
ADJACENCY_FILE = re.compile(r"yeast_string_(?P<channel>[a-z]+)_adjacency\.txt(\.gz)?")

_COLUMNS = ("first gene", "second gene", "score")


def dango_genes(path: str | Path) -> Genes:
    """Return DANGO's gene list: one systematic name a line, in the order that the adjacencies count in.

    **Raises:** `ReadError` with the line for a line that is not one name, or a name that stands twice.
    """
    line_of: dict[str, int] = {}
    for number, line in text_lines(path):
        name = line.strip()
        if len(name.split()) != 1 or any(sign in name for sign in ",;"):
            raise bad_file(path, f"{shown(line)}, expected one systematic name such as YAL001C", line=number)
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
    score, 0 to 1. Each edge stands twice, once in each direction, with one score; it is kept once, from the
    lower index to the higher. The scores are in `network.report.scores`.

    **Arguments:**

    - `path`: the channel's file.
    - `genes`: the nodes of the network; without it, the list that the file counts in.
    - `counted_in`: the list that the file counts in; without it, `yeast_string_genes.txt` beside the file.
    - `limit_bytes`: how much the file may unpack to.

    **Raises:** `ReadError` with the line for a gene outside the list, a score outside 0 to 1, an edge whose
    reverse is missing (the file was cut) or has another score, and an edge that stands more than twice.
    """
    path = Path(path)
    named = ADJACENCY_FILE.fullmatch(path.name)
    name = f"string9_1_{named['channel'] if named else path.name.split('.')[0]}"
    own = Genes.of(counted_in) if counted_in is not None else dango_genes(_beside(path))
    all_genes = own if genes is None else Genes.of(genes)

    parts = [
        np.stack([batch.column(place).to_numpy().astype(np.float64) for place in range(3)])
        for batch in batches(
            path,
            _COLUMNS,
            dict(zip(_COLUMNS, (INTEGER, INTEGER, NUMBER), strict=True)),
            separator="\t",
            has_header=False,
            limit_bytes=limit_bytes,
        )
    ]
    columns = np.concatenate(parts, axis=1)
    ends, scores = columns[:2].astype(np.int64), columns[2]
    for place in range(2):
        _first_bad(
            path,
            (ends[place] < 1) | (ends[place] > len(own)),
            ends[place],
            _COLUMNS[place],
            f"1 to {len(own)}, a line of the gene list",
        )
    _first_bad(path, ~((scores >= 0) & (scores <= 1)), scores, "score", "0 to 1")
    if error := _not_mirrored(path, ends, scores):
        raise error
    lookup = Lookup(all_genes)
    place_of = lookup.places([own.names[row] for row in range(len(own))])
    lookup.found = {own.names[row - 1]: int(place_of[row - 1]) for row in np.unique(ends).tolist()}
    return network_of(
        name, place_of[ends[0] - 1], place_of[ends[1] - 1], lookup, path=path, directed=False, scores=scores
    )


def _beside(path: Path) -> Path:
    genes = path.with_name(GENES_FILE)
    if not genes.exists():
        raise bad_file(path, f"counts in a gene list; expected {GENES_FILE} beside it, or the list as counted_in")
    return genes


def _first_bad(path: Path, bad: np.ndarray, values: np.ndarray, what: str, expected: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise bad_row(path, row, f"{what} is {values[row]:g}, expected {expected}", has_header=False)


def _not_mirrored(path: Path, ends: np.ndarray, scores: np.ndarray) -> ReadError | None:
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
            return bad_row(path, row, f"edge {one} to {other} stands here again", has_header=False)
        row_of[one, other] = row
    for (one, other), row in row_of.items():
        reverse = row_of.get((other, one))
        if one == other:
            why = f"gene {one} is joined to itself, which STRING never says"
        elif reverse is None:
            why = f"edge {one} to {other} has no reverse, though each edge stands twice: the file was cut"
        elif scores[row] != scores[reverse]:
            why = f"edge {one} to {other} has score {scores[row]:g}, its reverse {scores[reverse]:g}"
        else:
            continue
        return bad_row(path, row, why, has_header=False)
    return None
