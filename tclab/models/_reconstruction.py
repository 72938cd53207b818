"""DANGO's reconstruction of a network and its loss, by two factors: nothing here has N × N numbers.

Shapes: N nodes, H width, E edges.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tclab.graph import Network
from tclab.graph._csr import SparseMatrix
from tclab.message_passing.kernels._row_ops import in_float32
from tclab.message_passing.kernels._spmm import spmm


class Reconstruction(NamedTuple):
    """What a head gives for each pair of a source and a target, R = A·Bᵀ, [N, N], as its factors A and B."""

    sources: Tensor  # A: [N, H + 1], the embeddings, and ones
    targets: Tensor  # B: [N, H + 1], the head's weight, and its bias


class ReconstructionLoss:
    """(Σ (r - 1)² over edges + λ Σ r² over all other pairs) / N², where r are the entries of a reconstruction R.

    Over all pairs Σ r² is ⟨AᵀA, BᵀB⟩, and each edge adds 1 - 2·r + (1 - λ)·r² to λ times that. Over edges Σ m·r is
    ⟨M·A, B⟩ for the sparse matrix M with the values m. If λ is 1, M has ones, and no single r is needed. Otherwise M
    has the constants 1 - (1 - λ)·r, so that the gradient of -2·⟨M·A, B⟩ is that of the sum that the edges add; a second
    derivative, which would not be right, is refused.

    In a good fit these sums nearly cancel, so they are float32 or more, also under autocast: the loss is off by about
    float32's rounding of E / N².

    **Arguments:**

    - `network`: its edges are the targets, each once, of whatever weight.
    - `zero_weight`: λ.
    """

    def __init__(self, network: Network, zero_weight: float) -> None:
        self.network, self.zero_weight = _simple(network), zero_weight
        if zero_weight != 1:  # where the matrix has each entry of its transpose
            self._order = self.network.csr(torch.float32).col.argsort(stable=True)

    def __call__(self, reconstruction: Reconstruction) -> Tensor:
        """Return the loss, [], in float32 or more."""
        with torch.autocast(reconstruction.sources.device.type, enabled=False):
            a, b = map(in_float32, reconstruction)
            edges, rest = self.network.matrix(a.dtype), float(self.network.num_edges)
            if self.zero_weight != 1:
                a, b = map(_OnceDifferentiable.apply, (a, b))
                r = torch.ops.tclab.dots(*edges.csr[:2], b.detach(), a.detach())
                m = 1 - (1 - self.zero_weight) * r
                values = edges.csr._replace(values=m), edges.transposed._replace(values=m[self._order])
                edges, rest = SparseMatrix(*values, lasting=False), rest - ((1 - m) * r).sum()
            on_edges = rest - 2 * (spmm([edges], a.unsqueeze(0))[0].squeeze(0) * b).sum()
            return (self.zero_weight * ((a.t() @ a) * (b.t() @ b)).sum() + on_edges) / (len(a) * len(b))


def _simple(network: Network) -> Network:
    """Return a network with each of its edges once and of weight 1; if it is so, itself with its matrices."""
    edges, network = network.edge_index, network.unweighted()  # edges are sorted
    once = bool((edges[:, 1:] != edges[:, :-1]).any(dim=0).all())
    return network if once else replace(network, edge_index=edges.unique_consecutive(dim=1))


class _OnceDifferentiable(torch.autograd.Function):
    """The identity, through which a second derivative raises an error."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


@torch.library.custom_op(
    "tclab::dots", mutates_args=(), schema="(Tensor crow, Tensor col, Tensor x, Tensor y) -> Tensor"
)
def _dots(crow: Tensor, col: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the entries of X·Yᵀ where a sparse matrix has its own, [E]: dot products of rows of X and of Y."""
    pattern = torch.sparse_csr_tensor(crow, col, x.new_zeros(col.shape), (len(x), len(y)), check_invariants=False)
    return torch.sparse.sampled_addmm(pattern, x, y.t(), beta=0).values()


@_dots.register_fake
def _(crow: Tensor, col: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(col.shape)
