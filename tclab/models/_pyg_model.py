"""A model of PyTorch Geometric's, unchanged, on the copies of a view.

Shapes: N nodes of the whole graph, R rows that are left of all samples, E edges that are left, B samples, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from tclab.errors import InputError, need, require
from tclab.graph._cell_graph import CellGraph, resolve_networks
from tclab.graph._csr import plain_tensors
from tclab.message_passing import View

_ROWS = "a row for each node of the graph"


class PygModel(nn.Module):
    """A model that is called as `model(x, edge_index, batch)`, run on a view whose strategy has edges.

    What is deleted is left out before the model is called: it gets the nodes and edges of the copies as PyG's loader
    would have collated them, and pooling and norms see no other rows. With strategies that have no single edges
    (`node_mask`, `delta`, `dense`, …) it raises `NeedsEdgesError`, and the equivalence check skips them. How many rows
    are left depends on the deletions, so `tclab.fits` has no estimate for it.

    If the networks have weights, a `forward` with a parameter `edge_weight` gets them, [E] in the model's dtype, 1 for
    a network without weights. The equivalence check and the findings of a sweep say if weights do not reach the model.
    A `forward` whose first parameter is called `data` or `batch` gets a PyG `Batch` with `x`, `edge_index`, `batch`,
    `ptr` and, if there are weights, `edge_weight`.

    **Arguments:**

    - `model`: its output is a number a copy, [B] or [B, 1].
    - `features`: [N, F], or [N], such as ids for an `nn.Embedding`: a row for each node of the whole graph. They are
      data, in neither `buffers()` nor `state_dict()`, and are given to the model on the view's device and, if they are
      floats, in the dtype of the model's weights. An `nn.Parameter` is trained.
    - `networks`: names of those whose edges are in `edge_index`, one after the other; all unless given.

    **Raises:** `InputError` for another type or shape of an argument, and for a `forward` with other arguments; when
    called, for features of another graph.
    """

    features: Tensor

    def __init__(self, model: nn.Module, features: Tensor, *, networks: Sequence[str] | None = None) -> None:
        super().__init__()
        require("model", model, nn.Module, "an nn.Module whose forward takes x, edge_index and batch")
        require("features", features, Tensor, f"a tensor [N] or [N, F], {_ROWS}")
        if features.dim() not in (1, 2):
            raise InputError(f"features is {list(features.shape)}, expected [N] or [N, F], {_ROWS}")
        self.model = model
        if isinstance(features, nn.Parameter):
            self.features = features
        else:
            object.__setattr__(self, "features", features)  # an nn.Buffer, too, is data here
        self.networks = None if networks is None else tuple(networks)
        takes = signature(getattr(model, "_orig_mod", model).forward)  # of a compiled model the original's
        names = list(takes.parameters)
        self._takes_data = names[:1] in (["data"], ["batch"])
        self._takes_weights = self._takes_data or "edge_weight" in names
        self._by_name = [name for name in ("batch", "edge_weight") if name in names and not self._takes_data]
        self._by_position = 1 if self._takes_data else 2 if "batch" in names else 3
        try:
            takes.bind(*range(self._by_position), **dict.fromkeys(self._by_name))
        except TypeError as error:
            wanted = "x, edge_index, batch and, for weights, edge_weight; or one called data"
            name = type(model).__name__
            raise InputError(f"{name}.forward has other arguments ({error}), expected {wanted}") from error

    def forward(self, view: View) -> Tensor:
        """Return a number for each copy, [B]."""
        kind = view.graph.deleted_type
        nodes = view.graph.num_nodes[kind]
        if len(self.features) != nodes:
            wanted = f"one for each of the {nodes:,} {kind} nodes of the graph"
            raise InputError(f"features has {len(self.features):,} rows, expected {wanted}")
        index, weight = self._edges(view)
        keep, features = view.keep[kind], self._on(view.graph.device)
        left = keep.nonzero().squeeze(1)
        new_row = keep.cumsum(0) - 1  # of a row among those that are left
        rows = view.lift(features if features.dim() == 2 else features.unsqueeze(1))[left]
        inputs = {"x": rows.view(len(left), *features.shape[1:]), "edge_index": new_row[index]}
        inputs |= {"batch": view.row_samples()[left]} | ({} if weight is None else {"edge_weight": weight})
        if self._takes_data:
            output: Tensor = self.model(_as_data(inputs, view.size))
        else:
            by_position = list(inputs.values())[: self._by_position]
            output = self.model(*by_position, **{name: inputs.get(name) for name in self._by_name})
        if output.shape not in ((view.size,), (view.size, 1)):
            given = f"{type(self.model).__name__} gives {list(output.shape)} for {view.size} copies of the graph"
            raise InputError(f"{given}, expected [{view.size}] or [{view.size}, 1]")
        return output.reshape(-1)

    def left_out(self, graph: CellGraph) -> str | None:
        """Return whether a graph has edge weights that do not reach the model, in words; `None` where all do."""
        if all(graph.relations[name].weight is None for name in self.networks or graph.networks):
            return None
        if self._takes_weights:
            return "edge weights, unless the PyG model reads data.edge_weight" if self._takes_data else None
        return "edge weights are not passed on to a PyG model"

    @property
    def _dtype(self) -> torch.dtype:
        """The dtype of the model's weights."""
        tensors = (*self.model.parameters(), self.features)
        return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)

    def _on(self, device: torch.device) -> Tensor:
        """Return the features on a device, where they stay, in the model's dtype if they are floats."""
        if self.features.device != device and not isinstance(self.features, nn.Parameter):
            with plain_tensors(self.features):
                object.__setattr__(self, "features", self.features.to(device))
        return self.features.to(self._dtype) if self.features.is_floating_point() else self.features

    def _edges(self, view: View) -> tuple[Tensor, Tensor | None]:
        """Return the edges that are left, [2, E], by rows of the view, and their weights, [E], if there are any."""
        indices, weights, names = [], [], list(view.graph.networks)
        for name in names if self.networks is None else resolve_networks(self.networks, names):
            index, mask, weight = view.edges(name)
            kept = slice(None) if mask is None else mask.nonzero().squeeze(1)
            indices.append(index[:, kept])
            weights.append(weight[kept] if weight is not None and self._takes_weights else None)
        edge_index = torch.cat([view.row_samples().new_empty(2, 0), *indices], 1)  # of a graph without networks, too
        if all(weight is None for weight in weights):
            return edge_index, None
        pairs = zip(indices, weights, strict=True)
        each = [torch.ones_like(ends[0]) if weight is None else weight for ends, weight in pairs]
        return edge_index, torch.cat([weight.to(self._dtype) for weight in each])


def _as_data(inputs: Mapping[str, Tensor], size: int) -> Any:
    """Return PyG's `Batch` of `size` samples."""
    need("a model that takes PyG's Data", "sweep", "torch_geometric")
    from torch_geometric.data import Batch

    samples = inputs["batch"]
    return Batch(**inputs, ptr=torch.searchsorted(samples, torch.arange(size + 1, device=samples.device)))
