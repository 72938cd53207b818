"""The tensors that each strategy copies or shares on a small graph, read from its batch and its view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from tclab.errors import InputError
from tclab.graph._cell_graph import CellGraph
from tclab.masking import get
from tclab.masking._delta import DeltaView
from tclab.masking._strategy import view
from tclab.message_passing import SharedView
from tclab.message_passing._view import EdgeListView
from tclab.perturbation import Deletions, Perturbations

_MOST = 30  # nodes that can still be distinguished
Drawing = tuple[str, list[tuple[int, int, str]], list[str]]  # title, edges (source, target, state), nodes' states


def tensors_of(
    graph: CellGraph | int, deletions: Sequence[Sequence[int]], strategy: str
) -> tuple[type, list[Drawing], int, int]:
    """Return a strategy's class, its drawings, its entries in memory, and the bytes of its batch.

    Entries are those of edge lists and matrices for all samples together: an edge of an edge list is one, a sparse
    matrix has one for each edge and its transpose as many, a dense one has N², and matrices of differences have theirs.
    """
    graph = small_graph(graph) if isinstance(graph, int) else graph
    kind = get(strategy)
    nodes = graph.num_nodes[graph.deleted_type]
    if nodes > _MOST or len(graph.relations) != 1:
        raise InputError(f"{graph!r} is too much to draw, expected at most {_MOST} nodes and one network")
    if not kind.masks_graph:
        raise InputError(f"strategy is {strategy!r}, which makes no masked graph, expected one that does")
    with view(graph, deletions, strategy) as copies:
        wanted = Perturbations(Deletions.of(deletions, num_nodes=nodes), torch.zeros(len(deletions)))
        batch = kind(graph).batch(wanted)
        ((name, network),) = graph.relations.items()
        if isinstance(copies, EdgeListView):
            entries = copies.edges(name)[0].size(1)
            if strategy == "gpu_filter":  # whose edges stay in memory to be filtered for the next batch
                entries += batch.size * graph.num_edges
            return kind, list(_copied(copies, name, wanted.deletions, graph)), entries, batch.bytes
        assert isinstance(copies, SharedView)
        entries = sum(tensor.numel() for key, tensor in batch.tensors.items() if key.endswith("/col"))
        entries += nodes**2 if copies.dense else 2 * network.num_edges
        shared = [(a, b, "summed") for a, b in network.edge_index.t().tolist()]
        drawings: list[Drawing] = [("all samples", shared, ["kept"] * nodes)]
        return kind, [*drawings, *_own_rows(copies, graph.deleted_type)], entries, batch.bytes


def _copied(copies: EdgeListView, name: str, deletions: Deletions, graph: CellGraph) -> Iterator[Drawing]:
    """Iterate over the samples' own copies: their edges, and which of them are multiplied by zero."""
    edge_index, mask, _ = copies.edges(name)
    keep = copies.keep[graph.deleted_type].tolist()
    rows, nodes = copies.rows(), graph.num_nodes[graph.deleted_type]
    edges: dict[int, list[tuple[int, int, str]]] = {sample: [] for sample in range(copies.size)}
    for place, (a, b) in enumerate(edge_index.t().tolist()):
        summed = mask is None or bool(mask[place])
        edges[rows[a][0]].append((rows[a][1], rows[b][1], "summed" if summed else "copied, times zero"))
    for sample in range(copies.size):
        deleted = set(deletions[sample].tolist())
        states = ["deleted, no row" if node in deleted else "left out, no row" for node in range(nodes)]
        for (of_sample, node), kept in zip(rows, keep, strict=True):
            if of_sample == sample:
                states[node] = "kept" if kept else "deleted, a row of zeros"
        yield f"sample {sample}", edges[sample], states


def _own_rows(copies: SharedView, node_type: str) -> Iterator[Drawing]:
    """Iterate over the samples' own nodes beside a shared matrix."""
    keep = copies.keep[node_type].view(copies.size, -1)
    differs = copies.differing() if isinstance(copies, DeltaView) else {}
    for sample in range(copies.size):
        states = ["kept" if kept else "deleted, a row of zeros" for kept in keep[sample].tolist()]
        for node in differs.get(sample, ()):
            states[node] = "differs from the wild type"
        yield f"sample {sample}", [], states


def small_graph(nodes: int) -> CellGraph:
    """Return a ring with a few chords, small enough to draw."""
    if not 4 <= nodes <= _MOST:
        raise InputError(f"nodes is {nodes!r}, expected 4 to {_MOST}")
    ring = [(node, (node + 1) % nodes) for node in range(nodes)]
    chords = [(node, (node + nodes // 2) % nodes) for node in range(0, nodes // 2, 3)]
    edges = torch.tensor(ring + chords).t().contiguous()
    return CellGraph.from_edges({"interacts": edges}, num_nodes=nodes)
