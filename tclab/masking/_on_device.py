"""Strategies that send node ids alone and make the masks, or drop the edges, on the device.

The edges are replicated there once for each batch size, and kept for the last one; `collation="edges"` sends them
with every batch instead, as the case study did.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch, Packed, Piece
from tclab.masking._edge_masks import edge_pieces, edge_view, removed_counts, removed_edges
from tclab.masking._strategy import Strategy
from tclab.message_passing import View
from tclab.perturbation import Deletions


class _Replicated(Strategy):
    """The edges of B copies of the graph on the device."""

    def __init__(self, graph: CellGraph, **options: Any) -> None:
        super().__init__(graph, **options)
        self._replicas: dict[int, dict[str, Tensor]] = {}  # size → the edges under batch names; of one size at most

    def shipped(self, removed: dict[str, Deletions]) -> dict[str, Tensor | Piece]:
        """Return the edges that go with a batch, which are none but for the collation "edges"."""
        return dict(edge_pieces(self.graph, len(removed[self.graph.deleted_type]))) if self.collation == "edges" else {}

    def edges(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the replicated edges under batch names: those that came, or those already on the device."""
        if self.collation == "edges":
            return batch.tensors
        if batch.size not in self._replicas:
            self._replicas.clear()  # let the old ones go before the new ones are made
            edges = {}
            for name, piece in edge_pieces(self.graph, batch.size).items():
                edges[name] = torch.empty(piece.shape, dtype=piece.dtype, device=self.graph.device)
                piece.fill(edges[name])
            self._replicas[batch.size] = edges
        return self._replicas[batch.size]

    def all_kept(self, batch: Batch) -> dict[str, Tensor]:
        """Return a mask for each relation that keeps every edge, [B * E] bool, by the relation's name."""
        device = batch.target.device
        return {
            name: torch.ones(batch.size * network.num_edges, dtype=torch.bool, device=device)
            for name, network in self.graph.relations.items()
        }

    def masked(self, batch: Batch, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the replicated edges and their masks, under batch names."""
        return {**self.edges(batch), **{f"edge_mask/{name}": mask for name, mask in masks.items()}}


class GpuMask(_Replicated):
    """Masks on the device, vectorised: for all samples at once, from a CSR incidence."""

    name = "gpu_mask"
    collations = ("lean", "edges")

    def pack(self, removed: dict[str, Deletions], encoded: Any) -> Packed:
        """Return how many edges of each relation are removed, for the host to know, and the edges that are shipped."""
        counts = {
            f"removed/{name}/{kind}": int(each.sum())
            for name, network in self.graph.relations.items()
            for kind, each in removed_counts(network, removed).items()
        }
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
        masks = self.all_kept(batch)
        for name, ids in self.removed_edges(batch).items():
            masks[name].index_fill_(0, ids, False)
        return edge_view(self.graph, batch, self.masked(batch, masks))


class GpuMaskLoop(_Replicated):
    """Masks on the device, a Python loop over networks, samples and removed nodes, with one `.item()` for each.

    At batch 28 with three deletions and nine networks the host waits 756 times.
    """

    name = "gpu_mask_loop"
    collations = ("lean", "edges")

    def __init__(self, graph: CellGraph, **options: Any) -> None:
        super().__init__(graph, **options)
        self._touching: dict[tuple[str, str], list[Tensor]] = {}

    def pack(self, removed: dict[str, Deletions], encoded: Any) -> Packed:
        """Return how many nodes each sample removes, and the edges that are shipped."""
        return self.shipped(removed), {f"lengths/{kind}": one.ptr.diff().tolist() for kind, one in removed.items()}

    def touching(self, name: str, kind: str) -> list[Tensor]:
        """Return for each node the ids of its edges, a small tensor a node."""
        if (name, kind) not in self._touching:
            ptr, items = self.graph.relations[name].incidence(kind)
            self._touching[name, kind] = [items[begin:end] for begin, end in pairwise(ptr.tolist())]
        return self._touching[name, kind]

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies every message by its mask; the host waits for each node id."""
        masks = self.all_kept(batch)
        for name, network in self.graph.relations.items():
            for kind in dict.fromkeys((network.source, network.target)):
                touching, i = self.touching(name, kind), 0
                for sample, length in enumerate(batch.host_values[f"lengths/{kind}"]):
                    for _ in range(length):
                        node = int(batch.deletions[kind].nodes[i].item())
                        masks[name][touching[node] + sample * network.num_edges] = False
                        i += 1
        return edge_view(self.graph, batch, self.masked(batch, masks))


class GpuMaskCached(GpuMask):
    """As `gpu_mask`, with one mask that stays on the device, flipped for a batch and restored when its view closes.

    It owns one buffer, so one view lives at a time.
    """

    name = "gpu_mask_cached"

    def __init__(self, graph: CellGraph, **options: Any) -> None:
        super().__init__(graph, **options)
        self._lent = False
        self._masks: dict[int, dict[str, Tensor]] = {}  # size → masks; of one size at most

    def view(self, batch: Batch) -> View:
        """Return the view over the one buffer; close it after the backward.

        **Raises:** `RuntimeError` while an earlier view of this strategy is still open.
        """
        if self._lent:
            raise RuntimeError(f"{self.name} owns one buffer, and an earlier view of it is still open: close that")
        if batch.size not in self._masks:
            self._masks = {batch.size: self.all_kept(batch)}
        masks = self._masks[batch.size]
        removed = self.removed_edges(batch)

        def flip(kept: bool) -> None:
            for name, ids in removed.items():
                masks[name].index_fill_(0, ids, kept)
            self._lent = not kept

        flip(False)
        return edge_view(self.graph, batch, self.masked(batch, masks), on_close=lambda: flip(True))


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
        return edge_view(self.graph, batch, left)
