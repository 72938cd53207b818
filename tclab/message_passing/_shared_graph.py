"""`SharedGraph`: a masked neighbour sum over one graph that all samples share, as a layer for any model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from tclab.errors import InputError, unknown
from tclab.graph import Network
from tclab.message_passing.kernels._edge_blocks import Edges, EdgesByTarget, edge_max, edges_a_block, sort_edges
from tclab.message_passing.kernels._row_ops import add_rows, masked_rows, take_rows
from tclab.message_passing.kernels._spmm import Csr, SparseMatrix, spmm

REDUCTIONS = ("sum", "mean", "max")
Sides = tuple[Tensor | None, Tensor | None]  # the masks of sources and targets; None where all are kept
Keep = Tensor | Sides


def only_kept(x: Tensor, keep: Tensor | None) -> Tensor:
    """Return `x: [N, B, H]`, zero where `keep: [N, B]` is False, in the order of memory that `to_rows` has."""
    return x if keep is None else masked_rows(x.transpose(0, 1), keep.t()).transpose(0, 1)


class SelfLoops(NamedTuple):
    """A graph's self-loops apart from its other edges."""

    others: SharedGraph  # the graph with self-loops of weight 0
    total: Tensor  # [N] float64, the weight of each node's self-loops
    last: Tensor  # [N] float64, that of its last; NaN where there is none


