"""The picture of a strategy's tensors in memory, for a few samples of a small graph: read from its batch and its view.

It is no `ratios`, `stacked` or `lines`: what is drawn are nodes and edges, not numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from math import atan2, cos, degrees, pi, sin
from typing import Any

import altair as alt
import pandas as pd

from tclab.graph._cell_graph import CellGraph
from tclab.lab.charts._style import GREY, chart_title
from tclab.lab.reports._mask_tensors import tensors_of

_SIZE = 150  # pixels a side of a drawing
_COLOURS = {  # state of an edge or a node
    "summed": "#2b8cc4",
    "copied, times zero": "#d55e00",
    "kept": GREY,
    "deleted, a row of zeros": "#e69f00",
    "deleted, no row": "#e69f00",
    "left out, no row": "#b0b0b0",
    "differs from the wild type": "#cc79a7",
}
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
    at = [(sin(2 * pi * node / len(states)), cos(2 * pi * node / len(states))) for node in range(len(states))]
    arrows = [_arrow(*at[a], *at[b]) | {"state": state} for a, b, state in edges]
    lines = pd.DataFrame(arrows, columns=["x", "y", "x2", "y2", "head_x", "head_y", "angle", "state"])
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


def _arrow(x: float, y: float, x2: float, y2: float) -> dict[str, float]:
    """Return a line with its arrow's head, nearer to its end: crossing lines have theirs apart."""
    head = {"head_x": x + 0.7 * (x2 - x), "head_y": y + 0.7 * (y2 - y), "angle": degrees(atan2(x2 - x, y2 - y))}
    return {"x": x, "y": y, "x2": x2, "y2": y2} | head
