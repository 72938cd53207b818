"""Charts of where a step's time goes: by strategy, by mode and timeline, stage by stage, and of any loop's ledger."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from tclab._display import bytes_text, counted, seconds_text
from tclab.errors import unknown
from tclab.lab.charts._style import (
    GREY,
    STAGE_COLOURS,
    chart_title,
    empty_chart,
    fixed_colour,
    interval_rule,
    machine_text,
    plain_frame,
    rows_title,
    stage_colours,
    strategy_colour,
    strategy_shape,
    tooltips,
)
from tclab.lab.reports._comparable_rows import fullest_cells, one_run_each, values_text, with_labels
from tclab.lab.reports._stage_parts import (
    TIMELINES,
    accounted_text,
    adds_up,
    ordered_labels,
    points_of_modes,
    stage_parts,
)
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.timing import Ledger
from tclab.timing._ledger_rows import SUMS

_WIDTH = 520
_LABELS = alt.Axis(labelLimit=380)
_ORDER = {name: place for place, name in enumerate(STAGE_COLOURS)}

# what each mode runs, for a title
_MODE_TEXTS = {
    "data": "load, collate and transfer; no model",
    "empty": "the same and masks, inside Lightning's loop around a model of one number",
    "model": "load, forward and backward; no optimizer",
    "step": "the whole step",
    "fixed_batch": "the whole step on one fixed batch: nothing is loaded",
}
_WIDTHS = {"worker": 250, "loading": 250, "host": 330, "device": 330}
_BYTES_WIDTH = 110
_ROW = 30


def stages(rows: Runs, by: str = "strategy") -> Any:
    """Return bars of stages, the mean of each, which add up to the mean step.

    A line over each bar holds nine in ten single steps: where batches come in bursts it is far wider than the bar.

    **Arguments:**

    - `rows`: of a sweep.
    - `by`: "strategy", a bar for each at the largest batch; or "mode", a panel for each with a bar for each model and
      timeline, and the batch's bytes: the timelines of a mode share one axis, and one whose stages do not account for
      its clock has a text in place of its bar.

    **Raises:** `InputError` for another `by`.
    """
    if by not in ("strategy", "mode"):
        raise unknown("axis of stages", by, ("strategy", "mode"))
    return _by_strategy(rows_of(rows)) if by == "strategy" else _by_mode(rows_of(rows))


def _by_strategy(rows: pd.DataFrame) -> Any:
    chosen = one_run_each(fullest_cells(with_labels(rows)))
    # the timeline that the step is timed on; workers make other batches meanwhile
    main = chosen["where"].eq(chosen["device"].map({"cuda": "device"}).fillna("host"))
    chosen = chosen[(chosen["status"] == "ok") & main].copy()
    chosen["order"] = chosen["stage"].map(_ORDER).astype("float64")
    parts = chosen[chosen["stage"].isin(list(STAGE_COLOURS))]
    flat = plain_frame(parts, ["label", "stage", "mean_seconds", "order"])
    flat["mean_seconds"] = flat["mean_seconds"].clip(lower=0)
    flat["share"] = flat["mean_seconds"] / flat.groupby("label")["mean_seconds"].transform("sum")
    wholes = chosen[(chosen["stage"] == "step") & chosen["samples_seconds"].notna()]
    wholes = wholes[wholes["label"].isin(flat["label"])]
    ends = [np.quantile(seconds, [0.05, 0.95]) for seconds in wholes["samples_seconds"]]
    spread_of = pd.DataFrame({"label": list(wholes["label"]), "p5": [e[0] for e in ends], "p95": [e[1] for e in ends]})
    order = flat.groupby("label")["mean_seconds"].sum().sort_values().index.tolist()
    y = alt.Y("label:N", sort=order, title=None, axis=_LABELS)
    bars = alt.Chart(flat).encode(
        y=y,
        x=alt.X("mean_seconds:Q", **_time_axis(max((e[1] for e in ends), default=0.0))),
        color=fixed_colour("stage", STAGE_COLOURS, flat["stage"]),
        order="order:Q",
        tooltip=tooltips(
            {"label": "configuration", "stage": "stage"},
            {"mean_seconds": "seconds, mean", "share": "share of a step"},
        ),
    )
    spread = interval_rule(alt.Chart(spread_of), y=y, x="p5:Q", x2="p95:Q")
    more = f"{values_text(chosen, 'batch_size')}, {values_text(chosen, 'networks')} · line: nine in ten single steps"
    return alt.layer(bars.mark_bar(), *spread).properties(
        width=_WIDTH, title=rows_title("Where a step's time goes", chosen, more)
    )


def _time_axis(longest: float) -> dict[str, Any]:
    """Return title and axis of seconds, written in milliseconds unless the longest is a second or more."""
    if longest >= 1:
        return {"title": "seconds a step (mean of each stage)"}
    return {"title": "ms a step (mean of each stage)", "axis": alt.Axis(labelExpr="format(datum.value * 1000, '~g')")}


def _by_mode(rows: pd.DataFrame) -> Any:
    parts = stage_parts(rows)
    if parts.empty:
        return empty_chart("No mode was measured.")
    labels = ordered_labels(parts)
    timelines = [name for name in TIMELINES if name in set(parts["where"])]
    shown = [name for name in STAGE_COLOURS if name in set(parts["stage"])]
    points = points_of_modes(rows)
    panels: list[Any] = []
    for mode, group in parts.groupby("mode", sort=False):
        with_idle = group.groupby(["label", "where"])["seconds"].sum()
        longest = max(with_idle.max(), group["whole_p95_seconds"].max())
        unit, factor = ("s", 1.0) if longest >= 1 else ("ms", 1e3)
        row = [
            _timeline(group, where, labels, shown, (unit, factor, longest), place == 0)
            for place, where in enumerate(timelines)
        ]
        if not panels:  # the modes send the same batch
            row.append(_bytes(points, labels))
        title = chart_title(f"{mode}: {_MODE_TEXTS[str(mode)]}", size=12)
        panels.append(alt.hconcat(*row, spacing=12).properties(title=title))
    more = "mean of each stage; line: nine in ten single steps"
    shares = sorted(100 * share for share in set(parts["accounted"].dropna()) if adds_up(share))
    ends = list(dict.fromkeys(f"{share:.1f} %" for share in (*shares[:1], *shares[-1:])))
    more += f"; accounted for: {' to '.join(ends)}" if ends else ""
    chart = alt.vconcat(*panels, spacing=18).resolve_scale(color="shared")
    return chart.properties(
        title=rows_title("Where a step's time goes, in each mode", rows, f"{_size(points)} · {more}")
    )


def _size(points: pd.DataFrame) -> str:
    sizes = {
        f"{m} batch {b}, {counted(n, 'network')}"
        for m, b, n in points[["model", "batch_size", "networks"]].itertuples(index=False)
    }
    return "; ".join(sorted(sizes))


def _timeline(
    parts: pd.DataFrame,
    where: str,
    labels: list[str],
    shown: list[str],
    axis: tuple[str, float, float],
    first: bool,
) -> Any:
    """Return one panel: the bars of one timeline in one mode, a text where there is no bar."""
    unit, factor, longest = axis
    ran = set(parts["label"])
    parts = parts[parts["where"] == where]
    parts = parts.assign(order=parts["stage"].map(_ORDER).astype(float))
    for name in ("seconds", "whole_p5_seconds", "whole_p95_seconds"):
        parts[name.replace("seconds", "value")] = parts[name].clip(lower=0) * factor
    y = alt.Y(
        "label:N",
        scale=alt.Scale(domain=labels),
        title=None,
        axis=alt.Axis(labels=first, ticks=first, labelLimit=260),
    )
    x = alt.X(
        "value:Q",
        title=f"{TIMELINES[where]} [{unit} a {'batch' if where in ('worker', 'loading') else 'step'}]",
        scale=alt.Scale(domain=[0, 1.45 * longest * factor], nice=False),
        axis=alt.Axis(tickCount=5, gridOpacity=0.4),
    )
    drawn = parts[parts["accounted"].map(adds_up).astype(bool)]
    wholes = drawn.groupby("label", as_index=False).agg(
        p5_value=("whole_p5_value", "first"), p95_value=("whole_p95_value", "first")
    )
    colour = fixed_colour("stage", STAGE_COLOURS, shown, title="stage")
    layers = [
        alt.Chart(drawn[["label", "stage", "value", "order"]])
        .mark_bar(size=17)
        .encode(y=y, x=x, color=colour, order="order:Q"),
        *interval_rule(alt.Chart(wholes), y=y, x=alt.X("p5_value:Q"), x2="p95_value:Q"),
        alt.Chart(_bar_texts(parts, labels, ran))
        .mark_text(align="left", dx=5, fontSize=10, color=GREY)
        .encode(y=y, x=alt.X("end:Q"), text="text:N"),
    ]
    return alt.layer(*layers).properties(width=_WIDTHS[where], height=_ROW * len(labels))


def _bar_texts(parts: pd.DataFrame, labels: list[str], ran: set[str]) -> pd.DataFrame:
    """Return the text after a bar that has no clock of its own, or in place of a bar, why there is none."""
    texts = []
    for label in labels:
        group = parts[parts["label"] == label]
        if group.empty:
            text, end = ("none: nothing is made" if label in ran else "not run"), 0.0
        else:
            accounted = group["accounted"].iloc[0]
            text = "" if pd.notna(accounted) and adds_up(accounted) else accounted_text(accounted)
            end = max(group["value"].sum(), group["whole_p95_value"].iloc[0]) if adds_up(accounted) else 0.0
        texts.append({"label": label, "text": text, "end": end})
    return pd.DataFrame(texts)


def _bytes(rows: pd.DataFrame, labels: list[str]) -> Any:
    steps = rows[rows["stage"] == "step"]
    frame = plain_frame(steps, ["label", "batch_bytes"]).drop_duplicates("label")
    frame["text"] = frame["batch_bytes"].map(bytes_text)
    y = alt.Y("label:N", scale=alt.Scale(domain=labels), title=None, axis=alt.Axis(labels=False, ticks=False))
    text = alt.Chart(frame).mark_text(align="right").encode(y=y, x=alt.value(_BYTES_WIDTH - 8), text="text:N")
    title = alt.TitleParams("bytes of a batch", fontSize=10, fontWeight="normal", orient="bottom")
    return text.properties(width=_BYTES_WIDTH, height=_ROW * len(labels), title=title)


def stage_spread(rows: Runs, mode: str = "step") -> Any:
    """Return every stage of one mode in single steps, on a logarithmic axis, so that small ones are visible.

    A line holds nine in ten of the steps that had the stage, a tick is their median, a point the mean over all steps:
    where batches come in bursts, the wait's point lies far from its tick.
    """
    rows = rows_of(rows)
    chosen = points_of_modes(rows)
    chosen = chosen[(chosen["mode"] == mode) & chosen["stage"].isin(list(STAGE_COLOURS))].copy()
    if chosen.empty:
        return empty_chart(f"Mode {mode} was not measured.")
    frame = plain_frame(chosen, ["where", "stage", "label", "model", "strategy", "median_seconds", "mean_seconds"])
    ends = [np.quantile(seconds, [0.05, 0.95]) for seconds in chosen["samples_seconds"]]
    frame[["p5", "p95"]] = 1e3 * np.array(ends)
    frame[["median", "mean"]] = 1e3 * frame[["median_seconds", "mean_seconds"]]
    panels = []
    timelines = [name for name in TIMELINES if name in set(frame["where"])]
    low, high = 1e-3, float(frame["p95"].max()) * 1.5
    for where in timelines:
        # a clock in Python does not resolve less than a microsecond
        measured = frame[(frame["where"] == where) & (frame["mean"] >= low)]
        measured = measured.assign(**{name: measured[name].clip(lower=low) for name in ("p5", "median", "p95")})
        stages = [name for name in STAGE_COLOURS if name in set(measured["stage"])]
        x = alt.X(
            "mean:Q",
            title=f"{TIMELINES[where]} [ms]" if where == timelines[-1] else None,
            scale=alt.Scale(type="log", domain=[low, high], nice=False),
            axis=alt.Axis(values=[10.0**power for power in range(-3, 6)], format="~g", gridOpacity=0.4),
        )
        base = alt.Chart(measured).encode(
            y=alt.Y(
                "stage:N",
                scale=alt.Scale(domain=stages, paddingInner=0.4, paddingOuter=0.2),
                title=TIMELINES[where].split(",")[0],
                axis=alt.Axis(grid=True, bandPosition=-0.33, gridOpacity=0.5, ticks=False),
            ),
            yOffset=alt.YOffset("label:N", scale=alt.Scale(domain=ordered_labels(frame))),
            color=strategy_colour(frame),
            tooltip=tooltips(
                {"label": "configuration", "stage": "stage"},
                {"mean": "ms, mean", "median": "median", "p5": "5 %", "p95": "95 %"},
            ),
        )
        panels.append(
            (
                base.mark_rule(strokeWidth=2).encode(x=alt.X("p5:Q"), x2="p95:Q")
                + base.mark_tick(thickness=2, size=9).encode(x=alt.X("median:Q"))
                + base.mark_point(filled=True, size=45, opacity=1).encode(x=x, shape=strategy_shape(frame))
            ).properties(width=520, height=12 * max(2, len(ordered_labels(frame))) * max(1, len(stages)))
        )
    chart = alt.vconcat(*panels, spacing=10).resolve_scale(color="shared", shape="shared")
    return chart.properties(
        title=rows_title(
            f"Each stage of mode {mode}", rows, f"{_size(rows)} · point: mean, tick: median, line: nine in ten steps"
        )
    )


def ledger_chart(ledger: Ledger, *, where: str | None = None) -> Any:
    """Return a bar of stages for each timeline of a ledger, the mean of each, which add up to the mean step.

    Timelines overlap, so they are never added: a worker makes a batch while the host trains.
    """
    frame = ledger.frame().dropna(subset=["seconds"])
    parts = frame[~frame["stage"].isin([*SUMS, "idle"])]
    if parts.empty:
        return empty_chart("The ledger has no step.")
    steps = parts.groupby("timeline")["step"].nunique()
    means = parts.groupby(["timeline", "stage"], sort=False)["seconds"].sum().reset_index()
    means["seconds"] = means["seconds"].astype(float) / means["timeline"].map(steps)
    colours = stage_colours(means["stage"])
    shown = [name for name in colours if name in set(means["stage"])]
    means["order"] = means["stage"].map({name: place for place, name in enumerate(shown)})
    sums = means.groupby("timeline")["seconds"].sum()
    means["share"] = means["seconds"] / means["timeline"].map(sums)
    means["line"] = means["timeline"] + means["timeline"].map(lambda name: f" · {seconds_text(sums[name])}")
    accounted = ", ".join(f"{line} {share:.1%}" for line, share in ledger.accounted.items() if share is not None)
    marks = alt.Chart(pd.DataFrame(means)).encode(
        y=alt.Y("line:N", title=None, sort=None, axis=alt.Axis(labelLimit=260)),
        x=alt.X("seconds:Q", **_time_axis(sums.max())),
        color=fixed_colour("stage", colours, shown, title="stage"),
        order="order:Q",
        tooltip=tooltips({"stage": "stage"}, {"seconds": "seconds, mean", "share": "share of a step"}),
    )
    return marks.mark_bar().properties(
        width=520,
        height=alt.Step(30),
        title=chart_title(
            "Where a step's time goes",
            f"{machine_text(where)} · {len(ledger)} steps · accounted for: {accounted}",
        ),
    )
