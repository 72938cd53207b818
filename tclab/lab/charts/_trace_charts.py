"""Charts of traces: self time, the device's time, a timeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tclab._display import counted
from tclab.lab.charts._marks import stacked
from tclab.lab.charts._style import CATEGORY_COLOURS, STAGE_COLOURS, chart_title, colours_of, empty_chart
from tclab.trace._categories import OUTSIDE, categorise
from tclab.trace._events import ANNOTATION, DEVICE, SECOND, US, Trace
from tclab.trace._nesting import nest, tie_of
from tclab.trace._report import Report

_COLOURS = {
    **CATEGORY_COLOURS,
    **STAGE_COLOURS,
    OUTSIDE: STAGE_COLOURS["other"],
    # of a device
    "compute": STAGE_COLOURS["forward"],
    "exposed communication": STAGE_COLOURS["communication"],
    "copies and sets": STAGE_COLOURS["transfer"],
}
_TRACKS, _EVENTS = 8, 2000  # of a timeline, the busiest and the longest


def trace_chart(report: Report) -> Any:
    """Return bars of where the time of a trace went, each with its share of what its panel adds up to.

    A panel for the main threads' self time by kind of work, one by the stage of the step around it, and one for each
    device's span, from its first event to its last: compute, the exposed part of communication, copies and sets that
    neither hides, idle. What the trace has nothing of has no panel.

    **Arguments:**

    - `report`: as `tclab.trace.analyze` returns it.
    """
    tables = {"main thread, by kind of work": report.categories, "main thread, by stage of the step": report.stages}
    found = [(panel, *row) for panel, table in tables.items() for row in zip(table.iloc[:, 0].astype(str),
             table["self_us"], table["share"], strict=True) if row[1] > 0]  # fmt: skip
    for device in report.breakdown.dropna(subset="span_us").to_dict("records"):
        found += _kinds_of(device)
    if not found:
        return empty_chart("No event in this trace.")
    parts = pd.DataFrame(found, columns=["panel", "bar", "us", "of"])
    parts = parts.assign(part=parts["bar"], value=parts["us"] / 1e6, label="", text=parts["of"].map("{:.1%}".format))
    title = chart_title("Where the time went", _recorded(report))
    return stacked(parts, title, axis="time [s]", colours=colours_of(parts["part"], _COLOURS))


def _kinds_of(device: dict[Any, Any]) -> list[tuple[str, str, float, float]]:
    """Return panel, kind, microseconds and share of each kind of a device's span, a row of `report.breakdown`."""
    span, exposed = device["span_us"], device["exposed_communication_us"]
    panel = f"device {device['device']}" + ("" if pd.isna(device["rank"]) else f" of rank {device['rank']}")
    kinds = {
        "compute": device["compute_us"],
        "exposed communication": exposed,
        "copies and sets": device["non_compute_us"] - exposed,  # those during compute are hidden by it
        "idle": device["idle_us"],
    }
    return [(panel, kind, us, us / span if span else 0.0) for kind, us in kinds.items()]


def _recorded(report: Report) -> str:
    """Return where a trace was recorded: its file or files, devices and steps."""
    files = [trace.path.name for trace in report.traces]
    ran = report.settings[report.settings["device_events"].astype(bool)]
    devices = dict.fromkeys(name for names in ran["device_names"] for name in names) or (["device"] if len(ran) else [])
    named = files[0] if len(files) == 1 else f"{len(files)} files, {files[0]} first"
    return f"{named} · {', '.join(devices) or 'no device event'} · {counted(len(report.steps), 'step')}"


def trace_timeline(trace: Trace, start_us: float | None = None, end_us: float | None = None, *, lanes: int = 24) -> Any:
    """Return a timeline of a window of a trace: a panel for each track, lanes by depth; it zooms in a front end.

    Outer lanes that a single event fills from end to end are left out but for the innermost, and so are events
    more than `lanes` deep.

    **Arguments:**

    - `trace`: one of `report.traces`.
    - `start_us`, `end_us`: since the first event; the last recorded step unless given.
    - `lanes`: of a track, at most.
    """
    last = trace.steps.tail(1)  # of no step the sums are 0
    begin = last["start"].sum() if start_us is None else start_us * US
    finish = (last["end"].sum() or trace.stop.max()) if end_us is None else end_us * US
    start, stop = np.maximum(trace.start, begin), np.minimum(trace.stop, finish)
    rows = np.flatnonzero((trace.kind != ANNOTATION) & (trace.duration > 0) & (start < stop))
    if len(rows) == 0:
        return empty_chart("No event in this window.")
    rows = np.sort(rows[np.argsort(-trace.duration[rows], kind="stable")[:_EVENTS]])
    host = np.where(trace.track == trace.main, "main thread ({1})", "thread {1}")
    panels = np.where(trace.kind == DEVICE, "device {0}, stream {1}", host)
    columns = {
        "panel": [panels[row].format(*trace.tracks[trace.track[row]]) for row in rows.tolist()],
        "part": categorise(trace)[rows].astype(str),
        "label": [name[:120] for name in trace.names_of(rows)],
        "lane": nest(trace.start[rows], trace.duration[rows], trace.track[rows], tie_of(trace, rows)).depth,
        "start": start[rows] / SECOND,
        "value": (stop - start)[rows] / SECOND,
    }
    parts = pd.DataFrame(columns)
    length = (parts["start"] + parts["value"]).max() - parts["start"].min()
    filled = parts[parts["value"] >= 0.999 * length].groupby("panel")["lane"].max()
    parts["lane"] -= parts["panel"].map(filled).fillna(parts.groupby("panel")["lane"].transform("min")).astype(int)
    parts = parts[parts["lane"].between(0, lanes - 1)]
    busiest = parts.groupby("panel", sort=False)["value"].sum().nlargest(_TRACKS).index
    parts = parts.assign(panel=pd.Categorical(parts["panel"], busiest), bar=parts["lane"].map("{:02}".format))
    parts = parts.dropna(subset="panel").sort_values(["panel", "lane", "start"], kind="stable").astype({"panel": str})
    title = chart_title("Timeline, a lane a depth", trace.path.name)
    return stacked(parts.drop(columns="lane"), title, axis="time since the first event [s]",
                   colours=colours_of(parts["part"], _COLOURS), zoom=True, named=False, width=620)  # fmt: skip
