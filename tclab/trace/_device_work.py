"""Work of the devices: temporal breakdown, steps, idle time and its causes, copies, collectives."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tclab.trace._categories import OUTSIDE
from tclab.trace._events import (
    COLLECTIVE_KERNEL,
    COPY_CATEGORIES,
    DEVICE,
    HOST,
    KERNEL_CATEGORIES,
    SET_CATEGORIES,
    Bools,
    Ints,
    Trace,
)
from tclab.trace._host_work import HostWork
from tclab.trace._nesting import Intervals, union

TIMES = (
    "span_us", "compute_us", "non_compute_us", "idle_us", "busy_us", "communication_us", "exposed_communication_us",
    "copy_us", "set_us", "kernel_sum_us",
)  # fmt: skip
HOST_COLLECTIVE = r"^gloo:"  # on the host the backend's own thread marks each collective
COLLECTIVE_COLUMNS = ["collective", "index", "rank", "start_us", "duration_us", "own_us", "wait_us"]
_DIRECTION = r"(HtoD|DtoH|DtoD|HtoH|PtoP|AtoH|HtoA|AtoD|DtoA)"
_MEMORY = r"\(([^()]*->[^()]*)\)"
_SIZES = {0: "", 16e3: "below 16 kB", 1e6: "16 kB to 1 MB", np.inf: "1 MB and more"}
"""Size classes of copies: a few kB cost their launch, many MB their bandwidth."""


@dataclass(frozen=True)
class DeviceWork:
    """The events of one device of a trace, or of all of them: rows of the trace, and the union of each kind."""

    label: str  # of the trace, and of the device where the trace has several
    rows: Ints  # in the order of their start
    is_kernel: Bools  # [rows]
    is_collective: Bools  # [rows]
    times: dict[str, Intervals]  # busy (all), compute (kernels but collectives), communication (these), copy, set

    @property
    def exposed(self) -> int:
        """The ticks of collectives during which no other kernel runs."""
        communication = self.times["communication"]
        return communication.length - int(self.times["compute"].covered(*communication).sum())


def device_work(trace: Trace, of: Bools | None = None, label: str = "") -> DeviceWork:
    """Return the device events of a trace among those `of` [N], all unless given; empty where there are none."""
    rows = np.flatnonzero((trace.kind == DEVICE) if of is None else of)
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    is_kernel = trace.is_category(KERNEL_CATEGORIES)[rows]
    is_collective = is_kernel & trace.names_match(COLLECTIVE_KERNEL)[rows]
    kinds = {
        "busy": np.ones(len(rows), dtype=bool),
        "compute": is_kernel & ~is_collective,
        "communication": is_collective,
        "copy": trace.is_category(COPY_CATEGORIES)[rows],
        "set": trace.is_category(SET_CATEGORIES)[rows],
    }
    times = {kind: union(trace.start[rows[chosen]], trace.stop[rows[chosen]]) for kind, chosen in kinds.items()}
    return DeviceWork(label or trace.label, rows, is_kernel, is_collective, times)


def devices_of(trace: Trace) -> dict[Hashable, DeviceWork]:
    """Return the work of each device by its process id, in the order of the file; of None where there is no device."""
    is_device = trace.kind == DEVICE
    process = [pid for pid, _ in trace.tracks]
    found = list(dict.fromkeys(process[track] for track in np.unique(trace.track[is_device]).tolist()))
    if len(found) < 2:
        return {found[0] if found else None: device_work(trace)}
    mine = {pid: is_device & np.array([p == pid for p in process])[trace.track] for pid in found}
    return {pid: device_work(trace, of, f"{trace.label}, device {pid}") for pid, of in mine.items()}


def breakdown(trace: Trace, device: Hashable, work: DeviceWork) -> dict[str, object]:
    """Return one row of `report.breakdown`: times of a device over the whole trace in µs; null without device events.

    This is HTA's temporal breakdown (compute, non-compute, idle) and its communication-computation overlap.

    span = last end - first start of device events; compute = union of kernels that are not collectives;
    non_compute = union of all device events - compute; idle = span - union of all. Exposed communication is
    the part of the collectives' union during which no other kernel runs. `kernel_sum_us` adds durations up,
    so it exceeds the union by what ran concurrently.

    The first five are computed in float64 from the times in the file. At time stamps of 10¹² µs a float resolves half a
    nanosecond, so over many events they may differ from the written digits by about 0.1 µs; all other figures of a
    report count whole nanoseconds.
    """
    row: dict[str, object] = {"rank": trace.rank, "device": device, **dict.fromkeys(TIMES), "file": trace.path.name}
    if len(work.rows) == 0:
        return row | {"kernels": 0, "device_events": 0}
    ts, end = trace.ts[work.rows], trace.ts[work.rows] + trace.dur[work.rows]
    is_compute = work.is_kernel & ~work.is_collective
    span = float(end.max() - ts.min())
    busy, compute = union(ts, end).length, union(ts[is_compute], end[is_compute]).length
    kernels = int(trace.duration[work.rows[work.is_kernel]].sum())
    ticks = (work.times["communication"].length, work.exposed, *(work.times[kind].length for kind in ("copy", "set")))
    times = (span, compute, busy - compute, span - busy, busy, *(trace.us(count) for count in (*ticks, kernels)))
    counts = {"kernels": int(work.is_kernel.sum()), "device_events": len(work.rows)}
    return row | dict(zip(TIMES, times, strict=True)) | counts


def step_table(trace: Trace, work: DeviceWork) -> pd.DataFrame:
    """Return one row per `ProfilerStep`: rank, step, start_us, wall_us, and the devices' times within it.

    Times are of any device: idle is when none was busy. They are clipped to the step's window, which is the host's
    where the host marks steps; work still queued when the last step ended is then in the breakdown of the whole trace
    only. No rows where the trace has no steps.
    """
    steps = trace.steps
    wall = trace.us(steps.end - steps.start)
    table = {"file": trace.path.name, "step": steps.names, "marked_on": steps.marked_on,
             "start_us": trace.us(steps.start), "wall_us": wall}  # fmt: skip
    for kind in ("busy", "compute", "communication", "copy"):
        within = trace.us(work.times[kind].covered(steps.start, steps.end))
        table[f"{kind}_us"] = within if len(work.rows) else np.full(len(wall), np.nan)
    return trace.ranked(pd.DataFrame(table | {"idle_us": wall - table["busy_us"]}))


@dataclass(frozen=True)
class Idle:
    """The gaps of one device and their causes, HTA's idle time breakdown."""

    gaps: pd.DataFrame  # the longest gaps
    causes: pd.DataFrame  # what the host did while the device was idle
    split_us: tuple[float, ...] | None
    """Idle before the next work was launched; from that launch until it began; although it had been launched before the
    gap. Null where launches are not recorded."""


