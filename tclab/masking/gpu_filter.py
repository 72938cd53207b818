"""`gpu_filter`: the device drops the edges that touch a deleted node, then convolves over what is left."""

from __future__ import annotations

from typing import Any

import torch

from tclab.graph import CellGraph
from tclab.masking.batch import Batch
from tclab.masking.replicas import Replicas, kept_rows
from tclab.masking.strategy import Strategy
from tclab.message_passing import EdgeList, EdgeListView, View


class GpuFilter(Strategy):
    """`torch.isin` on the device's replicated edges; the host waits for the number of edges that are left."""

    name = "gpu_filter"
    edges_vary = True

    def __init__(self, graph: CellGraph, **options: Any) -> None:
        super().__init__(graph, **options)
        self._replicas = Replicas(graph)

    def outlined_view(self, batch: Batch) -> View:
        """Return the view that keeps every edge: what a few deletions leave is nearly all."""
        tensors = self._replicas.edges(batch.size)
        edges = {
            name: EdgeList(
                torch.empty_like(tensors[f"edge_index/{name}"]), weight=tensors.get(f"edge_weight/{name}")
            )
            for name in self.graph.relations
        }
        lost = self.lost(batch)
        return EdgeListView(self.graph, lost[self.graph.deleted_type], edges, keep=kept_rows(self.graph, lost))

    def view(self, batch: Batch) -> View:
        """Return the view over the filtered edges."""
        tensors = self._replicas.edges(batch.size)
        lost = self.lost(batch)
        gone = {
            kind: lost[kind].samples() * number + lost[kind].nodes for kind, number in self.graph.num_nodes.items()
        }
        edges = {}
        for name, network in self.graph.relations.items():
            edge_index = tensors[f"edge_index/{name}"]
            kept = ~(
                torch.isin(edge_index[0], gone[network.source]) | torch.isin(edge_index[1], gone[network.target])
            )
            weight = tensors.get(f"edge_weight/{name}")
            edges[name] = EdgeList(edge_index[:, kept], weight=None if weight is None else weight[kept])
        return EdgeListView(self.graph, lost[self.graph.deleted_type], edges, keep=kept_rows(self.graph, lost))
