"""The view that shares one sparse matrix among all samples: K·A·(K·X), no edge copied, no edge masked.

Deleting nodes needs no edge mask. An edge counts where both its ends are kept, `mask[e] = keep[source] ·
keep[target]`, so the masked neighbour sum is `K·A·(K·X)`: A is the whole graph's adjacency, the same for all
samples, and K zeroes the rows of deleted nodes, at every layer. With rows ordered (node, sample), all samples'
features are one dense matrix [N, B·H], and the sum is one product of a sparse and a dense matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tclab.graph import CellGraph, Network
from tclab.message_passing.softmax import pool_grid
from tclab.message_passing.view import View
from tclab.perturbation import Deletions


def spmm(matrix: Tensor, x: Tensor, *, add_to: Tensor | None = None) -> Tensor:
    """Return a sparse CSR matrix times a dense one by the device's best kernel.

    On CUDA that is cuSPARSE. A CPU has two kernels, ATen's reduction and MKL's product; which is faster differs
    from one make of processor to the next, so the first call times both. MKL knows float32 and float64 alone.

    **Arguments:**

    - `matrix`: [rows, columns], sparse CSR.
    - `x`: [columns, H]
    - `add_to`: [rows, H], what the product is added to, in place.

    **Returns:** [rows, H]
    """
    if x.device.type == "cpu" and not (x.dtype in (torch.float32, torch.float64) and _mkl_is_faster()):
        return _by_aten(matrix, x, add_to)
    return _by_library(matrix, x, add_to)


def _by_aten(matrix: Tensor, x: Tensor, add_to: Tensor | None) -> Tensor:
    product = torch.sparse.mm(matrix, x, "sum")
    return product if add_to is None else add_to.add_(product)


def _by_library(matrix: Tensor, x: Tensor, add_to: Tensor | None) -> Tensor:
    # written where it is wanted: the plain product makes a tensor of zeros first and copies it
    out = x.new_empty(matrix.size(0), x.size(1)) if add_to is None else add_to
    return torch.addmm(out, matrix, x, beta=0 if add_to is None else 1, out=out)


@cache
def _mkl_is_faster() -> bool:
    if not torch.backends.mkl.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(4_000, (2, 200_000), generator=generator)
    matrix = Network("calibration", edges, "node", "node", 4_000, 4_000).csr(dtype=torch.float32)
    x = torch.ones(4_000, 128, dtype=torch.float32)
    seconds: dict[Any, list[float]] = {_by_aten: [], _by_library: []}
    for _ in range(9):  # alternating, and the least of each: another process may be at work
        for kernel, times in seconds.items():
            begin = perf_counter()
            kernel(matrix, x, None)
            times.append(perf_counter() - begin)
    return min(seconds[_by_library]) < min(seconds[_by_aten])


def without_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Return `x: [R, H]` with some rows zero, itself where they are already.

    On a CPU looking at a few rows is cheaper than copying all; on a GPU looking would make the host wait.
    """
    if rows.numel() == 0:
        return x
    # looked at as bytes, by numpy: a CPU tensor's own `any()` would count as a wait for the device
    if x.device.type == "cpu" and not x.index_select(0, rows).view(torch.uint8).numpy().any():
        return x
    return x.index_fill(0, rows, 0.0)


class _Link(NamedTuple):
    """One relation as the sums need it: A, Aᵀ (made once for good), and the target rows that are deleted."""

    matrix: Tensor
    transposed: Tensor
    gone: Tensor


