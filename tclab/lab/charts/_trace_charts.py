"""Charts of traces: self time, the device's time, idle time, a timeline, memory, two runs compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import altair as alt
import pandas as pd

from tclab.errors import unknown
from tclab.lab.charts._style import STAGE_COLOURS, chart_title, empty_chart, fixed_colour
from tclab.trace._categories import CATEGORIES
from tclab.trace._compare_traces import Comparison
from tclab.trace._events import Trace
from tclab.trace._report import Report
from tclab.trace._timeline_rows import timeline_rows

# A category that is a stage of the step has that stage's colour, as in every chart of a ledger.
CATEGORY_COLOURS = {
    "data_loading": STAGE_COLOURS["transfer"],
    "graph_processing": STAGE_COLOURS["mask"],
    "model_forward": STAGE_COLOURS["forward"],
    "loss_computation": STAGE_COLOURS["loss"],
    "backward": STAGE_COLOURS["backward"],
    "optimizer": STAGE_COLOURS["optimizer"],
    "ddp_communication": STAGE_COLOURS["communication"],
    "tensor_ops": "#ddcc77",  # kinds of work, of no stage: Paul Tol's sand and olive
    "cuda_kernels": "#999933",
    "other": "#bbbbbb",
}
_DARK = ("graph_processing", "backward", "optimizer", "ddp_communication")  # names on these are white
_WIDTH = 620
_LETTER = 5.5  # pixels, of a name in a timeline
_NAMED = 0.04  # of the window: what is narrower has no name
_DEVICE_COLOURS = {
    "compute": STAGE_COLOURS["forward"],
    "exposed communication": STAGE_COLOURS["communication"],
    "copies and sets": STAGE_COLOURS["transfer"],
    "idle": STAGE_COLOURS["idle"],
}


def _category_scale(shown: list[str]) -> alt.Scale:
    return alt.Scale(domain=shown, range=[CATEGORY_COLOURS.get(name, "#dddddd") for name in shown])


def trace_chart(report: Report, table: str) -> Any:
    """Return the chart of one table of a report; where the trace has nothing of it, a chart that says so.

    **Arguments:**

    - `report`: as `tclab.trace.analyze` returns it.
    - `table`: "categories" or "stages", bars of the main threads' self time; "breakdown", each rank's device span split
      into kinds that sum to it; "idle_causes", what the host did while the device was idle; or "memory", bytes
      allocated and reserved over time, per device and rank.

    **Raises:** `InputError` for another table.
    """
    if table not in _OF_TABLES:
        raise unknown("table with a chart", table, _OF_TABLES)
    return _OF_TABLES[table](getattr(report, table), _recorded(report))


def _recorded(report: Report) -> str:
    """Return where a trace was recorded: its file or files, devices and steps."""
    files = [trace.path.name for trace in report.traces]
    ran = report.settings[report.settings["device_events"].astype(bool)]
    devices = dict.fromkeys(name for names in ran["device_names"] for name in names) or (["device"] if len(ran) else [])
    return " · ".join([
        files[0] if len(files) == 1 else f"{len(files)} files, {files[0]} first",
        ", ".join(devices) or "no device event",
        f"{len(report.steps)} step{'' if len(report.steps) == 1 else 's'}",
    ])  # fmt: skip


def _self_time(table: pd.DataFrame, recorded: str, title: str = "Main thread, self time") -> Any:
    """Return bars of `report.categories` or `report.stages`: first column, self_us, share."""
    of = table.columns[0]
    rows = table[table["self_us"] > 0].assign(
        ms=lambda t: t["self_us"] / 1e3, label=lambda t: t["share"].map("{:.1%}".format)
    )
    if rows.empty:
        return empty_chart("No host event in this trace.")
    bars = alt.Chart(rows).encode(
        # with space on the right for the labels
        x=alt.X("ms:Q", title="self time [ms]", scale=alt.Scale(domain=[0, 1.1 * rows["ms"].max()])),
        y=alt.Y(f"{of}:N", sort=None, title=None, axis=alt.Axis(labelLimit=200)),
    )
    shown = rows[of].tolist()
    coloured = bars.mark_bar().encode(color=alt.Color(f"{of}:N", scale=_category_scale(shown), legend=None))
    words = bars.mark_text(align="left", dx=4).encode(text="label:N")
    return (coloured + words).properties(width=_WIDTH, height=alt.Step(24), title=chart_title(title, recorded))


def _device_time(breakdown: pd.DataFrame, recorded: str) -> Any:
    """Return stacked bars of `report.breakdown`: each device's span, split into kinds that sum to it."""
    rows = breakdown[breakdown["span_us"].notna()]
    if rows.empty:
        return empty_chart("No device event in this trace.")
    place = rows["rank"].astype("string").fillna("not known")
    if place.duplicated().any():  # several devices of a rank
        place = place + ", device " + rows["device"].astype("string")
    # Copies that run during compute are hidden by it: this is what remains of the union.
    parts = pd.DataFrame(
        {
            "rank": place,
            "compute": rows["compute_us"],
            "exposed communication": rows["exposed_communication_us"],
            "copies and sets": rows["non_compute_us"] - rows["exposed_communication_us"],
            "idle": rows["idle_us"],
        }
    )
    long = parts.melt("rank", var_name="kind", value_name="us")
    long["ms"] = long["us"].clip(lower=0) / 1e3
    long["order"] = long["kind"].map({kind: place for place, kind in enumerate(_DEVICE_COLOURS)})
    legend = alt.Legend(orient="top")
    marks = alt.Chart(long).encode(
        x=alt.X("ms:Q", title="device time [ms]"),
        y=alt.Y("rank:N", title="rank"),
        color=fixed_colour("kind", _DEVICE_COLOURS, _DEVICE_COLOURS, title=None, legend=legend),
        order="order:Q",
        tooltip=["rank", "kind", alt.Tooltip("ms:Q", format=".3f")],
    )
    return marks.mark_bar().properties(
        width=_WIDTH, height=alt.Step(26), title=chart_title("Device, from its first event to its last", recorded)
    )


