"""Any delimited edge list: two columns of names, and a weight in the third."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from tclab.graph import Network
from tclab.readers._edge_table import load_network
from tclab.readers._gene_names import UNKNOWN_LIMIT, Genes, Lookup
from tclab.readers._source import LIMIT_BYTES, Progress, bad_file, quoted
from tclab.readers._table import Table, first_line

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

    An edge that appears several times, or in both directions where it is undirected, is kept once, with its highest
    weight.

    **Arguments:**

    - `path`: the file.
    - `genes`: the names of the nodes, in their order; None takes those of the file, sorted, and lists them in
      `network.report.node_names`.
    - `name`: of the network; None takes the file's name up to the first dot.
    - `separator`: one character; None takes the first of tab, comma, semicolon and space that the first line has.
    - `has_header`: whether the first line names the columns; None finds out: it does if it begins with `#`, or if its
      first two cells are words such as `source` and `target`.
    - `weighted`: whether the third column is the weight, any finite number; None: where there is a third column.
      Further columns are ignored.
    - `directed`: whether edges go from the first node to the second only.
    - `node_type`: what the nodes are.
    - `self_loops`: whether edges from a node to itself are kept.
    - `unknown_limit`: the share of rows that may name a node that is not in `genes`.
    - `limit_bytes`: how much the file may unpack to.
    - `progress`: called as the file is read.

    **Raises:** `ReadError` with the line for a wrong number of columns, an empty name, or a weight that is not a
    finite number; for too many unknown names.
    """
    number, first = first_line(path, limit_bytes=limit_bytes)
    if separator is None:
        separator = next((sign for sign in _SEPARATORS if sign in first.strip()), None)
        if separator is None:
            why = f"{quoted(first)}, expected two names with a tab, comma, semicolon or space between"
            raise bad_file(path, why, line=number)
    cells = [cell.strip() for cell in first.split(separator)]
    if len(cells) < 2 + bool(weighted):
        raise bad_file(path, f"{len(cells)} columns, expected {2 + bool(weighted)} or more", line=number)
    if has_header is None:
        has_header = first.startswith("#") or all(_ENDS.fullmatch(cell) for cell in cells[:2])
    if weighted is None:
        weighted = len(cells) > 2
    table = Table(
        path,
        separator=separator,
        columns=[f"column {place}" for place in range(1, len(cells) + 1)],
        skip_header=has_header,
        limit_bytes=limit_bytes,
        progress=progress,
    )

    def check(batch: pa.RecordBatch, rows_before: int) -> None:
        for column in table.columns[:2]:
            cells = batch.column(column)
            if "" in cells.dictionary.to_pylist():
                row = rows_before + cells.to_pylist().index("")
                raise table.bad_row(row, f"{column} is empty, expected a name")
        if weighted:
            values = batch.column(table.columns[2]).to_numpy(zero_copy_only=False)
            if not np.isfinite(values).all():
                row = int(np.argmin(np.isfinite(values)))
                why = f"{table.columns[2]} is {values[row]}, expected a finite number"
                raise table.bad_row(rows_before + row, why)

    return load_network(
        table,
        name or Path(path).name.split(".")[0],
        (table.columns[0], table.columns[1]),
        None if genes is None else Lookup(Genes.of(genes)),
        directed=directed,
        weight=table.columns[2] if weighted else None,
        check=check,
        node_type=node_type,
        self_loops=self_loops,
        unknown_limit=unknown_limit,
    )
