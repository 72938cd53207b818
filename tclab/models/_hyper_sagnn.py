"""HyperSAGNN: a score for a set of nodes, from attention among its members.

Zhang et al., "Hyper-SAGNN: a self-attention based graph neural network for hypergraphs", as DANGO uses it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tclab.errors import InputError
from tclab.message_passing.kernels._row_ops import add_rows
from tclab.perturbation import Deletions


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
        query, key, value = (
            linear(x).view(split).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )  # [B, heads, K, H / heads]
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
        place = torch.arange(x.size(0), device=x.device) - sets.ptr[owner]
        slot = owner * most + place
        padded = add_rows(x, slot, size * most).view(size, most, -1)
        member = torch.arange(most, device=x.device) < sets.ptr.diff().unsqueeze(1)
        apart = ~torch.eye(most, dtype=torch.bool, device=x.device)
        others = member.unsqueeze(1) & member.unsqueeze(2) & apart
        dynamic = padded
        for layer in self.attention:
            dynamic = layer(dynamic, others)
        static = torch.relu(self.static(padded))
        score = self.score((dynamic - static).square()).squeeze(-1).masked_fill(~member, 0.0)
        mean: Tensor = score.sum(dim=1) / member.sum(dim=1).clamp_min(1)
        return mean


class BatchQuadraticHyperSAGNN(nn.Module):
    """The same scores by attention among all M members of the batch: an overhead of the case study.

    Members of other sets are masked away, so work and memory grow with the square of the batch. It shares the
    parameters of the `HyperSAGNN` that it replaces, under the same names.
    """

    def __init__(self, lean: HyperSAGNN) -> None:
        super().__init__()
        self.attention, self.static, self.score = lean.attention, lean.static, lean.score

    def forward(self, x: Tensor, sets: Deletions) -> Tensor:
        """Return the scores of B sets, [B]; see `HyperSAGNN.forward`."""
        owner = sets.samples()
        apart = ~torch.eye(x.size(0), dtype=torch.bool, device=x.device)
        others = ((owner.unsqueeze(1) == owner) & apart).unsqueeze(0)  # [1, M, M]
        dynamic = x.unsqueeze(0)
        for layer in self.attention:
            dynamic = layer(dynamic, others)
        score = self.score((dynamic.squeeze(0) - torch.relu(self.static(x))).square()).squeeze(-1)
        total = add_rows(score, owner, len(sets))
        return total / sets.ptr.diff().clamp_min(1)
