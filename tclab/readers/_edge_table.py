"""Networks from tables of edges: the common course of every edge format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from tclab.graph import Network
from tclab.readers._gene_names import UNKNOWN_LIMIT, Genes, Lookup
from tclab.readers._table import NAME, NUMBER, Table


class Filter(NamedTuple):
    """A condition on a row: every one of `columns` has the value; else it is dropped for `reason`."""

    columns: Sequence[str]
    value: str
    reason: str


def load_network(
    table: Table,
    name: str,
    ends: tuple[str | int, str],
    lookup: Lookup | None,
    *,
    filters: Sequence[Filter] = (),
    weight: str | None = None,
    check: Callable[[pa.RecordBatch, int], None] | None = None,
    checked: Sequence[str] = (),
    **options: Any,
) -> Network:
    """Return the network of a table with an edge in each row; the header is checked here.

    **Arguments:**

    - `ends`: the columns of source and target; a number in place of the first for edges that all start at that node.
    - `lookup`: the names of the nodes; None takes those of the table, sorted, and lists them in
      `report.node_names`.
    - `filters`: conditions that a row must meet, in this order.
    - `weight`: the column of the edges' weight.
    - `check`: called with each batch and the number of rows before it; raises `ReadError` for a bad row.
    - `checked`: columns that it needs besides those above.
    - `options`: of `network_of`.

    **Raises:** `ReadError` with the line for a bad row; for a missing column, or too many unknown names.
    """
    names = [end for end in ends if isinstance(end, str)]
    extra = [*(column for each in filters for column in each.columns), *checked]
    table.require(*names, *extra, *([weight] if weight else []))
    types: dict[str, pa.DataType] = dict.fromkeys([*names, *extra], NAME)
    if weight:
        types[weight] = NUMBER
    ids = lookup or _NewNames()
    places: dict[str, list[np.ndarray]] = {column: [] for column in names}
    weights: list[np.ndarray] = []
    dropped: Counter[str] = Counter()
    rows = 0
    for batch in table.batches(types):
        if check:
            check(batch, rows)
        rows += batch.num_rows
        kept = np.ones(batch.num_rows, dtype=bool)
        for each in filters:
            matches = np.logical_and.reduce([equals(batch.column(column), each.value) for column in each.columns])
            dropped[each.reason] += int((kept & ~matches).sum())
            kept &= matches
        for column in names:
            cells = batch.column(column)
            places[column].append(ids.places(cells.filter(kept) if filters else cells))
        if weight:
            weights.append(batch.column(weight).to_numpy(zero_copy_only=False)[kept])
    found = {column: np.concatenate(parts) for column, parts in places.items()}
    node_names = None
    if isinstance(ids, _NewNames):
        order, genes = ids.sorted()
        found = {column: order[each] for column, each in found.items()}
        lookup, node_names = Lookup(genes), genes.names
    assert lookup is not None
    target = found[ends[1]]
    source = found[ends[0]] if isinstance(ends[0], str) else np.full(len(target), ends[0], dtype=np.int64)
    return network_of(
        name,
        source,
        target,
        lookup,
        path=table.path,
        scores=np.concatenate(weights) if weight else None,
        weighted=weight is not None,
        dropped=dropped,
        node_names=node_names,
        **options,
    )


_BLANKS = "".join(filter(str.isspace, map(chr, range(0x3001)))) + "\u200b\ufeff"


def without_blanks(name: str) -> str:
    """Return a name without blanks around it, those included that do not break or have no width."""
    return name.strip(_BLANKS)


class _NewNames:
    """Numbers for the names of a table without a gene list, in the order in which they appear."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}

    def places(self, column: pa.DictionaryArray) -> np.ndarray:
        """Return the number of each name of a column, [rows] int64."""
        names = map(without_blanks, column.dictionary.to_pylist())
        distinct = [self._number.setdefault(name, len(self._number)) for name in names]
        return np.asarray(np.array(distinct, dtype=np.int64)[column.indices.to_numpy()])

    def sorted(self) -> tuple[np.ndarray, Genes]:
        """Return the names in sorted order, and for each number its index among them, [names] int64."""
        names = sorted(self._number)
        index = np.empty(len(names), dtype=np.int64)
        index[[self._number[name] for name in names]] = np.arange(len(names))
        return index, Genes(tuple(names))


def network_of(
    name: str,
    source: np.ndarray,
    target: np.ndarray,
    lookup: Lookup,
    *,
    path: str | Path,
    directed: bool,
    node_type: str = "gene",
    scores: np.ndarray | None = None,
    weighted: bool = False,
    dropped: Mapping[str, int] | None = None,
    self_loops: bool = True,
    unknown_limit: float = UNKNOWN_LIMIT,
    node_names: tuple[str, ...] | None = None,
) -> Network:
    """Return the network of a file's rows.

    Rows with an unknown end are dropped. Of an undirected edge the direction from the lower to the higher index is
    kept. An edge that appears several times is kept once, with its highest score, so that the order of the rows
    does not matter.

    **Arguments:**

    - `source`, `target`: [rows] int64, below 0 where the name is unknown.
    - `directed`: whether an edge goes from source to target only.
    - `scores`: [rows] float; kept in the report, and as the network's weight only where `weighted`.
    - `dropped`: rows that the reader left out before, by reason.
    - `unknown_limit`: the share of rows that may be lost to unknown names.

    **Raises:** `ReadError` where more are lost.
    """
    reasons: Counter[str] = Counter(dropped or {})
    rows = len(source) + sum(reasons.values())
    known = (source >= 0) & (target >= 0)
    lost = int(len(known) - known.sum())
    lookup.check_lost(path, len(source), lost, limit=unknown_limit)
    reasons["unknown gene"] += lost
    loops = known & (source == target)
    if not self_loops:
        reasons["self-loop"] += int(loops.sum())
        known &= ~loops
    ends = np.stack([source[known], target[known]])
    if not directed:
        mirrored = ends[0] > ends[1]
        ends = np.sort(ends, axis=0)
    key = ends[0] * max(len(lookup.genes), 1) + ends[1]
    kept_scores = None if scores is None else scores[known]
    order = np.argsort(key, kind="stable") if kept_scores is None else np.lexsort((-kept_scores, key))
    first = np.ones(len(key), dtype=bool)
    first[1:] = key[order][1:] != key[order][:-1]
    kept = order[first]
    duplicates = len(key) - len(kept)
    if not directed:
        both = len(np.intersect1d(np.unique(key[~mirrored]), np.unique(key[mirrored])))
        reasons["reverse of an undirected edge"] += both
        duplicates -= both
    reasons["duplicate edge"] += duplicates
    edge_index = torch.from_numpy(np.ascontiguousarray(ends[:, kept]))
    kept_tensor = None if kept_scores is None else torch.from_numpy(kept_scores[kept])
    report = lookup.report(
        path,
        rows,
        edge_index.size(1),
        reasons,
        self_loops=int(loops.sum()),
        duplicates=duplicates,
        scores=kept_tensor,
        node_names=node_names,
    )
    number = len(lookup.genes)
    weight = kept_tensor.to(torch.float64) if weighted and kept_tensor is not None else None
    return Network(
        name, edge_index, node_type, node_type, number, number, weight=weight, directed=directed, report=report
    )


def equals(column: pa.DictionaryArray, value: str) -> np.ndarray:
    """Return which rows of a column have a value, [rows] bool."""
    matches = np.array([name == value for name in column.dictionary.to_pylist()], dtype=bool)
    return np.asarray(matches[column.indices.to_numpy()])
