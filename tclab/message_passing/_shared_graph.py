"""`SharedGraph`: a masked neighbour sum over one graph that all samples share, for any model.

Shapes: E edges, N nodes (N_source, N_target of a bipartite graph), B samples, H features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from tclab.errors import InputError, check_known, require
from tclab.graph._csr import MadeOnce, SparseMatrix, matrix_of, plain_tensors
from tclab.graph._network import check_edges
from tclab.message_passing.kernels._edge_blocks import Edges, EdgesByTarget, edge_max, edges_a_block, sort_edges
from tclab.message_passing.kernels._row_ops import add_rows, in_float32, kept_rows, take_rows, under_transform
from tclab.message_passing.kernels._spmm import spmm

T = TypeVar("T")

REDUCTIONS = ("sum", "mean", "max")
Sides = tuple[Tensor | None, Tensor | None]  # the masks of sources and targets; None where all are kept
Keep = Tensor | Sides


def kept_grid(x: Tensor, keep: Tensor | None) -> Tensor:
    """Return `x: [N, B, H]`, zero where `keep: [N, B]` is False, in the order of memory that `to_rows` has."""
    return x if keep is None else kept_rows(x.transpose(0, 1), keep.t()).transpose(0, 1)


class SelfLoops(NamedTuple):
    """A graph's self-loops apart from its other edges."""

    others: SharedGraph  # the graph with self-loops of weight 0
    total: Tensor  # [N] float64, the weight of each node's self-loops
    last: Tensor  # [N] float64, that of its last; NaN where there is none


