"""Charts of the case study: wrong and right figures, the cost of overheads, published ratios."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import altair as alt
import pandas as pd

from tclab.lab.charts._style import (
    GREY,
    STAGE_COLOURS,
    chart_title,
    empty_chart,
    fixed_colour,
    log_axis,
    log_ticks,
    machine_text,
    rows_title,
    strategy_colour,
    strategy_colours,
)
from tclab.lab.charts._trace_charts import CATEGORY_COLOURS
from tclab.sweeps.store._machine_label import graph_text, where_measured

_WIDTH = 520
_COSTS_WIDTH = 420
# Okabe and Ito's, as in the other charts: the colour that warns, and the one of the right answer.
_COLOURS = {"wrong": "#d55e00", "right": "#009e73"}
_PARTS = ("#56b4e9", "#e69f00", "#0072b2", "#cc79a7")  # of parts that are no stage
# What may be believed, from most to least; a shape and a grey each
_STANDINGS = {
    "steady": ("square", "#6f6f6f"),
    "real training": ("diamond", "#6f6f6f"),
    "expected": ("triangle-up", "#8a8a8a"),
    "suspect": ("triangle-down", "#ababab"),
    "artefact": ("cross", "#ababab"),
}


def draw_wrong_figures(ratios: pd.DataFrame, where: str | None) -> Any:
    """Return the chart of each wrong figure and the right one, on one logarithmic axis.

    **Arguments:**

    - `ratios`: a row per figure: `figure`, its name, and the ratios `wrong` and `right`.
    - `where`: the machine, for the title; this one unless given.
    """
    frame = ratios.melt("figure", ["wrong", "right"], "kind", "ratio")
    frame["label"] = frame["ratio"].map("{:.3g} ×".format)
    y = alt.Y("figure:N", sort=ratios["figure"].tolist(), title=None, axis=alt.Axis(labelLimit=380))
    x = alt.X(
        "ratio:Q",
        title="times as slow (logarithmic; 1 = the same)",
        scale=alt.Scale(type="log", padding=30, nice=False),
        axis=alt.Axis(values=log_ticks([1.0, *frame["ratio"]]), format="~g"),
    )
    same = alt.Chart(pd.DataFrame({"ratio": [1.0]})).mark_rule(color=GREY, strokeDash=[4, 3]).encode(x=x)
    line = alt.Chart(ratios).mark_rule(color="#bbbbbb", strokeWidth=2).encode(y=y, x="wrong:Q", x2="right:Q")
    base = alt.Chart(frame).encode(y=y, x=x, color=fixed_colour("kind", _COLOURS, _COLOURS, title=None))
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=list(_COLOURS), range=["cross", "circle"]), title=None)
    points = base.mark_point(filled=True, size=90).encode(shape=shape)
    labels = [
        base.transform_filter(alt.datum.kind == kind).mark_text(dy=dy).encode(text="label:N")
        for kind, dy in (("wrong", -12), ("right", 14))
    ]
    title = chart_title("The same runs, five mistakes", machine_text(where))
    return alt.layer(same, line, points, *labels).properties(width=_WIDTH, height=alt.Step(52), title=title)


def draw_wrong_figure_parts(parts: pd.DataFrame, title: str, mistake: str, where: str | None) -> Any:
    """Return the chart of what a wrong figure and the right one are made of: seconds a step, on one scale.

    **Arguments:**

    - `parts`: columns side, bar, part, seconds.
    - `title`, `mistake`: the chart's title, and the line below it. `where`: as for `draw_wrong_figures`.
    """
    seconds = parts[parts["seconds"] > 0]
    shown = seconds["part"].drop_duplicates().tolist()
    most = seconds.groupby(["side", "bar"])["seconds"].sum().max()
    unit, factor = ("s", 1.0) if most >= 1 else ("ms", 1e3)
    frame = seconds.assign(time=seconds["seconds"] * factor, order=seconds["part"].map(shown.index))
    known = CATEGORY_COLOURS | STAGE_COLOURS  # the same in every chart
    others = cycle(_PARTS)
    colours = {part: known[part] if part in known else next(others) for part in shown}
    legend = None if len(shown) == 1 else alt.Legend(orient="bottom", columns=6, title=None)
    side = alt.Row(
        "side:N",
        sort=frame["side"].drop_duplicates().tolist(),
        title=None,
        header=alt.Header(labelAngle=0, labelAnchor="start", labelOrient="top"),
    )
    bars = alt.Chart(frame).mark_bar().encode(
        x=alt.X("sum(time):Q", title=f"{unit} a step"),
        y=alt.Y("bar:N", sort=frame["bar"].drop_duplicates().tolist(), title=None),
        color=fixed_colour("part", colours, shown, legend=legend),
        order="order:Q",
        row=side,
    )  # fmt: skip
    subtitle = chart_title(title, mistake, machine_text(where))
    subtitle.offset = 10
    return bars.properties(width=_WIDTH, height=alt.Step(24), title=subtitle)


def draw_overhead_costs(costs: pd.DataFrame, rows: pd.DataFrame, order: Sequence[str], note: str) -> Any:
    """Return the chart of each overhead's cost with its interval, a panel per model; hollow where it is undecided.

    **Arguments:**

    - `costs`: as `case_study.overhead_costs` returns them, and `sure`, whether the verdict is not undecided.
    - `rows`: that they are of.
    - `order`: names of all overheads, in the order of the lanes.
    - `note`: a line below the title.
    """
    if costs.empty:
        return empty_chart("No overhead was measured together with a step without it.")
    text = costs["ratio"].map("{:.2f} ×".format) + costs["sure"].map({True: "", False: ", undecided"})
    costs = costs.assign(text=text)
    low, high = min(costs["ratio"].min(), 0.8) / 1.5, max(costs["ratio"].max(), 1.25) * 1.5
    title = "time of a step with the overhead : without (1 = it costs nothing)"
    x = alt.X("ratio:Q", title=title, **log_axis([low, high], domain=[low, high]))
    models = sorted(costs["model"].unique(), key=lambda name: (not name.startswith("hetero"), name))
    colour = strategy_colour(costs)
    panels = [
        _overheads_panel(
            costs[costs["model"] == model], model, x if model == models[-1] else x.title(None), colour, order
        )
        for model in models
    ]
    chart = alt.vconcat(*panels, spacing=12).resolve_scale(color="shared", y="independent", yOffset="independent")
    return chart.properties(title=rows_title("What each overhead costs", rows, note))


def _overheads_panel(costs: pd.DataFrame, model: str, x: Any, colour: Any, order: Sequence[str]) -> Any:
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


def draw_published_ratios(
    measured: pd.DataFrame, published: pd.DataFrame, modes: Sequence[str], rows: pd.DataFrame
) -> Any:
    """Return the chart of hetero : DANGO in each mode: measured in colour, with intervals, and published in grey.

    **Arguments:**

    - `measured`: columns mode, strategy, ratio, low, high.
    - `published`: columns mode, ratio, standing, text.
    - `modes`: in the order of the axis.
    - `rows`: that were measured, for the title.
    """
    lanes = [
        "published",
        *(name for name in strategy_colours(measured["strategy"]) if name in set(measured["strategy"])),
    ]
    offset = alt.Scale(domain=lanes, paddingOuter=0.6)
    lines_between = alt.Axis(grid=True, bandPosition=0, gridOpacity=0.5, ticks=False)
    bands = alt.Scale(domain=modes, paddingInner=0, paddingOuter=0)
    y = alt.Y("mode:N", sort=modes, scale=bands, title=None, axis=lines_between)
    every = [1.0, *published["ratio"], *measured["low"], *measured["high"]]
    ends = [0.7 * min(every), 6 * max(every)]  # leaves space for the text
    x = alt.X("ratio:Q", title="time of a step, hetero : DANGO (1 = the same)", **log_axis(every, domain=ends))
    standings = [name for name in _STANDINGS if name in set(published["standing"])]
    shape, fill = (alt.Scale(domain=standings, range=[_STANDINGS[name][part] for name in standings]) for part in (0, 1))
    points = alt.Chart(published.assign(lane="published")).encode(y=y, x=x, yOffset=alt.YOffset("lane:N", scale=offset))
    here = alt.Chart(measured).encode(
        y=y,
        yOffset=alt.YOffset("strategy:N", scale=offset),
        color=strategy_colour(measured).title("measured here"),
    )
    layers = [
        alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(color="#bbbbbb").encode(x="one:Q"),
        here.mark_rule(strokeWidth=3).encode(x="low:Q", x2="high:Q"),
        here.mark_point(filled=True, size=80, opacity=1).encode(x=x),
        points.mark_point(filled=True, size=80, opacity=1).encode(
            shape=alt.Shape("standing:N", scale=shape, legend=None),
            fill=alt.Fill("standing:N", scale=fill, legend=None),
        ),
        points.mark_text(align="left", dx=9, fontSize=10, color=GREY).encode(text="text:N"),
    ]
    place = " · ".join(filter(None, (where_measured(rows), graph_text(rows))))
    title = chart_title(
        "Hetero against DANGO",
        f"measured on {place}; line: 95 % interval",
        "published: another machine, other batch sizes, other code: no figure here is to be compared in seconds",
    )
    return alt.layer(*layers).properties(width=520, height=22 * max(2, len(lanes)) * max(1, len(modes)), title=title)