class SharedGraph(nn.Module):
    """One graph, B samples, each with its own node keep-mask: sums each kept node's kept neighbours.

    No edge is copied and none is masked: an edge counts where both its ends are kept, so the sum is K·A·(K·X)
    with one sparse matrix A for all samples. It has no parameters, and nothing in a `state_dict`.

    >>> import torch, tclab
    >>> edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])  # a ring: 0 → 1 → 2 → 3 → 0
    >>> graph = tclab.SharedGraph(edge_index, num_nodes=4)
    >>> keep = torch.tensor([[True, True], [True, False], [True, True], [True, True]])  # sample 1 deletes node 1
    >>> graph(torch.ones(4, 2, 1), keep).squeeze(-1)
    tensor([[1., 1.],
            [1., 0.],
            [1., 0.],
            [1., 1.]])

    It goes through `torch.compile(fullgraph=True)` and autocast, in float64, float32, bfloat16 and float16 (a sum has
    the dtype of `x`, whatever dtype the module was brought to), on a CPU and on CUDA. A sum and a mean can be
    differentiated twice. On a CPU two runs give the same bits, and on CUDA where Triton serves (float16 and bfloat16,
    no weights); CUDA's sparse product does not promise it.

    Samples are computed one after the other. What it returns is a view of `[B, N, H]` that lies in memory in that
    order, as the rows of a PyG batch do, so `to_rows` of it copies nothing; nor does the sum of an `x` that `to_grid`
    made of such rows. An `x` that lies as `[N, B, H]` is copied, a few samples at a time.

    **Arguments:**

    - `edge_index`: [2, E] int64, sources then targets; duplicates and self-loops count as often as they come.
    - `num_nodes`: how many nodes there are, or (sources, targets) for a bipartite graph.
    - `weight`: [E], what each edge multiplies its message by; a constant, it gets no gradient. `None` means 1.

    **Raises:** `InputError` where edges, nodes and weights do not go together.
    """

    _edge_index: Tensor  # [2, E] int32, as given
    _weight: Tensor | None  # [E] float64 as int64, by its bits: `to(dtype)` rounds what is a float, and for good
    _crow: Tensor  # [N_target + 1] int32, and [E] int32: the edges by target, as a CSR matrix has them
    _col: Tensor
    _t_crow: Tensor  # [N_source + 1] int32, and [E] int32: the same by source
    _t_col: Tensor

    def __init__(self, edge_index: Tensor, num_nodes: int | tuple[int, int], *, weight: Tensor | None = None) -> None:
        super().__init__()
        if weight is not None and weight.requires_grad:
            raise InputError("weight requires a gradient, expected constants: scale x or the sum instead")
        self.bipartite, self.weighted = isinstance(num_nodes, tuple), weight is not None
        self.num_sources, self.num_targets = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
        kinds = ("source", "target") if self.bipartite else ("node", "node")
        Network("edges", edge_index, *kinds, self.num_sources, self.num_targets, weight=weight)  # which checks them
        source, target = edge_index
        buffers = {
            "_edge_index": edge_index.to(torch.int32),
            "_weight": None if weight is None else weight.to(torch.float64, copy=True).view(torch.int64),
            **dict(zip(("_crow", "_col"), _csr(target, source, self.num_targets), strict=True)),
            **dict(zip(("_t_crow", "_t_col"), _csr(source, target, self.num_sources), strict=True)),
        }
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor, persistent=False)
        self._made: dict[Any, Any] = {}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._made = {}  # it may lie on another device now
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}  # what can be made again does not travel

    def forward(self, x: Tensor, keep: Keep | None = None, *, reduce: str = "sum", cut: Tensor | None = None) -> Tensor:
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
        if reduce not in REDUCTIONS:
            raise unknown("reduction", reduce, REDUCTIONS)
        if x.dim() != 3 or x.size(0) != self.num_sources or not x.is_floating_point():
            raise InputError(f"x is {list(x.shape)} {x.dtype}, expected [{self.num_sources}, B, H] of floats")
        sides = self.sides(keep, x.size(1))
        if reduce == "max":
            return edge_max(x, self.edges(sides, cut, x))
        sources, targets = (None if mask is None else mask.t() for mask in sides)
        (summed,) = spmm([self._matrix(x.dtype)], x.transpose(0, 1), sources=sources, targets=targets)
        summed = summed.transpose(0, 1)
        if cut is not None:
            summed = summed - only_kept(self._sum_of_cut(only_kept(x, sides[0]), cut), sides[1])
        if reduce == "mean":
            degree = self.degree(sides[0], x.size(1), cut=cut).clamp_min(1).unsqueeze(-1)
            summed = (summed / degree).to(x.dtype)  # a bfloat16 has no degrees above 256
        return summed

    def degree(
        self,
        keep: Tensor | None,
        size: int = 1,
        *,
        cut: Tensor | None = None,
        weighted: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return how many kept sources each target has in each sample, or the sum of their edges' weights.

        **Arguments:**

        - `keep`: the sources', [N_source, B] bool; `None` where nothing is removed.
        - `size`: B, where `keep` is `None`.
        - `cut`: as for a sum.
        - `weighted`: add up weights. `dtype`: of the result.

        **Returns:** [N_target, B]
        """
        if keep is None:
            keep = torch.ones(self.num_sources, size, dtype=torch.bool, device=self._crow.device)
        ones = keep.to(dtype)
        # one product in which the samples are the features
        (degree,) = spmm([self._matrix(dtype, weighted=weighted)], ones.unsqueeze(0))
        if cut is None:
            return degree[0]
        return degree[0] - self._sum_of_cut(ones.unsqueeze(-1), cut, weighted=weighted).squeeze(-1)

    def _sum_of_cut(self, x: Tensor, cut: Tensor, *, weighted: bool = True) -> Tensor:
        """Return what edges that are cut would bring, [N_target, B, H], of `x: [N_source, B, H]`."""
        size = x.size(1)
        edge, sample = self._checked(cut, size)
        source, target = self._edge_index.index_select(1, edge).long()
        messages = take_rows(x.transpose(0, 1).flatten(0, 1), sample * self.num_sources + source)
        if weighted and self._weight is not None:
            weight = self._weight.index_select(0, edge).view(torch.float64)
            messages = messages * weight.to(x.dtype).unsqueeze(-1)
        summed = add_rows(messages, sample * self.num_targets + target, size * self.num_targets)
        return summed.view(size, self.num_targets, -1).transpose(0, 1)

    def _checked(self, cut: Tensor, size: int) -> Tensor:
        n = self._edge_index.size(1)
        if cut.dim() != 2 or cut.size(0) != 2 or cut.dtype != torch.int64:
            raise InputError(f"cut is {list(cut.shape)} {cut.dtype}, expected [2, n] torch.int64: edges, samples")
        if cut.device.type == "cpu" and not torch.compiler.is_compiling() and cut.numel():
            if bool((cut < 0).any()) or int(cut[0].max()) >= n or int(cut[1].max()) >= size:
                raise InputError(f"cut has an index outside the {n} edges and {size} samples")
            if len(torch.unique(cut[0] * size + cut[1])) < cut.size(1):
                raise InputError("cut has an edge of a sample twice, expected each once")
        return cut

    def sides(self, keep: Keep | None, size: int) -> Sides:
        """Return a keep-mask as (sources', targets'), [N, B] bool each or `None`; see `forward`.

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

    def _matrix(self, dtype: torch.dtype, *, weighted: bool = True) -> SparseMatrix:
        values = self._get("values", dtype) if weighted and self._weight is not None else (None, None)
        return SparseMatrix(Csr(self._crow, self._col, values[0]), Csr(self._t_crow, self._t_col, values[1]))

    def _make_values(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the weights in a dtype by target, and by source, [E] each."""
        assert self._weight is not None
        source, target = self._edge_index
        weight = self._weight.view(torch.float64).to(dtype)
        return weight[torch.argsort(target, stable=True)], weight[torch.argsort(source, stable=True)]

    def edges(self, sides: Sides, cut: Tensor | None, x: Tensor, *, loops: bool = False) -> Edges:
        """Return the single edges, for an operation that goes through them by blocks.

        **Arguments:**

        - `sides`: which nodes are kept, as `sides` has them. `cut`: as for a sum.
        - `x`: [N_source, B, ...], what is read of each edge.
        - `loops`: put one self-loop, which is never cut, on each node in place of its own.

        **Raises:** `InputError` where the edges have weights, which such an operation would leave out.
        """
        if self._weight is not None:
            raise InputError("the graph's edges have weights, expected none: only sums and means weigh messages")
        size = x.size(1)
        by_target = self._get("edges", loops, edges_a_block(x))
        mask = None
        if cut is not None:
            edge, sample = self._checked(cut, size)
            place = by_target.place.index_select(0, edge).long()
            mask = add_rows(torch.ones_like(sample), place * size + sample, (len(by_target.source) + 1) * size)
            mask = (mask > 0).view(-1, size)
        return Edges(by_target, *sides, mask, loops)

    def _make_edges(self, loops: bool, most: int) -> EdgesByTarget:
        return sort_edges(self._edge_index, self.num_sources, self.num_targets, loops=loops, most=most)

    def self_loops(self) -> SelfLoops:
        """Return what a convolution needs that treats self-loops as a part of their nodes."""
        loops: SelfLoops = self._get("self_loops")
        return loops

    def _make_self_loops(self) -> SelfLoops:
        source, target = self._edge_index.long()
        weight = torch.ones_like(source, dtype=torch.float64)
        if self._weight is not None:
            weight = self._weight.view(torch.float64)
        edges = torch.nonzero(source == target).flatten()
        nodes = source[edges]
        total = weight.new_zeros(self.num_targets).index_add_(0, nodes, weight[edges])
        last = nodes.new_full((self.num_targets,), -1).scatter_reduce_(0, nodes, edges, "amax")
        last_weight = torch.cat([weight, weight.new_full((1,), float("nan"))])[last]  # of -1 that behind all others
        if not bool(weight[edges].any()):
            return SelfLoops(self, total, last_weight)
        others = SharedGraph(torch.stack([source, target]), self.num_targets, weight=weight.index_fill(0, edges, 0))
        return SelfLoops(others, total, last_weight)

    def _get(self, what: str, *key: Any) -> Any:
        """Return what is made of the edges when it is first needed, and kept."""
        self._make(what, *key)
        return self._made[what, *key]

    def _make(self, what: str, *key: Any) -> None:
        if (what, *key) not in self._made:
            self._made[what, *key] = getattr(self, f"_make_{what}")(*key)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.num_sources} → {self.num_targets}, {self._col.numel()} edges"


# A compiler calls it while it traces, and reads what it has made: to make some of it needs values. It is what
# `torch.compiler.assume_constant_result` sets, which imports torch._dynamo: two seconds, also for who compiles nothing.
SharedGraph._make._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _csr(rows: Tensor, columns: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return the row pointers, [num_rows + 1] int32, and columns, [E] int32, of the edges [E] sorted by row."""
    rows, order = rows.sort(stable=True)
    crow = torch.searchsorted(rows, torch.arange(num_rows + 1, device=rows.device), out_int32=True)
    return crow, columns[order].to(torch.int32)
