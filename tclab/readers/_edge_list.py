"""Any delimited edge list: two columns of names, and a weight; what has to be guessed is said in the report.

A header decides which column is which. Where neither a header nor the content can tell, the file is refused with the
argument that says it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
import torch

from tclab._limits import number_of
from tclab._source import opened
from tclab.errors import InputError, check_known
from tclab.graph import Network
from tclab.readers._genes import UNKNOWN_LIMIT, Genes, Lookup, folded
from tclab.readers._networks import ENDS, network_of
from tclab.readers._table import NAME, SIGNS, Column, ReadError, Table, cells_of, plain_name, quoted, sniff

Duplicates = Literal["max", "sum", "error"]

_COMMENTS = ("#", "%", "sep=")  # the last is Excel's, for its own use
# What a header calls an edge's two ends: names that differ in one word, such as source_id and target_id, or gene_a and
# gene_b.
_ROLES, _NUMBERS = (
    [tuple(pair.split("/")) for pair in words.split()] for words in (
        "source/target source/destination origin/destination src/dst from/to start/end head/tail parent/child "
        "subject/object bait/prey tf/tg tf/target regulator/target query/array",
        "1/2 a/b u/v x/y i/j one/two first/second left/right",
    )
)  # fmt: skip
# The other words that such names are made of.
_OF_HEADERS = frozenset(
    """entity entrez factor gene genes id ids identifier index interactor item key label locus n name node nodes no
    number official orf partner protein standard string sym symbol systematic t uniprot vertex""".split()  # noqa: SIM905
).union(*_ROLES, *_NUMBERS)
_WEIGHTS = {"weight", "weights", "w", "score", "combined_score", "value"}
_NO_WEIGHTS = {"id", "index", "unnamed", "edge", "key", "time", "timestamp", "date", "year", "type", "label", "name"}
_WORD = re.compile(r"\d+|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^A-Za-z\d\s_.:-]+")
_OTHER_FORMATS = {  # how the file of another format begins, in any case → its name, and what reads it
    r"%%MatrixMarket": "MatrixMarket: scipy.io.mmread",
    r"\*(vertices|network)": "Pajek: networkx.read_pajek",
    r"(#.*\n|\s|(Creator|Version|Comment).*\n)*graph\s*\[": "GML: networkx.read_gml",
    r"\s*<(!doctype )?html": "a web page",
    r"\s*<(\?xml|!|graphml|gexf)": "XML, such as GraphML: networkx.read_graphml",
    r"[{\[]\s*[\[{\"]": "JSON: json.load",
    r"(strict\s+)?(di)?graph\b[^\n,;\t]*\{": "DOT: networkx.nx_pydot.read_dot",
    r"(c\b.*\n)*p\s+[a-z]+\s+\d+\s+\d+": "DIMACS: its lines “e” or “a” are the edges",
    r"dl\s+n\s*=": "UCINET's DL: igraph reads it",
    r"nodedef\s*>": "GDF: igraph's read_graph or Gephi",
    r">": "FASTA, which has sequences",
    r"%\s*bip\b": "KONECT's of two kinds of nodes, each with numbers of its own",
    r"(.*\n)?[-=+| :]*[-=]{3}[-=+| :]*\n": "a printed table: one of its first lines is a rule",
}
_SUFFIXES = {
    ".mtx": "MatrixMarket: scipy.io.mmread", ".sif": "SIF: columns=(0, 2) reads two nodes a line",
    ".paj": "Pajek: networkx.read_pajek", ".metis": "METIS: a line lists the neighbours of a node",
}  # fmt: skip
_RELATIONS = {"pp", "pd", "pr", "rc", "cr", "gl", "pm", "mp", "dp", "interacts", "-", "--", "->", "<-", "=>", "→"}
_MITAB = re.compile(r"(?i)\bID(\(s\))? interactor a\b")  # in PSI-MITAB "-" is no name: an interactor that is not there
_SECONDS = (1e9, 2e9)  # since 1970: 2001 to 2033


def edge_list(
    path: str | Path, nodes: Genes | Iterable[str] | None = None, *, name: str | None = None, sep: str | None = None,
    header: bool | None = None, columns: Sequence[str | int] | None = None, directed: bool = False,
    duplicates: Duplicates = "max", node_type: str = "gene", unknown_limit: float = UNKNOWN_LIMIT,
) -> Network:  # fmt: skip
    """Return the network of a delimited edge list: plain, gzipped or zipped.

    Lines before the first edge that begin with `#` or `%` are comments, such as SNAP's. The last of them is the header
    if it has as many cells as an edge and calls two of them source and target, as in exports of STRING. Blanks around a
    name, and quotes around a cell (RFC 4180), are not part of it. An undirected edge that is there in both directions
    is stored once, from the node that comes first in their order to the other, as in the cell graph, and messages pass
    that way only. A self-loop is kept and counted in the report.

    `network.report.notes` says what was guessed; `sep`, `header` and `columns` say it instead.
    `network.report.edge_of_row` has the edge of each row.

    **Arguments:**

    - `path`: the file.
    - `nodes`: the names of the nodes, in their order; None takes those of the file, sorted, and lists them in
      `network.report.node_names`. Upper and lower case differ.
    - `name`: of the network; None takes the file's name up to the first dot.
    - `sep`: one character between cells; None takes the first of tab, comma, semicolon and space that the first line
      has. Several spaces are like one, but in quotes.
    - `header`: whether the first line after the comments names the columns; None finds out: it does if no other
      line has the names in these two cells, and they are words such as `source` and `target`, or the third cell is no
      number, or all other lines have numbers for names. It is an edge if its names are no such words and another
      line has one of them, or if both are numbered as other names are. Else it may be either, and is asked about.
    - `columns`: of the source, the target, and the weight if there is one, by the names in the header or by their
      positions from 0. None takes those that a header calls `source` and `target` (`from` and `to`, …) or `node1` and
      `node2` (`gene_a` and `gene_b`, …), of several such pairs the one whose words all others have; else the first
      two, where all others are but a weight or an id. The weight, any finite number, is the column called `weight`,
      `score`, …, else the next after these that is not called a time or an id, if there is one and it is a number.
    - `directed`: keep each edge as the file has it, from its source to its target.
    - `duplicates`: the weight of an edge that several rows have: "max" that of the largest magnitude, so that -0.9
      stands beside 0.1, as repeated measurements of one edge; "sum" all of them together, as parallel lines, a row
      without a weight counting 1; where the file has every undirected edge in both directions, with one sum, one of
      them counts. "error" refuses such a file. The report says which rule was used on how many edges.
    - `node_type`: what the nodes are.
    - `unknown_limit`: the share of rows that may name a node that is not in `nodes`; a tenth warns.

    **Raises:** `ReadError` with the row, the first line's included, for a wrong number of columns, an empty name, a
    comment or a header between edges, or a weight that is not a finite number; for too many unknown names; for a format
    with a name of its own, such as MatrixMarket's, a matrix, or a table of nodes; for columns, a header or a separator
    that cannot be told; for an edge that comes again, if `duplicates` says so.
    """
    if columns is not None and (isinstance(columns, str) or len(columns) not in (2, 3)):
        raise InputError(f"columns is {columns!r}, expected those of source, target and perhaps weight")
    check_known("duplicates", get_args(Duplicates), duplicates)
    with opened(path, "an edge list", ReadError) as content:
        _refuse_other_formats(Path(path), content[:10_000].decode(errors="replace"), columns)
        table = sniff(content, comment=_COMMENTS, separator=sep or _separator, loose=True)
        cells, commented = table.columns, _commented_header(table, columns)
        if commented:
            header, table = False, table._replace(columns=commented)
        chosen, is_named = _chosen(table, columns, header, bool(commented))
        numbered = table._replace(columns=[f"column {i}" for i in range(1, len(cells) + 1)])
        ends = zip((*ENDS, "weight"), chosen, strict=False)
        lines = numbered.read({end: Column(i, NAME, fault=partial(_fault, end)) for end, i in ends})  # the first, too
        # A header that is asked for may be a comment.
        is_header = _is_header(lines, is_named) if header is None or (header and table.commented) else header
        edges = lines[1:] if is_header else lines
        if edges.empty:
            raise ValueError("holds no rows after its header")
        again = np.logical_and.reduce([edges[end] == lines[end].iloc[0] for end in ENDS])
        if is_header and again.any():
            raise ValueError(f"its header comes again as row {again.argmax() + 1}; are these two files?")
        if columns is None:
            if not is_header and not commented and chosen[:2] != [0, 1]:
                raise _unclear(cells)
            if header is None:
                _refuse_what_is_unclear(cells, lines, is_header, is_named)
            if directed and "direction" in map(str.lower, table.columns):
                raise ValueError("its column direction says which way an edge goes: pass directed=False, or columns=")
            if is_named and len(chosen) > 2 and table.columns[chosen[2]].lower() not in _WEIGHTS:
                is_number = any(number_of(text) is not None for text in edges["weight"].unique())
                chosen = chosen if is_number else chosen[:2]
        weights = _weights(edges["weight"]) if len(chosen) > 2 else None
        guesses = [f"{table.between} between cells"] if sep is None else []
        if header is None or commented:
            guesses.append("a header, which is a comment" if commented else "a header" if is_header else "no header")
        if columns is None and len(cells) > 2:
            guesses.append(f"columns {', '.join(str(i + 1) for i in chosen)}")
        if columns is None and weights is not None and _SECONDS[0] < weights.min() and weights.max() < _SECONDS[1]:
            guesses.append("the weights may be times, in seconds since 1970: columns= of two leaves them out")
        notes = [f"guessed: {', '.join(guesses)}"] if guesses else []
        names = _names(edges) - ({"-"} if _MITAB.search(table.commented or table.first) else set())
        if len({*map(folded, names)}) < len(names):
            notes.append("some names differ only in case, in Unicode or in “.0”, and are nodes of their own")
        lookup = Lookup(path, sorted(names) if nodes is None else nodes, unknown_limit, noun=node_type)
        if weights is None and duplicates == "sum":
            weights = np.ones(len(edges))
        network = network_of(
            lookup, name or Path(path).name.split(".")[0], *(lookup.places(edges[end]) for end in ENDS),
            directed=directed, scores=weights, duplicates=duplicates, notes=notes, first_row=int(edges.index[0]) + 1,
        )  # fmt: skip
        report = replace(network.report, node_names=lookup.genes.names if nodes is None else None)
        return replace(network, weight=None if weights is None else report.scores.to(torch.float64), report=report)


def _refuse_other_formats(path: Path, head: str, columns: object) -> None:
    """Raise `ValueError` for a file that is, by its beginning or its name, of a format with a name of its own."""
    for begin, format in _OTHER_FORMATS.items():
        if re.match(begin, head, re.IGNORECASE):
            raise ValueError(f"is not an edge list but {format}; CellGraph.from_edges takes its edges")
    suffixes = {suffix.lower() for suffix in path.suffixes} & _SUFFIXES.keys()
    if suffixes and columns is None:
        raise ValueError(f"is not an edge list but, by its name, {_SUFFIXES[min(suffixes)]}; columns= reads it as one")


def _separator(first: str) -> str:
    bare = re.sub(r'"[^"]*"', "x", first).strip()
    found = [sign for sign in SIGNS if sign in bare]
    if not found:
        raise ValueError(f"{quoted(first)}, expected two names with a tab, comma, semicolon or space between")
    words = bare.split()
    is_decimal = found == [",", " "] and len(words) > 2 and re.fullmatch(r"[-+]?\d+,\d+", words[-1])
    unclear = {
        "commas and semicolons": found[:2] == [",", ";"],
        "a decimal comma, or commas between cells": is_decimal,
        f"bars and {SIGNS[found[0]]}": (found == [" "] and "|" in bare) or bare.count("|") > bare.count(found[0]),
    }
    for has, holds in unclear.items():
        if holds:
            raise ValueError(f"{quoted(first)} has {has}: pass sep=, the one between cells")
    return found[0]


def _commented_header(table: Table, columns: Sequence[str | int] | None) -> list[str]:
    """Return the cells of the last comment, if it is the header of what follows; else none."""
    line, first = table.commented.lstrip("#% "), table.columns
    asked = {plain_name(each) for each in columns or () if isinstance(each, str)}
    for cells in (cells_of(line, table.separator, loose=True), line.split()):
        says, said = (asked & {*map(plain_name, each)} if asked else _named_ends(each) for each in (cells, first))
        if len(cells) == len(first) > 1 and says and (not said or any(len(cell) == 1 for cell in first)):
            return cells
    return []


def _chosen(
    table: Table, columns: Sequence[str | int] | None, header: bool | None, commented: bool
) -> tuple[list[int], bool]:
    """Return the columns of source, target, and of the weight if there is one; whether a header names them."""
    cells = table.columns
    if columns is not None:
        given = [table.column(each) if isinstance(each, str) else each for each in columns]
        if not all(0 <= i < len(cells) for i in given):
            raise ValueError(f"{len(cells)} columns, expected {max(given) + 1} or more: {quoted(table.first)}")
        return given, any(isinstance(each, str) for each in columns)
    if len(cells) < 2:
        raise ValueError(f"{quoted(table.first)}, expected two names with {table.between} between")
    pairs = _named_ends(cells) if header is not False or commented else []
    ends = [*pairs[0]] if pairs else []
    # An end without a name, or a third cell that is no number, is a header's.
    reads_so = header is not False and (bool(header or ends) or "" in cells[:2] or not _is_number(cells[2:3]))
    is_weight = len(cells) > 2 and (reads_so or commented)
    weights = [i for i, cell in enumerate(cells) if cell.lower() in _WEIGHTS and is_weight]
    too_many = len(cells) > 3 or (reads_so and len(cells) - len(weights) > 2) or {*weights} & {0, 1}
    if len(pairs) > 1 or (not ends and too_many):
        few = f"its columns are {quoted(', '.join(cells), 120)}"
        raise ValueError(f"{few}: which are source and target? pass columns=, by name or position from 0")
    chosen = ends or [0, 1]
    further = [i for i in range(max(chosen) + 1, len(cells)) if not (ends and _words(cells[i]) & _NO_WEIGHTS)]
    return [*chosen, *[*weights, *further][:1]], bool(ends)


def _named_ends(cells: Sequence[str]) -> list[tuple[int, int]]:
    """Return the columns that a header calls source and target, by a pair of words: one such pair, or none.

    It is several where no one has words that all others have.
    """
    words = [set() if cell.isdecimal() else _words(plain_name(cell)) for cell in cells]
    pairs = []
    for one, other in _ROLES + _NUMBERS:
        firsts = [i for i, each in enumerate(words) if one in each and each <= _OF_HEADERS]
        both = [(i, j) for i in firsts for j in range(len(cells)) if words[j] == words[i] - {one} | {other}]
        # Letters and numbers head a matrix, too: beside them there are but weights and ids.
        rest = [cell for i, cell in enumerate(cells) if i not in sum(both, ())]
        is_matrix = not all(cell.lower() in _WEIGHTS or (cell and _words(cell) <= _NO_WEIGHTS) for cell in rest)
        pairs += [(i, j) for i, j in both if not (is_matrix and (one, other) in _NUMBERS and words[j] == {other})]
    shortest = [(i, j) for i, j in pairs if all(words[i] <= words[k] and words[j] <= words[m] for k, m in pairs)]
    return shortest if len(shortest) == 1 else pairs


def _is_number(cells: Sequence[str]) -> bool:
    """Return whether the cell of a weight, which may not be there, is a number or says that it is missing."""
    return all(number_of(cell) is not None or cell.lower() in ("", "na", "n/a", "null", "none") for cell in cells)


def _words(cell: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(cell)} or {"index"}  # a column without a name is an index


def _names(lines: pd.DataFrame) -> set[str]:
    return {name for end in ENDS for name in lines[end].unique()}


def _weights(texts: pd.Series) -> np.ndarray:
    """Return the weights, [rows] float64; raise for what is no finite number."""
    weights = texts.astype(object).map(number_of).to_numpy(float)
    bad = ~np.isfinite(weights)
    if bad.any():
        row, text = texts.index[bad][0] + 1, quoted(texts[bad].iloc[0])
        raise ValueError(f"row {row}: the weight is {text}, expected a finite number")
    return weights


def _is_header(lines: pd.DataFrame, is_named: bool) -> bool:
    """Return whether the first line is a header, given the others; raise where it cannot be told.

    An edge whose two names no other line has is taken for one only if they are numbered as others are: a header of
    two words, in any language, looks like all other edges.
    """
    first = lines.iloc[0].tolist()
    ends, names = {*first[:2]}, _names(lines[1:])
    if len(ends) == 1 or (len(first) > 2 and _is_number(first[2:])):
        return False
    no_number = not any(cell.isdecimal() for cell in ends)
    reads_so = is_named or len(first) > 2 or (no_number and all(_words(cell) <= _OF_HEADERS for cell in ends))
    letters = len(first) == 2 and all(len(name) == 1 and name.isalpha() for name in (*ends, *names))
    stem, stems = _stem(first[0]), {_stem(name) for name in names - ends}
    shapes, pair = {_shape(name) for name in names}, stem == _stem(first[1]) and stem not in stems
    if reads_so and not letters:
        if not (names & ends or (stem and stem in stems)):  # gene1 and gene2, before gene3
            return True
    elif names & ends:
        return False
    elif no_number and all(name.isdecimal() for name in names):
        return True
    elif not pair and all("9" in _shape(cell) and _shape(cell) in shapes for cell in ends):
        return False
    raise _unclear(first)


def _unclear(first: Sequence[str]) -> ValueError:
    said = f"the first line, {quoted(', '.join(first))}"
    return ValueError(f"{said}, is a header or an edge: pass header= or columns= by name")


def _stem(name: str) -> str:
    """Return a name without the number at its end, where it has one and more than that."""
    return re.sub(r"\d+$", "", name) if re.search(r"\D\d+$", name) else ""


def _shape(name: str) -> str:
    """Return how a name is made: "a9a" of YAL001C."""
    return re.sub(r"\d+", "9", re.sub(r"[^\W\d_]+", "a", name))


def _refuse_what_is_unclear(cells: Sequence[str], lines: pd.DataFrame, is_header: bool, is_named: bool) -> None:
    """Raise `ValueError` where columns may be other than they seem.

    Under a header that names no ends, it may be a table of nodes, where no name comes twice. Without one, before the
    two nodes there may be a running number, a time, or a letter that says what a line is, and between them a relation;
    and the first line may be that of a METIS file.
    """
    edges = lines[1:] if is_header else lines
    source, target = (edges[end].unique() for end in ENDS)
    strangers = not {*source} & {*target}
    is_counted = any(source.tolist() == [str(i + start) for i in range(len(lines))] for start in (0, 1))
    is_list = is_header or (is_counted and len(cells) == 2 < len(lines))
    if is_list and not is_named and strangers and len(source) == len(edges):
        raise ValueError(f"its columns are {quoted(', '.join(cells))}: nodes and their names, or edges? pass columns=")
    if is_header:
        return
    counts = all(cell.isdecimal() and len(cell) < 12 for cell in cells[:2]) and str(len(lines) - 1) in cells[:2]
    if counts and all(name.isdecimal() and int(name) <= int(cells[0]) for name in _names(lines[1:])):
        raise ValueError("may begin with its numbers of nodes and edges, as METIS does; else pass header=False")
    third = {*lines["weight"].unique()[:1000]} - {"nan", "NaN", ""} if "weight" in lines else set()
    reasons = {
        "the second column is a relation, as in SIF": {*target} <= _RELATIONS,
        "the first column counts the rows": is_counted and len(lines) > 2 and all(map(str.isdecimal, third)),
        "the third column has names of the second": strangers and third & {*target},
    }
    for why, holds in reasons.items():
        if third and holds:
            raise ValueError(f"{why}: pass columns= of source, target and perhaps weight, by their positions from 0")


def _fault(end: str, text: str) -> str | None:
    if end == "source" and text.startswith(_COMMENTS):
        return f"begins with {text[0]}: comments are expected before the first edge"
    return None if text or end == "weight" else "is empty, expected a name"
