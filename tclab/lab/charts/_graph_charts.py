"""Charts of graphs: a strategy's tensors in memory, read from its batch and its view; how far a deletion reaches."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch

from tclab.errors import InputError
from tclab.graph._cell_graph import CellGraph
from tclab.lab.charts._marks import lines
from tclab.lab.charts._style import GREY, chart_title
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


_SIZE = 150  # pixels a side of a drawing
_COLOURS = {  # state of an edge or a node
    "summed": "#2b8cc4", "copied, times zero": "#d55e00", "kept": GREY, "deleted, a row of zeros": "#e69f00",
    "deleted, no row": "#e69f00", "left out, no row": "#b0b0b0", "differs from the wild type": "#cc79a7",
}  # fmt: skip
_CROSSED = ("deleted, no row", "left out, no row")  # the other nodes are dots


def mask_picture(graph: CellGraph | int, deletions: Sequence[Sequence[int]], strategy: str) -> Any:
    """Return a row of drawings: the tensors in memory for each sample, or once for all samples.

    **Arguments:**

    - `graph`: with one network and at most 30 nodes; or a number of nodes, for a ring of so many with a few chords.
    - `deletions`: nodes that each sample deletes. `strategy`: its name.

    **Raises:** `InputError` for a graph that is too large, or a strategy that makes no masked graph.
    """
    kind, drawings, entries, size = tensors_of(graph, deletions, strategy)
    words = (inspect.getdoc(kind) or strategy).splitlines()[0].replace("`", "")
    memory = f"{entries} entries of edge lists and matrices in memory for {len(deletions)} samples"
    facts = f"{memory}; {size:,} bytes in the batch; arrows: from source to target"
    found = {state for _, edges, states in drawings for state in (*states, *(s for *_, s in edges))}
    present = [state for state in _COLOURS if state in found]
    charts = [_drawing(*drawing, present) for drawing in drawings]
    return alt.hconcat(*charts, title=chart_title(strategy, words, facts)).resolve_scale(color="shared", shape="shared")


def _drawing(title: str, edges: list[tuple[int, int, str]], states: list[str], present: list[str]) -> Any:
    angles = 2 * np.pi * np.arange(len(states)) / len(states)
    at = list(zip(np.sin(angles), np.cos(angles), strict=True))
    arrows = [(*at[source], *at[target], state) for source, target, state in edges]
    lines = pd.DataFrame(arrows, columns=["x", "y", "x2", "y2", "state"])
    right, up = lines["x2"] - lines["x"], lines["y2"] - lines["y"]
    # nearer to the end: crossing lines have theirs apart
    lines = lines.assign(head_x=lines["x"] + 0.7 * right, head_y=lines["y"] + 0.7 * up)
    lines["angle"] = np.degrees(np.arctan2(right.astype(float), up.astype(float)))
    dots = pd.DataFrame([{"x": x, "y": y, "state": state} for (x, y), state in zip(at, states, strict=True)])
    axis: dict[str, Any] = {"scale": alt.Scale(domain=[-1.2, 1.2]), "axis": None}
    legend = alt.Legend(title=None, orient="bottom", columns=4, labelLimit=300)
    scale = alt.Scale(domain=present, range=[_COLOURS[state] for state in present])
    colour = alt.Color("state:N", scale=scale, legend=legend)
    shapes = alt.Scale(domain=present, range=["cross" if state in _CROSSED else "circle" for state in present])
    to_x, to_y = alt.X("x:Q", **axis), alt.Y("y:Q", **axis)
    dash = alt.condition("datum.state == 'summed'", alt.value([1, 0]), alt.value([3, 3]))
    drawn = alt.Chart(lines).encode(x=to_x, y=to_y, x2="x2:Q", y2="y2:Q", color=colour, strokeDash=dash)
    head_x, head_y, angle = alt.X("head_x:Q", **axis), alt.Y("head_y:Q", **axis), alt.Angle("angle:Q", scale=None)
    heads = alt.Chart(lines).encode(x=head_x, y=head_y, angle=angle, color=colour)
    shape = alt.Shape("state:N", scale=shapes, legend=legend)
    points = alt.Chart(dots).encode(x=to_x, y=to_y, color=colour, shape=shape)
    layers = [
        drawn.mark_rule(),
        heads.mark_point(shape="triangle", filled=True, size=30, opacity=1),
        points.mark_point(filled=True, size=90, opacity=1),
    ]
    return alt.layer(*layers).properties(width=_SIZE, height=_SIZE, title=title)


# ---- how far a deletion reaches


def reach_rows(
    graphs: Mapping[str, CellGraph], *, layers: int = 3, samples: int = 50, deleted: int = 3, seed: int = 0
) -> pd.DataFrame:
    """Return how many rows deletions change, layer by layer: a row for each graph, sample and layer.

    Messages go from source to target, as the models send them. After layer l the rows that differ from the
    wild type are those that a deleted node reaches in l hops, over all networks together. Columns: `graph`, `sample`,
    `layer` (1 …), and as shares of all nodes or edges, 0 to 1:

    - `rows`: nodes whose row differs after the layer, the deleted ones counted.
    - `messages`: edges that start at a row that differed before the layer: what a delta has to send again.
    - `recomputed`: edges that end at a row that differs after it: what recomputing those rows has to read.

    **Raises:** `InputError` where a graph has no edges, or fewer nodes than a sample deletes.
    """
    found = []
    for name, graph in graphs.items():
        nodes = graph.num_nodes[graph.deleted_type]
        if not graph.num_edges or not 1 <= deleted <= nodes:
            raise InputError(f"reach needs edges and 1 to {nodes} deleted nodes, not {deleted!r}")
        ends = [network.edge_index.cpu().numpy() for network in graph.networks.values()]
        source, target = np.concatenate(ends, axis=1).astype(np.int32)
        rng = np.random.default_rng(seed)
        for sample in range(samples):
            differs = np.zeros(nodes, dtype=bool)
            differs[rng.choice(nodes, deleted, replace=False)] = True
            for layer in range(1, layers + 1):
                sent = differs[source]
                differs[target[sent]] = True
                shares = (differs.mean(), sent.mean(), differs[target].mean())
                found.append((name, sample, layer, *shares))
    return pd.DataFrame(found, columns=["graph", "sample", "layer", "rows", "messages", "recomputed"])


# column → its panel
_SHARES = {"rows": "rows that differ", "messages": "messages of delta", "recomputed": "recomputed: edges read"}


def reach_chart(rows: pd.DataFrame) -> Any:
    """Return the share of rows and edges that a deletion affects, layer by layer, with quartiles.

    The title has a line for each graph: the mean share of the messages over samples and layers.
    """
    named = rows.rename(columns={**_SHARES, "graph": "line", "layer": "x"})
    shares = named.melt(["line", "x", "sample"], list(_SHARES.values()), "panel", "share")
    quartiles = shares.groupby(["panel", "line", "x"], sort=False)["share"].quantile(np.array([0.25, 0.5, 0.75]))
    points = quartiles.unstack().set_axis(["low", "y", "high"], axis=1).reset_index()
    sent = rows.groupby("graph", sort=False)["messages"].mean()
    said = [f"delta sends {share:.1%} of the messages that node_mask sends ({name})" for name, share in sent.items()]
    title = chart_title(said, f"mean over layers; below: median and quartiles of {rows['sample'].nunique()} samples")
    axis = "share of all (less is better)"
    return lines(points, title, x="layer", y=axis, log="", percent=True, legend=True, width=170, height=160)
