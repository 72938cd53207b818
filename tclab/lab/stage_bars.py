"""Where a step's time goes, mode by mode: worker, host and device side by side, and the bytes beside them."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from tclab.lab.charts import (
    _colour,
    _plain,
    _shape,
    _title,
)
from tclab.lab.colours import STAGE_COLOURS, STRATEGY_COLOURS
from tclab.lab.parts import TIMELINES, closes, closure_text, one_point_each, stage_parts
from tclab.lab.timeline import nothing
from tclab.timing.units import bytes_text

# What each mode runs, for a title
MODE_WORDS = {
    "data": "load, collate and transfer; no model",
    "empty": "the same inside Lightning's loop, around a model of one number",
    "model": "load, forward and backward; no optimizer",
    "step": "everything",
    "fixed_batch": "everything, on one batch kept: nothing is loaded",
}
_WIDTHS = {"worker": 250, "loading": 250, "host": 330, "device": 330}
_BYTES_WIDTH = 110
_ROW = 30


def ordered_ways(frame: pd.DataFrame) -> list[str]:
    """Return "model · strategy" in the order of the palette, the models together."""
    strategies = [*STRATEGY_COLOURS, *(s for s in frame["strategy"].unique() if s not in STRATEGY_COLOURS)]
    pairs = {(row["model"], row["strategy"]) for _, row in frame.iterrows()}
    models = sorted(frame["model"].unique(), key=lambda name: (not name.startswith("hetero"), name))
    return [f"{model} · {s}" for model in models for s in strategies if (model, s) in pairs]


def step_stages(rows: pd.DataFrame) -> Any:
    """Return a bar of stages for each mode, model and timeline, with the quartiles of the whole, and the bytes.

    The timelines of a mode share one axis. One that does not close has words in its bar's place.
    """
    parts = stage_parts(rows)
    if parts.empty:
        return nothing("No mode was measured.")
    parts["way"] = parts["model"] + " · " + parts["strategy"]
    ways = ordered_ways(parts)
    timelines = [name for name in TIMELINES if name in set(parts["where"])]
    shown = [name for name in STAGE_COLOURS if name in set(parts["stage"])]
    panels = []
    for mode, own in parts.groupby("mode", sort=False):
        wholes = own.assign(with_idle=own.groupby(["way", "where"])["seconds"].transform("sum"))
        longest = max(wholes["with_idle"].max(), own["whole_q3_seconds"].max())
        unit, factor = ("s", 1.0) if longest >= 1 else ("ms", 1e3)
        row = [
            _timeline(own, where, ways, shown, (unit, factor, longest), place == 0)
            for place, where in enumerate(timelines)
        ]
        row.append(_bytes(one_point_each(rows).query("mode == @mode"), ways))
        title = alt.TitleParams(f"{mode}: {MODE_WORDS[str(mode)]}", anchor="start", fontSize=12)
        panels.append(alt.hconcat(*row, spacing=12).properties(title=title))
    more = "a usual step; line from quartile to quartile of whole steps"
    chart = alt.vconcat(*panels, spacing=18).resolve_scale(color="shared")
    return chart.properties(title=_title("Where a step's time goes, in each mode", rows, f"{_size(rows)} · {more}"))


def _size(rows: pd.DataFrame) -> str:
    chosen = one_point_each(rows)
    sizes = {
        f"{m} batch {b}, {n} networks"
        for m, b, n in chosen[["model", "batch_size", "networks"]].itertuples(index=False)
    }
    return "; ".join(sorted(sizes))


def _timeline(
    parts: pd.DataFrame,
    where: str,
    ways: list[str],
    shown: list[str],
    axis: tuple[str, float, float],
    first: bool,
) -> Any:
    """Return one panel: the bars of one timeline in one mode, words where there is none to draw."""
    unit, factor, longest = axis
    ran = set(parts["way"])
    parts = parts[parts["where"] == where]
    parts = parts.assign(
        order=parts["stage"].map({name: place for place, name in enumerate(STAGE_COLOURS)}).astype(float)
    )
    for name in ("seconds", "whole_q1_seconds", "whole_q3_seconds"):
        parts[name.replace("seconds", "value")] = parts[name].clip(lower=0) * factor
    y = alt.Y(
        "way:N",
        scale=alt.Scale(domain=ways),
        title=None,
        axis=alt.Axis(labels=first, ticks=first, labelLimit=260),
    )
    x = alt.X(
        "value:Q",
        title=f"{TIMELINES[where]} [{unit} a {'batch' if where in ('worker', 'loading') else 'step'}]",
        scale=alt.Scale(domain=[0, 1.45 * longest * factor], nice=False),
        axis=alt.Axis(tickCount=5, gridOpacity=0.4),
    )
    drawn = parts[parts["closure"].map(closes).astype(bool)]
    wholes = drawn.groupby("way", as_index=False).agg(
        q1_value=("whole_q1_value", "first"), q3_value=("whole_q3_value", "first")
    )
    colours = alt.Scale(domain=shown, range=[STAGE_COLOURS[name] for name in shown])
    layers = [
        alt.Chart(drawn[["way", "stage", "value", "order"]])
        .mark_bar(size=17)
        .encode(y=y, x=x, color=alt.Color("stage:N", scale=colours, title="stage"), order="order:Q"),
        alt.Chart(wholes)
        .mark_rule(strokeWidth=1.5, color="#000000")
        .encode(y=y, x=alt.X("q1_value:Q"), x2="q3_value:Q"),
        alt.Chart(_words(parts, ways, ran))
        .mark_text(align="left", dx=5, fontSize=10, color="#444444")
        .encode(y=y, x=alt.X("end:Q"), text="text:N"),
    ]
    return alt.layer(*layers).properties(width=_WIDTHS[where], height=_ROW * len(ways))


def _words(parts: pd.DataFrame, ways: list[str], ran: set[str]) -> pd.DataFrame:
    """Return what stands behind each bar, or in place of one: its closure, or why there is none."""
    found = []
    for way in ways:
        own = parts[parts["way"] == way]
        if own.empty:
            text, end = ("none: nothing is made" if way in ran else "not run"), 0.0
        else:
            closure = own["closure"].iloc[0]
            text = closure_text(closure)
            end = max(own["value"].sum(), own["whole_q3_value"].iloc[0]) if closes(closure) else 0.0
        found.append({"way": way, "text": text, "end": end})
    return pd.DataFrame(found)


def _bytes(rows: pd.DataFrame, ways: list[str]) -> Any:
    steps = rows[rows["stage"] == "step"]
    frame = _plain(steps.assign(way=steps["model"] + " · " + steps["strategy"]), ["way", "strategy", "batch_bytes"])
    frame["text"] = frame["batch_bytes"].map(bytes_text)
    y = alt.Y("way:N", scale=alt.Scale(domain=ways), title=None, axis=alt.Axis(labels=False, ticks=False))
    text = alt.Chart(frame).mark_text(align="right").encode(y=y, x=alt.value(_BYTES_WIDTH - 8), text="text:N")
    title = alt.TitleParams("bytes of a batch", fontSize=10, fontWeight="normal", orient="bottom")
    return text.properties(width=_BYTES_WIDTH, height=_ROW * len(ways), title=title)


def stage_spread(rows: pd.DataFrame, mode: str = "step") -> Any:
    """Return every stage of one mode with its quartiles, on a logarithmic axis, so that small ones are seen too."""
    chosen = one_point_each(rows)
    chosen = chosen[(chosen["mode"] == mode) & chosen["stage"].isin(list(STAGE_COLOURS))].copy()
    if chosen.empty:
        return nothing(f"Mode {mode} was not measured.")
    chosen["way"] = chosen["model"] + " · " + chosen["strategy"]
    frame = _plain(
        chosen, ["where", "stage", "way", "model", "strategy", "median_seconds", "q1_seconds", "q3_seconds"]
    )
    frame[["median", "q1", "q3"]] = 1e3 * frame[["median_seconds", "q1_seconds", "q3_seconds"]]
    panels = []
    timelines = [name for name in TIMELINES if name in set(frame["where"])]
    low, high = 1e-3, float(frame["q3"].max()) * 1.5
    for where in timelines:
        # what takes less than a microsecond is nothing that a clock in Python sees
        own = frame[(frame["where"] == where) & (frame["q1"] >= low)]
        stages = [name for name in STAGE_COLOURS if name in set(own["stage"])]
        x = alt.X(
            "median:Q",
            title=f"{TIMELINES[where]} [ms]" if where == timelines[-1] else None,
            scale=alt.Scale(type="log", domain=[low, high], nice=False),
            axis=alt.Axis(values=[10.0**power for power in range(-3, 6)], format="~g", gridOpacity=0.4),
        )
        base = alt.Chart(own).encode(
            y=alt.Y(
                "stage:N",
                scale=alt.Scale(domain=stages, paddingInner=0.4, paddingOuter=0.2),
                title=TIMELINES[where].split(",")[0],
                axis=alt.Axis(grid=True, bandPosition=-0.33, gridOpacity=0.5, ticks=False),
            ),
            yOffset=alt.YOffset("way:N", scale=alt.Scale(domain=ordered_ways(frame))),
            color=_colour(frame),
        )
        panels.append(
            (
                base.mark_rule(strokeWidth=2).encode(x=alt.X("q1:Q"), x2="q3:Q")
                + base.mark_point(filled=True, size=45, opacity=1).encode(x=x, shape=_shape(frame))
            ).properties(width=520, height=12 * max(2, len(ordered_ways(frame))) * max(1, len(stages)))
        )
    chart = alt.vconcat(*panels, spacing=10).resolve_scale(color="shared", shape="shared")
    return chart.properties(
        title=_title(f"Each stage of mode {mode}", rows, f"{_size(rows)} · point: median, line: quartiles")
    )
