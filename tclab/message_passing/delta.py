"""The view that carries the wild type and, for each sample, only the rows that differ from it.

Before the first layer every sample's rows are the wild type's. After it those differ that hear from a deleted
node; after the second those that hear from them; and so on, until nearly all do and the samples are carried in
full, over the shared matrices. Each step is a few sparse products of small matrices that the worker made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tclab.graph import CellGraph
from tclab.message_passing.delta_layer import Carried, delta_sums, spread
from tclab.message_passing.order import Order
from tclab.message_passing.rows import take_rows
from tclab.message_passing.shared import SharedView, link_of
from tclab.message_passing.sums import Link
from tclab.message_passing.view import View
from tclab.perturbation import Deletions


@dataclass(frozen=True)
class Step:
    """From the rows that differ before a layer to those that differ after it.

    Rows before: the wild type's N, then sample after sample the D that differ. C are those D and, sample after
    sample, the deleted nodes. Rows of a relation: the wild type's N, then the T that differ in it.

    **Arguments:**

    - `nodes`: [D] int64, the node of each row that differs, and `samples`: [D] int64, its sample, 0 … B - 1.
    - `changes`: [C, N + D], what a row is more than the wild type's; a deleted one is that much less.
    - `carried`: relation → how its T rows come from the wild type's sums, the changes, and the self-weighted
      changes of the D.
    - `spread`: relation → from its rows to those that all relations need after the layer; after the last of the
      steps these are all, node by node, and one entry a row.
    """

    nodes: Tensor
    samples: Tensor
    changes: Link
    carried: Mapping[str, Carried]
    spread: Mapping[str, Link]


class DeltaView(SharedView):
    """Samples over one sparse matrix, which are carried as what differs from the wild type where they can be.

    That is where the wild type is encoded with them (`with_wild_type`), by `begin`, `convolved` and
    `convolved_sum`. Asked for anything else it is a `SharedView`.

    **Arguments:**

    - `graph`, `lost`, `dense`: see `SharedView`.
    - `steps`: for as many layers as the rows that differ are few.
    """

    def __init__(
        self, graph: CellGraph, lost: Mapping[str, Deletions], steps: Sequence[Step], *, dense: Collection[str] = ()
    ) -> None:
        super().__init__(graph, lost, dense=dense)
        self._steps = steps

    def differing(self) -> dict[int, list[int]]:
        """Return sample → the nodes whose rows differ from the wild type's after the first layer.

        Empty where they are carried through no more than one layer.
        """
        if len(self._steps) < 2:
            return {}
        found: dict[int, list[int]] = {}
        for sample, node in zip(self._steps[1].samples.tolist(), self._steps[1].nodes.tolist(), strict=True):
            found.setdefault(sample, []).append(node)
        return found

    def with_wild_type(self) -> Sequence[View]:
        """Return one view of B + 1 copies, the wild type first, that carries what differs from it."""
        (together,) = super().with_wild_type()
        assert isinstance(together, SharedView)
        return [_Together(self.graph, together.lost, self._steps, dense=self.dense)]


class _Together(SharedView):
    """The wild type and the samples: a `DeltaView`'s rows are told by how many there are."""

    def __init__(
        self, graph: CellGraph, lost: Mapping[str, Deletions], steps: Sequence[Step], *, dense: Collection[str]
    ) -> None:
        super().__init__(graph, lost, dense=dense)
        self._number = graph.num_nodes[graph.deleted_type]
        if steps:
            steps = [*steps[:-1], _regrouped(steps[-1], self._number, self.order)]
        self._steps = steps

    def _step(self, x: Tensor) -> Step | None:
        """Return the step whose rows these are, if any are: they are told by how many there are.

        Sets that grow have the same rows where they have as many: the first of them is as good as the next. They
        are compared, not looked up: `torch.compile` then knows that two sizes are one and not which, and what it
        compiled serves the next batch.
        """
        for step in self._steps:
            if x.size(0) == self._number + step.nodes.size(0):
                return step
        return None

    def begin(self, x: Tensor) -> Tensor:
        """Return the rows that the first layer reads: the wild type's alone, if it is carried by differences."""
        return x if self._steps else self.lift(x)

    def convolved(
        self,
        relations: Sequence[str],
        x: Tensor,
        functions: Sequence[Callable[[Tensor], Tensor]],
        *,
        self_weights: Sequence[Tensor],
    ) -> Iterator[Tensor]:
        """Return each relation's function of its sums, from rows that differ to rows that differ."""
        step = self._step(x)
        if step is None:
            yield from super().convolved(relations, x, functions, self_weights=self_weights)
            return
        sums = self._delta_sums(step, relations, x, self_weights)[::-1]
        for name, function in zip(relations, functions, strict=True):
            part = function(sums.pop())
            yield spread([part], [_cast(step.spread[name], part.dtype)])

    def convolved_sum(
        self,
        relations: Sequence[str],
        x: Tensor,
        functions: Sequence[Callable[[Tensor], Tensor]],
        *,
        self_weights: Sequence[Tensor],
    ) -> Tensor:
        """Return the sum of what `convolved` returns, added up as it is spread."""
        step = self._step(x)
        if step is None or not torch.is_grad_enabled():  # without gradients one relation's rows need not wait
            return super().convolved_sum(relations, x, functions, self_weights=self_weights)
        sums = self._delta_sums(step, relations, x, self_weights)
        parts = [function(summed) for function, summed in zip(functions, sums, strict=True)]
        return spread(parts, [_cast(step.spread[name], parts[0].dtype) for name in relations])

    def _delta_sums(
        self, step: Step, relations: Sequence[str], x: Tensor, self_weights: Sequence[Tensor]
    ) -> list[Tensor]:
        if torch.is_autocast_enabled(x.device.type):  # as where the samples are carried in full
            x = x.to(torch.get_autocast_dtype(x.device.type))
        wild = [link_of(self._relation(name), x.dtype) for name in relations]
        carried = [Carried(*(_cast(link, x.dtype) for link in step.carried[name])) for name in relations]
        weights = torch.cat(list(self_weights)).to(x.dtype)
        return delta_sums(x, wild, _cast(step.changes, x.dtype), carried, self_weights=weights)

    def complete(self, x: Tensor) -> Tensor:
        """Return one row for each (node, sample) pair, [N * (B + 1), H]."""
        step = self._step(x)
        if step is None:
            return x
        rows = self.lift(torch.arange(self._number, device=x.device).unsqueeze(1)).squeeze(1)
        places = self.order.rows(step.nodes, step.samples + 1, self._number)
        own = torch.arange(self._number, x.size(0), device=x.device)
        # of what a compiler makes of `index_copy`, `take_rows` alone may be the reader; see `rows`
        return take_rows(x, rows.index_copy(0, places, own))


def _regrouped(step: Step, number: int, order: Order) -> Step:
    """Return the last step with the rows after it as an order has them."""
    if order.size <= order.group:
        return step
    device = step.nodes.device
    nodes = torch.arange(number, device=device).repeat_interleave(order.size)
    places = order.rows(nodes, torch.arange(order.size, device=device).repeat(number), number)
    taken = torch.empty_like(places)
    taken[places] = torch.arange(len(places), device=device)
    spread = {
        name: Link(
            link.matrix._replace(col=link.matrix.col[taken], values=link.matrix.values[taken]),
            link.transposed._replace(col=places[link.transposed.col].to(torch.int32)),
        )
        for name, link in step.spread.items()
    }
    return replace(step, spread=spread)


def _cast(link: Link, dtype: torch.dtype) -> Link:
    matrix, transposed = (csr._replace(values=csr.values.to(dtype)) for csr in link)
    return Link(matrix, transposed)
