"""Idle time of a device: its gaps, and what the host did meanwhile."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tclab.trace._categories import OUTSIDE
from tclab.trace._device_work import DeviceWork
from tclab.trace._events import Trace
from tclab.trace._host_work import HostWork
from tclab.trace._nesting import Intervals


@dataclass(frozen=True)
class Idle:
    """The gaps of one device and their causes, HTA's idle time breakdown."""

    gaps: pd.DataFrame  # the longest gaps
    causes: pd.DataFrame  # what the host did while the device was idle
    split_us: tuple[float, ...] | None
    """Idle before the next work was launched; from that launch until it began; although it had been launched before the
    gap. Null where launches are not recorded."""


def explain_idle(trace: Trace, device: DeviceWork, host: HostWork) -> Idle:
    """Return the gaps between the events of a device and what the thread that launched the next one did meanwhile."""
    gaps = device.times["busy"].gaps
    # The event that ends a gap is the first to start where the gap ends.
    ended_by = device.rows[np.searchsorted(trace.start[device.rows], gaps.end, side="left")]
    launch = trace.launch[ended_by]
    known = launch >= 0
    length = gaps.end - gaps.start
    launched = np.where(known, trace.start[launch], gaps.start)
    late = np.clip(launched - gaps.start, 0, length)
    queued = known & (launched < gaps.start)
    thread = np.full(len(launch), -1 if host.main is None else host.main)
    thread[known] = host.on[np.searchsorted(host.rows, launch[known])]
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
    stretch_track = host.on[host.owner]
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
        where = (held > 0) & (host.on[host.owner] == gap["thread"])
        doing: Any = pd.Series(held[where]).groupby(host.owner[where]).sum()
        most = trace.name_of(host.rows[doing.idxmax()]) if len(doing) else None
        after, then = trace.name_of(before), trace.name_of(gap["next"])
        rows.append((trace.us(gap["begin"]), trace.us(gap["length"]), after, then, most))
    return pd.DataFrame(rows, columns=["start_us", "gap_us", "after", "before", "host_mostly_in"])
