"""`SharedGraph`: a masked neighbour sum over one graph that all samples share, as a layer for any model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from tclab.errors import InputError, unknown
from tclab.graph import Network
from tclab.message_passing.kernels._edge_blocks import EdgesByTarget, block_starts, edge_max
from tclab.message_passing.kernels._row_ops import add_rows, take_rows
from tclab.message_passing.kernels._spmm import SparseMatrix as Link, spmm
from tclab.message_passing.kernels._spmm import Csr

REDUCTIONS = ("sum", "mean", "max")
Keep = Tensor | tuple[Tensor | None, Tensor | None]
_Method = TypeVar("_Method", bound=Callable[..., object])


def _made_while_tracing(method: _Method) -> _Method:
    """Let a compiler call a method while it traces, and take what it made as constant.

    As `torch.compiler.assume_constant_result` does, which imports torch._dynamo when it is called: two seconds that who
    compiles nothing would wait for.
    """
    method._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return method


class _Sorted(NamedTuple):
    """The edges by target: their ends, of each edge as it was given its place there, and where blocks may begin."""

    ends: Tensor  # [2, E] int32
    place: Tensor  # [E] int32
    first_edge: list[int]
    first_target: list[int]


class _Loops(NamedTuple):
    """Self-loops: the graph with theirs of weight 0 (None: itself), the weight of each node's, and of its last."""

    others: SharedGraph | None
    total: Tensor  # [N_target] float64
    last: Tensor  # [N_target] float64, NaN where there is none


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

    It goes through `torch.compile(fullgraph=True)` and autocast, in float64, float32 and bfloat16 (a sum has the
    dtype of `x`, whatever dtype the module was brought to), on a CPU and on CUDA. It can be differentiated once,
    not twice. On a CPU two runs give the same bits, and on CUDA where Triton serves (float32,
    float16 and bfloat16, no weights); CUDA's sparse product does not promise it.

    **Arguments:**

    - `edge_index`: [2, E] int64, sources then targets; duplicates and self-loops count as often as they come.
    - `num_nodes`: how many nodes there are, or (sources, targets) for a bipartite graph.
    - `weight`: [E], what each edge multiplies its message by; a constant, it gets no gradient. `None` means 1.

    **Raises:** `InputError` where edges, nodes and weights do not go together.
    """

    _edge_index: Tensor
    _weights: Tensor | None
    _there_crow: Tensor
    _there_col: Tensor
    _there_counts: Tensor
    _there_weights: Tensor
    _back_crow: Tensor
    _back_col: Tensor
    _back_counts: Tensor
    _back_weights: Tensor
    _degree: Tensor

    def __init__(self, edge_index: Tensor, num_nodes: int | tuple[int, int], *, weight: Tensor | None = None) -> None:
        super().__init__()
        self.num_sources, self.num_targets = (num_nodes,) * 2 if isinstance(num_nodes, int) else num_nodes
        self.bipartite = not isinstance(num_nodes, int)
        if weight is not None and weight.requires_grad:
            raise InputError("weight requires a gradient, expected constants: scale x or the sum instead")
        network = Network(
            "edges",
            edge_index,
            "node" if not self.bipartite else "source",
            "node" if not self.bipartite else "target",
            self.num_sources,
            self.num_targets,
            weight=None if weight is None else weight.double(),
        )
        # whole numbers, floats by their bits: `to(dtype)` rounds what is a float, and for good
        self.register_buffer("_edge_index", edge_index.to(torch.int32), persistent=False)  # in the order given
        bits = None if weight is None else weight.to(torch.float64, copy=True).view(torch.int64)
        self.register_buffer("_weights", bits, persistent=False)
        for side, transpose in (("there", False), ("back", True)):
            crow, col, counts, _ = network.unweighted().csr_parts(dtype=torch.int32, transpose=transpose)
            whole = {"crow": crow, "col": col, "counts": counts}
            if weight is not None:
                weights = network.csr_parts(dtype=torch.float64, transpose=transpose)[2]
                whole["weights"] = weights.view(torch.int64)
            for name, tensor in whole.items():
                self.register_buffer(f"_{side}_{name}", tensor, persistent=False)
        self.register_buffer("_degree", network.degree().to(torch.int32), persistent=False)
        self._forget()

    def _forget(self) -> None:
        """Forget what is made of the edges when it is first needed, and made again then."""
        self._links: dict[tuple[str, torch.dtype], Link] = {}
        self._sorted: _Sorted | None = None
        self._loops: _Loops | None = None

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
        sources, targets = self.sides(keep, x.size(1))
        if reduce == "max":
            return edge_max(x, self.edges_by_target(sources, targets, cut, x.size(1)))
        # The sum can leave rows out by itself, with fewer copies, given their numbers; to count them a GPU would
        # make the host wait, and a compiler has no values.
        by_rows = x.device.type == "cpu" and not torch.compiler.is_compiling() and cut is None
        if not by_rows and sources is not None:
            x = x.masked_fill(~sources.unsqueeze(-1), 0.0)
        removed = (_removed_rows(sources), _removed_rows(targets)) if by_rows else (None, None)
        summed = self._sum(x, "weights", *removed)
        if cut is not None:
            summed = summed - self._sum_of_cut(x, cut, weighted=True)
        if reduce == "mean":
            degree = self.degree(sources, x.size(1), cut=cut).clamp_min(1).unsqueeze(-1)
            summed = (summed / degree).to(x.dtype)  # a bfloat16 has no degrees above 256
        if by_rows or targets is None:
            return summed
        return summed.masked_fill(~targets.unsqueeze(-1), 0.0)

    def degree(self, keep: Tensor | None, size: int = 1, *, cut: Tensor | None = None) -> Tensor:
        """Return how many kept sources each target has in each sample, weights not counted.

        **Arguments:**

        - `keep`: the sources', [N_source, B] bool; `None` where nothing is removed.
        - `size`: B, where `keep` is `None`.
        - `cut`: as for a sum.

        **Returns:** [N_target, B] float32
        """
        if keep is None and cut is None:
            return self._degree.float().unsqueeze(1).expand(-1, size)
        if keep is None:
            ones = torch.ones(self.num_sources, size, 1, device=self._degree.device)
        else:
            ones = keep.unsqueeze(-1).float()
        counted = self._sum(ones, "counts")
        if cut is not None:
            counted = counted - self._sum_of_cut(ones, cut, weighted=False)
        return counted.squeeze(-1)

    def edges_by_target(
        self, sources: Tensor | None, targets: Tensor | None, cut: Tensor | None, size: int
    ) -> EdgesByTarget:
        """Return the single edges, for an operation that goes through them by blocks.

        **Arguments:**

        - `sources`, `targets`: which are kept, [N, B] bool, `None` for all.
        - `cut`: as for a sum. `size`: B.

        **Raises:** `InputError` where the edges have weights, which such an operation would leave out.
        """
        if self._weights is not None:
            raise InputError("the graph's edges have weights, expected none: only sums and means weigh messages")
        self._sort_edges()
        assert self._sorted is not None
        (source, target), place, first_edge, first_target = self._sorted
        mask = None
        if cut is not None:
            edge, sample = self._checked(cut, size)
            mask = torch.zeros(place.numel() * size, dtype=torch.bool, device=place.device)
            mask = mask.index_fill(0, place.index_select(0, edge).long() * size + sample, True).view(-1, size)
        return EdgesByTarget(source, target, first_edge, first_target, sources, targets, mask)

    # A compiler calls this while it traces, and reads what it has made: `block_starts` needs values.
    @_made_while_tracing
    def _sort_edges(self) -> None:
        """Sort the edges by target, unless they are."""
        if self._sorted is None:
            order = torch.argsort(self._edge_index[1], stable=True)
            by_target = self._edge_index[:, order]
            place = torch.argsort(order).to(torch.int32)
            self._sorted = _Sorted(by_target, place, *block_starts(by_target[1], self.num_targets))

    @_made_while_tracing
    def _note_self_loops(self) -> None:
        """Make what a convolution needs that treats self-loops as a part of their nodes, unless it is there."""
        if self._loops is not None:
            return
        sources = self._edge_index[0].long()
        given = torch.ones_like(sources, dtype=torch.float64)
        if self._weights is not None:
            given = self._weights.view(torch.float64)
        own = torch.nonzero(sources == self._edge_index[1]).flatten()
        others = None
        total = given.new_zeros(self.num_targets)
        last = given.new_full((self.num_targets,), float("nan"))
        if not self.bipartite and len(own):
            if bool(given[own].any()):
                weight = given.index_fill(0, own, 0.0)
                others = SharedGraph(self._edge_index.long(), self.num_targets, weight=weight)
            nodes = sources[own]
            total.index_add_(0, nodes, given[own])
            edge = nodes.new_full((self.num_targets,), -1)
            edge.scatter_reduce_(0, nodes, own, "amax")
            last = torch.where(edge < 0, last, given[edge.clamp_min(0)])
        self._loops = _Loops(others, total, last)

    def without_self_loops(self) -> SharedGraph:
        """Return this graph with the same edges, its self-loops of weight 0; itself where it has none."""
        self._note_self_loops()
        assert self._loops is not None
        return self if self._loops.others is None else self._loops.others

    def self_loops(self, fill: float | None) -> Tensor:
        """Return the weight of each node's self-loops, [N] float64, or with `fill` that of its last, `fill` for none.

        Without weights and with `fill` it is 1 for every node: PyG's GCNConv does not fill there.
        """
        self._note_self_loops()
        assert self._loops is not None
        if fill is None:
            return self._loops.total
        last = self._loops.last
        return torch.ones_like(last) if self._weights is None else torch.where(last.isnan(), fill, last)

    def _checked(self, cut: Tensor, size: int) -> Tensor:
        number = self._edge_index.size(1)
        if cut.dim() != 2 or cut.size(0) != 2 or cut.dtype != torch.int64:
            raise InputError(f"cut is {list(cut.shape)} {cut.dtype}, expected [2, n] torch.int64: edges, samples")
        if cut.device.type == "cpu" and not torch.compiler.is_compiling() and cut.numel():
            if bool((cut < 0).any()) or int(cut[0].max()) >= number or int(cut[1].max()) >= size:
                raise InputError(f"cut has an index outside the {number} edges and {size} samples")
            if len(torch.unique(cut[0] * size + cut[1])) < cut.size(1):
                raise InputError("cut has an edge of a sample twice, expected each once")
        return cut

    def _sum_of_cut(self, x: Tensor, cut: Tensor, *, weighted: bool) -> Tensor:
        """Return what edges that are cut would bring, [N_target, B, F], of `x: [N_source, B, F]`."""
        size = x.size(1)
        edge, sample = self._checked(cut, size)
        source, target = self._edge_index.index_select(1, edge).long()
        messages = take_rows(x.flatten(0, 1), source * size + sample)
        if weighted and self._weights is not None:
            weights = self._weights.index_select(0, edge).view(torch.float64)
            messages = messages * weights.to(x.dtype).unsqueeze(-1)
        return add_rows(messages, target * size + sample, self.num_targets * size).view(-1, *x.shape[1:])

    def _sum(
        self, x: Tensor, what: str, source_removed: Tensor | None = None, target_removed: Tensor | None = None
    ) -> Tensor:
        size, width = x.shape[1:]
        if x.numel() == 0:  # zeros all the same, and a gradient of no numbers
            return x.new_zeros(self.num_targets, size, width) + x.sum()
        (summed,) = shared_sums(
            x.reshape(-1, width),
            [self._link(what, x.dtype)],
            size,
            source_removed=source_removed,
            target_removed=None if target_removed is None else [target_removed],
        )
        return summed.view(self.num_targets, size, width)

    def _link(self, what: str, dtype: torch.dtype) -> Link:
        """Return the matrices of the edges' "weights" or "counts" in a dtype, kept for the next call."""
        if self._weights is None:
            what = "counts"  # each edge weighs 1
        if (what, dtype) in self._links:
            return self._links[what, dtype]
        there, back = self._there_counts, self._back_counts
        if what == "weights":
            there, back = self._there_weights.view(torch.float64), self._back_weights.view(torch.float64)
        compiling = torch.compiler.is_compiling()
        if not compiling:  # where nothing can be kept, the sum casts them itself: it knows a matrix by where it lies
            there, back = there.to(dtype), back.to(dtype)
        link = Link(
            Csr(self._there_crow, self._there_col, there, self.num_sources),
            Csr(self._back_crow, self._back_col, back, self.num_targets),
        )
        if not compiling:
            self._links[what, dtype] = link
        return link

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._forget()  # it may lie on another device now
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        # what can be made again does not travel
        return {**self.__dict__, "_links": {}, "_sorted": None, "_loops": None}

    def sides(self, keep: Keep | None, size: int) -> tuple[Tensor | None, Tensor | None]:
        """Return a keep-mask as (sources', targets'), [N, B] bool each or `None`; see `forward`.

        **Raises:** `InputError` for one that does not fit `size` samples of this graph.
        """
        if keep is None:
            return None, None
        if isinstance(keep, Tensor):
            if self.bipartite:
                raise InputError("keep is one mask, expected (sources', targets') for a bipartite graph")
            keep = (keep, keep)
        for mask, number in zip(keep, (self.num_sources, self.num_targets), strict=True):
            if mask is not None and (mask.dtype != torch.bool or list(mask.shape) != [number, size]):
                found = f"{list(mask.shape)} {mask.dtype}"
                raise InputError(f"keep is {found}, expected [{number}, {size}] torch.bool")
        return keep

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.num_sources} → {self.num_targets}, {self._there_col.numel()} edges"


def _removed_rows(keep: Tensor | None) -> Tensor | None:
    """Return the rows, of (node, sample) pairs, that a mask [N, B] leaves out."""
    return None if keep is None else torch.nonzero(~keep.flatten()).flatten()
