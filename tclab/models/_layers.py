"""Layers that the models are built from: the preprocessor, GIN and metabolic convolution, aggregations, HyperSAGNN."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tclab.errors import InputError
from tclab.message_passing import View
from tclab.message_passing._stacked import each
from tclab.message_passing.kernels._row_ops import add_rows, in_float32, take_rows, under_transform
from tclab.perturbation import Deletions


class Linear(nn.Linear):
    """`torch.nn.Linear`, followed by a ReLU if `relu`; many float32 rows on a CPU are multiplied by oneDNN.

    torch multiplies float32 by MKL, which uses AVX-512 on Intel's processors alone and slows down beyond some 8,000
    rows; oneDNN does neither. The ReLU overwrites the product, which nothing else holds yet. A ReLU in place between
    two modules would overwrite what hooks were given.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, relu: bool = False) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.relu = relu
        self._rows_of_calls: deque[int] = deque(maxlen=8)  # how many rows each of the last calls had

    def forward(self, x: Tensor) -> Tensor:
        """Return [*, out] for `x: [*, in]`; for K modules' weights in one, [K, R, out] for [K, R, in]."""
        is_stacked = self.weight.dim() == 3
        if is_stacked or not _takes_onednn(x, self.weight, self.bias):
            out = torch.baddbmm(self.bias.unsqueeze(1), x, self.weight.mT) if is_stacked else super().forward(x)
            return out.relu_() if self.relu else out
        rows = x.flatten(0, -2)
        is_usual = self._rows_of_calls.count(len(rows)) > 1
        self._rows_of_calls.append(len(rows))
        out = _OneDnnLinear.apply(rows, self.weight, self.bias, self.relu, is_usual)
        return out if x.dim() == 2 else out.unflatten(0, x.shape[:-1])


_LARGEST_BLOCK, _LEAST_BLOCK = 16_384, 1024  # rows


def _takes_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether oneDNN multiplies rows `x`.

    Not while a compiler traces, as Inductor compiles oneDNN's product with constant weights alone. Not for arguments
    that torch refuses in clearer words, and not for a strided bias, which oneDNN reads as if it were contiguous.
    """
    if torch.compiler.is_compiling() or under_transform() or x.dim() < 2 or x.shape[:-1].numel() < _LEAST_BLOCK:
        return False
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if any(tensor.device.type != "cpu" or tensor.dtype != torch.float32 for tensor in tensors):
        return False
    if x.size(-1) != weight.size(1) or not weight.numel() or (bias is not None and not bias.is_contiguous()):
        return False
    return torch.backends.mkldnn.is_available() and not torch.is_autocast_enabled("cpu")


class _OneDnnLinear(torch.autograd.Function):
    """x·Wᵀ + b by oneDNN, then a ReLU if `relu`; the weights' gradient is torch's own product, which is as fast.

    oneDNN's own ReLU is not used: it turns NaN into 0.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, is_usual: bool) -> Tensor:
        out = _product(x, weight, bias, is_usual)
        if relu:
            out.relu_()
        ctx.save_for_backward(x, weight, out if relu else None)
        ctx.is_usual = is_usual
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        x, weight, out = ctx.saved_tensors
        if out is not None:  # into a new tensor, as others may hold this gradient
            grad = torch.ops.aten.threshold_backward(grad, out.detach(), 0)
        to_bias = grad.sum(0) if ctx.needs_input_grad[2] else None
        by_torch = under_transform()  # as in `vmap` over gradients
        to_x = grad @ weight if by_torch else _OneDnnLinear.apply(grad, weight.t(), None, False, ctx.is_usual)
        return to_x, grad.t() @ x, to_bias, None, None


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, is_usual: bool) -> Tensor:
    """Return x·Wᵀ + b by oneDNN, in one call if this number of rows is usual, else in blocks: the bits are equal.

    oneDNN keeps 0.6 MB for each new number of rows, until it has seen a thousand more, and this splits glibc's free
    memory: 1,000 numbers around 100,000 cost 1.5 GB. `delta` has ever new ones.
    """
    if is_usual:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out
    out = x.new_empty(x.size(0), weight.size(0))
    for rows in _blocks(x.size(0)):
        out[rows] = torch.ops.mkldnn._linear_pointwise(x[rows], weight, bias, "none", [], "")
    return out


