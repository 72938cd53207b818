"""Work of the device: temporal breakdown, steps, idle time and its causes, copies, collectives, memory."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tclab.trace import _intervals as intervals
from tclab.trace._categories import OUTSIDE
from tclab.trace._events import (
    COLLECTIVE_KERNEL,
    COPY_CATEGORIES,
    DEVICE,
    HOST,
    KERNEL_CATEGORIES,
    RUNTIME_CATEGORIES,
    SET_CATEGORIES,
    Bools,
    Ints,
    Trace,
    rank_column,
    step_windows,
)
from tclab.trace._host_work import HostWork
from tclab.trace._intervals import Intervals

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
    """Return all device events of a trace; empty where there are none."""
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
    """Return one row of `report.breakdown`: times of the whole trace in µs, unrounded; null without device events.

    This is HTA's temporal breakdown (compute, non-compute, idle) and its communication-computation overlap.

    span = last end - first start of device events; compute = union of kernels that are not collectives;
    non_compute = union of all device events - compute; idle = span - union of all. Exposed communication is
    the part of the collectives' union during which no other kernel runs. `kernel_sum_us` adds durations up,
    so it exceeds the union by what ran concurrently.

    The first five are computed in float64 from the times in the file. At time stamps of 10¹² µs a float resolves half a
    nanosecond, so over many events they may differ from the written digits by about 0.1 µs; all other figures of a
    report count whole nanoseconds.
    """
    row: dict[str, object] = {"rank": trace.rank, **dict.fromkeys(TIMES), "file": trace.path.name}
    if len(work.rows) == 0:
        return row | {"kernels": 0, "device_events": 0, "devices": 0}
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
    counts = {"kernels": int(work.is_kernel.sum()), "device_events": len(work.rows), "devices": len(processes)}
    return row | times | counts


def steps(trace: Trace, work: DeviceWork) -> pd.DataFrame:
    """Return one row per `ProfilerStep`: rank, step, start_us, wall_us, and the device's times within it.

    Device times are clipped to the step's window, which is the host's where the host marks steps; work still queued
    when the last step ended is then in the breakdown of the whole trace only. No rows where the trace has no steps.
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


@dataclass(frozen=True)
class Idle:
    """The gaps of one trace and their causes, HTA's idle time breakdown."""

    gaps: pd.DataFrame  # the longest gaps
    causes: pd.DataFrame  # what the host did while the device was idle
    late_us: float | None  # idle before the next work was launched; null where launches are not recorded
    launch_us: float | None  # idle from that launch until the work began
    queued_us: float | None  # idle although the next work had been launched before the gap
    count: int


def launches(trace: Trace, device_rows: Ints) -> Ints:
    """Return the runtime call that launched each device event, by correlation; -1 where none is recorded.

    Of several calls with the same number it is the first.
    """
    calls = np.flatnonzero(trace.is_category(RUNTIME_CATEGORIES) & (trace.correlation >= 0))
    calls = calls[np.argsort(trace.start[calls], kind="stable")]
    first = pd.Series(calls, index=trace.correlation[calls])
    first = first[~first.index.duplicated()]
    return first.reindex(trace.correlation[device_rows], fill_value=-1).to_numpy(dtype=np.int64)


def idle(trace: Trace, device: DeviceWork, host: HostWork) -> Idle | None:
    """Return the gaps between device events and what the launching thread did; None without device events."""
    if len(device.rows) == 0:
        return None
    gaps = intervals.gaps(device.busy)
    # The event that ends a gap is the first to start where the gap ends.
    ended_by = device.rows[np.searchsorted(trace.start[device.rows], gaps.end, side="left")]
    launch = launches(trace, ended_by)
    known = launch >= 0
    length = gaps.end - gaps.start
    launched = np.where(known, trace.start[launch], gaps.start)
    late = np.clip(launched - gaps.start, 0, length)
    queued = known & (launched < gaps.start)
    thread = np.where(known, trace.track[launch], -1 if host.main is None else host.main)
    spent = _host_time(trace, host, gaps, thread)
    order = np.argsort(-length, kind="stable")[:10]
    some = bool(known.any())
    return Idle(
        gaps=_longest(trace, device, host, gaps, ended_by, late, known, thread, order),
        causes=_causes(trace, host, spent, int(length.sum())),
        late_us=float(trace.us(late[known].sum())) if some else None,
        launch_us=float(trace.us((length - late)[known & ~queued].sum())) if some else None,
        queued_us=float(trace.us(length[queued].sum())) if some else None,
        count=len(length),
    )


