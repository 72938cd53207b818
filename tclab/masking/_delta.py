"""The strategy `delta`: compute the wild type once and, for each sample, the rows that differ from it, layer by layer.

After the first layer only the neighbours of deleted nodes differ from the wild type, after the second layer also their
neighbours. The loader worker finds the rows that differ after each layer and makes the small sparse matrices that
compute them from the layer before; the view multiplies by them on the device. From the layer at which more than half of
the edges would carry a difference, samples are carried in full, over the matrices of `node_mask`.

`ChangedRows`, which is not used here, adds up all edges into a row that differs, which serves maxima and attention,
too. Here a sum is the wild type's plus the differences: in the first two layers these are along 0.04 and 12 % of the
real cell's edges for a sample of three deletions, while 15 and 86 % of them go into rows that differ.

Shapes, of one layer:

- B: samples. N: nodes of the deleted type; row `b * N + node` is a node's in sample b. H: features.
- M: deleted nodes of all samples.
- D: rows that differ from the wild type before the layer, sample after sample. The layer reads the wild type's N rows,
  then these. C = D + M: those and the deleted ones, whose messages change.
- T: rows whose sums over a relation differ. The relation's sums are the wild type's N, then these T.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tclab.errors import need
from tclab.graph._cell_graph import CellGraph
from tclab.graph._csr import Csr, SparseMatrix
from tclab.masking._batch import Batch, Packed, Piece
from tclab.masking._strategy import Strategy
from tclab.message_passing import SharedView, View
from tclab.message_passing._view import RowFunction, autocast
from tclab.message_passing.kernels._row_ops import take_rows
from tclab.message_passing.kernels._spmm import spmm
from tclab.perturbation import Deletions
from tclab.perturbation._deletions import Int64s

if TYPE_CHECKING:  # it takes longer to import than all of this package, and `delta` alone needs it
    from scipy import sparse

DEPTH = 3  # layers: a strategy does not know how many its model has, and what a further one carries is made in vain
LIMIT = 0.5  # of all edges: a correction costs about what the shared product's edge does


class _Change(NamedTuple):
    """What a layer changes in B samples."""

    differing: Int64s  # [D] sorted, the rows that differ before the layer
    sum_rows: dict[str, Int64s]  # relation → [B * N], which of the relation's N + T sums is each row's
    messages: dict[str, sparse.csr_array]  # relation → [C + D, N + T], the transpose of `DeltaLayer.edges`


class Delta(Strategy):
    """Differences from the wild type; the edges that carry them travel.

    **Arguments:**

    - `depth`: for how many layers at most. `limit`: up to which share of all edges, at each layer: with gene networks
      two layers reach it, on a power grid three failures do not in ten.
    """

    name = "delta"

    def __init__(self, graph: CellGraph, *, depth: int = DEPTH, limit: float = LIMIT, **options: Any) -> None:
        need("the strategy delta", "sweep", "scipy")
        from scipy import sparse  # noqa: F401 (or each worker would import it within its first batch)

        super().__init__(graph, **options)
        self.depth = depth
        self.limit = limit

    @cached_property
    def _outgoing(self) -> dict[str, sparse.csr_array]:
        """The edges out of each node: relation → [N, N], a row a source."""
        from scipy import sparse

        outgoing = {}
        for name, network in self.graph.networks.items():
            crow, col, values = network.matrix(torch.float64).transposed
            data = np.ones(len(col), dtype=np.int8) if values is None else values.numpy()
            shape = (network.num_sources, network.num_targets)
            outgoing[name] = sparse.csr_array((data, col.numpy(), crow.numpy()), shape=shape)
        return outgoing

    def encode(self, indices: Sequence[int], removed: dict[str, Deletions]) -> list[_Change]:
        """Return what each layer changes, up to the first layer at which that is too much for any sample."""
        size, n = len(indices), self.graph.num_nodes[self.graph.deleted_type]
        deleted = removed[self.graph.deleted_type].rows(n).numpy()
        degree = sum((np.diff(edges.indptr) for edges in self._outgoing.values()), np.zeros(n))
        differing = np.empty(0, dtype=np.int64)
        changes: list[_Change] = []
        while len(changes) < self.depth:
            sources = np.concatenate([differing, deleted])
            edges_out = np.bincount(sources // n, weights=degree[sources % n], minlength=size)
            if edges_out.max() > self.limit * self.graph.num_edges:
                break
            change, differs = _Change(differing, {}, {}), np.zeros(size * n, dtype=bool)
            for name, edges in self._outgoing.items():
                change.sum_rows[name], change.messages[name] = _messages(edges, sources, differing, size)
                differs |= change.sum_rows[name] >= n
            changes.append(change)
            differs[deleted] = False
            differing = np.flatnonzero(differs)
        return changes

    def pack(self, removed: dict[str, Deletions], encoded: list[_Change]) -> Packed:
        """Return the matrices of all samples' changes, layer by layer."""
        deletions, n = removed[self.graph.deleted_type], self.graph.num_nodes[self.graph.deleted_type]
        # the rows that differ after each layer: all of them after the last
        rows_after = [*(change.differing for change in encoded[1:]), np.arange(len(deletions) * n)]
        tensors: dict[str, Tensor | Piece] = {}
        for i, change in enumerate(encoded):
            tensors |= _tensors_of_layer(f"edge_delta/{i}", change, deletions.nodes.numpy(), rows_after[i], n)
        return tensors, {"layers": len(encoded)}

    def view(self, batch: Batch) -> View:
        """Return the view that carries what differs."""
        layers = []
        for key in (f"edge_delta/{i}" for i in range(batch.host_values["layers"])):
            kinds, names = ("start", "edges", "spread"), list(self.graph.networks)
            by_kind = [{name: _matrix(batch, f"{key}/{kind}/{name}") for name in names} for kind in kinds]
            layers.append(DeltaLayer(batch.tensors[f"{key}/rows"], _matrix(batch, f"{key}/changes"), *by_kind))
        return DeltaView(self.graph, batch.deletions, layers)


