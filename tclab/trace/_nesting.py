"""Sets of time, and self time on host threads: each moment belongs to the latest event that has begun and not ended.

For events that nest this is the textbook self time: the duration less the children's. The rule also covers events that
overlap without nesting (a mark that outlives its parent), so nothing counts twice there either. All is exact, in whole
ticks.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from tclab.trace._events import Bools, Ints, Trace

# Which of two events with the same interval contains the other, outermost first; others are innermost.
OUTER_FIRST = ("user_annotation", "python_function", "cpu_op", "operator")


class Intervals(NamedTuple):
    """Disjoint intervals in the order of time: start [N], end [N] ticks."""

    start: Ints
    end: Ints

    @property
    def length(self) -> int:
        return int((self.end - self.start).sum())

    @property
    def gaps(self) -> "Intervals":
        """The gaps between the intervals, [N - 1]."""
        return Intervals(self.end[:-1], self.start[1:])

    def covered(self, start: Ints, end: Ints) -> Ints:
        """Return how many ticks of each query interval [start, end) lie in the set, [Q]."""
        return self._before(end) - self._before(start)

    def _before(self, at: Ints) -> Ints:
        begun = np.searchsorted(self.start, at, side="right")
        length = np.append(0, np.cumsum(self.end - self.start))
        end = np.append(-(2**62), self.end)
        return np.asarray(length[begun] - np.maximum(end[begun] - at, 0))


def union(start: Ints, end: Ints) -> Intervals:
    """Return the union of intervals in any order; they may overlap."""
    if len(start) == 0:
        return Intervals(start, end)
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
    return Intervals(start[first], reach[np.append(first[1:], len(start)) - 1])


@dataclass(frozen=True)
class Nesting:
    """The owner of each moment. Rows are positions in the arguments of `nest`."""

    parent: Ints  # [N] the event around it; -1 at the root
    owner: Ints  # [S] owner of each stretch of time
    start: Ints  # [S] ticks
    end: Ints  # [S] ticks

    def spent(self, windows: Intervals | None = None) -> Ints:
        """Return the self time of each event, [N] ticks; within windows where these are given."""
        spent = np.zeros(len(self.parent), dtype=np.int64)
        took = self.end - self.start if windows is None else windows.covered(self.start, self.end)
        np.add.at(spent, self.owner, took)
        return spent


def nest(start: Ints, duration: Ints, track: Ints, tie: Ints) -> Nesting:
    """Return the owners and parents of events on any number of tracks, in O(n log n) at any depth.

    **Arguments:**

    - `start`, `duration`: [N] ticks.
    - `track`: [N] the thread of each event.
    - `tie`: [N] the order of events with equal intervals, outer ones first.
    """
    end = start + duration
    order = np.lexsort((tie, -end, start, track))
    long, instant = order[duration[order] > 0], order[duration[order] == 0]
    # What happens on a track, in its order; at one instant ends come first, then starts, then events of no duration.
    event = np.concatenate((long, long, instant))
    time = np.concatenate((end[long], start[long], start[instant]))
    kind = np.repeat([0, 1, 2], [len(long), len(long), len(instant)])
    by_time = np.lexsort((kind, time, track[event]))
    event, time = event[by_time], time[by_time]
    parent = [-1] * len(start)
    owner = np.array(_walk(event.tolist(), kind[by_time].tolist(), parent), dtype=np.int64)

    until = np.append(time[1:], 0)
    owned = (owner >= 0) & (until > time)  # on each track the last owner is -1
    return Nesting(np.array(parent, dtype=np.int64), owner[owned], time[owned], until[owned])


def _walk(events: list[int], kinds: list[int], parent: list[int]) -> list[int]:
    """Return the owner from each boundary on, and fill in the parents.

    An event that ends beneath a running one stays on the stack until it surfaces.
    """
    running, owners, top = [-1], [], -1
    ended: set[int] = set()
    for event, kind in zip(events, kinds, strict=True):
        if kind == 0:
            ended.add(event)
            while top in ended:
                ended.remove(running.pop())
                top = running[-1]
        else:
            parent[event] = top
            if kind == 1:
                running.append(event)
                top = event
        owners.append(top)
    return owners


def nearest(wanted: Bools, parent: Ints) -> Ints:
    """Return the nearest wanted event around each event, itself included, [N]; -1 where there is none.

    Pointers are doubled, so the work is O(n log depth).
    """
    above = np.where(wanted, np.arange(len(parent)), parent)
    while True:
        climbing = np.flatnonzero((above >= 0) & ~wanted[above])
        if len(climbing) == 0:
            return above
        above[climbing] = above[above[climbing]]


def tie_of(trace: Trace, rows: Ints) -> Ints:
    """Return a tie-break that does not depend on the file's order: category from the outside in, then the name."""
    category = np.array([[*OUTER_FIRST, c].index(c) for c in trace.categories], dtype=np.int64)
    alphabet = np.empty(len(trace.names), dtype=np.int64)
    alphabet[pc.array_sort_indices(trace.name_bytes).to_numpy()] = np.arange(len(trace.names))
    return np.asarray(category[trace.category[rows]] * len(trace.names) + alphabet[trace.name[rows]])
