"""Aggregations of one tensor a network into one for all: sum, mean, cross-attention, pairwise interaction."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement

import torch
from torch import Tensor, nn

from tclab.errors import unknown
from tclab.message_passing._view import running_sum
from tclab.models._layers import activation_of


class Sum(nn.Module):
    """The sum over networks."""

    def forward(self, parts: Iterator[Tensor]) -> Tensor:
        """Return [R, H] for one [R, H] a network."""
        return running_sum(parts)


class Mean(nn.Module):
    """The mean over networks."""

    def __init__(self, networks: int) -> None:
        super().__init__()
        self.networks = networks

    def forward(self, parts: Iterator[Tensor]) -> Tensor:
        """Return [R, H] for one [R, H] a network."""
        return running_sum(parts) / self.networks


class CrossAttention(nn.Module):
    """Attention over the networks of each row, each with a learned embedding added; then their mean."""

    def __init__(self, width: int, networks: int, *, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(networks, width) * 0.02)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, parts: Iterator[Tensor]) -> Tensor:
        """Return [R, H] for one [R, H] a network."""
        tokens = torch.stack(list(parts), dim=1) + self.embedding  # [R, networks, H]
        attended, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        mean: Tensor = attended.mean(dim=1)
        return mean


class Pairwise(nn.Module):
    """An MLP for every unordered pair of networks, a network with itself included, and their mean.

    The pairs and the mean are scored for each row, weighted by the softmax of the scores and added; a norm
    over each row follows.
    """

    def __init__(self, width: int, networks: int, *, bottleneck: int, activation: str) -> None:
        super().__init__()
        self.pairs = list(combinations_with_replacement(range(networks), 2))
        self.first = nn.ModuleList(nn.Linear(2 * width, bottleneck) for _ in self.pairs)
        self.second = nn.ModuleList(nn.Linear(bottleneck, width) for _ in self.pairs)
        self.scorer = nn.ModuleList([nn.Linear(width, width // 2), nn.Linear(width // 2, 1)])
        self.norm = nn.LayerNorm(width)
        self.activation = activation_of(activation)

    def forward(self, parts: Iterator[Tensor]) -> Tensor:
        """Return [R, H] for one [R, H] a network."""
        each = list(parts)
        values = [torch.stack(each).mean(0)]
        for (a, b), first, second in zip(self.pairs, self.first, self.second, strict=True):
            values.append(second(self.activation(first(torch.cat([each[a], each[b]], dim=-1)))))
        stacked = torch.stack(values, dim=1)  # [R, pairs + 1, H]
        scores = self.scorer[1](self.activation(self.scorer[0](stacked)))  # [R, pairs + 1, 1]
        mixed: Tensor = self.norm((scores.softmax(dim=1) * stacked).sum(dim=1))
        return mixed


AGGREGATIONS = ("sum", "mean", "cross_attention", "pairwise")


def aggregation_of(
    name: str, width: int, networks: int, *, bottleneck: int, activation: str
) -> Sum | Mean | CrossAttention | Pairwise:
    """Return the aggregation of a name.

    **Raises:** `InputError` with the nearest name where there is none.
    """
    if name == "sum":
        return Sum()
    if name == "mean":
        return Mean(networks)
    if name == "cross_attention":
        return CrossAttention(width, networks)
    if name == "pairwise":
        return Pairwise(width, networks, bottleneck=bottleneck, activation=activation)
    raise unknown("aggregation", name, AGGREGATIONS)