def launches(trace: Trace, device_rows: Ints) -> Ints:
    """Return the runtime call that launched each device event, by correlation; -1 where none is recorded.

    Of several calls with the same number it is the first.
    """
    calls = np.flatnonzero(trace.is_runtime & (trace.correlation >= 0))
    calls = calls[np.argsort(trace.start[calls], kind="stable")]
    first = pd.Series(calls, index=trace.correlation[calls])
    first = first[~first.index.duplicated()]
    return first.reindex(trace.correlation[device_rows], fill_value=-1).to_numpy(dtype=np.int64)


def idle(trace: Trace, device: DeviceWork, host: HostWork) -> Idle:
    """Return the gaps between the events of a device and what the thread that launched the next one did meanwhile."""
    gaps = device.times["busy"].gaps
    # The event that ends a gap is the first to start where the gap ends.
    ended_by = device.rows[np.searchsorted(trace.start[device.rows], gaps.end, side="left")]
    launch = launches(trace, ended_by)
    known = launch >= 0
    length = gaps.end - gaps.start
    launched = np.where(known, trace.start[launch], gaps.start)
    late = np.clip(launched - gaps.start, 0, length)
    queued = known & (launched < gaps.start)
    thread = np.where(known, trace.track[launch], -1 if host.main is None else host.main)
    table = pd.DataFrame({"begin": gaps.start, "end": gaps.end, "thread": thread, "next": ended_by})
    split = (late[known], (length - late)[known & ~queued], length[queued])
    return Idle(
        gaps=_longest(trace, device, host, table),
        causes=_causes(trace, host, table),
        split_us=tuple(float(trace.us(part.sum())) for part in split) if known.any() else None,
    )


