"""Any delimited edge list: two columns of names, and a weight; what has to be guessed is said in the report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from tclab._limits import number_of
from tclab._source import opened
from tclab.errors import InputError
from tclab.graph import Network
from tclab.readers._genes import UNKNOWN_LIMIT, Genes, Lookup
from tclab.readers._networks import network_of
from tclab.readers._table import NAME, NUMBER, Column, ReadError, Table, quoted

_ENDS = ("source", "target")
_SEPARATORS = ("\t", ",", ";", " ")
_COMMENTS = ("#", "%")
# What headers call an edge's source and its target, and the other words that they are made of.
_SOURCES = {"source", "src", "from", "head", "tf", "regulator", "bait", "start"}
_TARGETS = {"target", "dst", "to", "tail", "tg", "prey", "end", "destination", "dest", "regulated"}
_WORDS = frozenset(
    """a array b child entrez factor first gene genes i id ids interactor item j left locus n name node nodes number
    official one orf other parent partner protein query right s second standard string sym symbol systematic t tag two
    u uniprot v vertex x y""".split()  # noqa: SIM905 a list of fifty strings is harder to read
) | (_SOURCES | _TARGETS)
_WEIGHTS = {"weight", "weights", "w", "score", "combined_score", "value"}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^A-Za-z\d\s_.:-]+")
_BLANKS = "".join(filter(str.isspace, map(chr, range(0x3001)))) + "\u200b\ufeff"
_OTHER_FORMATS = {  # how another format's file begins, in lower case → what reads it
    "%%matrixmarket": "scipy.io.mmread",
    "*vertices": "networkx.read_pajek",
    "graph [": "networkx.read_gml",
    "<?xml": "networkx.read_graphml",
    "<graphml": "networkx.read_graphml",
    '{"': "json.load",
}


def edge_list(
    path: str | Path,
    genes: Genes | Iterable[str] | None = None,
    *,
    name: str | None = None,
    sep: str | None = None,
    header: bool | None = None,
    columns: Sequence[str | int] | None = None,
    directed: bool = False,
    node_type: str = "gene",
    unknown_limit: float = UNKNOWN_LIMIT,
) -> Network:
    """Return the network of a delimited edge list: plain, gzipped or zipped.

    Lines before the first edge that begin with `#` or `%` are comments, such as SNAP's; blanks around a name, and
    quotes around a cell (RFC 4180), are not part of it. An edge that appears several times is kept once, with its
    highest weight. So is an undirected edge that is there in both directions: it is stored from the node that comes
    first in their order to the other, as in the cell graph, and messages pass that way only.

    `network.report.notes` says what was guessed; `sep`, `header` and `columns` say it instead.

    **Arguments:**

    - `path`: the file.
    - `genes`: the names of the nodes, in their order; None takes those of the file, sorted, and lists them in
      `network.report.node_names`.
    - `name`: of the network; None takes the file's name up to the first dot.
    - `sep`: one character between cells; None takes the first of tab, comma, semicolon and space that the first line
      has. Several spaces are like one.
    - `header`: whether the first line after the comments names the columns; None finds out: it does if no other
      line has the names in these two cells, and they are words such as `source` and `target`, or the weight is no
      number, or all other lines have numbers for names.
    - `columns`: of the source, the target, and the weight if there is one, by the names in the header or by their
      positions from 0. None takes the columns that a header calls `source` and `target` (or `from` and `to`, …), else
      the first two; and for the weight, any finite number, the one called `weight`, `score`, …, else the next after
      these, if there is one.
    - `directed`: keep each edge as the file has it, from its source to its target.
    - `node_type`: what the nodes are.
    - `unknown_limit`: the share of rows that may name a node that is not in `genes`.

    **Raises:** `ReadError` with the row for a wrong number of columns, an empty name, a comment or a header between
    edges, or a weight that is not a finite number; for too many unknown names; for a format with a name of its own,
    such as MatrixMarket's.
    """
    if columns is not None and (isinstance(columns, str) or len(columns) not in (2, 3)):
        raise InputError(f"columns is {columns!r}, expected those of source, target and perhaps weight")
    with opened(path, "an edge list", ReadError) as file:
        begin = file.peek(80)[:80].decode(errors="replace").lower()
        for sign, reader in _OTHER_FORMATS.items():
            if begin.startswith(sign):
                raise ValueError(f"begins with {sign}: {reader} reads that format, and CellGraph.from_edges its edges")
        table = Table(file, comment=_COMMENTS, loose=True)
        table.separator = sep or _separator(table.first)
        table.columns = [_without_blanks(cell) for cell in table.cells(table.first)]
        chosen = _chosen(table, columns, header)
        first = [table.columns[i] for i in chosen]
        rest = _read(table, chosen)
        names = {_without_blanks(name) for end in _ENDS for name in rest[end].cat.categories}
        guessed = header is None or (header and table.has_comments)  # the header may be a comment
        is_header = _is_header(first, rest, names) if guessed else header
        if not is_header and columns is None and chosen[:2] != [0, 1]:
            raise ValueError(f"the first line, {quoted(table.first)}, is a header or an edge: pass header= or columns=")
        if is_header and rest.empty:
            raise ValueError("holds no rows after its header")
        edge = [] if is_header else first[:2]
        weights = [] if is_header else [_weight(first)]
        lookup = Lookup(Genes.of(sorted(names.union(edge)) if genes is None else genes), _without_blanks)
        source, target = (lookup.places(rest[end]) for end in _ENDS)
        if edge:
            source, target = np.append(source, lookup.place(edge[0])), np.append(target, lookup.place(edge[1]))
        notes = [f"{table.between} between cells"] if sep is None else []
        if header is None:
            notes.append("a header" if is_header else "no header")
        if guessed and not is_header and not names & {*first[:2]}:
            notes.append(f"only the first line names {' and '.join(first[:2])}: if it is a header, pass header=True")
        if columns is None and len(table.columns) > 2:
            notes.append(f"columns {', '.join(str(i + 1) for i in chosen)}")
        return network_of(
            path, name or Path(path).name.split(".")[0], source, target, lookup, directed=directed,
            node_type=node_type, scores=np.append(rest["weight"], weights) if len(chosen) > 2 else None, weighted=True,
            unknown_limit=unknown_limit, notes=(f"guessed: {', '.join(notes)}",) if notes else (),
            node_names=lookup.genes.names if genes is None else None,
        )  # fmt: skip


def _separator(first: str) -> str:
    for sign in _SEPARATORS:
        if sign in first.strip():
            return sign
    raise ValueError(f"{quoted(first)}, expected two names with a tab, comma, semicolon or space between")


def _chosen(table: Table, columns: Sequence[str | int] | None, header: bool | None) -> list[int]:
    """Return the positions of source, target, and of the weight if there is one."""
    cells = table.columns
    if columns is not None:
        chosen = [table.column(each) if isinstance(each, str) else each for each in columns]
    else:
        ends = [[i for i, cell in enumerate(cells) if _says(cell, words)] for words in (_SOURCES, _TARGETS)]
        named = header is not False and len(ends[0]) == len(ends[1]) == 1
        chosen = [*ends[0], *ends[1]] if named else [0, 1]
        weights = [i for i, cell in enumerate(cells) if named and cell.lower() in _WEIGHTS]
        chosen += [*weights, *range(max(chosen) + 1, len(cells))][:1]
    if not all(0 <= i < len(cells) for i in chosen):
        raise ValueError(f"{len(cells)} columns, expected {max(chosen) + 1} or more: {quoted(table.first)}")
    return chosen


def _words(cell: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(cell)} or {"?"}


def _says(cell: str, words: set[str]) -> bool:
    return _words(cell) <= _WORDS and bool(_words(cell) & words)


def _read(table: Table, chosen: Sequence[int]) -> pd.DataFrame:
    """Return the rows after the first line: source, target and, of three chosen columns, weight."""
    table.columns = [f"column {i}" for i in range(1, len(table.columns) + 1)]
    columns = {"source": Column(chosen[0], NAME, fault=_no_source), "target": Column(chosen[1], NAME, fault=_no_name)}
    if len(chosen) > 2:
        columns["weight"] = Column(chosen[2], NUMBER)
    return table.read(columns, may_be_empty=True)


def _is_header(first: Sequence[str], rest: pd.DataFrame, names: set[str]) -> bool:
    """Return whether the first line's cells are a header, given the rows after it; raise where they come again."""
    ends = {*first[:2]}
    reads_so = all(_words(cell) <= _WORDS for cell in ends)
    if len(first) > 2:
        if number_of(first[2]) is not None or first[2].lower() in ("", "na", "n/a", "null", "none"):
            return False
        reads_so |= first[2].isidentifier()
    if all(len(cell) == 1 for cell in ends) and any(len(name) == 1 for name in names - ends):
        return False  # a graph of the nodes a, b, c, …
    numbered = not any(cell.isdecimal() for cell in ends) and all(name.isdecimal() for name in names)
    if not names & ends:
        return reads_so or numbered
    whole = ((rest["source"] == first[0]) & (rest["target"] == first[1])).to_numpy()
    if not reads_so or (rest[[*_ENDS]].isin(ends).any(axis=1) & ~whole).any():
        return False
    again = f"the header, {quoted(', '.join(first))}, comes again as row {int(np.argmax(whole)) + 1}"
    raise ValueError(f"{again}; are these two files?")


def _weight(first: Sequence[str]) -> float:
    """Return the weight in the first line, which is an edge; 1 where there is none."""
    if why := _no_source(first[0]) or _no_name(first[1]):
        raise ValueError(f"a name in the first line {why}")
    weight = number_of(first[2]) if len(first) > 2 else 1.0
    if weight is None or not np.isfinite(weight):
        raise ValueError(f"the weight in the first line is {quoted(first[2])}, expected a finite number")
    return weight


def _without_blanks(name: str) -> str:
    """Return a name without blanks around it, those included that do not break or have no width."""
    return name.strip(_BLANKS)


def _no_name(name: str) -> str | None:
    return None if _without_blanks(name) else "is empty, expected a name"


def _no_source(name: str) -> str | None:
    if name.startswith(_COMMENTS):
        return f"begins with {name[0]}: comments are expected before the first edge"
    return _no_name(name)
