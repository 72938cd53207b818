"""The view that a model reads: B node-deleted copies of one graph, however a strategy made them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from torch import Tensor

from tclab._display import Display, Shown
from tclab.errors import InputError, unknown
from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.perturbation import Deletions

RowFunction: TypeAlias = Callable[[Tensor], Tensor]
"""Of rows [R, H]; what it does to a row may depend on that row alone."""

NEEDS_EDGES = "the model needs single edges; layers such as SharedGINConv for GINConv do not (docs/your_model.md)"


class View(Shown, ABC):
    """B node-deleted copies of one graph.

    Rows of a feature tensor `x: [R, H]` are (sample, node) pairs of one node type, sample after sample as in a
    batch of PyG's, so everything row-wise (Linear, norm, activation) needs no view at all. A view may keep rows of
    deleted nodes: what they hold has no meaning, it is finite, and neither `neighbour_sum` nor `pool` lets it
    reach another row.

    A model reads it in one of two ways. Row by row: `lift`, then `neighbour_sum`, `neighbour_sums` and `degree`
    between whatever it does to rows, then `pool`. Or layer by layer: `begin`, `convolve` for each layer, `complete`,
    then `pool`; a view may then carry fewer rows for as long as few of the samples' differ from the wild type's.
    A view implements the first, `neighbour_sums` where several relations are faster together, and the three methods
    of the second only if it carries fewer rows, with `neighbour_sums` of such rows.

    It is a context manager, to be closed after the backward: a strategy may then use its buffers again.

    **Arguments:**

    - `graph`: the whole graph, on the device of the features.
    - `deletions`: the nodes of the deleted type that each sample removes, on that device: those it deletes and, where
      relations cascade, their dependants. It is the attribute `deleted`.
    - `on_close`: called once when the view is closed.
    """

    def __init__(self, graph: CellGraph, deletions: Deletions, on_close: Callable[[], None] | None = None) -> None:
        self.graph = graph
        self.deleted = deletions
        self._on_close = on_close
        self._closed = False

    @property
    def size(self) -> int:
        """How many copies there are, B."""
        return len(self.deleted)

    @property
    @abstractmethod
    def keep(self) -> dict[str, Tensor]:
        """Which rows are left: node type → [R] bool."""

    @abstractmethod
    def lift(self, x: Tensor, node_type: str | None = None) -> Tensor:
        """Return one row for each (sample, node) pair.

        **Arguments:**

        - `x`: [N, H], one row a node of the whole graph.
        - `node_type`: the deleted type unless given.

        **Returns:** [R, H]
        """

    @abstractmethod
    def neighbour_sum(
        self, relation: str, x: Tensor, *, transpose: bool = False, self_weight: Tensor | None = None
    ) -> Tensor:
        """Return for each target row the sum of its kept neighbours' rows, weighted where the relation is.

        An edge is kept where both its ends are. What a deleted target's row holds is not specified.

        **Arguments:**

        - `relation`: the name of one of the graph's relations.
        - `x`: [R_source, H]
        - `transpose`: against the edges, from targets to sources.
        - `self_weight`: [1], how much of itself a row adds (GIN's 1 + ε), where both ends are of one type;
          given here rather than added outside, as a view may do both in one pass.

        **Returns:** [R_target, H]
        """

    def neighbour_sums(
        self, relations: Sequence[str], x: Tensor, *, self_weights: Sequence[Tensor]
    ) -> Iterable[Tensor]:
        """Return `neighbour_sum` for several relations within the deleted type, each with its own self-weight.

        One after the other, each when it is asked for, unless a view overrides it.

        **Arguments:**

        - `relations`: their names.
        - `x`: [R, H]
        - `self_weights`: [1] for each relation.

        **Returns:** [R, H] for each relation.
        """
        for name, weight in zip(relations, self_weights, strict=True):
            yield self.neighbour_sum(name, x, self_weight=weight)

    # ---- layers, for a model whose rows change by nothing else between them

    def begin(self, x: Tensor) -> Tensor:
        """Return the rows that the first layer reads, given one a node of the whole graph, `x: [N, H]`."""
        return self.lift(x)

    def convolve(
        self, relations: Sequence[str], x: Tensor, functions: Sequence[RowFunction], self_weights: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """Yield for each relation within the deleted type a row-wise function of its `neighbour_sum`.

        **Arguments:**

        - `relations`: their names.
        - `x`: rows as `begin` or an earlier layer gave them.
        - `functions`: one for each relation.
        - `self_weights`: [1] for each relation, how much of itself a row adds.

        **Returns:** rows for the next layer or `complete`, the same ones for every relation.
        """
        sums = self.neighbour_sums(relations, x, self_weights=self_weights)
        for function, summed in zip(functions, sums, strict=True):
            yield function(summed)

    def complete(self, x: Tensor) -> Tensor:
        """Return one row for each (sample, node) pair, [R, H], of rows as a layer gave them."""
        return x

    @abstractmethod
    def degree(self, relation: str, *, transpose: bool = False) -> Tensor:
        """Return how many kept edges go into each target row, [R_target] float32, weights not counted."""

    @abstractmethod
    def pool(self, scores: Tensor, values: Tensor) -> Tensor:
        """Return the softmax-weighted sum over what is left of the deleted type in each sample.

        **Arguments:**

        - `scores`: [R, 1]
        - `values`: [R, H]

        **Returns:** [B, H]; 0 for a sample with nothing left. It is added up in float32 or more.
        """

    def emptied(self) -> Tensor:
        """Return which samples have nothing left of the deleted type, [B] bool."""
        return self.deleted.ptr.diff() == self.graph.num_nodes[self.graph.deleted_type]

    @property
    @abstractmethod
    def wild_type(self) -> View:
        """One copy of the graph with nothing deleted; its rows are the nodes in order."""

    def with_wild_type(self) -> Sequence[View]:
        """Return views whose samples, one view after the other, are the wild type and then this view's own.

        One view where they can be encoded together, otherwise two. `first` gives the wild type's rows.
        """
        return [self.wild_type, self]

    def first(self, x: Tensor) -> Tensor:
        """Return the first sample's rows of the deleted type, [N, H]; that sample must delete nothing."""
        return x[: self.graph.num_nodes[self.graph.deleted_type]]

    def edges(self, relation: str) -> tuple[Tensor, Tensor | None]:
        """Return single edges, for convolutions that need them (attention): rows and which of them count.

        **Returns:** `edge_index: [2, E]` of rows, and `mask: [E] bool`, or `None` where every edge counts.

        **Raises:** `NeedsEdgesError` where the view has no edges to give.
        """
        raise NeedsEdgesError(NEEDS_EDGES)

    def edge_weight(self, relation: str) -> Tensor | None:
        """Return the weights of the edges that `edges` gives, [E] float64; `None` where all are 1.

        **Raises:** `NeedsEdgesError` where the view has no edges to give.
        """
        raise NeedsEdgesError(NEEDS_EDGES)

    def row_samples(self) -> Tensor:
        """Return the sample of each row of the deleted type, [R] int64: what PyG calls `batch`.

        **Raises:** `NeedsEdgesError` where the view has no edges to give.
        """
        raise NeedsEdgesError(NEEDS_EDGES)

    def _display(self) -> Display:
        state = ", closed" if self._closed else ""
        return Display(f"{type(self).__name__}: {self.size} copies of {self.graph!r}{state}")

    def _relation(self, name: str) -> Network:
        if self._closed:
            raise RuntimeError("this view is closed: keep it open until the backward is through")
        if name not in self.graph.relations:
            raise unknown("relation", name, self.graph.relations)
        return self.graph.relations[name]

    def close(self) -> None:
        """Close the view; its strategy may use again what it lent to it."""
        if not self._closed:
            self._closed = True
            if self._on_close is not None:
                self._on_close()

    def __enter__(self) -> View:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class NeedsEdgesError(InputError):
    """The model needs single edges, which this strategy does not make."""
