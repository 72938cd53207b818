"""Pictures of wrong figures beside the right ones."""

from __future__ import annotations

import altair as alt
import pandas as pd

from tclab.lab.artefacts import Figure
from tclab.sweeps.measured_on import this_machine

# Okabe and Ito's, as in the other charts: the colour that warns, and the one of the right answer.
_WRONG, _RIGHT = "#d55e00", "#009e73"
_PARTS = (
    "#56b4e9",
    "#e69f00",
    "#0072b2",
    "#cc79a7",
    "#f0c340",
    "#999999",
    "#5b2a86",
    "#8c6d46",
    "#000000",
    "#d55e00",
)
_WIDTH = 520


def overview(figures: list[Figure], *, where: str | None = None) -> alt.LayerChart:
    """Return each wrong figure and the right one on one logarithmic axis.

    **Arguments:**

    - `figures`: from the same runs.
    - `where`: what they were measured on, for the title; this machine unless given.
    """
    frame = pd.DataFrame(
        [
            {"figure": f"the “{figure.key}”", "kind": kind, "ratio": value, "label": f"{value:.3g} ×"}
            for figure in figures
            for kind, value in (("wrong", figure.wrong), ("right", figure.right))
        ]
    )
    order = frame["figure"].drop_duplicates().tolist()
    y = alt.Y("figure:N", sort=order, title=None)
    x = alt.X("ratio:Q", title="times slower", scale=alt.Scale(type="log", padding=30, nice=False))
    wide = frame.pivot(index="figure", columns="kind", values="ratio").reset_index()
    line = alt.Chart(wide).mark_rule(color="#bbbbbb", strokeWidth=2).encode(y=y, x="wrong:Q", x2="right:Q")
    base = alt.Chart(frame).encode(y=y, x=x)
    colour = alt.Color("kind:N", scale=alt.Scale(domain=["wrong", "right"], range=[_WRONG, _RIGHT]), title=None)
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=["wrong", "right"], range=["cross", "circle"]), title=None)
    points = base.mark_point(filled=True, size=90).encode(color=colour, shape=shape)
    above = base.transform_filter("datum.kind == 'wrong'").mark_text(dy=-12).encode(text="label:N", color=colour)
    below = base.transform_filter("datum.kind == 'right'").mark_text(dy=14).encode(text="label:N", color=colour)
    chart: alt.LayerChart = (line + points + above + below).properties(
        width=_WIDTH,
        height=alt.Step(52),
        title=alt.TitleParams("The same runs, five mistakes", subtitle=[where or this_machine()], anchor="start"),
    )
    return chart


def parts(figure: Figure, *, where: str | None = None) -> alt.Chart:
    """Return what a wrong figure and the right one are made of: seconds a step, on one scale.

    **Arguments:**

    - `figure`: one of them.
    - `where`: what it was measured on, for the title; this machine unless given.
    """
    seconds = figure.parts[figure.parts["seconds"] > 0]
    shown = seconds["part"].drop_duplicates().tolist()
    most = seconds.groupby(["side", "bar"])["seconds"].sum().max()
    unit, factor = ("s", 1.0) if most >= 1 else ("ms", 1e3)
    frame = seconds.assign(time=seconds["seconds"] * factor, order=seconds["part"].map(shown.index))
    colours = [_PARTS[place % len(_PARTS)] for place in range(len(shown))]
    legend = None if len(shown) == 1 else alt.Legend(orient="bottom", columns=6, title=None)
    sides = frame["side"].drop_duplicates().tolist()
    title = alt.TitleParams(
        f"The “{figure.key}”: {figure.wrong:.3g} × where {figure.right:.3g} × is right",
        subtitle=[figure.mistake, where or this_machine()],
        anchor="start",
    )
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            x=alt.X("sum(time):Q", title=f"{unit} a step"),
            y=alt.Y("bar:N", sort=frame["bar"].drop_duplicates().tolist(), title=None),
            color=alt.Color("part:N", scale=alt.Scale(domain=shown, range=colours), legend=legend),
            order="order:Q",
            row=alt.Row(
                "side:N",
                sort=sides,
                title=None,
                header=alt.Header(labelAngle=0, labelAnchor="start", labelOrient="top"),
            ),
        )
        .properties(width=_WIDTH, height=alt.Step(24), title=title)
    )
    return chart
