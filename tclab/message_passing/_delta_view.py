"""The view that carries the wild type and, for each sample, only the rows that differ from it.

Before the first layer every sample's rows are the wild type's. After it those differ that hear from a deleted
node; after the second those that hear from them; and so on, until nearly all do and the samples are carried in
full, over the shared matrices. Each layer is a few sparse products of small matrices that the worker made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tclab.graph._cell_graph import CellGraph
from tclab.message_passing._row_layout import Order
from tclab.message_passing._shared_view import SharedView, link_of
from tclab.message_passing._view import RowFunction, View, running_sum
from tclab.message_passing.kernels._delta_sums import Carried, delta_sums, spread
from tclab.message_passing.kernels._row_ops import take_rows
from tclab.message_passing.kernels._shared_sums import Link
from tclab.perturbation import Deletions


@dataclass(frozen=True)
class DeltaLayer:
    """The matrices of one layer, from the rows that differ before it to those that differ after it.

    Rows before: the wild type's N, then sample after sample the D that differ. C are those D and, sample after
    sample, the deleted nodes. Rows of a relation: the wild type's N, then the T that differ in it.
    """

    nodes: Tensor  # [D] int64, of each row that differs
    samples: Tensor  # [D] int64, 0 … B - 1
    changes: Link  # [C, N + D], what a row is more than the wild type's; a deleted one is that much less
    # relation → how its T rows come from the wild type's sums, the changes, and the self-weighted changes of the D
    carried: Mapping[str, Carried]
    # relation → from its rows to those that all relations need after the layer; after the last all, node by node, and
    # one entry a row
    spread: Mapping[str, Link]


class DeltaView(SharedView):
    """A `SharedView` whose view `with_wild_type` carries what differs from the wild type from layer to layer.

    `layers` are the first ones, for as long as few rows differ.
    """

    def __init__(
        self,
        graph: CellGraph,
        removed: Mapping[str, Deletions],
        layers: Sequence[DeltaLayer],
        *,
        dense: Collection[str] = (),
    ) -> None:
        super().__init__(graph, removed, dense=dense)
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
        (together,) = super().with_wild_type()
        assert isinstance(together, SharedView)
        return [_WildTypeAndSamples(self.graph, together.removed, self._layers, dense=self.dense)]


class _WildTypeAndSamples(SharedView):
    """The wild type and the samples of a `DeltaView`, which carries what differs between them from layer to layer."""

    def __init__(
        self,
        graph: CellGraph,
        removed: Mapping[str, Deletions],
        layers: Sequence[DeltaLayer],
        *,
        dense: Collection[str],
    ) -> None:
        super().__init__(graph, removed, dense=dense)
        self._number = graph.num_nodes[graph.deleted_type]
        if layers:
            layers = [*layers[:-1], _regrouped(layers[-1], self._number, self.order)]
        self._layers = layers

    def _layer(self, x: Tensor) -> DeltaLayer | None:
        """Return the layer that reads these rows, identified by how many they are; `None` where all rows are there.

        Row sets are nested, so that equal size means equal sets. Sizes are compared and not looked up: what
        `torch.compile` made of one batch then serves the next, as it is specialised to which of them are equal and
        not to the sizes.
        """
        for layer in self._layers:
            if x.size(0) == self._number + layer.nodes.size(0):
                return layer
        return None

    def begin(self, x: Tensor) -> Tensor:
        """Return the rows that the first layer reads: the wild type's alone, if it is carried by differences."""
        return x if self._layers else self.lift(x)

    def convolve(
        self, relations: Sequence[str], x: Tensor, functions: Sequence[RowFunction], self_weights: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """Yield each relation's function of its sums, from rows that differ to rows that differ."""
        layer = self._layer(x)
        if layer is None:
            yield from super().convolve(relations, x, functions, self_weights)
            return
        sums = self._delta_sums(layer, relations, x, self_weights)[::-1]
        for name, function in zip(relations, functions, strict=True):
            part = function(sums.pop())
            yield spread([part], [_cast(layer.spread[name], part.dtype)])

    def convolve_sum(
        self, relations: Sequence[str], x: Tensor, functions: Sequence[RowFunction], self_weights: Sequence[Tensor]
    ) -> Tensor:
        """Return the sum of what `convolve` yields, added up as it is spread."""
        layer = self._layer(x)
        if layer is None or not torch.is_grad_enabled():  # without gradients one relation's rows need not wait
            return running_sum(self.convolve(relations, x, functions, self_weights))
        sums = self._delta_sums(layer, relations, x, self_weights)
        parts = [function(summed) for function, summed in zip(functions, sums, strict=True)]
        return spread(parts, [_cast(layer.spread[name], parts[0].dtype) for name in relations])

    def _delta_sums(
        self, layer: DeltaLayer, relations: Sequence[str], x: Tensor, self_weights: Sequence[Tensor]
    ) -> list[Tensor]:
        if torch.is_autocast_enabled(x.device.type):  # as where the samples are carried in full
            x = x.to(torch.get_autocast_dtype(x.device.type))
        wild = [link_of(self._relation(name), x.dtype) for name in relations]
        carried = [Carried(*(_cast(link, x.dtype) for link in layer.carried[name])) for name in relations]
        weights = torch.cat(list(self_weights)).to(x.dtype)
        return delta_sums(x, wild, _cast(layer.changes, x.dtype), carried, self_weights=weights)

    def complete(self, x: Tensor) -> Tensor:
        """Return one row for each (node, sample) pair, [N * (B + 1), H]."""
        layer = self._layer(x)
        if layer is None:
            return x
        rows = self.lift(torch.arange(self._number, device=x.device).unsqueeze(1)).squeeze(1)
        places = self.order.rows(layer.nodes, layer.samples + 1, self._number)
        differing = torch.arange(self._number, x.size(0), device=x.device)
        # only `take_rows` may read what a compiler makes of `index_copy`; see `kernels/_row_ops.py`
        return take_rows(x, rows.index_copy(0, places, differing))


def _regrouped(layer: DeltaLayer, number: int, order: Order) -> DeltaLayer:
    """Return the last layer with the rows after it as an order has them."""
    if order.size <= order.group:
        return layer
    device = layer.nodes.device
    nodes = torch.arange(number, device=device).repeat_interleave(order.size)
    places = order.rows(nodes, torch.arange(order.size, device=device).repeat(number), number)
    taken = torch.empty_like(places)
    taken[places] = torch.arange(len(places), device=device)
    spread = {
        name: Link(
            link.matrix._replace(col=link.matrix.col[taken], values=link.matrix.values[taken]),
            link.transposed._replace(col=places[link.transposed.col].to(torch.int32)),
        )
        for name, link in layer.spread.items()
    }
    return replace(layer, spread=spread)


def _cast(link: Link, dtype: torch.dtype) -> Link:
    matrix, transposed = (csr._replace(values=csr.values.to(dtype)) for csr in link)
    return Link(matrix, transposed)
