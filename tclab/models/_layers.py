"""Layers that the models are built from: norms, the preprocessor, the update half of GIN, metabolic convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tclab.errors import unknown
from tclab.message_passing import View

ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "relu": F.relu,
    "gelu": lambda x, inplace=False: F.gelu(x),
    "silu": F.silu,
}


def activation_of(name: str) -> Callable[..., Tensor]:
    """Return the activation of a name.

    **Raises:** `InputError` with the nearest name where there is none.
    """
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


class BatchWideLayerNorm(nn.Module):
    """PyG's `LayerNorm` in its default mode, over all features of all rows at once: an overhead of the case study.

    A prediction then depends on the other samples of its batch, and on which rows a strategy keeps. It shares the
    parameters of the `torch.nn.LayerNorm` that it replaces, under the same names.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        """Return [R, H] for `x: [R, H]`."""
        x = x - x.mean()
        return x / (x.std(unbiased=False) + self.eps) * self.weight + self.bias


class Preprocessor(nn.Module):
    """Linear, norm, activation, dropout, twice; both share one norm.

    The norm is `torch.nn.LayerNorm` over the features of each row. The case study's runs over the whole mini-batch
    at once (PyG's LayerNorm in its default mode), so that a prediction depends on the other samples of its batch.
    """

    def __init__(self, width: int, *, activation: str, dropout: float) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.activation = activation_of(activation)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, H] for `x: [N, H]`."""
        for linear in self.linears:
            x = self.dropout(self.activation(self.norm(linear(x))))
        return x


class GINUpdate(nn.Module):
    """The update half of a GIN layer with a learned ε: an MLP, then norm, activation and dropout, for one network.

    The layer is `MLP((1 + ε)·x + neighbour sum)`; Xu et al., "How Powerful are Graph Neural Networks?", eq. 4.1. The
    view adds up what is in brackets, with `self_weight` for 1 + ε. The norm is over each row, as in `Preprocessor`.
    """

    def __init__(self, width: int, *, mlp_layers: int, activation: str, dropout: float) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(mlp_layers))
        self.norm = nn.LayerNorm(width)
        self.activation = activation_of(activation)
        self.dropout = nn.Dropout(dropout)

    @property
    def self_weight(self) -> Tensor:
        """How much of itself a row adds, 1 + ε, [1]."""
        return 1 + self.eps

    def forward(self, x: Tensor) -> Tensor:
        """Return [R, H] for `x: [R, H]`, the rows' neighbour sums with `self_weight` times themselves."""
        for place, linear in enumerate(self.linears):
            x = linear(x)
            if place + 1 < len(self.linears):
                x = _InnerReLU.apply(x) if self.activation is F.relu else self.activation(x)
        return self.dropout(self.activation(self.norm(x), inplace=True))


class _InnerReLU(torch.autograd.Function):
    """ReLU between two Linear layers, in place in both directions.

    It is safe between two of them alone: nothing else holds the gradient that a Linear returns.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(x.relu_())
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


class MetabolicConv(nn.Module):
    """Once around the metabolism, by means over what is left; what comes back is added to the deleted type's rows.

    Reactions hear from the nodes that their rule needs, metabolites from the reactions that turn them over
    (weighted by the signed stoichiometric coefficient), and back the same way.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)

    def forward(self, view: View, x: Tensor) -> Tensor:
        """Return [R, H] for rows of the deleted type `x: [R, H]`."""
        way = (("gpr", False), ("stoichiometry", False), ("stoichiometry", True), ("gpr", True))
        carried = x
        for linear, (relation, transpose) in zip(self.linears, way, strict=True):
            degree = view.degree(relation, transpose=transpose).clamp_min(1).to(x.dtype)
            mean = view.neighbour_sum(relation, carried, transpose=transpose) / degree.unsqueeze(-1)
            carried = linear(mean).relu()
        added: Tensor = x + self.norm(carried)
        return added
