"""Charts of a graph: its networks' sizes, degrees and overlap, and how far a deletion reaches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from tclab.errors import unknown
from tclab.graph._cell_graph import CellGraph
from tclab.lab.charts._style import chart_title, fixed_colour
from tclab.lab.reports._graph_statistics import degree_ranks, overlap
from tclab.lab.reports._graph_tables import network_table

# Okabe and Ito's colour-blind safe palette, in the order of the graphs that are compared.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_WIDTH, _HEIGHT = 520, 300
_LOG_AXIS = alt.Axis(tickCount=5, format="~g", gridOpacity=0.5)
_COUNTS = alt.Axis(tickCount=5, format="~s", gridOpacity=0.5)
_SHARES = {
    "rows": "rows that differ",
    "messages": "edges a delta sends again",
    "recomputed": "edges read to recompute them",
}


def graph_chart(graphs: Mapping[str, CellGraph], of: str = "sizes") -> Any:
    """Return a chart of the networks of some graphs.

    **Arguments:**

    - `graphs`: name → graph.
    - `of`: "sizes", each network's nodes and edges; "degrees", over the mean degree, by rank from the largest, a panel
      for each kind of network; or "overlap", the Jaccard index of the node pairs of each two networks, a panel a graph.

    **Raises:** `InputError` for another `of`.
    """
    if of == "overlap":
        return alt.hconcat(*map(_overlap, graphs.values()))
    if of not in ("sizes", "degrees"):
        raise unknown("chart of graphs", of, ("sizes", "degrees", "overlap"))
    return _sizes(graphs) if of == "sizes" else _degrees(graphs)


def _sizes(graphs: Mapping[str, CellGraph]) -> Any:
    frame = network_table(graphs)[["graph", "network", "nodes", "edges"]]
    order = list(dict.fromkeys(frame["network"]))
    return (
        alt.Chart(frame.melt(["graph", "network"], ["nodes", "edges"], "what", "number"))
        .mark_point(filled=True, size=60)
        .encode(
            x=alt.X("number:Q", scale=alt.Scale(type="log", padding=12), axis=_COUNTS, title=None),
            y=alt.Y("network:N", sort=order, title=None),
            color=_colour(graphs),
        )
        .properties(width=_WIDTH // 2, height=16 * len(order))
        .facet(column=alt.Column("what:N", sort=["nodes", "edges"], title=None))
        .properties(title=chart_title("How large each network is", "nodes with an edge in it, and edges; logarithmic"))
    )


def _degrees(graphs: Mapping[str, CellGraph]) -> Any:
    frame = pd.concat([degree_ranks(graph).assign(graph=name) for name, graph in graphs.items()])
    frame["kind"] = frame["network"].map(_kind)
    lines = (
        alt.Chart(frame)
        .mark_line(strokeWidth=1.5)
        .encode(
            x=alt.X(
                "rank:Q",
                scale=alt.Scale(type="log"),
                axis=_LOG_AXIS,
                title="rank, as a share of the network's nodes",
            ),
            y=alt.Y("of_mean:Q", scale=alt.Scale(type="log"), axis=_LOG_AXIS, title="degree / mean degree"),
            color=_colour(graphs),
            detail="network:N",
        )
        .properties(width=_WIDTH // 2, height=_HEIGHT // 2)
        .facet(facet=alt.Facet("kind:N", title=None), columns=2)
    )
    return lines.properties(title=chart_title("How uneven degrees are", "a line a network; logarithmic"))


def _overlap(graph: CellGraph) -> Any:
    order = list(graph.networks)
    base = alt.Chart(overlap(graph)).encode(
        x=alt.X("first:N", sort=order, title=None), y=alt.Y("second:N", sort=order, title=None)
    )
    cells = base.mark_rect().encode(
        color=alt.Color("jaccard:Q", scale=alt.Scale(scheme="blues", domain=[0, 1]), title="Jaccard index")
    )
    words = base.mark_text(fontSize=9).encode(
        text=alt.Text("jaccard:Q", format=".2f"),
        color=alt.condition("datum.jaccard > 0.5", alt.value("white"), alt.value("black")),
    )
    title = chart_title("How many pairs two networks share", f"{graph.source}; without direction")
    return (cells + words).properties(width=28 * len(order), height=28 * len(order), title=title)


def reach_chart(rows: pd.DataFrame) -> Any:
    """Return the share of rows and edges that a deletion affects, layer by layer, with quartiles."""
    names = list(dict.fromkeys(rows["graph"]))
    frame = rows.melt(["graph", "layer", "sample"], list(_SHARES), "share_of", "share")
    frame["share_of"] = frame["share_of"].map(_SHARES)
    spread = (
        frame.groupby(["graph", "share_of", "layer"])["share"]
        .quantile(np.array([0.25, 0.5, 0.75]))
        .unstack()
        .reset_index()
    )
    spread.columns = ["graph", "share_of", "layer", "low", "median", "high"]
    base = alt.Chart(spread).encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0)), color=_colour(names)
    )
    y = alt.Y("median:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"), title="share of all")
    layers = base.mark_line(point=True).encode(y=y) + base.mark_rule().encode(y="low:Q", y2="high:Q")
    order = list(_SHARES.values())
    return (
        layers.properties(width=_WIDTH // 3, height=_HEIGHT // 2)
        .facet(column=alt.Column("share_of:N", title=None, sort=order))
        .properties(title=chart_title("What a deletion affects", "median and quartiles over samples"))
    )


def _kind(network: str) -> str:
    if network.startswith("string"):
        return network.rpartition("_")[2]
    if network.startswith("biogrid"):
        return "physical"
    return "regulatory" if network in ("sgd_regulation", "tflink") else network


def _colour(graphs: Any) -> Any:
    names = list(graphs)
    colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(names)}
    return fixed_colour("graph", colours, names, title="graph")
