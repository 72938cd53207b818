"""The edges of B copies of the graph, replicated with offsets, and which of them deletions remove."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch
from tclab.masking._packing import Piece
from tclab.message_passing._edge_list_view import EdgeList, EdgeListView
from tclab.perturbation import Deletions
from tclab.perturbation._deletions import Int64s


def _replicate(network: Network, size: int, out: Tensor) -> None:
    """Write a network's edges for `size` copies to [2, size * E] int64: copy b's rows begin at b times N."""
    edges = network.edge_index
    step = torch.tensor([[network.num_sources], [network.num_targets]], device=edges.device)
    offsets = torch.arange(size, device=edges.device) * step
    torch.add(edges.unsqueeze(1), offsets.unsqueeze(2), out=out.view(2, size, -1))


def edge_pieces(graph: CellGraph, size: int) -> dict[str, Piece]:
    """Return every relation's edges for `size` copies, and its weights where it has any, under batch names."""
    pieces: dict[str, Piece] = {}
    for name, network in graph.relations.items():
        number = size * network.num_edges
        pieces[f"edge_index/{name}"] = Piece((2, number), torch.int64, partial(_replicate, network, size))
        if network.weight is not None:
            fill = partial(_repeated, network.weight)
            pieces[f"edge_weight/{name}"] = Piece((number,), network.weight.dtype, fill)
    return pieces


def _repeated(weight: Tensor, out: Tensor) -> None:
    if len(weight):
        out.view(-1, len(weight)).copy_(weight)


class Replicas:
    """The replicated edges on the graph's device, made once for each batch size and kept for the last one."""

    def __init__(self, graph: CellGraph) -> None:
        self._graph = graph
        self._made: tuple[int, dict[str, Tensor]] | None = None

    def edges(self, size: int) -> dict[str, Tensor]:
        """Return the edges of `size` copies, under batch names."""
        if self._made is None or self._made[0] != size:
            self._made = None  # let the old ones go before the new ones are made
            edges: dict[str, Tensor] = {}
            for name, piece in edge_pieces(self._graph, size).items():
                edges[name] = torch.empty(piece.shape, dtype=piece.dtype, device=self._graph.device)
                piece.fill(edges[name])
            self._made = (size, edges)
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


def kept_rows(graph: CellGraph, removed: dict[str, Deletions]) -> dict[str, Tensor]:
    """Return which rows of B full copies are left: node type → [B * N] bool, copy after copy."""
    keep = {}
    for kind, number in graph.num_nodes.items():
        rows = removed[kind].samples() * number + removed[kind].nodes
        keep[kind] = torch.ones(len(removed[kind]) * number, dtype=torch.bool, device=rows.device)
        keep[kind].index_fill_(0, rows, False)
    return keep


def edge_view(
    graph: CellGraph, batch: Batch, edges: dict[str, EdgeList], on_close: Callable[[], None] | None = None
) -> EdgeListView:
    """Return the view of a batch over the edges of B full copies."""
    deleted = batch.deletions[graph.deleted_type]
    return EdgeListView(graph, deleted, edges, keep=kept_rows(graph, batch.deletions), on_close=on_close)


def removed_edges(network: Network, removed: dict[str, Deletions], sample: int) -> Tensor:
    """Return the ids of the edges that one sample removes, [n] int64; twice if both ends are deleted."""
    parts = []
    for kind in dict.fromkeys((network.source, network.target)):
        incidence = network.incidence(kind)
        parts += [incidence.of(node) for node in removed[kind][sample].tolist()]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def removed_counts(network: Network, removed: dict[str, Deletions]) -> Int64s:
    """Return how many ids `removed_edges` gives for each sample, [B] int64, from the degrees alone."""
    counts = np.zeros(len(next(iter(removed.values()))), dtype=np.int64)
    for kind in dict.fromkeys((network.source, network.target)):
        degree = np.diff(network.incidence(kind).ptr.numpy())
        total = np.concatenate([[0], np.cumsum(degree[removed[kind].nodes.numpy()])])
        counts += np.diff(total[removed[kind].ptr.numpy()])
    return counts


def moved_edges(batch: Batch) -> dict[str, Tensor]:
    """Return those tensors of a batch that are edges and their weights, under batch names."""
    return {k: t for k, t in batch.tensors.items() if k.startswith(("edge_index/", "edge_weight/"))}
