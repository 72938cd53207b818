"""Idle time of a device: its gaps, and what the host did meanwhile."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tclab.trace._categories import OUTSIDE
from tclab.trace._device_work import DeviceWork
from tclab.trace._events import US, Trace
from tclab.trace._host_work import HostWork, longest_first
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
    begin, end = device.times["busy"].gaps
    # The event that ends a gap is the first to start where the gap ends.
    ended_by = device.rows[np.searchsorted(trace.start[device.rows], end, side="left")]
    launch = trace.launch[ended_by]
    known, length = launch >= 0, end - begin
    launched = np.where(known, trace.start[launch], begin)
    late = np.clip(launched - begin, 0, length)
    queued = known & (launched < begin)
    thread = np.full(len(launch), -1 if host.main is None else host.main)
    thread[known] = host.on[np.searchsorted(host.rows, launch[known])]
    gaps = pd.DataFrame({"begin": begin, "end": end, "length": length, "thread": thread, "next": ended_by})
    split = (late[known], (length - late)[known & ~queued], length[queued])
    split_us = tuple(float(part.sum() / US) for part in split) if known.any() else None
    return Idle(_longest(trace, device, host, gaps), _causes(host, gaps), split_us)


def _causes(host: HostWork, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return the idle time by what the thread that ended each gap did: stage, host_category, idle_us, share."""
    spent = np.zeros(len(host.rows), dtype=np.int64)
    for track, mine in gaps.groupby("thread"):
        idle = Intervals(mine["begin"].to_numpy(), mine["end"].to_numpy())
        spent += np.where(host.on == track, host.spent(idle), 0)
    by = ["stage", "host_category"]
    events = {"stage": host.stage.astype(object), "host_category": host.category.astype(object), "ticks": spent}
    unrecorded = pd.DataFrame([(OUTSIDE, "no event recorded", gaps["length"].sum() - spent.sum())], columns=[*events])
    table = pd.concat([pd.DataFrame(events), unrecorded])
    table = longest_first(table[table["ticks"] > 0], by, "ticks", ticks=("ticks", "sum"))
    table["idle_us"], table["share"] = table["ticks"] / US, table["ticks"] / (gaps["length"].sum() or np.nan)
    return table.drop(columns="ticks")


def _longest(trace: Trace, device: DeviceWork, host: HostWork, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return the ten longest gaps: start_us, gap_us, the work after and before which, host_mostly_in."""
    by_end = device.rows[np.argsort(trace.stop[device.rows], kind="stable")]
    longest = gaps.sort_values("length", ascending=False, kind="stable").head(10)
    doing = []
    for begin, end, thread in zip(longest["begin"], longest["end"], longest["thread"], strict=True):
        spent = host.spent(Intervals(np.array([begin]), np.array([end]))) * (host.on == thread)
        doing.append(host.rows[spent.argmax()] if spent.any() else -1)
    columns = {
        "start_us": longest["begin"] / US,
        "gap_us": longest["length"] / US,
        "after": trace.names_of(by_end[np.searchsorted(trace.stop[by_end], longest["begin"], side="left")]),
        "before": trace.names_of(longest["next"].to_numpy()),
        "host_mostly_in": trace.names_of(np.array(doing, dtype=np.int64)),
    }
    return pd.DataFrame(columns).reset_index(drop=True)
