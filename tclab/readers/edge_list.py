"""Any delimited edge list: two columns of names, and a weight where there is a third."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from tclab.graph import Network
from tclab.readers.edges import UNKNOWN_LIMIT, Lookup, network_of
from tclab.readers.errors import bad_file, shown
from tclab.readers.genes import Genes
from tclab.readers.source import LIMIT_BYTES, Progress, text_lines
from tclab.readers.table import NAME, NUMBER, bad_row, batches

_SEPARATORS = ("\t", ",", ";", " ")
_ENDS = re.compile(r"#.*|source|target|from|to|(node|gene|protein|interactor|id|name)[ _.]?[0-9ab]?|[uv]|tf", re.I)


def edge_list(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    name: str | None = None,
    separator: str | None = None,
    has_header: bool | None = None,
    weighted: bool | None = None,
    directed: bool = False,
    node_type: str = "gene",
    self_loops: bool = True,
    unknown_limit: float = UNKNOWN_LIMIT,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress | None = None,
) -> Network:
    """Return the network of a delimited edge list, gzipped or not.

    An edge that stands several times, or in both directions where it is undirected, is kept once, with its
    highest weight.

    **Arguments:**

    - `genes`: the names of the nodes, in their order; without it, those in the file, sorted, which are then
      in `network.report.node_names`.
    - `name`: of the network; without it, the file's name up to the first dot.
    - `separator`: one character; without it, the first of tab, comma, semicolon and space that parts the
      first line.
    - `has_header`: whether the first line names the columns; without it, it does where it begins with `#` or
      its first two cells are such words as `source` and `target`.
    - `weighted`: whether the third column is the weight, any finite number; without it, it is where there is
      one. Further columns are passed over.
    - `directed`: whether a row goes from its first node to its second, or joins them both ways.
    - `node_type`: what the nodes are.
    - `self_loops`: whether edges from a node to itself are kept.
    - `unknown_limit`: the share of rows that may name a node that is not in `genes`.

    **Raises:** `ReadError` with the line for a wrong number of columns, an empty name, or a weight that is
    not a finite number; for too many unknown names.
    """
    number, first = next(islice(text_lines(path, limit_bytes=limit_bytes), 1), (0, ""))
    if not number:
        raise bad_file(path, "holds nothing but blank lines")
    if separator is None:
        separator = next((sign for sign in _SEPARATORS if sign in first.strip()), None)
        if separator is None:
            raise bad_file(
                path,
                f"{shown(first)}, expected two names with a tab, comma, semicolon or space between",
                line=number,
            )
    cells = [cell.strip() for cell in first.split(separator)]
    if len(cells) < 2 + bool(weighted):
        raise bad_file(path, f"{len(cells)} columns, expected {2 + bool(weighted)} or more", line=number)
    if has_header is None:
        has_header = first.startswith("#") or all(_ENDS.fullmatch(cell) for cell in cells[:2])
    if weighted is None:
        weighted = len(cells) > 2
    columns = [f"column {place + 1}" for place in range(len(cells))]
    types: dict[str, pa.DataType] = dict.fromkeys(columns[:2], NAME)
    if weighted:
        types[columns[2]] = NUMBER

    lookup = Lookup(Genes(()) if genes is None else Genes.of(genes))
    ends: list[list[np.ndarray]] = [[], []]
    weights: list[np.ndarray] = []
    met: dict[str, int] = {}
    rows = 0
    for batch in batches(
        path,
        columns,
        types,
        separator=separator,
        has_header=has_header,
        limit_bytes=limit_bytes,
        progress=progress,
    ):
        for place in range(2):
            names = batch.column(place)
            if "" in names.dictionary.to_pylist():
                row = rows + names.to_pylist().index("")
                why = f"{columns[place]} is empty, expected a name"
                raise bad_row(path, row, why, has_header=has_header)
            if genes is None:
                for each in names.dictionary.to_pylist():
                    met.setdefault(each, len(met))
                order = np.array([met[each] for each in names.dictionary.to_pylist()], dtype=np.int64)
                ends[place].append(order[names.indices.to_numpy()])
            else:
                ends[place].append(lookup.places(names))
        if weighted:
            values = batch.column(2).to_numpy(zero_copy_only=False)
            if not np.isfinite(values).all():
                row = int(np.argmin(np.isfinite(values)))
                why = f"{columns[2]} is {values[row]}, expected a finite number"
                raise bad_row(path, rows + row, why, has_header=has_header)
            weights.append(values)
        rows += batch.num_rows
    source, target = (np.concatenate(parts) for parts in ends)
    if genes is None:
        names = sorted(met)
        place_of = np.empty(len(met), dtype=np.int64)
        place_of[[met[each] for each in names]] = np.arange(len(met))
        source, target = place_of[source], place_of[target]
        lookup = Lookup(Genes(tuple(names)))
    return network_of(
        name or Path(path).name.split(".")[0],
        source,
        target,
        lookup,
        path=path,
        directed=directed,
        node_type=node_type,
        scores=np.concatenate(weights) if weighted else None,
        weighted=weighted,
        self_loops=self_loops,
        unknown_limit=unknown_limit,
        node_names=lookup.genes.names if genes is None else None,
    )