class SharedGraph(MadeOnce):
    """One graph, B samples, each with its own node keep-mask: sums each kept node's kept neighbours.

    No edge is copied and none is masked: an edge counts where both its ends are kept, so the sum is K·A·(K·X)
    with one sparse matrix A for all samples.

    >>> import torch, tclab
    >>> edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])  # a ring: 0 → 1 → 2 → 3 → 0
    >>> graph = tclab.SharedGraph(edge_index, num_nodes=4)
    >>> keep = torch.tensor([[True, True], [True, False], [True, True], [True, True]])  # sample 1 deletes node 1
    >>> graph(torch.ones(4, 2, 1), keep).squeeze(-1)
    tensor([[1., 1.],
            [1., 0.],
            [1., 0.],
            [1., 1.]])

    It is data, as PyG's `edge_index` is, and never changes: it has no parameters and no buffers, it is in no
    `state_dict`, and nothing that is done to a module which holds it (`to`, `half`, averaging, DDP) changes it. Its
    edges go to the device of the features when features are first there; a sum has their dtype.

    It goes through `torch.compile(fullgraph=True)`, `torch.export`, autocast and torch's function transforms (`grad`,
    `vmap`, `jvp`), in float64, float32, bfloat16 and float16, on a CPU and on CUDA. A sum and a mean can be
    differentiated twice. Sums in two bytes are added up in float32 and rounded once. On a CPU two runs give the same
    bits, and on CUDA where Triton serves (float16 and bfloat16, no weights); CUDA's sparse product does not promise it.

    Samples are computed one after the other. What it returns is a view of `[B, N, H]` that lies in memory in that
    order, as the rows of a PyG batch do, so `to_rows` of it copies nothing; nor does the sum of an `x` that `to_grid`
    made of such rows. An `x` that lies as `[N, B, H]` is copied, a few samples at a time.

    **Arguments:**

    - `edge_index`: [2, E] int64, sources then targets; duplicates and self-loops count as often as they come.
    - `num_nodes`: how many nodes there are, or (sources, targets) for a bipartite graph.
    - `weight`: [E], what each edge multiplies its message by; a constant, it gets no gradient. `None` means 1.

    **Raises:** `InputError` where edges, nodes and weights do not go together.
    """

    def __init__(self, edge_index: Tensor, num_nodes: int | tuple[int, int], *, weight: Tensor | None = None) -> None:
        self.bipartite, self.weighted = isinstance(num_nodes, tuple), weight is not None
        self.num_sources, self.num_targets = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
        kinds = ("source", "target") if self.bipartite else ("node", "node")
        sides = list(zip(kinds, (self.num_sources, self.num_targets), strict=True))
        weight = check_edges("", edge_index, sides, weight)
        self.num_edges = edge_index.size(1)
        with plain_tensors(edge_index):
            self._edge_index = edge_index.to(torch.int32)  # as given
            self._weight = None if weight is None else weight.clone()  # [E] float64

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return this graph: it follows the features' device and dtype by itself."""
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self  # it never changes

    def __repr__(self) -> str:
        return f"SharedGraph({self.num_sources} → {self.num_targets}, {self.num_edges} edges)"

    def __call__(
        self, x: Tensor, keep: Keep | None = None, *, reduce: str = "sum", cut: Tensor | None = None
    ) -> Tensor:
        """Return the sum, mean or maximum of each kept target's kept sources; zero for targets that are deleted.

        **Arguments:**

        - `x`: [N_source, B, H] float; what rows of deleted nodes hold reaches nothing, not even where it is not
          finite.
        - `keep`: [N, B] bool; (sources', targets') for a bipartite graph, `None` for a side that is whole. On a
          graph of one kind of nodes a pair says which may send and which may receive: (None, receives) cuts the
          edges into some nodes, and what those send stays.
        - `reduce`: "sum", "mean" or "max": over each sample's own kept edges, 0 where a node has none. A maximum
          goes through the edges by blocks, and has no weights.
        - `cut`: [2, n] int64, single edges that a sample has not: the edge, as `edge_index` numbers it, and the
          sample, each pair once. Of a sum they are subtracted, so it differs from one without them by rounding.

        **Returns:** [N_target, B, H]

        **Raises:** `InputError` for shapes that do not fit, or an unknown reduction.
        """
        check_known("reduction", REDUCTIONS, reduce)
        require("x", x, Tensor, f"a tensor [{self.num_sources}, B, H] of floats")
        if x.dim() != 3 or x.size(0) != self.num_sources or not x.is_floating_point():
            raise InputError(f"x is {list(x.shape)} {x.dtype}, expected [{self.num_sources}, B, H] of floats")
        sides = self.sides(keep, x.size(1))
        if reduce == "max":
            return edge_max(x, self.edges(sides, cut, x))
        # a difference of two sums that were each rounded to two bytes may have no digit left
        exact = x if cut is None else in_float32(x)
        sources, targets = (None if mask is None else mask.t() for mask in sides)
        summed = self._product(exact.transpose(0, 1), sources=sources, targets=targets).transpose(0, 1)
        if cut is not None:
            summed = summed - kept_grid(self._sum_of_cut(kept_grid(exact, sides[0]), cut), sides[1])
        if reduce == "mean":  # a bfloat16 has no degrees above 256
            summed = summed / self.degree(sides[0], x.size(1), x.device, cut=cut).clamp_min(1).unsqueeze(-1)
        return summed.to(x.dtype)

    def degree(
        self, keep: Tensor | None, size: int = 1, device: torch.device | str | None = None, *,
        cut: Tensor | None = None, weighted: bool = False, dtype: torch.dtype = torch.float32
    ) -> Tensor:  # fmt: skip
        """Return how many kept sources each target has in each sample, or the sum of their edges' weights.

        **Arguments:**

        - `keep`: the sources', [N_source, B] bool; `None` where nothing is removed.
        - `size`: B, and `device`: that of the result, where `keep` is `None`; by default the device of `edge_index`.
        - `cut`: as for a sum.
        - `weighted`: add up weights. `dtype`: of the result.

        **Returns:** [N_target, B]
        """
        if keep is None:
            keep = torch.ones(self.num_sources, size, dtype=torch.bool, device=device or self._edge_index.device)
        ones = keep.to(dtype)
        degree = self._product(ones.unsqueeze(0), weighted=weighted)[0]  # the samples are its features
        if cut is None:
            return degree
        return degree - self._sum_of_cut(ones.unsqueeze(-1), cut, weighted=weighted).squeeze(-1)

    def _sum_of_cut(self, x: Tensor, cut: Tensor, *, weighted: bool = True) -> Tensor:
        """Return what edges that are cut would bring, [N_target, B, H], of `x: [N_source, B, H]`."""
        size = x.size(1)
        edge, sample = self.checked(cut, size)
        edge_index, weight = self._kept(edges_of, x.device)
        source, target = edge_index.index_select(1, edge).long()
        messages = take_rows(x.transpose(0, 1).flatten(0, 1), sample * self.num_sources + source)
        if weighted and weight is not None:
            messages = messages * weight.index_select(0, edge).to(x.dtype).unsqueeze(-1)
        summed = add_rows(messages, sample * self.num_targets + target, size * self.num_targets)
        return summed.view(size, self.num_targets, -1).transpose(0, 1)

    def checked(self, cut: Tensor, size: int) -> Tensor:
        """Return `cut`, as `__call__` takes it. **Raises:** `InputError` if it does not fit `size` samples."""
        n = self.num_edges
        require("cut", cut, Tensor, "a tensor [2, n] of edges and samples")
        if cut.dim() != 2 or cut.size(0) != 2 or cut.dtype != torch.int64:
            raise InputError(f"cut is {list(cut.shape)} {cut.dtype}, expected [2, n] torch.int64: edges, samples")
        if cut.device.type == "cpu" and not torch.compiler.is_compiling() and not under_transform() and cut.numel():
            if bool((cut < 0).any()) or int(cut[0].max()) >= n or int(cut[1].max()) >= size:
                raise InputError(f"cut has an index outside the {n} edges and {size} samples")
            if len(torch.unique(cut[0] * size + cut[1])) < cut.size(1):
                raise InputError("cut lists the same (edge, sample) pair twice; list each pair once")
        return cut

    def sides(self, keep: Keep | None, size: int) -> Sides:
        """Return a keep-mask as (sources', targets'), [N, B] bool each or `None`; see `SharedGraph.__call__`.

        **Raises:** `InputError` for one that does not fit `size` samples of this graph.
        """
        if keep is None:
            return None, None
        if isinstance(keep, Tensor):
            if self.bipartite:
                raise InputError("keep is one mask, expected (sources', targets') for a bipartite graph")
            keep = (keep, keep)
        for mask, n in zip(keep, (self.num_sources, self.num_targets), strict=True):
            if mask is not None and (mask.dtype != torch.bool or mask.shape != (n, size)):
                raise InputError(f"keep is {list(mask.shape)} {mask.dtype}, expected [{n}, {size}] torch.bool")
        return keep

    def edges(self, sides: Sides, cut: Tensor | None, x: Tensor, *, loops: bool = False) -> Edges:
        """Return the single edges, for an operation that goes through them by blocks.

        **Arguments:**

        - `sides`: which nodes are kept, as `sides` has them. `cut`: as for a sum.
        - `x`: [N_source, B, ...], what is read of each edge.
        - `loops`: put one self-loop, which is never cut, on each node instead of its own.

        **Raises:** `InputError` where the edges have weights, which such an operation would leave out, and for loops on
        a bipartite graph with deletions.
        """
        self._check_single_edges(loops=loops, deletes=sides != (None, None))
        size = x.size(1)
        by_target = self._kept(edges_by_target, x.device, loops, edges_a_block(x))
        mask = None
        if cut is not None:
            edge, sample = self.checked(cut, size)
            position = by_target.position.index_select(0, edge).long()
            mask = add_rows(torch.ones_like(sample), position * size + sample, (len(by_target.source) + 1) * size)
            mask = (mask > 0).view(-1, size)
        return Edges(by_target, *sides, mask, loops)

    def _check_single_edges(self, *, loops: bool, deletes: bool) -> None:
        if loops and self.bipartite and deletes:
            raise InputError("add_self_loops is True, expected False on a bipartite graph with deletions")
        if self.weighted:
            raise InputError("the graph's edges have weights, expected none: only sums and means weigh messages")

    def self_loops(self, device: torch.device) -> SelfLoops:
        """Return what a convolution needs that treats self-loops as a part of their nodes."""
        return self._kept(_self_loops, device)

    def of_targets(self, x: Tensor) -> Tensor:
        """Return the rows of targets, of the rows of all nodes as sources; for a graph of one kind of nodes."""
        return x

    def of_sources(self, x: Tensor) -> Tensor:
        """Return the rows of sources, of the rows of all nodes as targets; for a graph of one kind of nodes."""
        return x

    def _product(self, x: Tensor, *, weighted: bool = True, **masks: Tensor | None) -> Tensor:
        """Return the sums [B, N_target, H] of features `x: [B, N_source, H]`; `masks` are those of `spmm`."""
        return spmm([self._matrix(x, weighted=weighted)], x, **masks)[0]

    def _matrix(self, x: Tensor, *, weighted: bool = True) -> SparseMatrix:
        """Return the adjacency for features `x`, on their device and in their dtype."""
        return self._kept(adjacency_of, x.device, x.dtype if weighted and self.weighted else None)

    def _kept(self, make: Callable[..., T], device: torch.device, *options: Any) -> T:
        """Return what `make` makes of this graph and options, on a device; it is made once."""
        return self.made_once(_on_device, device, make, *options)


