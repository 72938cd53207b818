"""The events of a window of time as rows of a picture: a track, a lane by depth, a colour."""

import numpy as np
import pandas as pd

from tclab.trace.categories import RULES, Rule, categorise, category_names
from tclab.trace.device import step_windows
from tclab.trace.events import ASIDE, DEVICE, Ints, Trace
from tclab.trace.nesting import nest, tie_of

COLUMNS = ["track", "lane", "name", "category", "start_us", "end_us"]


def timeline_rows(
    trace: Trace,
    start_us: float | None = None,
    end_us: float | None = None,
    *,
    most: int = 2000,
    rules: tuple[Rule, ...] = RULES,
) -> pd.DataFrame:
    """The longest events of a window: track, lane, name, category, start_us, end_us (since the first event).

    Without a window it is the last recorded step, or the whole trace where there are no steps. Lane 0 holds
    the roots of a track, lane 1 what runs within them. Of more than `most` events the shortest are left out.
    """
    if start_us is None or end_us is None:
        first, last = _last_step(trace)
        start_us, end_us = (
            first if start_us is None else start_us,
            last if end_us is None else end_us,
        )
    begin, finish = start_us * trace.ticks_per_us, end_us * trace.ticks_per_us
    aside = trace.kind == ASIDE
    spans = ~aside | trace.is_category({"ledger"})
    stop = trace.start + trace.duration
    rows = np.flatnonzero(spans & (trace.start < finish) & (stop > begin) & (trace.duration > 0))
    rows = np.sort(rows[np.argsort(-trace.duration[rows], kind="stable")[:most]])
    names = category_names(rules)
    category = categorise(trace, rules)[rows]
    return pd.DataFrame(
        {
            "track": [_track_name(trace, row) for row in rows.tolist()],
            "lane": _lanes(trace, rows),
            "name": [trace.names[i][:120] for i in trace.name[rows].tolist()],
            "category": [names[i] for i in category.tolist()],
            "start_us": np.maximum(trace.us(trace.start[rows]), start_us),
            "end_us": np.minimum(trace.us(stop[rows]), end_us),
        },
        columns=COLUMNS,
    )


def _last_step(trace: Trace) -> tuple[float, float]:
    steps = step_windows(trace)
    if len(steps.names) == 0:
        counted = trace.kind != ASIDE
        rows = np.flatnonzero(counted) if counted.any() else np.arange(len(trace))
        stop = trace.start[rows] + trace.duration[rows]
        return float(trace.us(trace.start[rows].min())), float(trace.us(stop.max()))
    return float(trace.us(steps.start[-1])), float(trace.us(steps.end[-1]))


def _track_name(trace: Trace, row: int) -> str:
    process, thread = trace.tracks[trace.track[row]]
    kind = trace.kind[row]
    if kind == DEVICE:
        return f"device {process}, stream {thread}"
    return f"{process}" if kind == ASIDE else f"thread {thread}"


def _lanes(trace: Trace, rows: Ints) -> Ints:
    parent = nest(trace.start[rows], trace.duration[rows], trace.track[rows], tie_of(trace, rows)).parent
    lane = np.zeros(len(rows), dtype=np.int64)
    above = parent.copy()
    while (above >= 0).any():
        lane += above >= 0
        above = np.where(above >= 0, parent[np.maximum(above, 0)], -1)
    return lane
