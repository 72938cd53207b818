"""Charts of the case study: wrong and right figures, the cost of overheads, published ratios."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from tclab.lab.charts._style import STRATEGY_COLOURS, chart_title, empty_chart, log_ticks, rows_title, strategy_colour
from tclab.sweeps.analysis._machine_label import graph_text, this_machine, where_measured

_WIDTH = 520
_COSTS_WIDTH = 420
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
_BETWEEN = alt.Axis(grid=True, bandPosition=0, gridOpacity=0.5, ticks=False)  # lines between the rows
# What may be believed, from most to least; a shape and a grey each
_STANDINGS = {
    "steady": ("square", "#000000"),
    "real training": ("diamond", "#000000"),
    "expected": ("triangle-up", "#777777"),
    "suspect": ("triangle-down", "#999999"),
    "artefact": ("cross", "#999999"),
}


def wrong_figures_chart(ratios: pd.DataFrame, *, where: str | None = None) -> alt.LayerChart:
    """Return each wrong figure and the right one on one logarithmic axis.

    **Arguments:**

    - `ratios`: a row a figure with `key`, its name, and the ratios `wrong` and `right`.
    - `where`: the machine, for the title; this machine unless given.
    """
    frame = ratios.melt("key", ["wrong", "right"], "kind", "ratio")
    frame["figure"] = "the “" + frame["key"] + "”"
    frame["label"] = frame["ratio"].map("{:.3g} ×".format)
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
        title=chart_title("The same runs, five mistakes", where or this_machine()),
    )
    return chart


def wrong_figure_parts(parts: pd.DataFrame, *, title: str, mistake: str, where: str | None = None) -> alt.Chart:
    """Return what a wrong figure and the right one are made of: seconds a step, on one scale.

    **Arguments:**

    - `parts`: side, bar, part and seconds, a row each.
    - `title`: of the chart. `mistake`: how the wrong figure comes about, for the subtitle.
    - `where`: the machine, for the subtitle; this machine unless given.
    """
    seconds = parts[parts["seconds"] > 0]
    shown = seconds["part"].drop_duplicates().tolist()
    most = seconds.groupby(["side", "bar"])["seconds"].sum().max()
    unit, factor = ("s", 1.0) if most >= 1 else ("ms", 1e3)
    frame = seconds.assign(time=seconds["seconds"] * factor, order=seconds["part"].map(shown.index))
    colours = [_PARTS[place % len(_PARTS)] for place in range(len(shown))]
    legend = None if len(shown) == 1 else alt.Legend(orient="bottom", columns=6, title=None)
    sides = frame["side"].drop_duplicates().tolist()
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
        .properties(
            width=_WIDTH,
            height=alt.Step(24),
            title=chart_title(title, mistake, where or this_machine()),
        )
    )
    return chart


def overhead_costs_chart(costs: pd.DataFrame, rows: pd.DataFrame, *, order: Sequence[str], note: str) -> Any:
    """Return each overhead's cost with its interval, a panel a model; hollow where it is undecided.

    **Arguments:**

    - `costs`: model, strategy, overhead, ratio, low, high and verdict, "undecided" or another, a row each.
    - `rows`: those that were measured, for the subtitle.
    - `order`: of the overheads, from top to bottom.
    - `note`: what the intervals rest on, for the subtitle.
    """
    if costs.empty:
        return empty_chart("No overhead was measured together with a step without it.")
    sure = costs["verdict"] != "undecided"
    text = costs["ratio"].map("{:.2f} ×".format) + sure.map({True: "", False: ", undecided"})
    costs = costs.assign(sure=sure, text=text)
    low, high = min(costs["ratio"].min(), 0.8) / 1.5, max(costs["ratio"].max(), 1.25) * 1.5
    x = alt.X(
        "ratio:Q",
        title="time of a step with the overhead : without (1 = it costs nothing)",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(format="~g", values=log_ticks([low, high]), gridOpacity=0.4),
    )
    models = sorted(costs["model"].unique(), key=lambda name: (not name.startswith("hetero"), name))
    panels = [
        _overheads_panel(
            costs[costs["model"] == model],
            model,
            order,
            x if model == models[-1] else x.title(None),
            strategy_colour(costs),
        )
        for model in models
    ]
    chart = alt.vconcat(*panels, spacing=12).resolve_scale(color="shared", y="independent", yOffset="independent")
    return chart.properties(title=rows_title("What each overhead costs", rows, note))


def _overheads_panel(costs: pd.DataFrame, model: str, order: Sequence[str], x: alt.X, colour: Any) -> Any:
    """Return the overheads of one model; an interval that leaves the axis is cut."""
    names = [name for name in order if name in set(costs["overhead"])]
    strategies = list(dict.fromkeys(costs["strategy"]))
    # a lane for each overhead and strategy, and half a lane between overheads
    places = {(n, s): i * (len(strategies) + 0.5) + k for i, n in enumerate(names) for k, s in enumerate(strategies)}
    costs = costs.assign(place=[places[pair] + 0.75 for pair in zip(costs["overhead"], costs["strategy"], strict=True)])
    end = len(names) * (len(strategies) + 0.5)
    labels = pd.DataFrame(
        {"overhead": names, "place": [places[n, strategies[0]] + 0.25 + len(strategies) / 2 for n in names]}
    )
    y = alt.Y("place:Q", scale=alt.Scale(domain=[end, 0], nice=False), axis=None)
    base = alt.Chart(costs).encode(y=y)
    sure, unsure = (base.transform_filter(f"datum.sure == {flag}") for flag in ("true", "false"))
    grey = alt.value("#444444")
    layers = [
        alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(color="#888888").encode(x=alt.X("one:Q")),
        base.mark_rule(strokeWidth=2, clip=True).encode(x=alt.X("low:Q"), x2="high:Q", color=colour),
        sure.mark_point(filled=True, size=70, opacity=1).encode(x=x, color=colour),
        unsure.mark_point(filled=True, fill="white", size=60, opacity=1, strokeWidth=2).encode(x=x, stroke=colour),
        base.mark_text(align="left", fontSize=10).encode(x=alt.value(_COSTS_WIDTH + 8), text="text:N", color=grey),
        alt.Chart(labels).mark_text(align="right", fontSize=11).encode(y=y, x=alt.value(-6), text="overhead:N"),
    ]
    title = alt.TitleParams(model, anchor="start", frame="group", fontSize=12)
    return alt.layer(*layers).properties(width=_COSTS_WIDTH, height=16 * end, title=title)


def _scale_of(standings: list[str], place: int) -> alt.Scale:
    return alt.Scale(domain=standings, range=[_STANDINGS[name][place] for name in standings])


def published_ratios_chart(
    measured: pd.DataFrame, published: pd.DataFrame, rows: pd.DataFrame, *, modes: Sequence[str]
) -> Any:
    """Return hetero : DANGO in each mode, measured in colour with quartiles, published in black and grey.

    **Arguments:**

    - `measured`: mode, strategy, ratio, low and high, a row each.
    - `published`: figure ("key: what it is"), mode, ratio and standing, a row each.
    - `rows`: those that were measured, for the subtitle.
    - `modes`: those that either has, in their order.
    """
    old = published.assign(text=published["figure"].str.split(":").str[0] + ", " + published["standing"])
    y = alt.Y(
        "mode:N",
        sort=modes,
        scale=alt.Scale(domain=modes, paddingInner=0, paddingOuter=0),
        title=None,
        axis=_BETWEEN,
    )
    lanes = ["published", *(name for name in STRATEGY_COLOURS if name in set(measured["strategy"]))]
    lanes += [name for name in dict.fromkeys(measured["strategy"]) if name not in lanes]
    offset = alt.Scale(domain=lanes, paddingOuter=0.6)
    every = [1.0, *old["ratio"], *measured["low"], *measured["high"]]
    x = alt.X(
        "ratio:Q",
        title="time of a step, hetero : DANGO (1 = the same)",
        scale=alt.Scale(type="log", nice=False, domain=[0.7 * min(every), 6 * max(every)]),  # leaves space for words
        axis=alt.Axis(format="~g", values=log_ticks(every), gridOpacity=0.4),
    )
    standings = [name for name in _STANDINGS if name in set(old["standing"])]
    points = alt.Chart(old.assign(lane="published")).encode(y=y, x=x, yOffset=alt.YOffset("lane:N", scale=offset))
    here = alt.Chart(measured).encode(y=y, yOffset=alt.YOffset("strategy:N", scale=offset))
    colour = strategy_colour(measured).title("measured here")
    layers = [
        alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(color="#bbbbbb").encode(x="one:Q"),
        here.mark_rule(strokeWidth=3).encode(x="low:Q", x2="high:Q", color=colour),
        here.mark_point(filled=True, size=80, opacity=1).encode(x=x, color=colour),
        points.mark_point(filled=True, size=80, opacity=1).encode(
            shape=alt.Shape("standing:N", scale=_scale_of(standings, 0), legend=None),
            fill=alt.Fill("standing:N", scale=_scale_of(standings, 1), legend=None),
        ),
        points.mark_text(align="left", dx=9, fontSize=10, color="#555555").encode(text="text:N"),
    ]
    place = " · ".join(filter(None, (where_measured(rows), graph_text(rows))))
    subtitle = [
        f"measured on {place}; line: what the quartiles of both allow",
        "published: another machine, other batch sizes, other code: no figure here is to be compared in seconds",
    ]
    title = alt.TitleParams("Hetero against DANGO", subtitle=subtitle, anchor="start", offset=10)
    chart = alt.layer(*layers)
    return chart.properties(width=520, height=22 * max(2, len(lanes)) * max(1, len(modes)), title=title)