def _messages(
    outgoing: sparse.csr_array, sources: Int64s, differing: Int64s, size: int
) -> tuple[Int64s, sparse.csr_array]:
    """Return a relation's `sum_rows` and `messages`, as in `_Change`, given its edges out of each node, [N, N].

    **Arguments:**

    - `sources`: [C], the rows whose messages change. `differing`: [D], the first of them.
    - `size`: B.
    """
    from scipy import sparse

    n = outgoing.shape[0]
    edges = outgoing[sources % n]
    targets = np.repeat((sources - sources % n).astype(np.int32), np.diff(edges.indptr)) + edges.indices
    receives = np.zeros(size * n, dtype=bool)
    receives[targets] = True
    receives[differing] = True  # a row itself enters its next one
    wild = np.tile(np.arange(n, dtype=np.int32), size)
    sum_rows = np.where(receives, n - 1 + np.cumsum(receives, dtype=np.int32), wild)
    num_sums = n + int(receives.sum())
    moved = sparse.csr_array((edges.data, sum_rows[targets], edges.indptr), shape=(len(sources), num_sums))
    return sum_rows, sparse.vstack([moved, _selection(sum_rows[differing], num_sums)], format="csr")


def _tensors_of_layer(key: str, change: _Change, deleted: Int64s, after: Int64s, n: int) -> dict[str, Tensor]:
    """Return the tensors of one `DeltaLayer`, after which the rows `after` of samples are carried."""
    from scipy import sparse

    wild, rows = np.arange(n), change.differing
    minus = _selection(np.concatenate([rows % n, deleted]), n)
    plus = sparse.eye_array(minus.shape[0], len(rows), format="csr", dtype=np.int8)
    tensors = {f"{key}/rows": torch.from_numpy(rows), **_tensors(f"{key}/changes", sparse.hstack([-minus, plus]))}
    for name, sum_rows in change.sum_rows.items():
        edges, reached = change.messages[name].T, np.flatnonzero(sum_rows >= n) % n
        tensors |= _tensors(f"{key}/start/{name}", _selection(np.concatenate([wild, reached]), n))
        tensors |= _tensors(f"{key}/edges/{name}", edges)
        tensors |= _tensors(f"{key}/spread/{name}", _selection(np.concatenate([wild, sum_rows[after]]), edges.shape[0]))
    return tensors


def _selection(columns: Int64s, n: int) -> sparse.csr_array:
    """Return the [len(columns), n] matrix that picks one row for each of its rows."""
    from scipy import sparse

    rows = np.arange(len(columns) + 1, dtype=np.int32)
    ones = np.ones(len(columns), dtype=np.int8)
    return sparse.csr_array((ones, columns.astype(np.int32), rows), shape=(len(columns), n))


def _tensors(key: str, matrix: sparse.sparray) -> dict[str, Tensor]:
    """Return a matrix and its transpose under batch names.

    Values travel only where they are not all 1, and row pointers only where a row does not have one entry.
    """
    tensors = {}
    for side, csr in (("csr", matrix.tocsr()), ("transposed", matrix.T.tocsr())):
        tensors[f"{key}/{side}/col"] = torch.from_numpy(csr.indices.astype(np.int32, copy=False))
        if not (np.diff(csr.indptr) == 1).all():
            tensors[f"{key}/{side}/crow"] = torch.from_numpy(csr.indptr.astype(np.int32, copy=False))
        if not (csr.data == 1.0).all():
            tensors[f"{key}/{side}/values"] = torch.from_numpy(csr.data.astype(np.float64, copy=False))
    return tensors


def _matrix(batch: Batch, key: str) -> SparseMatrix:
    sides = []
    for side in ("csr", "transposed"):
        col = batch.tensors[f"{key}/{side}/col"]
        crow = batch.tensors.get(f"{key}/{side}/crow")
        if crow is None:  # an entry a row
            crow = torch.arange(len(col) + 1, dtype=torch.int32, device=col.device)
        sides.append(Csr(crow, col, batch.tensors.get(f"{key}/{side}/values")))
    return SparseMatrix(sides[0], sides[1], lasting=False)