def _blocks(rows: int) -> Iterator[slice]:
    """Yield blocks that cover at least 1,024 `rows`, of five sizes, the largest first; the last two may overlap."""
    begin, size = 0, _LARGEST_BLOCK
    while begin < rows:
        while size > max(rows - begin, _LEAST_BLOCK):
            size //= 2
        begin = min(begin, rows - size)
        yield slice(begin, begin + size)
        begin += size


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` over the last dimension, followed by a ReLU if `relu`; in float32 for rows in fewer bits.

    torch adds up the gradients of its weight and bias in the dtype of the rows: over 20,000 rows in bfloat16 they are
    off by a seventh. In float32 they are not, and it takes less time (torch 2.13 on a CPU; autocast does so on CUDA).
    """

    def __init__(self, width: int, *, relu: bool = False) -> None:
        super().__init__(width)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Return [R, H] for `x: [R, H]`, in its dtype; for K modules' weights in one, [K, R, H] for [K, R, H]."""
        if self.weight.dim() == 2 or (x.dtype in (torch.bfloat16, torch.float16) and not under_transform()):
            out = _NormInFloat32.apply(x, self.weight, self.bias, self.eps)
        else:
            exact, weight, bias = map(in_float32, (x, self.weight, self.bias))
            out = F.layer_norm(exact, self.normalized_shape, weight, bias, self.eps).to(x.dtype)
        return out.relu_() if self.relu else out


class _NormInFloat32(torch.autograd.Function):
    """A layer norm in float32 or more that keeps the rows for its backward as they came.

    Where weights are stacked, [K, H], torch's own norms the rows, and makes them again for the weights' gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        w, b = in_float32(weight), in_float32(bias)
        affine = (w, b) if weight.dim() == 1 else (None, None)
        out, mean, rstd = torch.native_layer_norm(in_float32(x), x.shape[-1:], affine[0], affine[1], eps)
        ctx.save_for_backward(x, mean, rstd, weight, bias)
        ctx.eps = eps
        return (out if weight.dim() == 1 else torch.addcmul(b.unsqueeze(1), out, w.unsqueeze(1))).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, mean, rstd, *affine = ctx.saved_tensors
        exact, grad, weight, bias = map(in_float32, (x, grad, *affine))
        differentiate, shape = torch.ops.aten.native_layer_norm_backward, x.shape[-1:]
        if weight.dim() == 1:
            to_x, to_weight, to_bias = differentiate(grad, exact, shape, mean, rstd, weight, bias, [True] * 3)
        else:
            to_weight, to_bias = (grad * F.layer_norm(exact, shape, eps=ctx.eps)).sum(1), grad.sum(1)
            grad = grad * weight.unsqueeze(1)
            to_x, *_ = differentiate(grad, exact, shape, mean, rstd, None, None, [True, False, False])
        return to_x.to(x.dtype), to_weight.to(affine[0].dtype), to_bias.to(affine[1].dtype), None


def mlp(width: int, hidden: int, out: int) -> nn.Sequential:
    """Return an MLP of one hidden layer, with ReLU."""
    stand_in = nn.Identity()  # for the ReLU, so that the layers keep their names, 0 and 2, in a `state_dict`
    return nn.Sequential(Linear(width, hidden, relu=True), stand_in, Linear(hidden, out))


class Preprocessor(nn.Module):
    """Linear, norm, ReLU, dropout, twice; both share one norm.

    The norm is `torch.nn.LayerNorm` over the features of each row. The case study's runs over the whole mini-batch
    at once (PyG's LayerNorm in its default mode), so that a prediction depends on the other samples of its batch.
    """

    def __init__(self, width: int, *, dropout: float) -> None:
        super().__init__()
        self.linears = nn.ModuleList(Linear(width, width) for _ in range(2))
        self.norm = LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, H] for `x: [N, H]`."""
        for linear in self.linears:
            x = self.dropout(self.norm(linear(x)).relu())
        return x


class GINUpdate(nn.Module):
    """The update half of a GIN layer with a learned ε: an MLP, then norm, ReLU and dropout, for one network.

    The layer is `MLP((1 + ε)·x + neighbour sum)`; Xu et al., "How Powerful are Graph Neural Networks?", eq. 4.1. The
    view adds up what is in brackets, with 1 + `eps` as self-weight. The norm is over each row, as in `Preprocessor`.
    """

    def __init__(self, network: str, width: int, *, mlp_layers: int, dropout: float) -> None:
        super().__init__()
        self.network = network
        self.eps = nn.Parameter(torch.zeros(1))
        self.linears = nn.ModuleList(Linear(width, width, relu=i + 1 < mlp_layers) for i in range(mlp_layers))
        self.norm = LayerNorm(width, relu=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return [R, H] for `x: [R, H]`, the rows' neighbour sums with 1 + ε times themselves."""
        for linear in self.linears:
            x = linear(x)
        out: Tensor = self.dropout(self.norm(x))
        return out


class MetabolicConv(nn.Module):
    """Once around the metabolism, by means over what is left; what comes back is added to the deleted type's rows.

    Reactions hear from the nodes that their rule needs, metabolites from the reactions that turn them over
    (weighted by the signed stoichiometric coefficient), and back the same way.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(Linear(width, width) for _ in range(4))
        self.norm = LayerNorm(width)

    def forward(self, view: View, x: Tensor) -> Tensor:
        """Return [R, H] for rows of the deleted type `x: [R, H]`."""
        way = (("gpr", False), ("stoichiometry", False), ("stoichiometry", True), ("gpr", True))
        carried = x
        for linear, (relation, transpose) in zip(self.linears, way, strict=True):
            degree = view.degree(relation, transpose=transpose).clamp_min(1).unsqueeze(-1)
            mean = view.neighbour_sum(relation, carried, transpose=transpose) / degree
            carried = linear(mean.to(x.dtype)).relu()
        return x + self.norm(carried)


# ---- aggregations: [R, H] of one [R, H] a network, which come one after the other or in one tensor, [networks, R, H]


class Sum(nn.Module):
    """The sum over networks, or their mean where `divisor` is their number."""

    def __init__(self, divisor: int = 1) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, parts: Iterable[Tensor]) -> Tensor:
        """Return [R, H], added up as the parts come, so that no more than one is held besides the total."""
        parts = iter([parts.sum(0)] if isinstance(parts, Tensor) else parts)
        total = next(parts)
        for i, part in enumerate(parts):
            total = total + part if i == 0 else total.add_(part)  # the backward of a sum keeps nothing
        return total if self.divisor == 1 else total / self.divisor


class CrossAttention(nn.Module):
    """Attention over the networks of each row, each with a learned embedding added; then their mean."""

    def __init__(self, width: int, networks: int, *, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(networks, width) * 0.02)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, parts: Iterable[Tensor]) -> Tensor:
        """Return [R, H]."""
        tokens = torch.stack(list(parts), dim=1) + self.embedding  # [R, networks, H]
        attended, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        mean: Tensor = attended.mean(dim=1)
        return mean


class Pairwise(nn.Module):
    """An MLP for every unordered pair of networks, a network with itself included, and their mean.

    The pairs and the mean are scored for each row, weighted by the softmax of the scores and added; a norm
    over each row follows.
    """

    def __init__(self, width: int, networks: int, bottleneck: int) -> None:
        super().__init__()
        self.pairs = list(combinations_with_replacement(range(networks), 2))
        self.mlps = nn.ModuleList(mlp(2 * width, bottleneck, width) for _ in self.pairs)
        self.scorer = mlp(width, width // 2, 1)
        self.norm = LayerNorm(width)

    def forward(self, parts: Iterable[Tensor]) -> Tensor:
        """Return [R, H]."""
        pairs: Any
        if isinstance(parts, Tensor):
            ends = torch.triu_indices(len(parts), len(parts), device=parts.device)
            mean, pairs = parts.mean(0), torch.cat([take_rows(parts, end) for end in ends], dim=-1)
        else:
            rows = list(parts)
            mean = torch.stack(rows).mean(0)
            pairs = (torch.cat([rows[a], rows[b]], dim=-1) for a, b in self.pairs)
        stacked = torch.stack([mean, *each(list(self.mlps), pairs)], dim=1)  # [R, pairs + 1, H]
        scores = self.scorer(stacked)  # [R, pairs + 1, 1]
        mixed: Tensor = self.norm((scores.softmax(dim=1) * stacked).sum(dim=1))
        return mixed


AGGREGATIONS: dict[str, Callable[[int, int, int], nn.Module]] = {  # of width, number of networks and bottleneck
    "sum": lambda width, networks, bottleneck: Sum(),
    "mean": lambda width, networks, bottleneck: Sum(networks),
    "cross_attention": lambda width, networks, bottleneck: CrossAttention(width, networks),
    "pairwise": Pairwise,
}


# ---- HyperSAGNN: Zhang et al., "Hyper-SAGNN: a self-attention based graph neural network for hypergraphs"


class _Attention(nn.Module):
    """Attention among the members of each set, a member not to itself; ReZero: `x + β·attention(x)`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.beta = nn.Parameter(torch.tensor(0.01))

    def forward(self, x: Tensor, others: Tensor) -> Tensor:
        """Return [B, K, H] for members `x: [B, K, H]` and who may look at whom, `others: [B, K, K] bool`."""
        size, most, width = x.shape
        split = (size, most, self.heads, width // self.heads)
        # [B, heads, K, H / heads]
        query, key, value = (f(x).view(split).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = query @ key.transpose(2, 3) / math.sqrt(split[3])
        # a member that has no other to look at gets uniform weights here, and nothing of them below
        lowest = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(~others.unsqueeze(1), lowest).softmax(dim=-1)
        attended = self.output((weights @ value).transpose(1, 2).reshape(size, most, width))
        has_others = others.any(dim=-1, keepdim=True)
        return x + self.beta * attended.masked_fill(~has_others, 0.0)


class HyperSAGNN(nn.Module):
    """A score for each set of nodes: `Linear((dynamic - static)²)` of its members, averaged: how far two layers of
    attention move them.

    A set with no member scores 0; in a set of one, attention, which leaves out the member itself, adds 0.
    Work and memory grow with the samples, not with their square: sets are padded to the largest. `heads` must divide
    `width`, H.
    """

    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise InputError(f"heads is {heads}, expected a divisor of the width {width}")
        self.attention = nn.ModuleList(_Attention(width, heads) for _ in range(2))
        self.static = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    def forward(self, x: Tensor, sets: Deletions) -> Tensor:
        """Return the scores of B sets, [B].

        **Arguments:**

        - `x`: [M, H], the members' embeddings, set after set.
        - `sets`: which member is in which set.
        """
        size, most = len(sets), max(sets.most, 1)
        owner = sets.samples()
        column = torch.arange(x.size(0), device=x.device) - sets.ptr[owner]  # of a member in its set
        padded = add_rows(x, owner * most + column, size * most).view(size, most, -1)
        member = torch.arange(most, device=x.device) < sets.ptr.diff().unsqueeze(1)
        apart = ~torch.eye(most, dtype=torch.bool, device=x.device)
        others = member.unsqueeze(1) & member.unsqueeze(2) & apart
        dynamic = padded
        for layer in self.attention:
            dynamic = layer(dynamic, others)
        static = torch.relu(self.static(padded))
        score = self.score((dynamic - static).square()).squeeze(-1).masked_fill(~member, 0.0)
        return torch.div(score.sum(dim=1), member.sum(dim=1).clamp_min(1))