def _idle_causes(causes: pd.DataFrame, recorded: str) -> Any:
    """Return bars of `report.idle_causes`: what the host did while the device was idle."""
    if causes.empty:
        return empty_chart("No idle time of a device in this trace.")
    rows = causes.groupby(["stage", "host_category"], as_index=False)["idle_us"].sum()
    rows = rows.assign(ms=rows["idle_us"] / 1e3)
    shown = [c for c in (*CATEGORIES, "no event recorded") if c in set(rows["host_category"])]
    marks = alt.Chart(rows).encode(
        x=alt.X("ms:Q", title="device idle [ms]"),
        y=alt.Y("stage:N", title="stage of the host", sort="-x", axis=alt.Axis(labelLimit=200)),
        color=alt.Color("host_category:N", scale=_category_scale(shown), title="host in"),
        tooltip=["stage", "host_category", alt.Tooltip("ms:Q", format=".3f")],
    )
    return marks.mark_bar().properties(
        width=_WIDTH - 130,
        height=alt.Step(24),
        title=chart_title("What the host did while the device was idle", recorded),
    )


def trace_timeline(trace: Trace, start_us: float | None = None, end_us: float | None = None, *, lanes: int = 24) -> Any:
    """Return a timeline of a window of a trace: a panel for each track, lanes by depth; it zooms in a front end.

    Outer lanes that a single event fills from end to end are left out but for the innermost, and so are events
    more than `lanes` deep.

    **Arguments:**

    - `trace`: one of `report.traces`.
    - `start_us`, `end_us`: since the first event; the last recorded step unless given.
    - `lanes`: of a track, at most.
    """
    rows = timeline_rows(trace, start_us, end_us)
    if rows.empty:
        return empty_chart("No event in this window.")
    first, last = rows["start_us"].min(), rows["end_us"].max()
    length = last - first
    rows = rows.assign(
        start_ms=rows["start_us"] / 1e3, end_ms=rows["end_us"] / 1e3, us=rows["end_us"] - rows["start_us"]
    )
    rows["edge"] = rows["us"] > 0.004 * length
    shown = [c for c in CATEGORIES if c in set(rows["category"])]
    window = alt.Scale(domain=[first / 1e3, last / 1e3], nice=False)
    panels = []
    tracks = rows.groupby("track", sort=False)["us"].sum().sort_values(ascending=False).index[:8].tolist()
    for track in tracks:
        part = rows[rows["track"] == track]
        full = part[part["us"] >= 0.999 * length]["lane"]
        top = int(full.max() if len(full) else part["lane"].min())
        part = part.assign(lane=part["lane"] - top)
        part = part[(part["lane"] >= 0) & (part["lane"] < lanes)].assign(bottom=lambda t: t["lane"] + 0.92)
        wide = part[part["us"] > _NAMED * length]
        letters = (_WIDTH / _LETTER * wide["us"] / length).astype(int)
        wide = wide.assign(text=[name[:most] for name, most in zip(wide["name"], letters, strict=True)])
        is_last = track == tracks[-1]
        axis = alt.Axis(title="time since the first event [ms]" if is_last else None, labels=is_last, ticks=is_last)
        x = alt.X("start_ms:Q", scale=window, axis=axis)
        y = alt.Y("lane:Q", scale=alt.Scale(reverse=True, nice=False, zero=True), axis=None)
        bars = (
            alt.Chart(part)
            .mark_rect(stroke="white")
            .encode(
                x=x,
                x2="end_ms:Q",
                y=y,
                y2="bottom:Q",
                color=alt.Color("category:N", scale=_category_scale(shown), title=None),
                strokeWidth=alt.condition("datum.edge", alt.value(0.5), alt.value(0)),
                tooltip=["name", "category", alt.Tooltip("us:Q", format=".3f", title="µs")],
            )
        )
        names = alt.Chart(wide).mark_text(align="left", baseline="top", dx=3, dy=3, fontSize=9, clip=True)
        ink = alt.condition(
            alt.FieldOneOfPredicate("category", list(_DARK)), alt.value("#ffffff"), alt.value("#000000")
        )
        panels.append(
            (bars + names.encode(x=x, y=y, text="text:N", color=ink)).properties(
                width=_WIDTH,
                height=16 * (int(part["lane"].max()) + 1) + 4,
                title=alt.TitleParams(track, anchor="start", fontSize=11, fontWeight="normal"),
            )
        )
    return alt.vconcat(*panels, spacing=6).resolve_scale(color="shared", x="shared")


