"""`SharedGraph`: a masked neighbour sum over one graph that all samples share, as a layer for any model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from tclab.errors import InputError, unknown
from tclab.graph import Network
from tclab.message_passing.kernels._shared_sums import Link, shared_sums
from tclab.message_passing.kernels._spmm import Csr

REDUCTIONS = ("sum", "mean")
Keep = Tensor | tuple[Tensor | None, Tensor | None]


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

    _there_crow: Tensor
    _there_col: Tensor
    _there_values: Tensor
    _there_counts: Tensor
    _back_crow: Tensor
    _back_col: Tensor
    _back_values: Tensor
    _back_counts: Tensor
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
        for side, transpose in (("there", False), ("back", True)):
            crow, col, values, _ = network.csr_parts(dtype=torch.float64, transpose=transpose)
            counts = network.unweighted().csr_parts(dtype=torch.int32, transpose=transpose)[2]
            # whole numbers, floats by their bits: `to(dtype)` rounds what is a float, and for good
            whole = {"crow": crow, "col": col, "values": values.view(torch.int64), "counts": counts}
            for name, tensor in whole.items():
                self.register_buffer(f"_{side}_{name}", tensor, persistent=False)
        self.register_buffer("_degree", network.degree().to(torch.int32), persistent=False)
        self._links: dict[tuple[str, torch.dtype], Link] = {}

    def forward(self, x: Tensor, keep: Keep | None = None, *, reduce: str = "sum") -> Tensor:
        """Return the sum, or the mean, of each kept target's kept sources; zero for targets that are deleted.

        **Arguments:**

        - `x`: [N_source, B, H] float; what rows of deleted nodes hold reaches nothing, not even where it is not
          finite.
        - `keep`: [N, B] bool; (sources', targets') for a bipartite graph, `None` for a side that is whole.
        - `reduce`: "sum", or "mean": over each sample's own kept edges, 0 where a node has none.

        **Returns:** [N_target, B, H]

        **Raises:** `InputError` for shapes that do not fit, or an unknown reduction.
        """
        if reduce not in REDUCTIONS:
            raise unknown("reduction", reduce, REDUCTIONS)
        if x.dim() != 3 or x.size(0) != self.num_sources or not x.is_floating_point():
            raise InputError(f"x is {list(x.shape)} {x.dtype}, expected [{self.num_sources}, B, H] of floats")
        sources, targets = self._sides(keep, x.size(1))
        # The sum can leave rows out by itself, with fewer copies, given their numbers; to count them a GPU would
        # make the host wait, and a compiler has no values.
        by_rows = x.device.type == "cpu" and not torch.compiler.is_compiling()
        if not by_rows and sources is not None:
            x = x.masked_fill(~sources.unsqueeze(-1), 0.0)
        removed = (_removed_rows(sources), _removed_rows(targets)) if by_rows else (None, None)
        summed = self._sum(x, "values", *removed)
        if reduce == "mean":
            degree = self.degree(sources, x.size(1)).clamp_min(1).unsqueeze(-1)
            summed = (summed / degree).to(x.dtype)  # a bfloat16 has no degrees above 256
        if by_rows or targets is None:
            return summed
        return summed.masked_fill(~targets.unsqueeze(-1), 0.0)

    def degree(self, keep: Tensor | None, size: int = 1) -> Tensor:
        """Return how many kept sources each target has in each sample, weights not counted.

        **Arguments:**

        - `keep`: the sources', [N_source, B] bool; `None` where nothing is removed.
        - `size`: B, where `keep` is `None`.

        **Returns:** [N_target, B] float32
        """
        if keep is None:
            return self._degree.float().unsqueeze(1).expand(-1, size)
        return self._sum(keep.unsqueeze(-1).float(), "counts").squeeze(-1)

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
        """Return the matrices of the edges' "values" or "counts" in a dtype, kept for the next call."""
        if (what, dtype) in self._links:
            return self._links[what, dtype]
        if what == "values":
            there, back = (bits.view(torch.float64) for bits in (self._there_values, self._back_values))
        else:
            there, back = self._there_counts, self._back_counts
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
        self._links = {}  # they may lie on another device now
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_links": {}}  # what can be made again does not travel

    def _sides(self, keep: Keep | None, size: int) -> tuple[Tensor | None, Tensor | None]:
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