# ---- what is made of a graph once a device


def _on_device(graph: SharedGraph, device: torch.device, make: Callable[..., T], *options: Any) -> T:
    made: T = tree_map_only(Tensor, lambda tensor: tensor.to(device), make(graph, *options))
    return made


def edges_of(graph: SharedGraph) -> tuple[Tensor, Tensor | None]:
    return graph._edge_index, graph._weight


def adjacency_of(graph: SharedGraph, dtype: torch.dtype | None) -> SparseMatrix:
    """Return the adjacency [targets, sources] with the weights in a dtype; every edge counts 1 for `None`."""
    weight = None if dtype is None or graph._weight is None else graph._weight.to(dtype)
    return matrix_of(graph._edge_index.long(), graph.num_sources, graph.num_targets, weight)


def edges_by_target(graph: SharedGraph, loops: bool, most: int) -> EdgesByTarget:
    return sort_edges(graph._edge_index.long(), graph.num_sources, graph.num_targets, loops=loops, most=most)


def _self_loops(graph: SharedGraph) -> SelfLoops:
    source, target = graph._edge_index.long()
    weight = torch.ones_like(source, dtype=torch.float64) if graph._weight is None else graph._weight
    edges = torch.nonzero(source == target).flatten()
    nodes = source[edges]
    total = weight.new_zeros(graph.num_targets).index_add_(0, nodes, weight[edges])
    last = nodes.new_full((graph.num_targets,), -1).scatter_reduce_(0, nodes, edges, "amax")
    last_weight = torch.cat([weight, weight.new_full((1,), float("nan"))])[last]  # of -1 that behind all others
    if not bool(weight[edges].any()):
        return SelfLoops(graph, total, last_weight)
    others = SharedGraph(torch.stack([source, target]), graph.num_targets, weight=weight.index_fill(0, edges, 0))
    return SelfLoops(others, total, last_weight)