def _host_time(trace: Trace, host: HostWork, gaps: Intervals, thread: Ints) -> Ints:
    """Return the idle ticks in each stretch of host time, [S], each gap on the thread that ended it."""
    spent = np.zeros(len(host.owner), dtype=np.int64)
    stretch_track = trace.track[host.rows[host.owner]]
    for track in np.unique(thread[thread >= 0]).tolist():
        mine, theirs = thread == track, np.flatnonzero(stretch_track == track)
        part = Intervals(gaps.start[mine], gaps.end[mine])
        spent[theirs] = intervals.covered(part, host.start[theirs], host.end[theirs])
    return spent


def _causes(trace: Trace, host: HostWork, spent: Ints, total: int) -> pd.DataFrame:
    parts: Any = pd.Series(spent).groupby([host.stage[host.owner], host.category[host.owner]]).sum().items()
    rows = [(OUTSIDE if s < 0 else host.names[s], host.names[c], ticks) for (s, c), ticks in parts if ticks > 0]
    rest = total - sum(t for _, _, t in rows)
    if rest > 0:
        rows.append((OUTSIDE, "no event recorded", rest))
    table = pd.DataFrame(rows, columns=["stage", "host_category", "idle_us"])
    table["share"] = table["idle_us"] / total if total else np.nan
    table["idle_us"] = trace.us(table["idle_us"])
    table.insert(0, "rank", rank_column(trace, len(table)))
    return table.sort_values("idle_us", ascending=False, ignore_index=True)


def _longest(
    trace: Trace,
    device: DeviceWork,
    host: HostWork,
    gaps: Intervals,
    ended_by: Ints,
    late: Ints,
    known: Bools,
    thread: Ints,
    order: Ints,
) -> pd.DataFrame:
    ends = trace.start[device.rows] + trace.duration[device.rows]
    by_end = np.argsort(ends, kind="stable")
    rows = []
    for gap in order.tolist():
        begin, end = int(gaps.start[gap]), int(gaps.end[gap])
        before = device.rows[by_end[np.searchsorted(ends[by_end], begin, side="left")]]
        busy = (host.start < end) & (host.end > begin) & (trace.track[host.rows[host.owner]] == thread[gap])
        where = np.flatnonzero(busy)
        doing = None
        if len(where):
            held = np.minimum(host.end[where], end) - np.maximum(host.start[where], begin)
            owners, index = np.unique(host.owner[where], return_inverse=True)
            longest = owners[np.argmax(np.bincount(index, weights=held))]
            doing = trace.names[trace.name[host.rows[longest]]]
        after, then = (trace.names[trace.name[row]] for row in (before, ended_by[gap]))
        late_us = trace.us(int(late[gap])) if known[gap] else None
        rows.append((trace.rank, trace.us(begin), trace.us(end - begin), after, then, doing, late_us))
    columns = ["rank", "start_us", "gap_us", "after", "before", "host_mostly_in", "late_us"]
    return pd.DataFrame(rows, columns=columns).astype({"rank": "Int64"})


_DIRECTION = re.compile(r"(HtoD|DtoH|DtoD|HtoH|PtoP|AtoH|HtoA|AtoD|DtoA)")
_MEMORY = re.compile(r"\(([^()]*->[^()]*)\)")


