"""DANGO, which encodes the wild type once a step and looks up the deleted genes in it.

Zhang et al., "DANGO: predicting higher-order genetic interactions".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tclab.errors import InputError
from tclab.graph._cell_graph import CellGraph
from tclab.message_passing import View
from tclab.message_passing.kernels._row_ops import take_rows
from tclab.models._layers import HyperSAGNN, Linear, mlp

_LAYERS = 2


class Reconstruction(NamedTuple):
    """What a head gives for each pair of a source and a target, R = A·Bᵀ, [N, N], as its factors A and B."""

    sources: Tensor  # A: [N, H + 1], the embeddings, and ones
    targets: Tensor  # B: [N, H + 1], the head's weight, and its bias


class DangoOutput(NamedTuple):
    """The outputs of one pass: a prediction for each sample, [B], and each network's reconstruction, as factors."""

    predictions: Tensor
    reconstructions: dict[str, Reconstruction]


class _SAGE(nn.Module):
    """GraphSAGE with mean aggregation over one network, as PyG's `SAGEConv`: `W₁·mean + b + W₂·x`."""

    def __init__(self, network: str, width: int) -> None:
        super().__init__()
        self.network = network
        self.neighbours = Linear(width, width)
        self.root = Linear(width, width, bias=False)

    def forward(self, view: View, x: Tensor) -> Tensor:
        degree = view.degree(self.network).clamp_min(1).unsqueeze(-1)
        mean = (view.neighbour_sum(self.network, x) / degree).to(x.dtype)
        out: Tensor = self.neighbours(mean) + self.root(x)
        return out


class Dango(nn.Module):
    """DANGO: two SAGE layers per network over the wild type, a meta-embedding, HyperSAGNN over the deleted genes.

    It never reads a node-deleted graph.

    **Arguments:**

    - `num_nodes`: N, the nodes of the deleted type.
    - `networks`: the names of the networks that are read; each has a head that reconstructs its edges.
    - `width`: H.
    - `heads`: attention heads of the HyperSAGNN.
    """

    def __init__(self, num_nodes: int, networks: list[str], *, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        if not networks:
            raise InputError("networks is empty, expected the name of at least one network")
        self.networks = list(networks)
        self.embedding = nn.Embedding(num_nodes, width)
        nn.init.normal_(self.embedding.weight, std=0.1)
        each = [[_SAGE(name, width) for _ in range(_LAYERS)] for name in self.networks]
        self.convolutions = nn.ModuleList(map(nn.ModuleList, zip(*each, strict=True)))  # a list of networks a layer
        self.heads = nn.ModuleList(Linear(width, num_nodes) for _ in self.networks)
        for head in self.heads:
            assert isinstance(head, nn.Linear)
            nn.init.normal_(head.weight, std=0.1)
            nn.init.zeros_(head.bias)
        self.scorer = mlp(width, width // 2, 1)
        self.hyper_sagnn = HyperSAGNN(width, heads=heads)

    @classmethod
    def string12(cls, graph: CellGraph) -> Dango:
        """Return the published configuration: 3,138,270 parameters on the real sizes and six networks.

        It reads the graph's STRING networks, those whose name begins with `string`; a graph without any is
        read whole.
        """
        return cls(graph.num_nodes[graph.deleted_type], string_networks(graph.networks))

    def encode(self, view: View) -> list[Tensor]:
        """Return each network's embeddings of the wild type, [N, H]."""
        encoded = []
        for layers in zip(*(layer.children() for layer in self.convolutions), strict=True):
            x = view.lift(self.embedding.weight)
            for convolution in layers:
                x = convolution(view, x).relu()
            encoded.append(x)
        return encoded

    def forward(self, view: View) -> Tensor:
        """Return one prediction for each sample of the view, [B]."""
        return self._score(view, self.encode(view.wild_type))

    def output(self, view: View) -> DangoOutput:
        """Return the predictions and every network's reconstruction, from one pass."""
        encoded = self.encode(view.wild_type)
        heads = zip(self.networks, self.heads, encoded, strict=True)
        return DangoOutput(self._score(view, encoded), {name: self.reconstruct(head, x) for name, head, x in heads})

    def reconstruct(self, head: Any, x: Tensor) -> Reconstruction:
        """Return the two factors whose product is `head(x)`, for the embeddings `x: [N, H]`."""
        return Reconstruction(F.pad(x, (0, 1), value=1.0), torch.cat([head.weight, head.bias.unsqueeze(1)], dim=1))

    def _score(self, view: View, encoded: list[Tensor]) -> Tensor:
        stacked = torch.stack(encoded, dim=1)  # [N, networks, H]
        mixed = (self.scorer(stacked).softmax(dim=1) * stacked).sum(dim=1)  # [N, H]
        score: Tensor = self.hyper_sagnn(take_rows(mixed, view.deleted.nodes), view.deleted)
        return score


def string_networks(names: Iterable[str]) -> list[str]:
    """Return the names that begin with `string`, or all where none does."""
    every = list(names)
    return [name for name in every if name.startswith("string")] or every
