"""`View`, what a model reads: B node-deleted copies of one graph, however a strategy made them.

`EdgeListView` holds every sample's edges one by one: gather, mask, scatter, as PyG's convolutions do. `SharedView` has
one sparse matrix for all samples: K·A·(K·X), without copying or masking edges.

Deleting nodes needs no edge mask. An edge counts where both its ends are kept, `mask[e] = keep[source] ·
keep[target]`, so the masked neighbour sum is `K·A·(K·X)`: A is the whole graph's adjacency, the same for all
samples, and K zeroes the rows of deleted nodes, at every layer. Only the inner K is computed: a sum into a deleted node
has no meaning, and the next layer's K and `pool` leave it out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from tclab._display import Display, Shown
from tclab.errors import InputError, check_known, require
from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.message_passing._stacked import each, is_stacked
from tclab.message_passing.kernels._row_ops import add_rows, in_float32, keep_mask, kept_rows, summable, take_rows
from tclab.message_passing.kernels._spmm import spmm
from tclab.perturbation import Deletions

RowFunction: TypeAlias = Callable[[Tensor], Tensor]
"""Of rows [R, H]; what it does to a row may depend on that row alone."""

NEEDS_EDGES = "the model needs single edges; layers such as SharedGINConv for GINConv do not (docs/your_model.md)"


class EdgeList(NamedTuple):
    """One relation's edges in every sample."""

    edge_index: Tensor  # [2, E] int64, ends are rows of all samples, not nodes
    mask: Tensor | None = None  # [E] bool, which of them count; None where all do
    weight: Tensor | None = None  # [E] float64; None where all are 1


class View(Shown, ABC):
    """B node-deleted copies of one graph.

    Rows of a feature tensor `x: [R, H]` are (sample, node) pairs of one node type, sample after sample as in a
    batch of PyG's, so everything row-wise (Linear, norm, activation) needs no view at all. A view may keep rows of
    deleted nodes. Their numbers are finite and have no meaning; `neighbour_sum` and `pool` let none of them reach
    another row.

    A model reads it in one of two ways. Row by row: `lift`, then `neighbour_sum`, `neighbour_sums` and `degree`
    between whatever it does to rows, then `pool`. Or layer by layer: `begin`, `convolve` for each layer, `complete`,
    then `pool`; a view may then hold fewer rows, as long as few rows differ from the wild type's.

    To write a view, implement the methods of the first way, `neighbour_sums` only if several relations are faster
    together. If it holds fewer rows, also implement `begin`, `convolve` and `complete`; `neighbour_sums` then gets
    such rows.

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
        - `self_weight`: [1], how much of itself a row adds (GIN's 1 + ε), only if both ends are of one type. It is an
          argument because a view may compute the sum and this in one pass.

        **Returns:** [R_target, H]
        """

    def neighbour_sums(
        self, relations: Sequence[str], x: Tensor, *, self_weights: Sequence[Tensor]
    ) -> Iterable[Tensor]:
        """Return `neighbour_sum` for several relations within the deleted type, each with its own self-weight.

        Each is computed when it is asked for, unless a view overrides this method.

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
    ) -> Iterable[Tensor]:
        """Return for each relation within the deleted type a row-wise function of its `neighbour_sum`.

        **Arguments:**

        - `relations`: their names.
        - `x`: rows as `begin` or an earlier layer gave them.
        - `functions`: one for each relation.
        - `self_weights`: [1] for each relation, how much of itself a row adds.

        **Returns:** rows for the next layer or `complete`, the same ones for every relation.
        """
        return each(functions, self.neighbour_sums(relations, x, self_weights=self_weights))

    def complete(self, x: Tensor) -> Tensor:
        """Return one row for each (sample, node) pair, [R, H], of rows as a layer gave them."""
        return x

    @abstractmethod
    def degree(self, relation: str, *, transpose: bool = False) -> Tensor:
        """Return how many kept edges go into each target row, [R_target] float32, weights not counted."""

    def pool(self, scores: Tensor, values: Tensor) -> Tensor:
        """Return the softmax-weighted sum over what is left of the deleted type in each sample.

        **Arguments:**

        - `scores`: [R, 1]
        - `values`: [R, H]

        **Returns:** [B, H]; 0 for a sample with nothing left. It is added up in float32 or more, also under autocast.
        """
        # a view that has not a row for each (sample, node) pair overrides it
        keep = self.keep[self.graph.deleted_type].view(self.size, -1)
        scores = in_float32(scores.view(keep.shape)).masked_fill(~keep, float("-inf"))
        highest = scores.detach().amax(1, keepdim=True)
        highest = highest.masked_fill(highest == float("-inf"), 0.0)
        weights = (scores - highest).exp()
        # the highest score adds exactly 1, so the clamp is for samples with nothing left alone
        weights = weights / weights.sum(1, keepdim=True).clamp_min(0.5)
        with torch.autocast(values.device.type, enabled=False):  # it would multiply in two bytes
            rows = in_float32(values.view(*keep.shape, values.size(1)))
            return torch.einsum("bn,bnh->bh", weights, rows).to(values.dtype)

    def emptied(self) -> Tensor:
        """Return which samples have nothing left of the deleted type, [B] bool."""
        return self.deleted.ptr.diff() == self.graph.num_nodes[self.graph.deleted_type]

    @property
    @abstractmethod
    def wild_type(self) -> View:
        """One copy of the graph with nothing deleted; its rows are the nodes in order."""

    def with_wild_type(self) -> Sequence[View]:
        """Return one or two views whose samples are, in order, the wild type and this view's own.

        It is one view if they can be encoded together. `first` gives the wild type's rows.
        """
        return [self.wild_type, self]

    def first(self, x: Tensor) -> Tensor:
        """Return the first sample's rows of the deleted type, [N, H]; that sample must delete nothing."""
        return x[: self.graph.num_nodes[self.graph.deleted_type]]

    def edges(self, relation: str) -> EdgeList:
        """Return single edges, for convolutions that need them (attention): rows, which of them count, and weights.

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
        check_known("relation", self.graph.relations, name)
        return self.graph.relations[name]

    def close(self) -> None:
        """Close the view, so that its strategy may reuse the view's buffers."""
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