# ---- the view, on the device


class DeltaLayer(NamedTuple):
    """The matrices of one layer; mappings are by relation."""

    rows: Tensor  # [D] int64, which rows differ
    # [C, N + D], each row minus the wild type's, and minus the wild type's row for a deleted node
    changes: SparseMatrix
    start: Mapping[str, SparseMatrix]  # [N + T, N], picks the wild type's sum that each sum begins with
    edges: Mapping[str, SparseMatrix]  # [N + T, C + D], adds the changes along the edges, and of each row by itself
    spread: Mapping[str, SparseMatrix]  # [rows after the layer, N + T], picks the sum of each row


class DeltaView(SharedView):
    """A `SharedView` whose view `with_wild_type` carries what differs from the wild type.

    `layers` are the first ones, for as long as few rows differ.
    """

    def __init__(self, graph: CellGraph, removed: Mapping[str, Deletions], layers: Sequence[DeltaLayer]) -> None:
        super().__init__(graph, removed)
        self._layers = layers
        self._num_nodes = graph.num_nodes[graph.deleted_type]

    def differing(self) -> dict[int, list[int]]:
        """Return sample → the nodes whose rows differ from the wild type's after the first layer.

        Empty where they are carried through no more than one layer.
        """
        if len(self._layers) < 2:
            return {}
        nodes: dict[int, list[int]] = {}
        for row in self._layers[1].rows.tolist():
            nodes.setdefault(row // self._num_nodes, []).append(row % self._num_nodes)
        return nodes

    def with_wild_type(self) -> Sequence[View]:
        """Return one view of B + 1 copies, the wild type first, that carries what differs from it."""
        return [_WildTypeAndSamples(self.graph, self.removed_after_wild_type(), self._layers)]


class _WildTypeAndSamples(DeltaView):
    """The wild type and the samples of a `DeltaView`, one after the other."""

    def _layer(self, x: Tensor) -> DeltaLayer | None:
        """Return the layer that reads rows `x`, known by how many they are; `None` where all rows are there.

        A layer's rows are among those of the next, so that two layers with as many rows read the same rows. Deleted
        rows never differ, so that all B·N cannot. Sizes are compared and not looked up: what `torch.compile` made of
        one batch then serves the next, as it is specialised to which of them are equal and not to the sizes.
        """
        for layer in self._layers:
            if x.size(0) == self._num_nodes + layer.rows.size(0):
                return layer
        return None

    def begin(self, x: Tensor) -> Tensor:
        """Return the rows that the first layer reads: the wild type's alone, if it is carried by differences."""
        return x if self._layers else self.lift(x)

    def neighbour_sums(
        self, relations: Sequence[str], x: Tensor, *, self_weights: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """Yield each relation's sums, [N + T, H].

        A sum that differs is the wild type's, plus what its edges bring more than they bring to the wild type, plus
        its own row's change times the self-weight.
        """
        layer = self._layer(x)
        if layer is None:
            yield from super().neighbour_sums(relations, x, self_weights=self_weights)
            return
        x = autocast(x).unsqueeze(0)
        weights = torch.cat(list(self_weights)).to(x.dtype)
        matrices = [self._relation(name).matrix(x.dtype) for name in relations]
        wild_sums = spmm(matrices, x[:, : self._num_nodes], self_weights=weights)
        (changes,) = spmm([layer.changes], x)
        own_changes = changes[:, : layer.rows.size(0)]
        for name, weight, wild_sum in zip(relations, weights, wild_sums, strict=True):
            brought = torch.cat([changes, weight * own_changes], dim=1)
            (summed,) = spmm([layer.start[name], layer.edges[name]], wild_sum, brought)
            yield summed.squeeze(0)

    def convolve(
        self, relations: Sequence[str], x: Tensor, functions: Sequence[RowFunction], self_weights: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """Yield each relation's function of its sums, [rows after the layer, H]."""
        layer = self._layer(x)
        for name, part in zip(relations, super().convolve(relations, x, functions, self_weights), strict=True):
            yield part if layer is None else spmm([layer.spread[name]], part.unsqueeze(0))[0].squeeze(0)

    def complete(self, x: Tensor) -> Tensor:
        """Return one row for each (sample, node) pair, [(B + 1)·N, H]."""
        layer = self._layer(x)
        if layer is None:
            return x
        rows = torch.arange(self._num_nodes, device=x.device).repeat(self.size)
        differing = torch.arange(self._num_nodes, x.size(0), device=x.device)
        # only `take_rows` may read what a compiler makes of `index_copy`; see `kernels/_row_ops.py`
        return take_rows(x, rows.index_copy(0, layer.rows + self._num_nodes, differing))  # after the wild type's
