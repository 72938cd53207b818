"""What each way of masking copies and what it shares, drawn from the batch and the view that it really makes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import cos, pi, sin
from typing import Any

import altair as alt
import pandas as pd
import torch

from tclab.errors import InputError
from tclab.graph import CellGraph
from tclab.masking import Batch, Strategy, get, view
from tclab.masking.gpu_filter import GpuFilter
from tclab.message_passing import DeltaView, EdgeListView, SharedView, View
from tclab.perturbation import Deletions, Perturbations

_SIZE = 150  # pixels a side of a drawing
_MOST = 30  # nodes that can still be told apart
_COLOURS = {
    "summed": "#0072b2",
    "copied, times zero": "#d55e00",
    "kept": "#000000",
    "deleted, a row of zeros": "#d55e00",
    "deleted, no row": "#dddddd",
    "differs from the wild type": "#cc79a7",
}


@dataclass
class Held:
    """What a strategy holds for a few samples of a small graph.

    **Arguments:**

    - `strategy`: its name; `words`: what it does, in its own words.
    - `drawings`: title → the edges, (source, target, state), and the state of each node.
    - `entries`: how many entries of edge lists and matrices lie in memory for all samples together: an edge of an
      edge list is one, a sparse matrix has one for each edge and its transpose as many, a dense one has N², and
      the small matrices that carry differences have theirs.
    - `bytes`: what travelled with the batch.
    """

    strategy: str
    words: str
    entries: int
    bytes: int
    drawings: dict[str, tuple[list[tuple[int, int, str]], list[str]]] = field(default_factory=dict)


def held(graph: CellGraph, deletions: Sequence[Sequence[int]], strategy: str) -> Held:
    """Return what a strategy makes of some samples of a small graph with one network, read off its own view.

    **Raises:** `InputError` for a graph with too many nodes to draw, or a strategy that makes no masked graph.
    """
    kind = get(strategy)
    nodes = graph.num_nodes[graph.deleted_type]
    if nodes > _MOST or len(graph.relations) != 1:
        raise InputError(f"{graph!r} is too much to draw, expected at most {_MOST} nodes and one network")
    if not kind.masks_graph:
        raise InputError(f"strategy {strategy!r} makes no masked graph, so there is nothing to draw")
    words = (inspect.getdoc(kind) or strategy).splitlines()[0]
    with view(graph, deletions, strategy) as copies:
        # a stored one's batch is `edge_mask`'s: what differs is where the masks were read
        weighed = get("edge_mask")(graph) if kind.stores else kind(graph)
        wanted = Perturbations(Deletions.of(deletions, num_nodes=nodes), torch.zeros(len(deletions)))
        batch = weighed.batch(wanted)
        lying = _lying(graph, copies, batch) + _filtered_from(graph, kind, batch)
        drawings = _shared(graph, copies) if isinstance(copies, SharedView) else _copied(graph, copies)
    return Held(strategy, words, lying, batch.bytes, drawings)


def _lying(graph: CellGraph, copies: View, batch: Batch) -> int:
    """Return how many entries of edge lists and matrices a view sums over, forward and backward."""
    ((name, network),) = graph.relations.items()
    if isinstance(copies, EdgeListView):
        return copies.edges(name)[0].size(1)
    assert isinstance(copies, SharedView)
    differences = sum(t.numel() for key, t in batch.tensors.items() if key.endswith("/col"))
    if name in copies.dense:
        return differences + network.dense(dtype=torch.float32).numel()
    return differences + 2 * network.csr_parts(dtype=torch.float32)[1].numel()


def _filtered_from(graph: CellGraph, kind: type[Strategy], batch: Batch) -> int:
    """Return how many edges are kept beside those that are summed, to be filtered for the next batch."""
    return batch.size * graph.num_edges if issubclass(kind, GpuFilter) else 0


def _copied(graph: CellGraph, copies: View) -> dict[str, tuple[list[tuple[int, int, str]], list[str]]]:
    """Return a drawing a sample: its own edges, and which of them are multiplied by zero."""
    assert isinstance(copies, EdgeListView)
    number = graph.num_nodes[graph.deleted_type]
    (name,) = graph.relations
    edge_index, mask = copies.edges(name)
    keep = copies.keep[graph.deleted_type].tolist()
    rows = copies.rows()
    found: dict[str, tuple[list[tuple[int, int, str]], list[str]]] = {}
    for sample in range(copies.size):
        states = ["deleted, no row"] * number
        for (own, node), kept in zip(rows, keep, strict=True):
            if own == sample:
                states[node] = "kept" if kept else "deleted, a row of zeros"
        found[f"sample {sample}"] = ([], states)
    for place, (a, b) in enumerate(edge_index.t().tolist()):
        summed = mask is None or bool(mask[place])
        edge = (rows[a][1], rows[b][1], "summed" if summed else "copied, times zero")
        found[f"sample {rows[a][0]}"][0].append(edge)
    return found


def _shared(graph: CellGraph, copies: SharedView) -> dict[str, tuple[list[tuple[int, int, str]], list[str]]]:
    """Return a drawing of the one matrix, and one a sample of its nodes alone."""
    number = graph.num_nodes[graph.deleted_type]
    (network,) = graph.relations.values()
    edges = [(a, b, "summed") for a, b in network.edge_index.t().tolist()]
    found = {"all samples": (edges, ["kept"] * number)}
    keep = torch.cat(copies.order.grids(copies.keep[graph.deleted_type]), dim=1)
    differs = copies.differing() if isinstance(copies, DeltaView) else {}
    for sample in range(copies.size):
        states = ["kept" if kept else "deleted, a row of zeros" for kept in keep[:, sample].tolist()]
        for node in differs.get(sample, ()):
            states[node] = "differs from the wild type"
        found[f"sample {sample}"] = ([], states)
    return found


def mask_picture(graph: CellGraph, deletions: Sequence[Sequence[int]], strategy: str) -> Any:
    """Return a row of drawings: what lies in memory for each sample, or once for all of them.

    See `held`.
    """
    found = held(graph, deletions, strategy)
    charts = [_drawing(title, edges, states) for title, (edges, states) in found.drawings.items()]
    facts = (
        f"{found.entries} entries of edge lists and matrices lie in memory for {len(deletions)} samples; "
        f"{found.bytes:,} bytes travelled"
    )
    title = alt.TitleParams(strategy, subtitle=[found.words, facts], anchor="start")
    return alt.hconcat(*charts, title=title).resolve_scale(color="shared")


def _drawing(title: str, edges: list[tuple[int, int, str]], states: list[str]) -> Any:
    number = len(states)
    at = [(sin(2 * pi * node / number), cos(2 * pi * node / number)) for node in range(number)]
    axis: dict[str, Any] = {"scale": alt.Scale(domain=[-1.2, 1.2]), "axis": None}
    colour = alt.Color(
        "state:N",
        scale=alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values())),
        legend=alt.Legend(title=None, orient="bottom", columns=3, labelLimit=300),
    )
    lines = pd.DataFrame(
        [{"x": at[a][0], "y": at[a][1], "x2": at[b][0], "y2": at[b][1], "state": s} for a, b, s in edges],
        columns=["x", "y", "x2", "y2", "state"],
    )
    dots = pd.DataFrame([{"x": x, "y": y, "state": state} for (x, y), state in zip(at, states, strict=True)])
    drawn = (
        alt.Chart(lines)
        .mark_rule()
        .encode(
            x=alt.X("x:Q", **axis),
            y=alt.Y("y:Q", **axis),
            x2="x2:Q",
            y2="y2:Q",
            color=colour,
            strokeDash=alt.condition("datum.state == 'summed'", alt.value([1, 0]), alt.value([3, 3])),
        )
    )
    points = (
        alt.Chart(dots)
        .mark_point(filled=True, size=90, opacity=1)
        .encode(x=alt.X("x:Q", **axis), y=alt.Y("y:Q", **axis), color=colour)
    )
    return (drawn + points).properties(width=_SIZE, height=_SIZE, title=title)


def sharing_table(graph: CellGraph, deletions: Sequence[Sequence[int]], strategies: Sequence[str]) -> pd.DataFrame:
    """Return for each strategy how many entries lie in memory and how many bytes travelled; see `Held`."""
    found = [held(graph, deletions, name) for name in strategies]
    rows = {one.strategy: {"entries in memory": one.entries, "bytes that travel": one.bytes} for one in found}
    return pd.DataFrame.from_dict(rows, orient="index")


def small_graph(nodes: int = 10) -> CellGraph:
    """Return a ring with a few chords, small enough to draw.

    **Raises:** `InputError` for fewer than 4 nodes, or more than can be told apart.
    """
    if not 4 <= nodes <= _MOST:
        raise InputError(f"nodes is {nodes!r}, expected 4 to {_MOST}")
    ring = [(node, (node + 1) % nodes) for node in range(nodes)]
    chords = [(node, (node + nodes // 2) % nodes) for node in range(0, nodes // 2, 3)]
    edges = torch.tensor(ring + chords).t().contiguous()
    return CellGraph.from_edges({"interacts": edges}, num_nodes=nodes, source="drawn")
