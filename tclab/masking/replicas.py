"""The edges of B copies of the graph, one copy's rows after the other's."""

from __future__ import annotations

import torch
from torch import Tensor

from tclab.graph import CellGraph, Network
from tclab.masking.batch import Batch
from tclab.message_passing import EdgeList
from tclab.perturbation import Deletions


def replicated_edge_index(network: Network, size: int) -> Tensor:
    """Return a network's edges for `size` copies, [2, size * E] int64: copy b's rows begin at b times N."""
    step = torch.tensor([[network.num_sources], [network.num_targets]], device=network.edge_index.device)
    offsets = torch.arange(size, device=network.edge_index.device) * step
    return (network.edge_index.unsqueeze(1) + offsets.unsqueeze(2)).reshape(2, -1)


def replicated_edges(graph: CellGraph, size: int) -> dict[str, Tensor]:
    """Return every relation's edges for `size` copies, and its weights where it has any, under batch names."""
    tensors: dict[str, Tensor] = {}
    for name, network in graph.relations.items():
        tensors[f"edge_index/{name}"] = replicated_edge_index(network, size)
        if network.weight is not None:
            tensors[f"edge_weight/{name}"] = network.weight.repeat(size)
    return tensors


class Replicas:
    """The replicated edges on the graph's device, made once for each batch size and kept for the last one."""

    def __init__(self, graph: CellGraph) -> None:
        self._graph = graph
        self._made: tuple[int, dict[str, Tensor]] | None = None

    def edges(self, size: int) -> dict[str, Tensor]:
        """Return the edges of `size` copies, under batch names."""
        if self._made is None or self._made[0] != size:
            self._made = None  # let the old ones go before the new ones are made
            self._made = (size, replicated_edges(self._graph, size))
        return self._made[1]


def edge_lists(
    graph: CellGraph, tensors: dict[str, Tensor], masks: dict[str, Tensor] | None = None
) -> dict[str, EdgeList]:
    """Return the edge lists that tensors under batch names hold, each with its mask where there are masks."""
    return {
        name: EdgeList(
            tensors[f"edge_index/{name}"],
            None if masks is None else masks[name],
            tensors.get(f"edge_weight/{name}"),
        )
        for name in graph.relations
    }


def kept_rows(graph: CellGraph, lost: dict[str, Deletions]) -> dict[str, Tensor]:
    """Return which rows of B full copies are left: node type → [B * N] bool, copy after copy."""
    keep = {}
    for kind, number in graph.num_nodes.items():
        rows = lost[kind].samples() * number + lost[kind].nodes
        keep[kind] = torch.ones(len(lost[kind]) * number, dtype=torch.bool, device=rows.device)
        keep[kind].index_fill_(0, rows, False)
    return keep


def sample_of_row(graph: CellGraph, size: int) -> Tensor:
    """Return the sample of each row of the deleted type, [B * N] int64: PyG's `batch` vector."""
    return torch.arange(size).repeat_interleave(graph.num_nodes[graph.deleted_type])


def removed_edges(network: Network, lost: dict[str, Tensor]) -> Tensor:
    """Return the ids of the edges that one sample loses, [n] int64; an edge may come twice, once an end."""
    parts = []
    for kind in dict.fromkeys((network.source, network.target)):
        incidence = network.incidence(kind)
        parts += [incidence.of(node) for node in lost[kind].tolist()]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def moved_edges(batch: Batch) -> dict[str, Tensor]:
    """Return those tensors of a batch that are edges and their weights, under batch names."""
    return {k: t for k, t in batch.tensors.items() if k.startswith(("edge_index/", "edge_weight/"))}
