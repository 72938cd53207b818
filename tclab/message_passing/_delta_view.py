"""The view that carries the wild type and, for each sample, only the rows that differ from it.

Before the first layer every sample's rows are the wild type's. After it those differ that hear from a deleted
node; after the second those that hear from them; and so on, until nearly all do and the samples are carried in
full, over the shared matrices. Each layer is a few sparse products of small matrices that the worker made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tclab.graph._cell_graph import CellGraph
from tclab.graph._csr import SparseMatrix
from tclab.message_passing._shared_view import SharedView, autocast
from tclab.message_passing._view import RowFunction, View
from tclab.message_passing.kernels._row_ops import take_rows
from tclab.message_passing.kernels._spmm import spmm, spmm_sum
from tclab.perturbation import Deletions


@dataclass(frozen=True)
class DeltaLayer:
    """The matrices of one layer, from the rows that differ before it to those that differ after it.

    Rows before: the wild type's N, then sample after sample the D that differ. C are those D and, sample after
    sample, the deleted nodes. Rows of a relation: the wild type's N, then the T that differ in it.
    """

    nodes: Tensor  # [D] int64, of each row that differs
    samples: Tensor  # [D] int64, 0 … B - 1
    changes: SparseMatrix  # [C, N + D], what a row is more than the wild type's; a deleted one is that much less
    start: Mapping[str, SparseMatrix]  # relation → [N + T, N], which of the wild type's sums a row begins with
    edges: Mapping[str, SparseMatrix]  # relation → [N + T, C + D], the changes that edges bring, and its own
    spread: Mapping[str, SparseMatrix]  # relation → from its rows to those after the layer, one entry a row


class DeltaView(SharedView):
    """A `SharedView` whose view `with_wild_type` carries what differs from the wild type.

    `layers` are the first ones, for as long as few rows differ.
    """

    def __init__(self, graph: CellGraph, removed: Mapping[str, Deletions], layers: Sequence[DeltaLayer]) -> None:
        super().__init__(graph, removed)
        self._layers = layers

    def differing(self) -> dict[int, list[int]]:
        """Return sample → the nodes whose rows differ from the wild type's after the first layer.

        Empty where they are carried through no more than one layer.
        """
        if len(self._layers) < 2:
            return {}
        found: dict[int, list[int]] = {}
        for sample, node in zip(self._layers[1].samples.tolist(), self._layers[1].nodes.tolist(), strict=True):
            found.setdefault(sample, []).append(node)
        return found

    def with_wild_type(self) -> Sequence[View]:
        """Return one view of B + 1 copies, the wild type first, that carries what differs from it."""
        return [_WildTypeAndSamples(self.graph, self.removed_after_wild_type(), self._layers)]


class _WildTypeAndSamples(SharedView):
    """The wild type and the samples of a `DeltaView`, which carries what differs between them from layer to layer."""

    def __init__(self, graph: CellGraph, removed: Mapping[str, Deletions], layers: Sequence[DeltaLayer]) -> None:
        super().__init__(graph, removed)
        self._num_nodes = graph.num_nodes[graph.deleted_type]
        self._layers = layers

    def _layer(self, x: Tensor) -> DeltaLayer | None:
        """Return the layer that reads these rows, identified by how many they are; `None` where all rows are there.

        Row sets are nested, so that equal size means equal sets. Sizes are compared and not looked up: what
        `torch.compile` made of one batch then serves the next, as it is specialised to which of them are equal and
        not to the sizes.
        """
        for layer in self._layers:
            if x.size(0) == self._num_nodes + layer.nodes.size(0):
                return layer
        return None

    def begin(self, x: Tensor) -> Tensor:
        """Return the rows that the first layer reads: the wild type's alone, if it is carried by differences."""
        return x if self._layers else self.lift(x)

    def convolve(
        self, relations: Sequence[str], x: Tensor, functions: Sequence[RowFunction], self_weights: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """Return each relation's function of its sums, from rows that differ to rows that differ."""
        layer = self._layer(x)
        if layer is None:
            yield from super().convolve(relations, x, functions, self_weights)
            return
        for name, part in zip(relations, self._parts(layer, relations, x, functions, self_weights), strict=True):
            (spread,) = spmm([layer.spread[name]], part)
            yield spread.squeeze(0)

    def convolve_sum(
        self, relations: Sequence[str], x: Tensor, functions: Sequence[RowFunction], self_weights: Sequence[Tensor]
    ) -> Tensor:
        """Return the sum of what `convolve` returns, added up as it is spread."""
        layer = self._layer(x)
        if layer is None:
            return super().convolve_sum(relations, x, functions, self_weights)
        parts = list(self._parts(layer, relations, x, functions, self_weights))
        return spmm_sum([layer.spread[name] for name in relations], parts).squeeze(0)

    def _parts(
        self,
        layer: DeltaLayer,
        relations: Sequence[str],
        x: Tensor,
        functions: Sequence[RowFunction],
        self_weights: Sequence[Tensor],
    ) -> Iterator[Tensor]:
        """Return each relation's function of its rows' sums, [1, N + T, H].

        The wild type's sums are Wᵢ = Aᵢ·X + wᵢ·X. With the changes Δ = M·X, of which the first D are rows of their own,
        Δ′, all sums are Sᵢ·Wᵢ + Eᵢ·[Δ; wᵢ·Δ′].
        """
        x = autocast(x).unsqueeze(0)
        weights = torch.cat(list(self_weights)).to(x.dtype)
        matrices = [self._relation(name).matrix(x.dtype) for name in relations]
        wild = spmm(matrices, x[:, : self._num_nodes], self_weights=weights)
        (changes,) = spmm([layer.changes], x)
        own = changes[:, : layer.nodes.size(0)]
        for name, weight, function, first in zip(relations, weights, functions, wild, strict=True):
            changed = torch.cat([changes, weight * own], dim=1)
            summed = spmm_sum([layer.start[name], layer.edges[name]], [first, changed])
            yield function(summed.squeeze(0)).unsqueeze(0)

    def complete(self, x: Tensor) -> Tensor:
        """Return one row for each (sample, node) pair, [(B + 1)·N, H]."""
        layer = self._layer(x)
        if layer is None:
            return x
        rows = torch.arange(self._num_nodes, device=x.device).repeat(self.size)
        differing = torch.arange(self._num_nodes, x.size(0), device=x.device)
        # only `take_rows` may read what a compiler makes of `index_copy`; see `kernels/_row_ops.py`
        return take_rows(x, rows.index_copy(0, (layer.samples + 1) * self._num_nodes + layer.nodes, differing))
