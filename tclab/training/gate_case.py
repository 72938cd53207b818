"""What the equality gate is tried on: a small part of a graph, hubs among it, and deletions that are hard."""

from __future__ import annotations

import torch
from torch import Tensor

from tclab.graph import CellGraph


def _degrees(graph: CellGraph, node_type: str) -> Tensor:
    degree = torch.zeros(graph.num_nodes[node_type])
    for network in graph.relations.values():
        for end, ids in zip((network.source, network.target), network.edge_index, strict=True):
            if end == node_type:
                degree += torch.bincount(ids, minlength=len(degree))
    return degree


def gate_graph(graph: CellGraph, *, most_nodes: int = 100) -> CellGraph:
    """Return the part of a graph that the gate of a sweep is tried on: nodes of every degree, hubs among them.

    At most `most_nodes` nodes of each type are kept.
    """
    kept = {}
    for kind, number in graph.num_nodes.items():
        if number > most_nodes:
            ranked = torch.argsort(_degrees(graph, kind), descending=True, stable=True)
            half = most_nodes // 2
            rest = ranked[half:][:: max(1, (number - half) // (most_nodes - half))][: most_nodes - half]
            kept[kind] = torch.cat([ranked[:half], rest]).sort().values
    return graph.induced(kept) if kept else graph


def gate_deletions(graph: CellGraph, *, seed: int = 0) -> list[list[int]]:
    """Return deletions that break what is nearly right: nothing, the hub, a node's every neighbour, a set twice.

    Four random sets follow, so that the fp32 error of the predictions is more than one sample's luck.
    """
    number = graph.num_nodes[graph.deleted_type]
    degree = _degrees(graph, graph.deleted_type)
    hub = int(degree.argmax())
    least = int(degree.masked_fill(degree == 0, float("inf")).argmin())
    neighbours: set[int] = set()
    for network in graph.networks.values():
        source, target = network.edge_index
        neighbours |= set(target[source == least].tolist()) | set(source[target == least].tolist())
    generator = torch.Generator().manual_seed(seed)
    three, *rest = (torch.randperm(number, generator=generator)[:3].tolist() for _ in range(5))
    return [three, [], [hub], sorted(neighbours - {least}), three, *rest]
