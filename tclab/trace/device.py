"""What the device did: unions of intervals per kind, so that work on two streams at once counts once."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from tclab.trace import intervals
from tclab.trace.events import (
    COLLECTIVE_KERNEL,
    COPY_CATEGORIES,
    DEVICE,
    KERNEL_CATEGORIES,
    SET_CATEGORIES,
    Bools,
    Ints,
    Trace,
    rank_column,
)
from tclab.trace.intervals import Intervals

TIMES = (
    "span_us",
    "compute_us",
    "non_compute_us",
    "idle_us",
    "busy_us",
    "communication_us",
    "exposed_communication_us",
    "copy_us",
    "set_us",
    "kernel_sum_us",
)


@dataclass(frozen=True)
class DeviceWork:
    """The device events of one trace: rows of the trace, and the union of each kind."""

    rows: Ints  # all device events, in the order of their start
    is_kernel: Bools  # [rows]
    is_collective: Bools  # [rows]
    busy: Intervals
    compute: Intervals  # kernels that are not collectives
    communication: Intervals  # collective kernels
    copies: Intervals
    sets: Intervals


def device_work(trace: Trace) -> DeviceWork:
    """All device events of a trace, whatever the case of their category; empty where there are none."""
    rows = np.flatnonzero(trace.kind == DEVICE)
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    is_kernel = trace.is_category(KERNEL_CATEGORIES)[rows]
    is_collective = is_kernel & trace.names_match(COLLECTIVE_KERNEL)[rows]

    def union(chosen: Bools) -> Intervals:
        some = rows[chosen]
        return intervals.union(trace.start[some], trace.start[some] + trace.duration[some])

    return DeviceWork(
        rows=rows,
        is_kernel=is_kernel,
        is_collective=is_collective,
        busy=union(np.ones(len(rows), dtype=bool)),
        compute=union(is_kernel & ~is_collective),
        communication=union(is_collective),
        copies=union(trace.is_category(COPY_CATEGORIES)[rows]),
        sets=union(trace.is_category(SET_CATEGORIES)[rows]),
    )


def breakdown(trace: Trace, work: DeviceWork) -> dict[str, object]:
    """One row of `report.breakdown`: times of the whole trace in µs, unrounded; null without device events.

    span = last end - first start of device events; compute = union of kernels that are not collectives;
    non_compute = union of all device events - compute; idle = span - union of all. Exposed communication is
    the part of the collectives' union during which no other kernel runs. `kernel_sum_us` adds durations up,
    so it exceeds the union by what ran at once.

    The first five are computed in float64 from the times as the file says them. On stamps of 10¹² µs a float
    holds half a nanosecond, so over many events they may differ from the written digits by some 0.1 µs; all
    other figures of a report count whole nanoseconds.
    """
    row: dict[str, object] = {"rank": trace.rank, "file": trace.path.name}
    if len(work.rows) == 0:
        return row | dict.fromkeys(TIMES, None) | {"kernels": 0, "device_events": 0, "devices": 0}
    ts, end = trace.ts[work.rows], trace.ts[work.rows] + trace.dur[work.rows]
    span = float(end.max() - ts.min())
    is_compute = work.is_kernel & ~work.is_collective
    compute = intervals.union_us(ts[is_compute], end[is_compute])
    busy = intervals.union_us(ts, end)
    exposed = work.communication.length - intervals.overlap(work.communication, work.compute)
    times = {
        "span_us": span,
        "compute_us": compute,
        "non_compute_us": busy - compute,
        "idle_us": span - busy,
        "busy_us": busy,
        "communication_us": trace.us(work.communication.length),
        "exposed_communication_us": trace.us(exposed),
        "copy_us": trace.us(work.copies.length),
        "set_us": trace.us(work.sets.length),
        "kernel_sum_us": trace.us(int(trace.duration[work.rows[work.is_kernel]].sum())),
    }
    processes = {trace.tracks[track][0] for track in np.unique(trace.track[work.rows]).tolist()}
    return (
        row
        | times
        | {
            "kernels": int(work.is_kernel.sum()),
            "device_events": len(work.rows),
            "devices": len(processes),
        }
    )


class StepWindows(NamedTuple):
    """Steps in the order of time: names, start [N] and end [N] in ticks, and where they are marked."""

    names: list[str]
    start: Ints
    end: Ints
    marked_on: str  # "host" or "device"


def step_windows(trace: Trace) -> StepWindows:
    """The `ProfilerStep` marks of the host; of the device where only that one carries them.

    A device marks a step once per stream; its window runs from the first mark's start to the last one's end.
    """
    is_step = trace.names_match(r"^ProfilerStep")
    rows = np.flatnonzero(is_step & trace.is_category({"user_annotation"}))
    marked_on = "host"
    if len(rows) == 0:
        rows, marked_on = np.flatnonzero(is_step & trace.is_category({"gpu_user_annotation"})), "device"
    start, end = trace.start[rows], trace.start[rows] + trace.duration[rows]
    names = trace.name[rows]
    if marked_on == "device":
        names, index = np.unique(names, return_inverse=True)
        first, last = np.full(len(names), np.iinfo(np.int64).max), np.zeros(len(names), dtype=np.int64)
        np.minimum.at(first, index, start)
        np.maximum.at(last, index, end)
        start, end = first, last
    order = np.argsort(start, kind="stable")
    return StepWindows([trace.names[i] for i in names[order].tolist()], start[order], end[order], marked_on)


def steps(trace: Trace, work: DeviceWork) -> pd.DataFrame:
    """One row per `ProfilerStep`: rank, step, start_us, wall_us, and what the device did meanwhile.

    Device times are clipped to the step's window, which is the host's where the host marks steps; work that
    was still queued when the last step ended is then in the breakdown of the whole trace and not here. No
    rows where the trace has no steps.
    """
    names, start, end, marked_on = step_windows(trace)

    def within(part: Intervals) -> object:
        if len(work.rows) == 0:
            return np.full(len(names), np.nan)
        return trace.us(intervals.covered(part, start, end))

    table = pd.DataFrame(
        {
            "rank": rank_column(trace, len(names)),
            "file": trace.path.name,
            "step": names,
            "marked_on": marked_on,
            "start_us": trace.us(start),
            "wall_us": trace.us(end - start),
            "busy_us": within(work.busy),
            "compute_us": within(work.compute),
            "communication_us": within(work.communication),
            "copy_us": within(work.copies),
        }
    )
    table["idle_us"] = table["wall_us"] - table["busy_us"]
    return table
