"""Strategies that send node ids alone: some mask or drop each sample's edges on the device, others share the graph.

`gpu_mask`, `gpu_mask_loop`, `gpu_mask_cached` and `gpu_filter` replicate the edges on the device once, for the largest
batch so far, whose first copies serve smaller ones, such as the last slice of a batch; `collation="edges"` sends them
with every batch instead, as the case study did.

Under `node_mask` and `dense` samples share the graph: no edge is copied or masked. `node_mask` sums over neighbours by
one sparse matrix a network for all samples, K·A·(K·X), `dense` by one dense matrix; see `SharedView`. `indices` serves
models that read which nodes are deleted and no copy of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, NoReturn

import torch
from torch import Tensor

from tclab.errors import InputError
from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch, Packed, Piece
from tclab.masking._edge_masks import edge_lists, edge_pieces, removed_counts, removed_edges
from tclab.masking._strategy import Strategy
from tclab.message_passing import SharedView, View
from tclab.message_passing._view import EdgeListView
from tclab.perturbation import Deletions


class _Largest:
    """Tensors of the largest batch so far, each [..., B * E]: one copy of the graph's edges after the other."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._size = 0

    def first(self, size: int, make: Callable[[int], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return the tensors of a batch of some size, views of the largest, which `make` makes of a larger size."""
        if size > self._size:
            self._size, self._tensors = 0, {}  # let the old ones go before the new ones are made
            self._size, self._tensors = size, make(size)
        return {name: tensor[..., : tensor.size(-1) // self._size * size] for name, tensor in self._tensors.items()}


class _Replicated(Strategy):
    """The edges of B copies of the graph on the device."""

    def __init__(self, graph: CellGraph, **options: Any) -> None:
        super().__init__(graph, **options)
        self._replicas = _Largest()

    def shipped(self, removed: dict[str, Deletions]) -> dict[str, Tensor | Piece]:
        """Return the edges that go with a batch, which are none but for the collation "edges"."""
        return dict(edge_pieces(self.graph, len(removed[self.graph.deleted_type]))) if self.collation == "edges" else {}

    def edges(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the replicated edges under batch names: those that came, or those already on the device."""
        if self.collation == "edges":
            return batch.tensors
        return self._replicas.first(batch.size, self._replicated)

    def _replicated(self, size: int) -> dict[str, Tensor]:
        edges = {}
        for name, piece in edge_pieces(self.graph, size).items():
            edges[name] = torch.empty(piece.shape, dtype=piece.dtype, device=self.graph.device)
            piece.fill(edges[name])
        return edges

    def all_kept(self, size: int) -> dict[str, Tensor]:
        """Return for `size` samples a mask a relation that keeps every edge, [B * E] bool, by the relation's name."""
        edges = {name: size * network.num_edges for name, network in self.graph.relations.items()}
        return {name: torch.ones(n, dtype=torch.bool, device=self.graph.device) for name, n in edges.items()}

    def masked(
        self, batch: Batch, masks: Mapping[str, Tensor], on_close: Callable[[], None] | None = None
    ) -> EdgeListView:
        """Return the view that multiplies each message by the mask of its relation's replicated edges."""
        edges = edge_lists(self.graph, self.edges(batch))
        masked = {name: edges[name]._replace(mask=mask) for name, mask in masks.items()}
        return EdgeListView(self.graph, batch.deletions, masked, on_close=on_close)


class GpuMask(_Replicated):
    """Masks on the device, vectorised: for all samples at once, from a CSR incidence."""

    name = "gpu_mask"
    collations = ("lean", "edges")

    def pack(self, removed: dict[str, Deletions], encoded: Any) -> Packed:
        """Return how many edges of each relation are removed, for the host to know, and the edges that are shipped."""
        counts = {}
        for name, network in self.graph.relations.items():
            for kind, each in removed_counts(network, removed).items():
                counts[f"removed/{name}/{kind}"] = int(each.sum())
        return self.shipped(removed), counts

    def removed_edges(self, batch: Batch) -> dict[str, Tensor]:
        """Return relation → which replicated edges are removed, [n] int64 into B * E."""
        removed = {}
        for name, network in self.graph.relations.items():
            kinds = dict.fromkeys((network.source, network.target))
            counts = {kind: batch.host_values[f"removed/{name}/{kind}"] for kind in kinds}
            removed[name] = removed_edges(network, batch.deletions, counts)
        return removed

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies every message by its mask."""
        masks = self.all_kept(batch.size)
        for name, ids in self.removed_edges(batch).items():
            masks[name].index_fill_(0, ids, False)
        return self.masked(batch, masks)


class GpuMaskLoop(_Replicated):
    """Masks on the device, a Python loop over networks, samples and removed nodes, with one `.item()` for each.

    At batch 28 with three deletions and nine networks the host waits 756 times.
    """

    name = "gpu_mask_loop"
    collations = ("lean", "edges")

    def pack(self, removed: dict[str, Deletions], encoded: Any) -> Packed:
        """Return how many nodes each sample removes, and the edges that are shipped."""
        return self.shipped(removed), {f"lengths/{kind}": one.ptr.diff().tolist() for kind, one in removed.items()}

    @cached_property
    def _touching(self) -> dict[tuple[str, str], list[Tensor]]:
        """The ids of each node's edges: relation, node type → a small tensor a node."""
        touching = {}
        for name, network in self.graph.relations.items():
            for kind in (network.source, network.target):
                ptr, items = network.incidence(kind)
                touching[name, kind] = [items[begin:end] for begin, end in pairwise(ptr.tolist())]
        return touching

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies every message by its mask; the host waits for each node id."""
        masks = self.all_kept(batch.size)
        for name, network in self.graph.relations.items():
            for kind in dict.fromkeys((network.source, network.target)):
                touching, i = self._touching[name, kind], 0
                for sample, length in enumerate(batch.host_values[f"lengths/{kind}"]):
                    for _ in range(length):
                        node = int(batch.deletions[kind].nodes[i].item())
                        masks[name][touching[node] + sample * network.num_edges] = False
                        i += 1
        return self.masked(batch, masks)


class GpuMaskCached(GpuMask):
    """As `gpu_mask`, with one mask that stays on the device, flipped for a batch and restored when its view closes.

    It owns one buffer, so one view lives at a time.
    """

    name = "gpu_mask_cached"

    def __init__(self, graph: CellGraph, **options: Any) -> None:
        super().__init__(graph, **options)
        self._lent = False
        self._masks = _Largest()

    def view(self, batch: Batch) -> View:
        """Return the view over the one buffer; close it after the backward.

        **Raises:** `RuntimeError` while an earlier view of this strategy is still open.
        """
        if self._lent:
            raise RuntimeError(f"{self.name} owns one buffer, and an earlier view of it is still open: close that")
        masks = self._masks.first(batch.size, self.all_kept)
        removed = self.removed_edges(batch)

        def flip(kept: bool) -> None:
            for name, ids in removed.items():
                masks[name].index_fill_(0, ids, kept)
            self._lent = not kept

        flip(False)
        return self.masked(batch, masks, on_close=lambda: flip(True))


class GpuFilter(_Replicated):
    """`torch.isin` on the device's replicated edges; the host waits for the number of edges that are left."""

    name = "gpu_filter"

    def view(self, batch: Batch) -> View:
        """Return the view over the edges that touch no removed node."""
        edges = self.edges(batch)
        rows = {kind: batch.deletions[kind].rows(n) for kind, n in self.graph.num_nodes.items()}
        left = {}
        for name, network in self.graph.relations.items():
            source, target = edges[f"edge_index/{name}"]
            kept = ~(torch.isin(source, rows[network.source]) | torch.isin(target, rows[network.target]))
            for key in (f"edge_index/{name}", f"edge_weight/{name}"):
                if key in edges:
                    left[key] = edges[key][..., kept]
        return EdgeListView(self.graph, batch.deletions, edge_lists(self.graph, left))


# ---- samples that share the graph


class NodeMask(Strategy):
    """One sparse matrix a network for all samples; the view makes a 0/1 for each node and sample of the removed ids."""

    name = "node_mask"
    static_shapes = True
    dense = False

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies by the shared matrices."""
        return SharedView(self.graph, batch.deletions, dense=self.dense)


class Dense(NodeMask):
    """One dense matrix a network for all samples and a 0/1 for each node.

    On a CPU it is faster than `node_mask` where about half of all possible edges are there, or more.
    """

    name = "dense"
    dense = True


class _WildTypeOnly(SharedView):
    """The samples' deleted nodes and the wild type; it has no rows."""

    def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        raise InputError("the strategy 'indices' makes no node-deleted graph; this model needs one")

    lift = neighbour_sum = neighbour_sums = with_wild_type = _refuse


class Indices(Strategy):
    """What DANGO needs: the whole graph once a step, and which nodes each sample deletes."""

    name = "indices"
    static_shapes = True
    masks_graph = False

    def view(self, batch: Batch) -> View:
        """Return a view that has a wild type and deleted nodes alone."""
        return _WildTypeOnly(self.graph, batch.deletions)