def _memory(memory: pd.DataFrame, recorded: str, most: int = 4000) -> Any:
    """Return lines of `report.memory`: bytes allocated and reserved, per device and rank."""
    if memory.empty:
        return empty_chart("Memory was not recorded: record with profile_memory=True.")
    kinds = {"allocated_bytes": "allocated", "reserved_bytes": "reserved"}
    long = memory.rename(columns=kinds).melt(
        ["rank", "device", "time_us"], list(kinds.values()), var_name="kind", value_name="bytes"
    )
    # The host's allocator reserves nothing, which a trace writes as 0.
    long = long[long["bytes"].notna() & ~((long["device"] == "cpu") & (long["kind"] == "reserved"))]
    if long.empty:
        return empty_chart("No memory event of this trace says how much is held.")
    step = -(-len(long) // most)
    long = long.iloc[::step].assign(
        MB=lambda t: t["bytes"] / 1e6,
        ms=lambda t: t["time_us"] / 1e3,
        place=lambda t: t["device"] + ", rank " + t["rank"].astype("string").fillna("not known"),
    )
    colours = {"allocated": "#0072b2", "reserved": "#e69f00"}
    marks = alt.Chart(long).encode(
        x=alt.X("ms:Q", title="time since the first event [ms]"),
        y=alt.Y("MB:Q", title="memory [MB]"),
        color=fixed_colour("kind", colours, long["kind"], title=None),
        strokeDash=alt.StrokeDash("place:N", title=None),
    )
    return marks.mark_line(interpolate="step-after").properties(
        width=_WIDTH - 60, height=200, title=chart_title("Memory held by tensors", recorded)
    )


def trace_comparison_chart(comparison: Comparison, *, where: str | None = None) -> Any:
    """Return bars of two runs by category: per step where both have steps, else in total."""
    table = comparison.categories
    per_step = table[["a_us_per_step", "b_us_per_step"]].notna().all(axis=None)
    names = ["a_us_per_step", "b_us_per_step"] if per_step else ["a_us", "b_us"]
    long = table.melt("category", names, var_name="run", value_name="us")
    long["run"] = long["run"].str[0]
    long["ms"] = long["us"] / 1e3
    long = long[long.groupby("category")["us"].transform("sum") > 0]
    if long.empty:
        return empty_chart("No host event in either trace.")
    marks = alt.Chart(long).encode(
        x=alt.X("ms:Q", title=f"self time {'per step' if per_step else 'in total'} [ms]"),
        y=alt.Y("category:N", sort=None, title=None, axis=alt.Axis(labelLimit=200)),
        yOffset="run:N",
        color=fixed_colour("run", {"a": "#0072b2", "b": "#e69f00"}, ["a", "b"], title="run"),
        tooltip=["category", "run", alt.Tooltip("ms:Q", format=".3f")],
    )
    return marks.mark_bar().properties(
        width=_WIDTH, height=alt.Step(14), title=chart_title("Main threads of two runs", where or "")
    )


_OF_TABLES: dict[str, Callable[[pd.DataFrame, str], Any]] = {
    "categories": _self_time,
    "stages": partial(_self_time, title="Main thread, by stage of the step"),
    "breakdown": _device_time,
    "idle_causes": _idle_causes,
    "memory": _memory,
}
