"""The picture of a strategy's tensors in memory, for a few samples of a small graph."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin
from typing import Any

import altair as alt
import pandas as pd

from tclab.graph import CellGraph
from tclab.lab.charts._style import chart_title, fixed_colour
from tclab.lab.reports._mask_drawings import mask_drawing

_SIZE = 150  # pixels a side of a drawing
_COLOURS = {
    "summed": "#0072b2",
    "copied, times zero": "#d55e00",
    "kept": "#000000",
    "deleted, a row of zeros": "#d55e00",
    "deleted, no row": "#dddddd",
    "differs from the wild type": "#cc79a7",
}


def mask_picture(graph: CellGraph | int, deletions: Sequence[Sequence[int]], strategy: str) -> Any:
    """Return a row of drawings: the tensors in memory for each sample, or once for all samples.

    **Arguments:**

    - `graph`: with one network and at most 30 nodes; or a number of nodes, for a ring of so many with a few chords.
    - `deletions`: nodes that each sample deletes. `strategy`: its name.

    **Raises:** `InputError` for a graph that is too large, or a strategy that makes no masked graph.
    """
    drawing = mask_drawing(graph, deletions, strategy)
    charts = [_drawing(title, edges, states) for title, (edges, states) in drawing.drawings.items()]
    facts = (
        f"{drawing.entries} entries of edge lists and matrices in memory for {len(deletions)} samples; "
        f"{drawing.bytes:,} bytes in the batch"
    )
    title = chart_title(strategy, drawing.words, facts)
    return alt.hconcat(*charts, title=title).resolve_scale(color="shared")


def _drawing(title: str, edges: list[tuple[int, int, str]], states: list[str]) -> Any:
    number = len(states)
    at = [(sin(2 * pi * node / number), cos(2 * pi * node / number)) for node in range(number)]
    axis: dict[str, Any] = {"scale": alt.Scale(domain=[-1.2, 1.2]), "axis": None}
    legend = alt.Legend(title=None, orient="bottom", columns=3, labelLimit=300)
    colour = fixed_colour("state", _COLOURS, _COLOURS, legend=legend)
    lines = pd.DataFrame(
        [{"x": at[a][0], "y": at[a][1], "x2": at[b][0], "y2": at[b][1], "state": s} for a, b, s in edges],
        columns=["x", "y", "x2", "y2", "state"],
    )
    dots = pd.DataFrame([{"x": x, "y": y, "state": state} for (x, y), state in zip(at, states, strict=True)])
    drawn = alt.Chart(lines).encode(
        x=alt.X("x:Q", **axis),
        y=alt.Y("y:Q", **axis),
        x2="x2:Q",
        y2="y2:Q",
        color=colour,
        strokeDash=alt.condition("datum.state == 'summed'", alt.value([1, 0]), alt.value([3, 3])),
    )
    points = alt.Chart(dots).encode(x=alt.X("x:Q", **axis), y=alt.Y("y:Q", **axis), color=colour)
    return (drawn.mark_rule() + points.mark_point(filled=True, size=90, opacity=1)).properties(
        width=_SIZE, height=_SIZE, title=title
    )
