"""Sets of time as sorted, disjoint intervals: union, length, overlap, gaps. All exact, in whole ticks."""

from typing import Any, NamedTuple, TypeVar

import numpy as np

from tclab.trace._events import Floats, Ints

T = TypeVar("T", np.dtype[np.int64], np.dtype[np.float64])


class Intervals(NamedTuple):
    """Disjoint intervals in the order of time: start [N], end [N] int64 ticks."""

    start: Ints
    end: Ints

    @property
    def length(self) -> int:
        return int((self.end - self.start).sum())


def union(start: Ints, end: Ints) -> Intervals:
    """Return the union of intervals in any order; they may overlap."""
    return Intervals(*_merge(start, end))


def union_us(start: Floats, end: Floats) -> float:
    """Return the length of the union of intervals, float64, in the unit of the arguments."""
    start, end = _merge(start, end)
    return float((end - start).sum())


def gaps(busy: Intervals) -> Intervals:
    """Return the gaps between the intervals."""
    return Intervals(busy.end[:-1], busy.start[1:])


def covered(within: Intervals, start: Ints, end: Ints) -> Ints:
    """Return how many ticks of each query interval [start, end) lie in the set, [Q]."""
    return _covered_before(within, end) - _covered_before(within, start)


def overlap(a: Intervals, b: Intervals) -> int:
    """Return how many ticks lie in both sets."""
    return int(covered(b, a.start, a.end).sum())


def _merge(start: np.ndarray[Any, T], end: np.ndarray[Any, T]) -> tuple[np.ndarray[Any, T], np.ndarray[Any, T]]:
    if len(start) == 0:
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.append(np.flatnonzero(first)[1:] - 1, len(start) - 1)
    return start[first], reach[last]


def _covered_before(within: Intervals, at: Ints) -> Ints:
    if len(within.start) == 0:
        return np.zeros(len(at), dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(within.end - within.start)))
    index = np.searchsorted(within.start, at, side="right") - 1
    inside = np.minimum(at, within.end[index]) - within.start[index]
    return np.where(index < 0, 0, before[index] + inside)
