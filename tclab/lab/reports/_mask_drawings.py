"""The tensors that each strategy copies or shares on a small graph, read from its batch and its view."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pandas as pd
import torch

from tclab.errors import InputError
from tclab.graph._cell_graph import CellGraph
from tclab.masking import Batch, get
from tclab.masking._on_device import GpuFilter
from tclab.masking._strategy import view
from tclab.message_passing import SharedView, View
from tclab.message_passing._delta_view import DeltaView
from tclab.message_passing._edge_list_view import EdgeListView
from tclab.perturbation import Deletions, Perturbations

_MOST = 30  # nodes that can still be distinguished

Drawings: TypeAlias = dict[str, tuple[list[tuple[int, int, str]], list[str]]]
"""Title → the edges (source, target, state) and the state of each node."""


@dataclass
class MaskDrawing:
    """What a strategy holds for a few samples of a small graph."""

    strategy: str
    words: str  # the first line of its docstring
    # of edge lists and matrices in memory for all samples together: an edge of an edge list is one, a sparse matrix has
    # one for each edge and its transpose as many, a dense one has N², and the small matrices of differences have theirs
    entries: int
    bytes: int  # of the batch
    drawings: Drawings


def mask_drawing(graph: CellGraph | int, deletions: Sequence[Sequence[int]], strategy: str) -> MaskDrawing:
    """Return what `mask_picture` draws."""
    if isinstance(graph, int):
        graph = small_graph(graph)
    kind = get(strategy)
    nodes = graph.num_nodes[graph.deleted_type]
    if nodes > _MOST or len(graph.relations) != 1:
        raise InputError(f"{graph!r} is too much to draw, expected at most {_MOST} nodes and one network")
    if not kind.masks_graph:
        raise InputError(f"strategy is {strategy!r}, which makes no masked graph, expected one that does")
    words = (inspect.getdoc(kind) or strategy).splitlines()[0]
    with view(graph, deletions, strategy) as copies:
        # a stored strategy's batch is `edge_mask`'s: only where masks are read differs
        packing = get("edge_mask")(graph) if kind.stores else kind(graph)
        wanted = Perturbations(Deletions.of(deletions, num_nodes=nodes), torch.zeros(len(deletions)))
        batch = packing.batch(wanted)
        entries = _entries(graph, copies, batch)
        if issubclass(kind, GpuFilter):  # whose edges stay in memory to be filtered for the next batch
            entries += batch.size * graph.num_edges
        if isinstance(copies, SharedView):
            drawings = _shared(graph, copies)
        else:
            drawings = _copied(graph, copies, wanted.deletions)
    return MaskDrawing(strategy, words, entries, batch.bytes, drawings)


def _entries(graph: CellGraph, copies: View, batch: Batch) -> int:
    """Return the number of entries of edge lists and matrices that a view sums over, forward and backward."""
    ((name, network),) = graph.relations.items()
    if isinstance(copies, EdgeListView):
        return copies.edges(name)[0].size(1)
    assert isinstance(copies, SharedView)
    differences = sum(t.numel() for key, t in batch.tensors.items() if key.endswith("/col"))
    if name in copies.dense:
        return differences + network.dense(dtype=torch.float32).numel()
    return differences + 2 * network.csr_parts(dtype=torch.float32)[1].numel()


def _copied(graph: CellGraph, copies: View, deletions: Deletions) -> Drawings:
    """Return a drawing for each sample: its edges, and which of them are multiplied by zero."""
    assert isinstance(copies, EdgeListView)
    number = graph.num_nodes[graph.deleted_type]
    (name,) = graph.relations
    edge_index, mask = copies.edges(name)
    keep = copies.keep[graph.deleted_type].tolist()
    rows = copies.rows()
    found: Drawings = {}
    for sample in range(copies.size):
        deleted = set(deletions[sample].tolist())
        states = ["deleted, no row" if node in deleted else "left out, no row" for node in range(number)]
        for (sample_of_row, node), kept in zip(rows, keep, strict=True):
            if sample_of_row == sample:
                states[node] = "kept" if kept else "deleted, a row of zeros"
        found[f"sample {sample}"] = ([], states)
    for place, (a, b) in enumerate(edge_index.t().tolist()):
        summed = mask is None or bool(mask[place])
        edge = (rows[a][1], rows[b][1], "summed" if summed else "copied, times zero")
        found[f"sample {rows[a][0]}"][0].append(edge)
    return found


def _shared(graph: CellGraph, copies: SharedView) -> Drawings:
    """Return a drawing of the shared matrix, and one of each sample's nodes."""
    number = graph.num_nodes[graph.deleted_type]
    (network,) = graph.relations.values()
    edges = [(a, b, "summed") for a, b in network.edge_index.t().tolist()]
    found = {"all samples": (edges, ["kept"] * number)}
    keep = copies.keep[graph.deleted_type].view(copies.size, -1)
    differs = copies.differing() if isinstance(copies, DeltaView) else {}
    for sample in range(copies.size):
        states = ["kept" if kept else "deleted, a row of zeros" for kept in keep[sample].tolist()]
        for node in differs.get(sample, ()):
            states[node] = "differs from the wild type"
        found[f"sample {sample}"] = ([], states)
    return found


def sharing_table(
    graph: CellGraph | int, deletions: Sequence[Sequence[int]], strategies: Sequence[str]
) -> pd.DataFrame:
    """Return for each strategy its entries in memory, of edge lists and matrices, and the bytes of its batch.

    **Arguments:**

    - `graph`: with one network and at most 30 nodes; or a number of nodes, for a ring of so many with a few chords.
    - `deletions`: nodes that each sample deletes. `strategies`: names.
    """
    found = [mask_drawing(graph, deletions, name) for name in strategies]
    rows = {one.strategy: {"entries in memory": one.entries, "bytes that travel": one.bytes} for one in found}
    return pd.DataFrame.from_dict(rows, orient="index")


def small_graph(nodes: int = 10) -> CellGraph:
    """Return a ring with a few chords, small enough to draw."""
    if not 4 <= nodes <= _MOST:
        raise InputError(f"nodes is {nodes!r}, expected 4 to {_MOST}")
    ring = [(node, (node + 1) % nodes) for node in range(nodes)]
    chords = [(node, (node + nodes // 2) % nodes) for node in range(0, nodes // 2, 3)]
    edges = torch.tensor(ring + chords).t().contiguous()
    return CellGraph.from_edges({"interacts": edges}, num_nodes=nodes, source="drawn")