def _causes(trace: Trace, host: HostWork, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return the idle time by what the thread that ended each gap did: stage, host_category, idle_us, share."""
    spent = np.zeros(len(host.owner), dtype=np.int64)
    stretch_track = host.track[host.owner]
    for track, mine in gaps.groupby("thread"):
        theirs = np.flatnonzero(stretch_track == track)
        part = Intervals(mine["begin"].to_numpy(), mine["end"].to_numpy())
        spent[theirs] = part.covered(host.start[theirs], host.end[theirs])
    by = {"stage": host.stage[host.owner], "host_category": host.category[host.owner]}
    table = pd.DataFrame({**by, "idle_us": spent}).groupby(list(by), observed=True)["idle_us"].sum().reset_index()
    table = table[table["idle_us"] > 0].astype({"stage": str, "host_category": str}).reset_index(drop=True)
    total = int((gaps["end"] - gaps["begin"]).sum())
    if (rest := total - table["idle_us"].sum()) > 0:
        table.loc[len(table)] = (OUTSIDE, "no event recorded", rest)
    table = table.assign(share=table["idle_us"] / (total or np.nan), idle_us=trace.us(table["idle_us"]))
    return table.sort_values("idle_us", ascending=False, ignore_index=True)


def _longest(trace: Trace, device: DeviceWork, host: HostWork, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return the ten longest gaps: start_us, gap_us, the work after and before which, host_mostly_in."""
    gaps = gaps.assign(length=gaps["end"] - gaps["begin"])
    by_end = device.rows[np.argsort(trace.stop[device.rows], kind="stable")]
    rows = []
    for gap in gaps.sort_values("length", ascending=False, kind="stable").head(10).to_dict("records"):
        before = by_end[np.searchsorted(trace.stop[by_end], gap["begin"], side="left")]
        held = np.minimum(host.end, gap["end"]) - np.maximum(host.start, gap["begin"])
        where = (held > 0) & (host.track[host.owner] == gap["thread"])
        doing: Any = pd.Series(held[where]).groupby(host.owner[where]).sum()
        most = trace.name_of(host.rows[doing.idxmax()]) if len(doing) else None
        after, then = trace.name_of(before), trace.name_of(gap["next"])
        rows.append((trace.us(gap["begin"]), trace.us(gap["length"]), after, then, most))
    return pd.DataFrame(rows, columns=["start_us", "gap_us", "after", "before", "host_mostly_in"])


def copy_table(trace: Trace) -> pd.DataFrame:
    """Return one row per direction, kind of memory and size class, with copies, bytes, time_us, gb_per_s.

    `bytes` is null where the trace lacks any copy's size. ROCm records sizes on the runtime call only; they are taken
    from there. Times are sums of durations; copies on two streams may overlap.
    """
    rows = np.flatnonzero(trace.is_category(COPY_CATEGORIES))
    call = launches(trace, rows)
    size = trace.size[rows]
    size = np.where(np.isnan(size) & (call >= 0), trace.size[call], size)
    names = pd.Series([trace.name_of(row)[:200] for row in rows.tolist()], dtype=object)
    table = pd.DataFrame(
        {
            "direction": names.str.extract(_DIRECTION, expand=False),
            "memory": names.str.extract(_MEMORY, expand=False),
            "size": pd.cut(size, list(_SIZES), right=False, labels=list(_SIZES.values())[1:]).astype(object),
            "bytes": size,
            "time_us": trace.us(trace.duration[rows]),
        }
    )
    groups = table.groupby(["direction", "memory", "size"], dropna=False, sort=False)
    table = groups.agg(
        copies=("time_us", "size"),
        bytes=("bytes", lambda sizes: sizes.sum(skipna=False)),
        time_us=("time_us", "sum"),
    ).reset_index()
    table["gb_per_s"] = table["bytes"] / table["time_us"].where(table["time_us"] > 0) / 1e3
    return trace.ranked(table).sort_values("time_us", ascending=False, ignore_index=True)


def collective_table(calls: list[pd.DataFrame]) -> pd.DataFrame:
    """Return one row per collective and rank: collective, index, rank, start_us, duration_us, own_us, wait_us.

    The n-th call of a kind is the same collective on every rank. `own_us`, what it takes by itself, is the minimum
    over the ranks in the folder; the rest of each rank's duration is `wait_us`. With ranks missing, the minimum is an
    upper bound. Both are null for calls that not all these ranks made, and for a single rank.

    **Arguments:**

    - `calls`: `calls_of` each rank.
    """
    found = pd.concat(calls, ignore_index=True)
    durations = found.groupby(["collective", "index"])["duration_us"]
    shared = (durations.transform("size") == len(calls)) & (len(calls) > 1)
    found["own_us"] = durations.transform("min").where(shared)
    found["wait_us"] = found["duration_us"] - found["own_us"]
    return found[COLLECTIVE_COLUMNS].astype({"rank": "Int64"})


def calls_of(trace: Trace, work: DeviceWork) -> pd.DataFrame:
    """Return a rank's collectives in the order of their start: collective, index, rank, start_us, duration_us.

    `index` counts the calls of a kind, from 0.
    """
    rows = work.rows[work.is_collective]
    if len(rows) == 0:
        rows = np.flatnonzero((trace.kind == HOST) & trace.names_match(HOST_COLLECTIVE))
        rows = rows[np.argsort(trace.start[rows], kind="stable")]

    kinds = [trace.collectives[trace.collective[row]] or trace.name_of(row).split("(")[0] for row in rows.tolist()]
    times = {"start_us": trace.us(trace.start[rows]), "duration_us": trace.us(trace.duration[rows])}
    calls = pd.DataFrame({"collective": kinds, **times})
    return trace.ranked(calls.assign(index=calls.groupby("collective").cumcount()))
