"""The protocol of views that choose which rows go from layer to layer, and the plain way for all other views."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from tclab.message_passing._view import View

RowFunction: TypeAlias = Callable[[Tensor], Tensor]
"""Of rows [R, H]; what it does to a row may depend on that row alone."""


@runtime_checkable
class LayerwiseView(Protocol):
    """A view that carries fewer rows than there are (sample, node) pairs for as long as few differ.

    For layers that are nothing but neighbour sums and row-wise functions: `begin`, then one `convolved` or
    `convolved_sum` a layer, then `complete`. Ask `layerwise` for that of any view.
    """

    def begin(self, x: Tensor) -> Tensor:
        """Return the rows that the first layer reads, given one a node of the whole graph, `x: [N, H]`."""
        ...

    def convolved(
        self, relations: Sequence[str], x: Tensor, functions: Sequence[RowFunction], *, self_weights: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """Return for each relation within the deleted type a row-wise function of its `View.neighbour_sum`.

        **Arguments:**

        - `relations`: their names.
        - `x`: rows as `begin` or an earlier layer gave them.
        - `functions`: one for each relation.
        - `self_weights`: [1] for each relation, how much of itself a row adds.

        **Returns:** rows for the next layer or `complete`, the same ones for every relation.
        """
        ...

    def convolved_sum(
        self, relations: Sequence[str], x: Tensor, functions: Sequence[RowFunction], *, self_weights: Sequence[Tensor]
    ) -> Tensor:
        """Return the sum over relations of what `convolved` returns, which a view may add up as it goes."""
        return running_sum(self.convolved(relations, x, functions, self_weights=self_weights))

    def complete(self, x: Tensor) -> Tensor:
        """Return one row for each (sample, node) pair, [R, H], of rows as a layer gave them."""
        ...


class AllRows(LayerwiseView):
    """The `LayerwiseView` of any view: every (sample, node) pair has its row in every layer."""

    def __init__(self, view: View) -> None:
        self._view = view

    def begin(self, x: Tensor) -> Tensor:
        """Return `View.lift` of `x: [N, H]`, [R, H]."""
        return self._view.lift(x)

    def convolved(
        self, relations: Sequence[str], x: Tensor, functions: Sequence[RowFunction], *, self_weights: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """Return each relation's function of its `View.neighbour_sums`, [R, H] each."""
        sums = self._view.neighbour_sums(relations, x, self_weights=self_weights)
        for function, summed in zip(functions, sums, strict=True):
            yield function(summed)

    def complete(self, x: Tensor) -> Tensor:
        """Return `x: [R, H]`, which has every row."""
        return x


def layerwise(view: View) -> LayerwiseView:
    """Return a view itself where it chooses its rows layer by layer, otherwise one that carries all of its rows."""
    return view if isinstance(view, LayerwiseView) else AllRows(view)


def running_sum(parts: Iterator[Tensor]) -> Tensor:
    """Return the sum of tensors, added up as they come, so that no more than one is held besides the total."""
    first = next(parts)
    second = next(parts, None)
    if second is None:
        return first
    total = first + second
    for part in parts:
        total += part  # the backward of a sum keeps nothing
    return total