class SharedView(View):
    """Samples over one sparse matrix; rows are [B·N], sample after sample, deleted nodes included.

    `SharedGraph` computes such a sum for PyG models; it is not used here.

    **Arguments:**

    - `graph`: on the device.
    - `removed`: node type → the deleted nodes of each sample, closed over dependants, on the device.
    - `dense`: sum by products with dense matrices, N² numbers a relation. Such a product does 1 / density times the
      work of a sparse one, at a higher rate: on a CPU it is faster from about half of all possible edges on. Zeros and
      ones are exact in every dtype.
    """

    def __init__(self, graph: CellGraph, removed: Mapping[str, Deletions], *, dense: bool = False) -> None:
        every = "Deletions, as of every node type; Deletions.nothing(B) deletes none"
        for kind in graph.num_nodes:
            require(f"removed[{kind!r}]", removed.get(kind), Deletions, every)
        super().__init__(graph, removed[graph.deleted_type])
        self.removed = removed
        self.dense = dense
        # node type → [M] int64, the row of each removed node
        self._removed_rows = {kind: d.rows(graph.num_nodes[kind]) for kind, d in removed.items()}
        self._keep: dict[str, Tensor] | None = None
        self._degrees: dict[tuple[str, bool], Tensor] = {}

    @property
    def keep(self) -> dict[str, Tensor]:
        """Which rows are left: node type → [B·N] bool."""
        if self._keep is None:
            sizes = self.graph.num_nodes.items()
            self._keep = {kind: keep_mask(self._removed_rows[kind], n * self.size) for kind, n in sizes}
        return self._keep

    def lift(self, x: Tensor, node_type: str | None = None) -> Tensor:
        """Return one row for each (sample, node) pair, [B·N, H]."""
        return x.expand(self.size, -1, -1).flatten(0, 1)

    def neighbour_sum(
        self, relation: str, x: Tensor, *, transpose: bool = False, self_weight: Tensor | None = None
    ) -> Tensor:
        """Return the sum over kept edges into each row, A·(K·X); see `View.neighbour_sum`."""
        (summed,) = self._sums([relation], x, None if self_weight is None else [self_weight], transpose=transpose)
        return summed

    def neighbour_sums(
        self, relations: Sequence[str], x: Tensor, *, self_weights: Sequence[Tensor]
    ) -> Iterable[Tensor]:
        """Return the sums over several relations, whose gradients are added up in one tensor.

        They are one tensor, [K, R, H] of K relations, where the view is `dense`, and on CUDA.
        """
        return self._sums(relations, x, self_weights)

    def _sums(
        self, relations: Sequence[str], x: Tensor, self_weights: Sequence[Tensor] | None, *, transpose: bool = False
    ) -> Iterable[Tensor]:
        networks = [self._relation(name) for name in relations]
        x = autocast(x).unflatten(0, (self.size, -1))
        kind = networks[0].target if transpose else networks[0].source
        keep = self.keep[kind].view(self.size, -1) if self._removed_rows[kind].numel() else None
        weights = None if self_weights is None else torch.cat(list(self_weights)).to(x.dtype)
        # tiles, which sum two bytes, gather less where the rows of a block are those of one network
        if not self.dense and (len(networks) == 1 or x.element_size() == 2 or not is_stacked(x)):
            matrices = [network.matrix(x.dtype, transpose=transpose) for network in networks]
            sums = [summed.flatten(0, 1) for summed in spmm(matrices, x, self_weights=weights, sources=keep)]
            return torch.stack(sums) if len(sums) > 1 and is_stacked(x) else sums
        wide = kept_rows(x, keep).transpose(0, 1).flatten(1)  # [N, B·H]: one product serves all samples
        if self.dense:
            dense = [network.dense(dtype=x.dtype) for network in networks]
            wide_sums = torch.stack([(matrix.t() if transpose else matrix) @ wide for matrix in dense])
        else:  # and all networks
            wide_sums = spmm([networks[0].stacked(networks[1:], x.dtype)], wide.unsqueeze(0))[0]
            wide_sums = wide_sums.view(len(networks), *wide.shape)
        if weights is not None:
            wide_sums = torch.addcmul(wide_sums, wide, weights.view(-1, 1, 1))
        return wide_sums.unflatten(2, (self.size, -1)).transpose(1, 2).flatten(1, 2)

    def degree(self, relation: str, *, transpose: bool = False) -> Tensor:
        """Return how many kept edges go into each row, [R_target] float32; counted once."""
        network = self._relation(relation).unweighted()
        source = network.target if transpose else network.source
        if (relation, transpose) not in self._degrees:
            kept = self.keep[source].float().view(self.size, -1, 1)
            (counted,) = spmm([network.matrix(torch.float32, transpose=transpose)], kept)
            self._degrees[relation, transpose] = counted.flatten()
        return self._degrees[relation, transpose]

    @property
    def wild_type(self) -> View:
        """One copy of the graph with nothing deleted."""
        nothing = Deletions.nothing(1, device=self.graph.device)
        return SharedView(self.graph, dict.fromkeys(self.graph.num_nodes, nothing), dense=self.dense)

    def with_wild_type(self) -> Sequence[View]:
        """Return one new view of B + 1 copies, the wild type first: one product serves them all.

        Models sum over the new view only, so this view's mask of nodes is made only if it is read.
        """
        return [SharedView(self.graph, self.removed_after_wild_type(), dense=self.dense)]

    def removed_after_wild_type(self) -> dict[str, Deletions]:
        """Return what B + 1 copies remove, the wild type first."""
        return {k: Deletions(d.nodes, torch.cat([d.ptr[:1], d.ptr]), d.most) for k, d in self.removed.items()}


