"""`gpu_mask`: indices travel, the device makes the masks from a CSR incidence, for all samples at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch
from tclab.masking._packing import Piece
from tclab.masking._replicated_edges import Replicas, edge_lists, edge_pieces, edge_view, moved_edges
from tclab.masking._strategy import Strategy
from tclab.message_passing import View
from tclab.perturbation import Deletions


class GpuMask(Strategy):
    """Masks on the device, vectorised; the edges are replicated there once for each batch size."""

    name = "gpu_mask"
    can_ship_edges = True

    def __init__(self, graph: CellGraph, **options: Any) -> None:
        super().__init__(graph, **options)
        self._replicas = Replicas(graph)

    def pack(self, removed: dict[str, Deletions], encoded: Any) -> tuple[dict[str, Tensor | Piece], dict[str, Any]]:
        """Return how many edges of each relation are removed, for the host to know, and with `ship_edges` the edges."""
        host_values = {}
        for name, network in self.graph.relations.items():
            for kind in dict.fromkeys((network.source, network.target)):
                ptr, nodes = network.incidence(kind).ptr.numpy(), removed[kind].nodes.numpy()
                host_values[f"removed/{name}/{kind}"] = int((ptr[nodes + 1] - ptr[nodes]).sum())
        size = len(removed[self.graph.deleted_type])
        return (dict(edge_pieces(self.graph, size)) if self.ship_edges else {}), host_values

    def _edges(self, batch: Batch) -> dict[str, Tensor]:
        """Return the replicated edges: those that came with the batch, or those already on the device."""
        if self.ship_edges:
            return moved_edges(batch)
        return self._replicas.edges(batch.size)

    def removed_edge_ids(self, network: Network, batch: Batch) -> Tensor:
        """Return which replicated edges are removed, [n] int64 into B * E, without asking the device."""
        parts = []
        for kind in dict.fromkeys((network.source, network.target)):
            number = batch.host_values[f"removed/{network.name}/{kind}"]
            ptr, items = network.incidence(kind)
            nodes, samples = batch.deletions[kind].nodes, batch.deletions[kind].samples()
            begin, length = ptr[nodes], ptr[nodes + 1] - ptr[nodes]
            owner = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), length, output_size=number)
            within = torch.arange(number, device=nodes.device) - (length.cumsum(0) - length)[owner]
            parts.append(items[begin[owner] + within] + samples[owner] * network.num_edges)
        return torch.cat(parts)

    def masks(self, batch: Batch) -> dict[str, Tensor]:
        """Return relation → [B * E] bool, which replicated edges are kept."""
        masks = {}
        for name, network in self.graph.relations.items():
            mask = torch.ones(batch.size * network.num_edges, dtype=torch.bool, device=batch.target.device)
            masks[name] = mask.index_fill_(0, self.removed_edge_ids(network, batch), False)
        return masks

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies every message by its mask."""
        return edge_view(self.graph, batch, edge_lists(self.graph, self._edges(batch), self.masks(batch)))
