"""Why the device stood idle: what the host did meanwhile, and when it launched the work that ended a gap."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tclab.trace import intervals
from tclab.trace.categories import OUTSIDE
from tclab.trace.device import DeviceWork
from tclab.trace.events import RUNTIME_CATEGORIES, Bools, Ints, Trace, rank_column
from tclab.trace.host import HostWork
from tclab.trace.intervals import Intervals


@dataclass(frozen=True)
class Idle:
    """The gaps of one trace and their causes."""

    gaps: pd.DataFrame  # the longest gaps
    causes: pd.DataFrame  # where the host was while the device stood idle
    late_us: float | None  # idle before the next work was launched; null where launches are not recorded
    launch_us: float | None  # idle from that launch until the work began
    queued_us: float | None  # idle although the next work had been launched before the gap
    count: int


def launches(trace: Trace, device_rows: Ints) -> Ints:
    """The runtime call that launched each device event, by correlation; -1 where none is recorded."""
    calls = np.flatnonzero(trace.is_category(RUNTIME_CATEGORIES) & (trace.correlation >= 0))
    calls = calls[np.argsort(trace.correlation[calls], kind="stable")]
    wanted = trace.correlation[device_rows]
    at = np.searchsorted(trace.correlation[calls], wanted)
    at = np.minimum(at, max(len(calls) - 1, 0))
    if len(calls) == 0:
        return np.full(len(device_rows), -1, dtype=np.int64)
    return np.where((trace.correlation[calls[at]] == wanted) & (wanted >= 0), calls[at], -1)


def idle(trace: Trace, device: DeviceWork, host: HostWork, longest: int = 10) -> Idle | None:
    """The gaps between device events and what the launching thread was doing; None without device events."""
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
    order = np.argsort(-length, kind="stable")[:longest]
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
    """Idle ticks that fall to each stretch of host time, [S], each gap seen from the thread that ended it."""
    spent = np.zeros(len(host.owner), dtype=np.int64)
    stretch_track = trace.track[host.rows[host.owner]]
    for track in np.unique(thread[thread >= 0]).tolist():
        mine, theirs = thread == track, np.flatnonzero(stretch_track == track)
        part = Intervals(gaps.start[mine], gaps.end[mine])
        spent[theirs] = intervals.covered(part, host.start[theirs], host.end[theirs])
    return spent


def _causes(trace: Trace, host: HostWork, spent: Ints, total: int) -> pd.DataFrame:
    category = host.category[host.owner]
    stage = host.stage[host.owner]
    pairs, index = np.unique(stage * len(host.names) + category, return_inverse=True)
    ticks = np.bincount(index, weights=spent, minlength=len(pairs))
    stages, categories = np.divmod(pairs, len(host.names))
    rows = [
        (OUTSIDE if s < 0 else host.names[s], host.names[c], t)
        for s, c, t in zip(stages.tolist(), categories.tolist(), ticks.tolist(), strict=True)
        if t > 0
    ]
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
        rows.append(
            {
                "rank": trace.rank,
                "start_us": trace.us(begin),
                "gap_us": trace.us(end - begin),
                "after": trace.names[trace.name[before]],
                "before": trace.names[trace.name[ended_by[gap]]],
                "host_mostly_in": doing,
                "late_us": trace.us(int(late[gap])) if known[gap] else None,
            }
        )
    columns = ["rank", "start_us", "gap_us", "after", "before", "host_mostly_in", "late_us"]
    return pd.DataFrame(rows, columns=columns).astype({"rank": "Int64"})