class _SharedSums(torch.autograd.Function):
    """Yᵢ = Aᵢ·X + wᵢ·X for several relations, rows of deleted targets zero.

    The gradient, Σ Aᵢᵀ·(K·Gᵢ) + wᵢ·Gᵢ, is added up in one tensor in place.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Tensor | None, links: Sequence[_Link], size: int
    ) -> tuple[Tensor, ...]:
        ctx.links, ctx.size = links, size
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(() if weights is None else (x, weights)))
        width = x.size(1)
        wide = x.reshape(-1, size * width)
        sums = []
        for place, link in enumerate(links):
            own = None if weights is None else wide * weights[place]
            sums.append(spmm(link.matrix, wide, add_to=own).view(-1, width).index_fill_(0, link.gone, 0.0))
        return tuple(sums)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        to_x = to_weights = None
        if ctx.saved_tensors:
            x, weights = ctx.saved_tensors
            to_weights = torch.zeros_like(weights)
        width = 0
        for place, (link, gradient) in enumerate(zip(ctx.links, gradients, strict=True)):
            if gradient is None:  # nothing of this sum was used
                continue
            width = gradient.size(1)
            gradient = without_rows(gradient.contiguous(), link.gone)
            wide = gradient.view(-1, ctx.size * width)
            if to_weights is not None:
                to_weights[place] = torch.dot(gradient.view(-1), x.reshape(-1))
                to_x = wide * weights[place] if to_x is None else to_x.addcmul_(wide, weights[place])
            to_x = spmm(link.transposed, wide, add_to=to_x)
        return None if to_x is None else to_x.view(-1, width), to_weights, None, None


class SharedView(View):
    """Samples side by side over one sparse matrix: row (node, sample) of each type, deleted rows kept as zeros.

    **Arguments:**

    - `graph`: on the device.
    - `lost`: node type → the deleted nodes of each sample, closed over dependants, on the device.
    """

    def __init__(self, graph: CellGraph, lost: Mapping[str, Deletions]) -> None:
        super().__init__(graph, lost[graph.deleted_type])
        self._lost = lost
        self._rows = {kind: deletions.nodes * self.size + deletions.samples() for kind, deletions in lost.items()}
        self._keep: dict[str, Tensor] | None = None

    @property
    def keep(self) -> dict[str, Tensor]:
        """Which rows are left: node type → [N * B] bool."""
        if self._keep is None:
            self._keep = {
                kind: torch.ones(number * self.size, dtype=torch.bool, device=self.deleted.ptr.device).index_fill_(
                    0, self._rows[kind], False
                )
                for kind, number in self.graph.num_nodes.items()
            }
        return self._keep

    def lift(self, x: Tensor, node_type: str | None = None) -> Tensor:
        """Return one row for each (node, sample) pair, [N * B, H]."""
        return x.unsqueeze(1).expand(-1, self.size, -1).reshape(-1, x.size(1))

    def neighbour_sum(
        self, relation: str, x: Tensor, *, transpose: bool = False, self_weight: Tensor | None = None
    ) -> Tensor:
        """Return the sum over kept edges into each row: K·A·(K·X)."""
        weights = None if self_weight is None else self_weight.to(x.dtype)
        (summed,) = self._sums([relation], x, transpose, weights)
        return summed

    def neighbour_sums(
        self, relations: Sequence[str], x: Tensor, *, self_weights: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Return the sums over several relations, whose gradients are added up in one tensor."""
        return self._sums(relations, x, False, torch.cat(list(self_weights)).to(x.dtype))

    def _sums(
        self, relations: Sequence[str], x: Tensor, transpose: bool, weights: Tensor | None
    ) -> Sequence[Tensor]:
        links, source = [], self.graph.deleted_type
        with torch.no_grad():
            for name in relations:
                network = self._relation(name)
                source, target = network.source, network.target
                if transpose:
                    source, target = target, source
                matrix = network.csr(dtype=x.dtype, transpose=transpose)
                transposed = network.csr(dtype=x.dtype, transpose=not transpose)
                links.append(_Link(matrix, transposed, self._rows[target]))
        if self._rows[source].numel():
            x = x.index_fill(0, self._rows[source], 0.0)
        sums: tuple[Tensor, ...] = _SharedSums.apply(x, weights, links, self.size)
        return sums

    def degree(self, relation: str, *, transpose: bool = False) -> Tensor:
        """Return how many kept edges go into each row, [R_target] float32."""
        network = self._relation(relation).unweighted()
        source, target = network.source, network.target
        if transpose:
            source, target = target, source
        if self._rows[source].numel() == self._rows[target].numel() == 0:
            return network.degree(transpose=transpose).repeat_interleave(self.size)
        kept = self.keep[source].float().view(-1, self.size)
        counted = spmm(network.csr(dtype=torch.float32, transpose=transpose), kept).reshape(-1)
        return counted.index_fill_(0, self._rows[target], 0.0)

    def pool(self, scores: Tensor, values: Tensor) -> Tensor:
        """Return the softmax-weighted sum over what is left of each sample, [B, H]."""
        kind = self.graph.deleted_type
        grid = (self.graph.num_nodes[kind], self.size)
        return pool_grid(scores.view(grid), values.view(*grid, -1), self.keep[kind].view(grid), node_dim=0)

    @property
    def wild_type(self) -> View:
        """One copy of the graph with nothing deleted."""
        return wild_type_by_sharing(self.graph)

    def with_wild_type(self) -> Sequence[View]:
        """Return one view of B + 1 copies, the wild type first: one product serves them all."""
        return [SharedView(self.graph, {kind: _one_more(lost) for kind, lost in self._lost.items()})]

    def first(self, x: Tensor) -> Tensor:
        """Return the first sample's rows, [N, H]; that sample must delete nothing."""
        return x.view(-1, self.size, x.size(1))[:, 0]


def _one_more(lost: Deletions) -> Deletions:
    """Return the deletions with a sample that deletes nothing put first."""
    return Deletions(lost.nodes, torch.cat([lost.ptr[:1], lost.ptr]), lost.most)


def wild_type_by_sharing(graph: CellGraph) -> SharedView:
    """Return the view of the whole graph that multiplies by its sparse matrices; nothing is deleted."""
    nothing = Deletions.nothing(1, device=graph.device)
    return SharedView(graph, dict.fromkeys(graph.num_nodes, nothing))
