"""`gpu_filter`: the device drops the edges that touch a deleted node, then convolves over what is left."""

from __future__ import annotations

from typing import Any

import torch

from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch
from tclab.masking._replicated_edges import Replicas, edge_view
from tclab.masking._strategy import Strategy
from tclab.message_passing import View
from tclab.message_passing._edge_list_view import EdgeList


class GpuFilter(Strategy):
    """`torch.isin` on the device's replicated edges; the host waits for the number of edges that are left."""

    name = "gpu_filter"
    edges_vary = True

    def __init__(self, graph: CellGraph, **options: Any) -> None:
        super().__init__(graph, **options)
        self._replicas = Replicas(graph)

    def meta_view(self, batch: Batch) -> View:
        """Return the view that keeps every edge: what a few deletions leave is nearly all."""
        tensors = self._replicas.edges(batch.size)
        edges = {
            name: EdgeList(torch.empty_like(tensors[f"edge_index/{name}"]), weight=tensors.get(f"edge_weight/{name}"))
            for name in self.graph.relations
        }
        return edge_view(self.graph, batch, edges)

    def view(self, batch: Batch) -> View:
        """Return the view over the filtered edges."""
        tensors = self._replicas.edges(batch.size)
        removed = batch.deletions
        numbers = self.graph.num_nodes
        rows = {kind: removed[kind].samples() * number + removed[kind].nodes for kind, number in numbers.items()}
        edges = {}
        for name, network in self.graph.relations.items():
            edge_index = tensors[f"edge_index/{name}"]
            kept = ~(torch.isin(edge_index[0], rows[network.source]) | torch.isin(edge_index[1], rows[network.target]))
            weight = tensors.get(f"edge_weight/{name}")
            edges[name] = EdgeList(edge_index[:, kept], weight=None if weight is None else weight[kept])
        return edge_view(self.graph, batch, edges)
