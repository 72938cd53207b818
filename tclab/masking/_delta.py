"""The strategy `delta`: compute the wild type once and, for each sample, the rows that differ from it, layer by layer.

After the first layer only the neighbours of deleted nodes differ from the wild type, after the second layer also their
neighbours. The loader worker finds the rows that differ after each layer and makes the small sparse matrices that
compute them from the layer before. From the layer at which more than half of the edges would carry a difference, the
strategy uses the product of `node_mask`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch, Piece
from tclab.masking._strategy import Strategy
from tclab.message_passing import View
from tclab.message_passing._delta_view import DeltaLayer, DeltaView
from tclab.message_passing.kernels._spmm import Csr, SparseMatrix
from tclab.perturbation import Deletions

DEPTH = 2  # layers; after a third every row differed on every graph that was tried
LIMIT = 0.5  # of all edges: a correction costs about what the shared product's edge does


class _Change(NamedTuple):
    """What one sample changes at one layer."""

    before: np.ndarray  # [d] sorted, the nodes whose rows differ before it
    reached: dict[str, np.ndarray]  # relation → [t] sorted, those whose sums differ
    edges: dict[str, sparse.csr_array]  # relation → [d + deleted, t], those that carry the changes


class Delta(Strategy):
    """Differences from the wild type; the edges that carry them travel.

    **Arguments:**

    - `depth`: for how many layers at most. `limit`: up to which share of all edges, at each layer.
    """

    name = "delta"

    def __init__(self, graph: CellGraph, *, depth: int = DEPTH, limit: float = LIMIT, **options: Any) -> None:
        super().__init__(graph, **options)
        self.depth = depth
        self.limit = limit
        self._outgoing: dict[str, sparse.csr_array] = {}

    def _edges_out_of(self, name: str) -> sparse.csr_array:
        """Return a relation's transpose on the host, a row a source."""
        if name not in self._outgoing:
            crow, col, values, columns = self.graph.relations[name].csr_parts(dtype=torch.float64, transpose=True)
            parts = (values.numpy(), col.numpy(), crow.numpy())
            self._outgoing[name] = sparse.csr_array(parts, shape=(len(crow) - 1, columns))
        return self._outgoing[name]

    def encode(self, indices: Sequence[int], removed: dict[str, Deletions]) -> list[list[_Change]]:
        """Return what each sample changes at each layer, up to the first layer at which that is too much."""
        deleted = removed[self.graph.deleted_type]
        return [self._changes(deleted[sample].numpy()) for sample in range(len(indices))]

    def _changes(self, deleted: np.ndarray) -> list[_Change]:
        networks = self.graph.networks
        total = sum(network.num_edges for network in networks.values())
        before = np.empty(0, dtype=np.int64)
        changes: list[_Change] = []
        while len(changes) < self.depth:
            sources = np.concatenate([before, deleted])
            carried = sum(int(np.diff(self._edges_out_of(name).indptr)[sources].sum()) for name in networks)
            if carried > self.limit * total:
                break
            reached, edges = {}, {}
            differs = np.zeros(self.graph.num_nodes[self.graph.deleted_type], dtype=bool)
            for name in networks:
                rows = self._edges_out_of(name)[sources]
                receives = np.zeros_like(differs)
                receives[rows.indices] = True
                receives[before] = True  # a node's own row enters its next one
                reached[name] = np.flatnonzero(receives)
                place = np.cumsum(receives, dtype=np.int32) - 1
                shape = (len(sources), len(reached[name]))
                edges[name] = sparse.csr_array((rows.data, place[rows.indices], rows.indptr), shape=shape)
                differs |= receives
            changes.append(_Change(before, reached, edges))
            differs[deleted] = False
            before = np.flatnonzero(differs)
        return changes

    def pack(
        self, removed: dict[str, Deletions], encoded: list[list[_Change]]
    ) -> tuple[dict[str, Tensor | Piece], dict[str, Any]]:
        """Return the matrices of all samples' changes, layer by layer, as deep as every sample has them."""
        depth = min(map(len, encoded))
        deleted = [removed[self.graph.deleted_type][sample].numpy() for sample in range(len(encoded))]
        tensors: dict[str, Tensor | Piece] = {}
        for layer in range(depth):
            changes = [sample[layer] for sample in encoded]
            after = [sample[layer + 1].before for sample in encoded] if layer + 1 < depth else None
            tensors.update(self._layer(f"edge_delta/{layer}", changes, deleted, after))
        return tensors, {"layers": depth}

    def _layer(
        self, key: str, changes: list[_Change], deleted: list[np.ndarray], after: list[np.ndarray] | None
    ) -> dict[str, Tensor]:
        n = self.graph.num_nodes[self.graph.deleted_type]
        before = [change.before for change in changes]
        nodes, removed_nodes = np.concatenate(before), np.concatenate(deleted)
        minus = _selection(np.concatenate([nodes, removed_nodes]), n)
        plus = sparse.eye_array(len(nodes) + len(removed_nodes), len(nodes), format="csr")
        tensors = {
            f"{key}/nodes": torch.from_numpy(nodes),
            f"{key}/samples": torch.from_numpy(np.repeat(np.arange(len(before)), [len(d) for d in before])),
            **_tensors(f"{key}/changes", sparse.hstack([-minus, plus], format="csr")),
        }
        for name in self.graph.networks:
            edges = [change.edges[name] for change in changes]
            reached = [change.reached[name] for change in changes]
            start = _selection(np.concatenate([np.arange(n), *reached]), n)
            spread = _selection(_rows_after(reached, after, n), start.shape[0])
            tensors |= _tensors(f"{key}/start/{name}", start)
            tensors |= _tensors(f"{key}/edges/{name}", _carried(edges, before, reached, n))
            tensors |= _tensors(f"{key}/spread/{name}", spread)
        return tensors

    def view(self, batch: Batch) -> View:
        """Return the view that carries what differs."""
        return DeltaView(self.graph, batch.deletions, self.layers(batch))

    def layers(self, batch: Batch) -> list[DeltaLayer]:
        """Return how what differs goes from layer to layer."""
        layers = []
        for i in range(batch.host_values["layers"]):
            key = f"edge_delta/{i}"
            start, edges, spread = (
                {name: _matrix(batch, f"{key}/{kind}/{name}") for name in self.graph.networks}
                for kind in ("start", "edges", "spread")
            )
            nodes, samples = batch.tensors[f"{key}/nodes"], batch.tensors[f"{key}/samples"]
            layers.append(DeltaLayer(nodes, samples, _matrix(batch, f"{key}/changes"), start, edges, spread))
        return layers


