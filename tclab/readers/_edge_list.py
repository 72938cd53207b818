"""Any delimited edge list: two columns of names, and a weight in the third."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from tclab._limits import number_of
from tclab.graph import Network
from tclab.readers._edge_table import equals, load_network, without_blanks
from tclab.readers._gene_names import UNKNOWN_LIMIT, Genes, Lookup
from tclab.readers._old_source import LIMIT_BYTES, Progress, ReadError, bad_file, quoted
from tclab.readers._table import NAME, Table, first_line

_SEPARATORS = ("\t", ",", ";", " ")
_COMMENTS = ("#", "%")
# What the ends of an edge are called in headers; a cell that is made of such words and of numbers is one.
_WORDS = frozenset(
    """a b bait child destination dest dst end entrez factor first from gene genes head i id ids interactor item j left
    locus n name node nodes number official one orf other parent partner prey protein query array regulated regulator
    right s second source src standard start string sym symbol systematic t tag tail target tf tg to two u uniprot v
    vertex x y""".split()  # noqa: SIM905 a list of a hundred strings is harder to read
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^A-Za-z\d\s_.:-]+")


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

    Lines before the first edge that begin with `#` or `%` are comments, such as SNAP's; blanks around a name are not
    part of it. An edge that appears several times is kept once, with its highest weight. So is an undirected edge that
    is there in both directions: it is stored from the node that comes first in their order to the other, as in the cell
    graph, and messages pass that way only.

    **Arguments:**

    - `path`: the file.
    - `genes`: the names of the nodes, in their order; None takes those of the file, sorted, and lists them in
      `network.report.node_names`.
    - `name`: of the network; None takes the file's name up to the first dot.
    - `separator`: one character; None takes the first of tab, comma, semicolon and space that the first line has.
    - `has_header`: whether the first line after the comments names the columns; None finds out: it does if no other
      line has the names in its first two cells, and these are words such as `source` and `target`, or its weight is no
      number, or all other lines have numbers for names.
    - `weighted`: whether the third column is the weight, any finite number; None: where there is a third column.
      Further columns are ignored.
    - `directed`: keep each edge as the file has it, from its first node to its second.
    - `node_type`: what the nodes are.
    - `self_loops`: whether edges from a node to itself are kept.
    - `unknown_limit`: the share of rows that may name a node that is not in `genes`.
    - `limit_bytes`: how much the file may unpack to.
    - `progress`: called as the file is read.

    **Raises:** `ReadError` with the line for a wrong number of columns, an empty name, a comment or a header between
    edges, or a weight that is not a finite number; for too many unknown names.
    """
    number, first = first_line(path, comment=_COMMENTS, limit_bytes=limit_bytes)
    if separator is None:
        separator = next((sign for sign in _SEPARATORS if sign in first.strip()), None)
        if separator is None:
            why = f"{quoted(first)}, expected two names with a tab, comma, semicolon or space between"
            raise bad_file(path, why, line=number)
    cells = [without_blanks(cell).strip('"') for cell in first.split(separator)]
    if len(cells) < 2 + bool(weighted):
        raise bad_file(path, f"{len(cells)} columns, expected {2 + bool(weighted)} or more", line=number)
    if weighted is None:
        weighted = len(cells) > 2

    def table_of(*, skip_header: bool) -> Table:
        return Table(
            path,
            separator=separator,
            columns=[f"column {place}" for place in range(1, len(cells) + 1)],
            skip_header=skip_header,
            comment=_COMMENTS,
            limit_bytes=limit_bytes,
            progress=progress,
        )

    found_out = has_header is None
    if found_out or first_line(path, limit_bytes=limit_bytes)[1].startswith(_COMMENTS):  # the header may be a comment
        has_header = has_header is not False and _is_header(cells, table_of(skip_header=True), weighted=weighted)
    table = table_of(skip_header=bool(has_header))
    rows_of_first = dict.fromkeys(cells[:2], 0)  # the names of the first line → in how many cells they are

    def check(batch: pa.RecordBatch, rows_before: int) -> None:
        for column in table.columns[:2]:
            names = batch.column(column)
            for place, name in enumerate(map(without_blanks, names.dictionary.to_pylist())):
                if name in rows_of_first:
                    rows_of_first[name] += int((names.indices.to_numpy() == place).sum())
                if not name or (name.startswith(_COMMENTS) and column == table.columns[0]):
                    row = rows_before + names.indices.to_pylist().index(place)
                    what = f"begins with {name[0]}: comments are expected" if name else "is empty, expected a name"
                    raise table.bad_row(row, f"{column} {what}" + (" before the first edge" if name else ""))
        if weighted:
            values = batch.column(table.columns[2]).to_numpy(zero_copy_only=False)
            if not np.isfinite(values).all():
                row = int(np.argmin(np.isfinite(values)))
                why = f"{table.columns[2]} is {values[row]}, expected a finite number"
                raise table.bad_row(rows_before + row, why)

    network = load_network(
        table,
        name or Path(path).name.split(".")[0],
        (table.columns[0], table.columns[1]),
        None if genes is None else Lookup(Genes.of(genes), respell=without_blanks),
        directed=directed,
        weight=table.columns[2] if weighted else None,
        check=check,
        node_type=node_type,
        self_loops=self_loops,
        unknown_limit=unknown_limit,
    )
    if found_out and not has_header and set(rows_of_first.values()) == {1}:
        note = f"only the first line names {' and '.join(rows_of_first)}: if it is a header, pass has_header=True"
        network = replace(network, report=replace(network.report, notes=(*network.report.notes, note)))
    return network


def _is_header(cells: list[str], rest: Table, *, weighted: bool) -> bool:
    """Return whether the first line's cells are a header, given the table after it; raise where they come again."""
    reads_so = all(_WORDS.issuperset(word.lower() for word in _WORD.findall(cell) or ["?"]) for cell in cells[:2])
    if len(cells) > 2:
        weight = cells[2].lower()
        if number_of(weight) is not None or weight in ("", "na", "n/a", "null", "none"):
            return False
        reads_so |= weighted and weight.isidentifier()
    letters = all(len(cell) == 1 for cell in cells[:2])
    numbered = not any(cell.isdecimal() for cell in cells[:2])
    again = None
    rows = 0
    try:
        for batch in rest.batches(dict.fromkeys(rest.columns[:2], NAME)):
            distinct = [list(map(without_blanks, column.dictionary.to_pylist())) for column in batch.columns]
            numbered = numbered and all(name.isdecimal() for names in distinct for name in names)
            if letters and any(len(name) == 1 for names in distinct for name in names if name not in cells[:2]):
                return False  # a graph of the nodes a, b, c, …
            if not (reads_so or numbered):
                return False
            is_first = [equals(column, cell) for column, cell in zip(batch.columns, cells, strict=False)]
            whole = is_first[0] & is_first[1]
            if whole.any() and again is None:
                again = rows + int(np.argmax(whole))
            for names, column in zip(distinct, batch.columns, strict=True):
                named = np.isin(column.indices.to_numpy(), [i for i, name in enumerate(names) if name in cells[:2]])
                if (named & ~whole).any():
                    return False
            rows += batch.num_rows
    except ReadError:
        return reads_so  # the reading proper says what is wrong
    if again is not None:
        raise rest.bad_row(again, f"the header, {quoted(', '.join(cells))}, comes again; are these two files?")
    return True
