"""HeteroCell: encodes the wild type and a node-deleted copy of the graph for every sample ("Lazy Hetero")."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tclab.errors import InputError, check_known
from tclab.graph._cell_graph import CellGraph
from tclab.message_passing import View
from tclab.message_passing.kernels._row_ops import add_rows, in_float32, take_rows
from tclab.models._layers import AGGREGATIONS, GINUpdate, HyperSAGNN, MetabolicConv, Preprocessor, mlp

COMBINATIONS = ("global", "fixed", "gate")
METABOLISMS = ("off", "carried", "used")


class HeteroCellOutput(NamedTuple):
    """The outputs of one pass: a prediction a sample, [B], and how far its deletion moves the pooled cell, [B, H]."""

    predictions: Tensor
    z_p: Tensor


class HeteroLayer(nn.Module):
    """One layer of `HeteroCell`: a GIN a network, their aggregation and, where it is used, the metabolism."""

    def __init__(self, convolutions: Sequence[GINUpdate], aggregation: nn.Module, metabolic: nn.Module | None) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(convolutions)
        self.aggregation = aggregation
        self.metabolic = metabolic

    def forward(self, view: View, x: Tensor) -> Tensor:
        """Return the rows after this layer, for rows as `View.begin` or an earlier layer gave them."""
        gins: Any = list(self.convolutions)
        weights = (1 + torch.cat([gin.eps for gin in gins])).split(1)
        parts = view.convolve([gin.network for gin in gins], x, gins, weights)
        # a user's takes one part after the other
        x = self.aggregation(parts if type(self.aggregation).__module__ == GINUpdate.__module__ else iter(parts))
        return x if self.metabolic is None else self.metabolic(view, view.complete(x))


class HeteroCell(nn.Module):
    """A heterogeneous GIN over every network, of the wild type and of each sample's node-deleted copy.

    z_p = z_wildtype - z_perturbed, both pooled by attention over what is left, feeds a global head. A local
    head (`HyperSAGNN` on the wild type's embeddings of the deleted nodes) may be added to it.

    **Arguments:**

    - `num_nodes`: N, how many nodes of the deleted type there are.
    - `networks`: the names of the networks that are read.
    - `width`: H. `layers`: L. `mlp_layers`: Linear layers in each GIN's MLP.
    - `aggregation`: over networks, "sum", "mean", "cross_attention" or "pairwise" (with `bottleneck`).
    - `combine`: "global" (no local head), "fixed" (half each) or "gate" (a softmax of both decides).
    - `local_heads`: attention heads of the local head.
    - `metabolism`: "off"; "carried": the batch has it and the model does not read it, as in the case study; "used":
      every layer has convolutions along it.
    - `dropout`: the share that is dropped in training.

    Norms are over each row's features (`torch.nn.LayerNorm`); see `Preprocessor`.
    """

    def __init__(
        self, num_nodes: int, networks: list[str], *, width: int = 64, layers: int = 3, mlp_layers: int = 2,
        aggregation: str = "sum", bottleneck: int = 32, combine: str = "global", local_heads: int = 8,
        metabolism: str = "off", dropout: float = 0.0
    ) -> None:  # fmt: skip
        super().__init__()
        if not networks:
            raise InputError("networks is empty, expected the name of at least one network")
        check_known("aggregation", AGGREGATIONS, aggregation)
        check_known("combination", COMBINATIONS, combine)
        check_known("metabolism", METABOLISMS, metabolism)
        self.networks = list(networks)
        self.dropout = dropout
        self.embedding = nn.Embedding(num_nodes, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.preprocessor = Preprocessor(width, dropout=dropout)
        update = partial(GINUpdate, width=width, mlp_layers=mlp_layers, dropout=dropout)
        convolutions = [[update(name) for name in networks] for _ in range(layers)]
        aggregations = [AGGREGATIONS[aggregation](width, len(networks), bottleneck) for _ in range(layers)]
        metabolic = [MetabolicConv(width) if metabolism == "used" else None for _ in range(layers)]
        self.layers = nn.ModuleList(map(HeteroLayer, convolutions, aggregations, metabolic))
        self.gate = mlp(width, width // 2, 1)
        self.transform = nn.Linear(width, width)
        self.head = mlp(width, width, 1)
        self.local_head = None if combine == "global" else HyperSAGNN(width, heads=local_heads)
        self.mixer = mlp(2, width, 2) if combine == "gate" else None

    @classmethod
    def profiling(cls, graph: CellGraph, metabolism: str = "off", *, hidden: int = 64, layers: int = 3) -> HeteroCell:
        """Return the configuration that the case study profiled: 669,917 parameters on the real sizes."""
        nodes = graph.num_nodes[graph.deleted_type]
        return cls(nodes, list(graph.networks), width=hidden, layers=layers, metabolism=metabolism)

    @classmethod
    def production(cls, graph: CellGraph, metabolism: str = "off", *, hidden: int = 64, layers: int = 3) -> HeteroCell:
        """Return the configuration that the case study trained: 1,781,187 parameters on the real sizes."""
        trained: dict[str, Any] = {"mlp_layers": 4, "aggregation": "pairwise", "combine": "fixed"}
        nodes = graph.num_nodes[graph.deleted_type]
        return cls(nodes, list(graph.networks), width=hidden, layers=layers, metabolism=metabolism, **trained)

    # `views` and `rows` are what overheads of `tclab.sweeps._overheads` replace
    def views(self, view: View) -> Sequence[View]:
        """Return the views to encode: one with the wild type first, or two; see `View.with_wild_type`."""
        return view.with_wild_type()

    def rows(self, view: View) -> Tensor:
        """Return what the first layer reads; every sample begins with the same features."""
        x = self.preprocessor(self.embedding.weight)
        # later dropout makes rows differ by chance: no sample may share the wild type's, all are carried in full
        return view.lift(x) if self.training and self.dropout > 0.0 else view.begin(x)

    def encode(self, view: View) -> Tensor:
        """Return the rows' embeddings after the last layer, [R, H]."""
        x = self.rows(view)
        for layer in self.layers:
            x = layer(view, x)
        return view.complete(x)

    def pooled(self, view: View) -> tuple[Tensor, Tensor, Tensor]:
        """Return every sample's pooled rows, which of them have nothing left, and the wild type's rows.

        The wild type is the first sample.

        **Returns:** [1 + B, H] in float32 or more, [1 + B] bool and [N, H]
        """
        views = self.views(view)
        encoded = [self.encode(each) for each in views]
        pooled = [each.pool(self.gate(x), in_float32(x)) for each, x in zip(views, encoded, strict=True)]
        return torch.cat(pooled), torch.cat([each.emptied() for each in views]), views[0].first(encoded[0])

    def forward(self, view: View) -> Tensor:
        """Return one prediction for each sample of the view, [B]."""
        return self.output(view).predictions

    def output(self, view: View) -> HeteroCellOutput:
        """Return the predictions, and z_p that they are made from."""
        pooled, emptied, wild = self.pooled(view)
        # Pooling weights sum to 1, so that `transform` may come after the pool, on B rows.
        with torch.autocast(wild.device.type, enabled=False):  # in bfloat16 z_p, a small difference, is mostly rounding
            z = self.transform(pooled.to(self.transform.weight.dtype)).masked_fill(emptied.unsqueeze(1), 0.0)
            z_p = z[:1] - z[1:]
            score = self.head(z_p).squeeze(-1)
        if self.local_head is None:
            return HeteroCellOutput(score, z_p)
        local = self.local_head(take_rows(wild, view.deleted.nodes), view.deleted)
        both = torch.stack([score, local], dim=-1)  # [B, 2]
        shares = 0.5 if self.mixer is None else self.mixer(both).softmax(dim=-1)
        return HeteroCellOutput((shares * both).sum(dim=-1), z_p)


class HeteroCellOnce(HeteroCell):
    """Encodes the wild type once a step; a sample's z is pooled from the wild type's rows without its deleted nodes.

    It has `HeteroCell`'s parameters and is another model: a deletion changes no other node's row, so that nothing but
    the pool tells what was deleted. It never reads a node-deleted graph.
    """

    def pooled(self, view: View) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `HeteroCell.pooled` does; each sample's sums are the wild type's less those of its nodes."""
        wild = self.encode(view.wild_type)
        scores = in_float32(self.gate(wild))
        weights = (scores - scores.detach().amax()).exp()
        added = torch.cat([weights, weights * in_float32(wild)], dim=1)  # by each node to the pool, [N, 1 + H]
        of_deleted = add_rows(take_rows(added, view.deleted.nodes), view.deleted.samples(), view.size)
        sums = torch.cat([torch.zeros_like(of_deleted[:1]), -of_deleted]) + added.sum(0)
        emptied = torch.cat([view.wild_type.emptied(), view.emptied()])
        return sums[:, 1:] / sums[:, :1].masked_fill(emptied.unsqueeze(1), 1.0), emptied, wild
