"""Self time on host threads: each moment of a thread belongs to the latest event that has begun and not ended.

For events that nest this is the textbook self time: the duration less the children's. The rule also covers events that
overlap without nesting (a mark that outlives its parent), so nothing counts twice there either.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from tclab.trace._events import Bools, Ints, Trace

OUTER_FIRST = ("user_annotation", "python_function", "cpu_op", "operator")
"""Which of two events with the same interval contains the other, outermost first; others are innermost."""


@dataclass(frozen=True)
class Nesting:
    """The owner of each moment. Rows are positions in the arguments of `nest`."""

    self_time: Ints  # [N] ticks
    parent: Ints  # [N] the event around it; -1 at the root
    owner: Ints  # [S] owner of each stretch of time
    start: Ints  # [S] ticks
    end: Ints  # [S] ticks


def nest(start: Ints, duration: Ints, track: Ints, tie: Ints) -> Nesting:
    """Return self times and parents of events on any number of tracks, in O(n log n) at any depth.

    Only a track whose events do not nest is walked event by event.

    **Arguments:**

    - `start`, `duration`: [N] ticks.
    - `track`: [N] the thread of each event.
    - `tie`: [N] the order of events with equal intervals, outer ones first.
    """
    n = len(start)
    long = np.flatnonzero(duration > 0)
    start_of, end_of = _on_one_line(start, start + duration, track)
    order = long[np.lexsort((tie[long], -end_of[long], start_of[long]))]
    starts, ends_by_rank = start_of[order], end_of[order]
    m = len(order)
    rank = np.arange(m)
    closing = np.lexsort((-rank, ends_by_rank))
    ends = ends_by_rank[closing]
    # The position of each start and end among all of them; at one instant, ends come before starts.
    start_at = rank + np.searchsorted(ends, starts, side="right")
    end_at = rank + np.searchsorted(starts, ends, side="left")
    event = np.empty(2 * m, dtype=np.int64)
    step = np.empty(2 * m, dtype=np.int64)
    event[start_at], step[start_at] = rank, 1
    event[end_at], step[end_at] = closing, -1
    depth = np.cumsum(step)

    # The event open at a level is the one that began last there.
    keys = depth[start_at] * (2 * m) + start_at
    by_level = np.argsort(keys, kind="stable")
    keys = keys[by_level]

    def open_at(level: Ints, position: Ints) -> Ints:
        found = np.searchsorted(keys, level * (2 * m) + position, side="right") - 1
        return np.where(level > 0, by_level[np.maximum(found, 0)], -1) if m else found

    positions = np.arange(2 * m)
    owner = open_at(depth, positions)
    parent = open_at(depth[start_at] - 1, start_at)
    closed = open_at(depth[end_at] + 1, end_at)
    crossing = np.unique(track[order[closing[closed != closing]]])
    if len(crossing):
        _walk(np.isin(track[order], crossing), event, step, owner, parent)

    time = np.empty(2 * m, dtype=np.int64)
    time[start_at], time[end_at] = start[order], (start + duration)[order[closing]]
    owned = np.flatnonzero(owner[:-1] >= 0) if m else positions
    owned = owned[time[owned + 1] > time[owned]]
    self_time = np.zeros(n, dtype=np.int64)
    spent = np.bincount(owner[owned], weights=time[owned + 1] - time[owned], minlength=m)
    self_time[order] = np.rint(spent).astype(np.int64)
    parents = np.full(n, -1, dtype=np.int64)
    if m:
        parents[order] = np.where(parent >= 0, order[parent], -1)
        # Events without duration own nothing; their parent owns their moment.
        instants = np.flatnonzero(duration == 0)
        at = start_of[instants]
        last = np.searchsorted(starts, at, side="right") + np.searchsorted(ends, at, side="right") - 1
        around = np.where(last >= 0, owner[last], -1)
        parents[instants] = np.where(around >= 0, order[around], -1)
    return Nesting(self_time, parents, order[owner[owned]], time[owned], time[owned + 1])


def _on_one_line(start: Ints, end: Ints, track: Ints) -> tuple[Ints, Ints]:
    """Return the tracks one after the other on a single time line, so that one sort serves them all."""
    if len(start) == 0:
        return start, end
    low, span = int(start.min()), int(end.max() - start.min()) + 1
    tracks = int(track.max()) + 1
    if span * tracks >= 2**62:  # far apart and many: ranks of times order just as well
        times, index = np.unique(np.concatenate((start, end)), return_inverse=True)
        start, end = index[: len(start)], index[len(start) :]
        low, span = 0, len(times)
    return start - low + track * span, end - low + track * span


def _walk(chosen: Bools, event: Ints, step: Ints, owner: Ints, parent: Ints) -> None:
    """Fill in owner and parent of the chosen events, by a stack from which the ended are dropped lazily."""
    running: list[int] = []
    ended = set()
    for position in np.flatnonzero(chosen[event]).tolist():
        current = int(event[position])
        if step[position] > 0:
            parent[current] = running[-1] if running else -1
            running.append(current)
        else:
            ended.add(current)
            while running and running[-1] in ended:
                ended.discard(running.pop())
        owner[position] = running[-1] if running else -1


def tie_of(trace: Trace, rows: Ints) -> Ints:
    """Return a tie-break that does not depend on the file's order: category from the outside in, then the name."""
    place = {category: index for index, category in enumerate(OUTER_FIRST)}
    category = np.array([place.get(c, len(OUTER_FIRST)) for c in trace.categories], dtype=np.int64)
    alphabet = np.empty(len(trace.names), dtype=np.int64)
    alphabet[pc.array_sort_indices(trace.name_bytes).to_numpy()] = np.arange(len(trace.names))
    return np.asarray(category[trace.category[rows]] * len(trace.names) + alphabet[trace.name[rows]])