def autocast(x: Tensor) -> Tensor:
    """Return `x` in autocast's dtype where it is on: a norm gives float32 there, twice what is to be gathered."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


class EdgeListView(View):
    """Samples one after the other, each with its own rows and its own list of edges.

    **Arguments:**

    - `graph`, `on_close`: of every `View`.
    - `removed`: node type → what each sample removes, on the graph's device.
    - `edges`: relation → its edges, by rows.
    - `rows`: node type → the sample and the node of each row, [R] int64 each, where only nodes that are left have rows;
      unless given, every node of every sample has one, in order.
    """

    def __init__(
        self, graph: CellGraph, removed: Mapping[str, Deletions], edges: Mapping[str, EdgeList], *,
        rows: Mapping[str, tuple[Tensor, Tensor]] | None = None, on_close: Callable[[], None] | None = None
    ) -> None:  # fmt: skip
        super().__init__(graph, removed[graph.deleted_type], on_close)
        self._edges = edges
        self._rows = rows
        if rows is None:
            self._keep = {k: keep_mask(removed[k].rows(n), n * self.size) for k, n in graph.num_nodes.items()}
        else:
            self._keep = {kind: torch.ones_like(nodes, dtype=torch.bool) for kind, (_, nodes) in rows.items()}

    @property
    def keep(self) -> dict[str, Tensor]:
        """Which rows are left: node type → [R] bool."""
        return self._keep

    def rows(self) -> list[tuple[int, int]]:
        """Return the sample and the node of each row of the deleted type."""
        kind = self.graph.deleted_type
        if self._rows is None:
            return list(product(range(self.size), range(self.graph.num_nodes[kind])))
        samples, nodes = self._rows[kind]
        return list(zip(samples.tolist(), nodes.tolist(), strict=True))

    def row_samples(self) -> Tensor:
        """Return the sample of each row of the deleted type, [R]; samples are one after the other."""
        kind = self.graph.deleted_type
        if self._rows is not None:
            return self._rows[kind][0]
        return torch.arange(self.size, device=self.graph.device).repeat_interleave(self.graph.num_nodes[kind])

    def lift(self, x: Tensor, node_type: str | None = None) -> Tensor:
        """Return one row for each (sample, node) pair; see `View.lift`."""
        if self._rows is None:
            return x.repeat(self.size, 1)
        return take_rows(x, self._rows[node_type or self.graph.deleted_type][1])

    def neighbour_sum(
        self, relation: str, x: Tensor, *, transpose: bool = False, self_weight: Tensor | None = None
    ) -> Tensor:
        """Return the sum over kept edges into each row, by gather, mask and scatter."""
        edges = self._edges[relation]
        source, target, rows = self._ends(relation, transpose)
        message = take_rows(summable(x) if edges.weight is None else in_float32(x), source)
        for factor in (edges.weight, edges.mask):
            if factor is not None:
                message = message * factor.unsqueeze(-1).to(message.dtype)
        summed = add_rows(message, target, rows, scatter=True)
        # autograd keeps `x` as it came, which all relations share, and not in float32
        return (summed if self_weight is None else summed + self_weight * x).to(x.dtype)

    def degree(self, relation: str, *, transpose: bool = False) -> Tensor:
        """Return how many kept edges go into each row, [R_target] float32."""
        _, target, rows = self._ends(relation, transpose)
        mask = self._edges[relation].mask
        one = torch.ones_like(target, dtype=torch.float32) if mask is None else mask.float()
        return add_rows(one, target, rows)

    def _ends(self, relation: str, transpose: bool) -> tuple[Tensor, Tensor, int]:
        """Return the row that each message comes from, [E], the row that it goes to, [E], and how many of these."""
        network = self._relation(relation)
        source, target = self._edges[relation].edge_index
        if transpose:
            return target, source, self._keep[network.source].numel()
        return source, target, self._keep[network.target].numel()

    def pool(self, scores: Tensor, values: Tensor) -> Tensor:
        """Return the softmax-weighted sum over what is left of each sample, [B, H]; of ragged rows by scatter."""
        if self._rows is None:
            return super().pool(scores, values)
        sample, scores = self.row_samples(), in_float32(scores).flatten()
        highest = scores.new_full((self.size,), float("-inf")).scatter_reduce(0, sample, scores.detach(), "amax")
        weights = (scores - take_rows(highest, sample)).exp()
        weights = weights / take_rows(add_rows(weights, sample, self.size), sample)
        return add_rows(weights.unsqueeze(-1) * in_float32(values), sample, self.size).to(values.dtype)

    def emptied(self) -> Tensor:
        """Return which samples have no row of the deleted type, [B] bool."""
        return super().emptied() if self._rows is None else keep_mask(self.row_samples(), self.size)

    @property
    def wild_type(self) -> View:
        """One copy of the graph with nothing deleted."""
        graph = self.graph
        nothing = Deletions.nothing(1, device=graph.device)
        edges = {name: EdgeList(n.edge_index, weight=n.weight) for name, n in graph.relations.items()}
        return EdgeListView(graph, dict.fromkeys(graph.num_nodes, nothing), edges)

    def edges(self, relation: str) -> EdgeList:
        """Return a relation's edges of rows, which of them count, and the weights of all; see `View.edges`."""
        self._relation(relation)
        return self._edges[relation]
