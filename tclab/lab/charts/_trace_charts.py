"""Charts of traces: self time, the device's time, a timeline, two runs compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd

from tclab.errors import unknown
from tclab.lab.charts._marks import stacked
from tclab.lab.charts._style import CATEGORY_COLOURS, STAGE_COLOURS, chart_title, colours_of, empty_chart
from tclab.trace._compare_traces import Comparison
from tclab.trace._events import Trace
from tclab.trace._report import Report
from tclab.trace._timeline_rows import timeline_rows

_DEVICE_COLOURS = {
    "compute": STAGE_COLOURS["forward"],
    "exposed communication": STAGE_COLOURS["communication"],
    "copies and sets": STAGE_COLOURS["transfer"],
    "idle": STAGE_COLOURS["idle"],
}
_TRACKS = 8  # of a timeline, the busiest
_US = 1e-6  # seconds


def trace_chart(report: Report, table: str) -> Any:
    """Return the chart of one table of a report; where the trace has nothing of it, a chart that says so.

    **Arguments:**

    - `report`: as `tclab.trace.analyze` returns it.
    - `table`: "categories" or "stages", bars of the main threads' self time; or "breakdown", each rank's device span
      split into kinds that sum to it.

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


def _colours(names: pd.Series) -> dict[str, str]:
    return colours_of(names, {**STAGE_COLOURS, **CATEGORY_COLOURS, **_DEVICE_COLOURS})


def _self_time(table: pd.DataFrame, recorded: str, title: str = "Main thread, self time") -> Any:
    """Return bars of `report.categories` or `report.stages`: first column, self_us, share."""
    rows = table[table["self_us"] > 0]
    if rows.empty:
        return empty_chart("No host event in this trace.")
    names, text = rows.iloc[:, 0].astype(str), rows["share"].map("{:.1%}".format)
    parts = pd.DataFrame({"bar": names, "part": names, "value": rows["self_us"] * _US, "label": "", "text": text})
    colours = _colours(names)
    return stacked(parts, chart_title(title, recorded), axis="self time [s]", colours=colours)


def _device_time(breakdown: pd.DataFrame, recorded: str) -> Any:
    """Return stacked bars of `report.breakdown`: each device's span, split into kinds that sum to it."""
    rows = breakdown[breakdown["span_us"].notna()]
    if rows.empty:
        return empty_chart("No device event in this trace.")
    bar = "rank " + rows["rank"].astype("string").fillna("not known") + ", device " + rows["device"].astype("string")
    # Copies that run during compute are hidden by it: this is what remains of the union.
    kinds = {
        "compute": rows["compute_us"],
        "exposed communication": rows["exposed_communication_us"],
        "copies and sets": rows["non_compute_us"] - rows["exposed_communication_us"],
        "idle": rows["idle_us"],
    }
    parts = pd.DataFrame({"bar": bar, **kinds}).melt("bar", var_name="part", value_name="us")
    parts = parts.assign(value=parts["us"] * _US)
    title = chart_title("Device, from its first event to its last", recorded)
    return stacked(parts, title, axis="device time [s]", colours=_DEVICE_COLOURS)


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
    length = rows["end_us"].max() - rows["start_us"].min()
    rows["us"] = rows["end_us"] - rows["start_us"]
    full = rows[rows["us"] >= 0.999 * length].groupby("track")["lane"].max()
    rows["lane"] -= rows["track"].map(full).fillna(rows.groupby("track")["lane"].transform("min")).astype(int)
    rows = rows[rows["lane"].between(0, lanes - 1)]
    tracks = rows.groupby("track", sort=False)["us"].sum().nlargest(_TRACKS).index
    rows = rows[rows["track"].isin(tracks)].sort_values(["lane", "start_us"])
    parts = pd.DataFrame(
        {
            "panel": pd.Categorical(rows["track"], tracks),
            "bar": rows["lane"].map("{:02}".format),
            "part": rows["category"],
            "label": rows["name"],
            "start": rows["start_us"] * _US,
            "value": rows["us"] * _US,
        }
    ).sort_values("panel", kind="stable")
    parts = parts.astype({"panel": object})
    title = chart_title("Timeline, a lane a depth", trace.path.name)
    return stacked(parts, title, axis="time since the first event [s]", colours=_colours(rows["category"]), zoom=True,
                   named=False, width=620)  # fmt: skip


def trace_comparison_chart(comparison: Comparison) -> Any:
    """Return a bar of categories for each of two runs: per step where both have steps, else in total."""
    table = comparison.categories
    per_step = table[["a_us_per_step", "b_us_per_step"]].notna().all(axis=None)
    names = ["a_us_per_step", "b_us_per_step"] if per_step else ["a_us", "b_us"]
    long = table.melt("category", names, var_name="bar", value_name="us").dropna(subset=["us"])
    if not long["us"].sum():
        return empty_chart("No host event in either trace.")
    parts = long.assign(bar=long["bar"].str[0], value=long["us"] * _US).rename(columns={"category": "part"})
    title = chart_title("Main threads of two runs", f"a: {comparison.a}; b: {comparison.b}")
    axis = f"self time {'per step' if per_step else 'in total'} [s]"
    return stacked(parts, title, axis=axis, colours=_colours(parts["part"]))


_OF_TABLES: dict[str, Callable[[pd.DataFrame, str], Any]] = {
    "categories": _self_time,
    "stages": partial(_self_time, title="Main thread, by stage of the step"),
    "breakdown": _device_time,
}
