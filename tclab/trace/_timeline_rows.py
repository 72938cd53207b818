"""Rows of a timeline chart: the events of a window of time, with track, lane by depth, and category."""

import numpy as np
import pandas as pd

from tclab.trace._categories import categorise
from tclab.trace._events import ANNOTATION, DEVICE, US, Ints, Trace
from tclab.trace._host_work import main_track
from tclab.trace._nesting import nest, tie_of


def timeline_rows(
    trace: Trace, start_us: float | None = None, end_us: float | None = None, *, most: int = 2000
) -> pd.DataFrame:
    """Return the longest events of a window: track, lane, name, category, start_us, end_us (since the first event).

    Lane 0 has the outermost events of a track, lane 1 those within them, and so on.

    **Arguments:**

    - `trace`: one of `report.traces`.
    - `start_us`, `end_us`: the window; None takes the last recorded step, or the whole trace without steps.
    - `most`: how many events at most; the shortest are left out.
    """
    steps = trace.steps
    begins, ends = (steps.start[-1], steps.end[-1]) if steps.names else (0, trace.stop.max())
    start_us = trace.us(begins) if start_us is None else start_us
    end_us = trace.us(ends) if end_us is None else end_us
    begin, finish = start_us * US, end_us * US
    rows = np.flatnonzero(
        (trace.kind != ANNOTATION) & (trace.duration > 0) & (trace.start < finish) & (trace.stop > begin)
    )
    rows = np.sort(rows[np.argsort(-trace.duration[rows], kind="stable")[:most]])
    main = main_track(trace)
    return pd.DataFrame(
        {
            "track": [_track_name(trace, row, main) for row in rows.tolist()],
            "lane": _lanes(trace, rows),
            "name": [trace.name_of(row)[:120] for row in rows.tolist()],
            "category": categorise(trace)[rows].astype(str),
            "start_us": np.maximum(trace.us(trace.start[rows]), start_us),
            "end_us": np.minimum(trace.us(trace.stop[rows]), end_us),
        }
    )


def _track_name(trace: Trace, row: int, main: int | None) -> str:
    process, thread = trace.tracks[trace.track[row]]
    if trace.kind[row] == DEVICE:
        return f"device {process}, stream {thread}"
    return f"main thread ({thread})" if trace.track[row] == main else f"thread {thread}"


def _lanes(trace: Trace, rows: Ints) -> Ints:
    parent = nest(trace.start[rows], trace.duration[rows], trace.track[rows], tie_of(trace, rows)).parent
    lane, above = np.zeros(len(rows), dtype=np.int64), parent
    while (above >= 0).any():
        lane += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    return lane
