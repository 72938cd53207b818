"""A model of PyTorch Geometric's, unchanged, on the copies of a view."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tclab.errors import InputError, require
from tclab.message_passing import View


class PygModel(nn.Module):
    """A model that is called as `model(x, edge_index, batch)`, run on a view whose strategy has edges.

    What is deleted is left out before the model is called: it gets the nodes and edges of the copies as PyG's loader
    would have collated them, and pooling and norms see no other rows. With strategies that have no single edges
    (`node_mask`, `delta`, `dense`, …) it raises `NeedsEdgesError`, and the equivalence check skips them. How many rows
    are left depends on values, so `tclab.fits` has no estimate for it.

    **Arguments:**

    - `model`: its output is a number a copy, [B] or [B, 1].
    - `features`: [N, F], a row for each node of the whole graph; an `nn.Parameter` is trained.
    - `networks`: names of those whose edges are in `edge_index`, one after the other; all unless given. Weights of
      edges are not passed on, which the equivalence check and the findings of a sweep say.

    **Raises:** `InputError` for another type, and when called for features of another graph.
    """

    def __init__(self, model: nn.Module, features: Tensor, *, networks: Sequence[str] | None = None) -> None:
        super().__init__()
        require("model", model, nn.Module, "an nn.Module whose forward takes x, edge_index and batch")
        require("features", features, Tensor, "a tensor [N, F], a row for each node of the graph")
        self.model = model
        self.features: Tensor
        if isinstance(features, nn.Parameter):
            self.features = features
        else:
            self.register_buffer("features", features)
        self.networks = None if networks is None else tuple(networks)

    def forward(self, view: View) -> Tensor:
        """Return a number for each copy, [B]."""
        kind = view.graph.deleted_type
        nodes = view.graph.num_nodes[kind]
        if len(self.features) != nodes:
            raise InputError(
                f"features has {len(self.features):,} rows, expected one for each of the {nodes:,} {kind} nodes of the "
                "graph"
            )
        edges = [view.edges(name) for name in self.networks or view.graph.networks]
        index = torch.cat([index if mask is None else index[:, mask] for index, mask in edges], 1)
        samples, keep = view.row_samples(), view.keep[kind]
        left = keep.nonzero().squeeze(1)
        new_row = keep.cumsum(0) - 1  # of a row among those that are left
        output: Tensor = self.model(view.lift(self.features)[left], new_row[index], samples[left])
        if output.shape not in ((view.size,), (view.size, 1)):
            raise InputError(
                f"{type(self.model).__name__} gives {list(output.shape)} for {view.size} copies of the graph, "
                f"expected [{view.size}] or [{view.size}, 1]"
            )
        return output.reshape(-1)