def _selection(columns: np.ndarray, n: int) -> sparse.csr_array:
    """Return the [len(columns), n] matrix that picks one row for each of its rows."""
    rows = np.arange(len(columns) + 1)
    return sparse.csr_array((np.ones(len(columns)), columns, rows), shape=(len(columns), n))


def _carried(
    edges: list[sparse.csr_array], before: list[np.ndarray], reached: list[np.ndarray], n: int
) -> sparse.csr_array:
    """Return the edges that bring changes to a relation's rows, [N + T, C + D]; see `DeltaLayer`."""
    offsets = n + np.cumsum([0, *map(len, reached)])  # the wild type's rows, which nothing changes, are first
    moved = [
        sparse.csr_array((e.data, e.indices + offset, e.indptr), shape=(e.shape[0], offsets[-1]))
        for e, offset in zip(edges, offsets[:-1], strict=True)
    ]
    # the changes are ordered with the rows that differ first, then the deleted ones
    first = [e[: len(d)] for e, d in zip(moved, before, strict=True)]
    then = [e[len(d) :] for e, d in zip(moved, before, strict=True)]
    themselves = [offset + np.searchsorted(t, d) for t, d, offset in zip(reached, before, offsets[:-1], strict=True)]
    again = _selection(np.concatenate(themselves), offsets[-1])  # [D, N + T]
    return sparse.vstack([*first, *then, again], format="csr").T.tocsr()


def _rows_after(reached: list[np.ndarray], after: list[np.ndarray] | None, n: int) -> np.ndarray:
    """Return for each row after the layer which of a relation's rows it is.

    Rows after: the wild type's and, sample by sample, those of `after`, or all where it is `None`.
    """
    rows = [np.arange(n)]
    begin = n
    for sample, nodes in enumerate(reached):
        of_node = np.arange(n)
        of_node[nodes] = np.arange(begin, begin + len(nodes))
        begin += len(nodes)
        rows.append(of_node if after is None else of_node[after[sample]])
    return np.concatenate(rows)


def _tensors(key: str, matrix: sparse.csr_array) -> dict[str, Tensor]:
    """Return a matrix and its transpose under batch names.

    Values travel only where they are not all 1, and row pointers only where a row does not have one entry.
    """
    tensors = {}
    for side, csr in (("csr", matrix), ("transposed", matrix.T.tocsr())):
        tensors[f"{key}/{side}/col"] = torch.from_numpy(csr.indices.astype(np.int32))
        if not (np.diff(csr.indptr) == 1).all():
            tensors[f"{key}/{side}/crow"] = torch.from_numpy(csr.indptr.astype(np.int32))
        if not (csr.data == 1.0).all():
            tensors[f"{key}/{side}/values"] = torch.from_numpy(csr.data)
    return tensors


def _matrix(batch: Batch, key: str) -> SparseMatrix:
    sides = []
    for side in ("csr", "transposed"):
        col = batch.tensors[f"{key}/{side}/col"]
        crow = batch.tensors.get(f"{key}/{side}/crow")
        if crow is None:
            crow = torch.arange(len(col) + 1, dtype=torch.int32, device=col.device)
        sides.append(Csr(crow, col, batch.tensors.get(f"{key}/{side}/values")))
    return SparseMatrix(*sides)
