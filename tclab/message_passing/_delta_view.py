"""The view that carries the wild type and, for each sample, only the rows that differ from it.

Before the first layer every sample's rows are the wild type's. After it those rows differ that have a deleted
neighbour; after the second those that have such a neighbour; and so on, until nearly all do and the samples are carried
in full, over the shared matrices. Each layer is a few sparse products of small matrices that the worker made.

Shapes: N nodes, B samples, H features. A layer reads the wild type's N rows, then, sample after sample, the D rows that
differ. C changes go along its edges: those of these D rows, then of the deleted nodes, sample after sample. The
sums of one relation are the wild type's N, then the T that differ.
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
    """The matrices of one layer; mappings are by relation."""

    rows: Tensor  # [D] int64, which rows differ: node v of sample b is row b * N + v
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
            yield spmm_sum([layer.start[name], layer.edges[name]], [wild_sum, brought]).squeeze(0)

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