def copy_table(trace: Trace) -> pd.DataFrame:
    """Return one row per direction, kind of memory and size class, with copies, bytes, time_us, gb_per_s.

    `bytes` is null where the trace lacks any copy's size. ROCm records sizes on the runtime call only; they are taken
    from there. Times are sums of durations; copies on two streams may overlap.
    """
    rows = np.flatnonzero(trace.is_category(COPY_CATEGORIES))
    columns = ["rank", "direction", "memory", "size", "copies", "bytes", "time_us", "median_bytes", "gb_per_s"]
    if len(rows) == 0:
        return pd.DataFrame(columns=columns)
    size = trace.size[rows]
    call = launches(trace, rows)
    size = np.where(np.isnan(size) & (call >= 0), trace.size[call], size)
    names = [trace.names[i] for i in trace.name[rows].tolist()]
    table = pd.DataFrame(
        {
            "direction": [found[1] if (found := _DIRECTION.search(name[:200])) else None for name in names],
            "memory": [found[1] if (found := _MEMORY.search(name[:200])) else None for name in names],
            "size": [_size_class(count) for count in size.tolist()],
            "bytes": size,
            "time_us": trace.us(trace.duration[rows]),
        }
    )
    groups = table.groupby(["direction", "memory", "size"], dropna=False, sort=False)
    answer = groups.agg(
        copies=("time_us", "size"),
        bytes=("bytes", lambda sizes: sizes.sum(skipna=False)),
        time_us=("time_us", "sum"),
        median_bytes=("bytes", "median"),
    ).reset_index()
    answer["gb_per_s"] = answer["bytes"] / answer["time_us"].where(answer["time_us"] > 0) / 1e3
    answer.insert(0, "rank", rank_column(trace, len(answer)))
    return answer.sort_values("time_us", ascending=False, ignore_index=True)[columns]


def _size_class(count: float) -> str | None:
    """Return the size class: a few kB cost their launch, many MB their bandwidth; None where the size is unknown."""
    if count != count:
        return None
    return "below 16 kB" if count < 16e3 else "16 kB to 1 MB" if count < 1e6 else "1 MB and more"


def memory_table(trace: Trace) -> pd.DataFrame:
    """Return the allocator over time: rank, device, time_us, allocated_bytes, reserved_bytes."""
    memory = trace.memory
    return pd.DataFrame(
        {
            "rank": rank_column(trace, len(memory.start)),
            "device": memory.device,
            "time_us": trace.us(memory.start),
            "allocated_bytes": memory.allocated,
            "reserved_bytes": memory.reserved,
        }
    )


HOST_COLLECTIVE = r"^gloo:"  # on the host the backend's own thread marks each collective
COLLECTIVE_COLUMNS = ["collective", "index", "rank", "start_us", "duration_us", "own_us", "wait_us"]


def collective_table(traces: list[Trace], work: list[DeviceWork]) -> pd.DataFrame:
    """Return one row per collective and rank: collective, index, rank, start_us, duration_us, own_us, wait_us.

    The n-th call of a kind is the same collective on every rank. `own_us`, what it takes by itself, is the minimum
    over the ranks in the folder; the rest of each rank's duration is `wait_us`. With ranks missing, the minimum is an
    upper bound. Both are null for calls that not all these ranks made, and for a single rank.
    """
    found = pd.concat([calls_of(t, w) for t, w in zip(traces, work, strict=True)], ignore_index=True)
    if len(found) == 0:
        return pd.DataFrame(columns=COLLECTIVE_COLUMNS)
    found["index"] = found.groupby(["place", "collective"]).cumcount()
    calls = found.groupby(["collective", "index"])["duration_us"]
    shared = (calls.transform("size") == len(traces)) & (len(traces) > 1)
    found["own_us"] = calls.transform("min").where(shared)
    found["wait_us"] = found["duration_us"] - found["own_us"]
    return found[COLLECTIVE_COLUMNS].astype({"rank": "Int64"})


def calls_of(trace: Trace, work: DeviceWork) -> pd.DataFrame:
    """Return a rank's collectives in the order of their start: collective, rank, place, start_us, duration_us."""
    rows = work.rows[work.is_collective]
    if len(rows) == 0:
        rows = np.flatnonzero((trace.kind == HOST) & trace.names_match(HOST_COLLECTIVE))
        rows = rows[np.argsort(trace.start[rows], kind="stable")]

    def kind(row: int) -> str:
        name = trace.names[trace.name[row]].split("(")[0]
        recorded = int(trace.collective[row])
        return name if recorded < 0 else "{1} of group {0}".format(*trace.collectives[recorded])

    return pd.DataFrame(
        {
            "collective": [kind(row) for row in rows.tolist()],
            "rank": rank_column(trace, len(rows)),
            "place": str(trace.path),
            "start_us": trace.us(trace.start[rows]),
            "duration_us": trace.us(trace.duration[rows]),
        }
    )
