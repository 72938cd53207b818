"""How long a setting of a sweep will take, foretold from those that were measured."""

from __future__ import annotations

from math import log
from statistics import median
from typing import NamedTuple

import pyarrow as pa

from tclab.sweeps._point import Point

_FIXED_SECONDS = 5.0  # around the steps, until a setting has shown it: the check, the graph, the workers
_SIZES = ("batch_size", "networks")  # what the seconds of a step are taken to be proportional to


class _Measured(NamedTuple):
    point: Point
    step_seconds: float
    networks: int
    edges: int
    fixed_seconds: float | None  # of the run, around its steps; of rows that were kept nobody knows


def _batches(point: Point) -> int:
    """Return how many batches a run of a point trains on: the cold start, warm-up, counted waits, the timed steps."""
    return point.warmup + point.steps + 2


class Foresight:
    """The settings that were measured, and by them the time of others.

    A step's seconds are those of the setting that differs in the fewest fields, in proportion to the samples and
    edges of a batch; of several that are as near, the slowest. Seconds around the steps are the median, or the least of
    the same model and strategy, which has been checked already.
    """

    def __init__(self) -> None:
        self._measured: list[_Measured] = []

    def learn(self, point: Point, rows: pa.Table, seconds: float | None = None) -> None:
        """Take note of a resolved point's rows, and of the seconds that its run took in all, unless they were kept."""
        for row in rows.select(["stage", "mean_seconds", "networks", "edges"]).to_pylist():
            if row["stage"] == "step" and (step := row["mean_seconds"]):
                fixed = None if seconds is None else max(0.0, seconds - _batches(point) * step)
                self._measured.append(_Measured(point, step, row["networks"] or 1, row["edges"] or 1, fixed))

    def seconds(self, point: Point) -> float | None:
        """Return how long a resolved point will take; `None` before any was measured."""
        if not self._measured:
            return None
        edges = self._edges(point)

        def of(near: _Measured) -> tuple[int, float, float]:
            """Return how far a measured point is from this one, and minus the seconds of a step by it."""
            pairs = zip(vars(near.point).items(), vars(point).values(), strict=True)
            differ = sum(mine != other for (name, mine), other in pairs if name not in _SIZES)
            ratio = point.batch_size / near.point.batch_size * edges / near.edges
            return differ, abs(log(ratio)), -near.step_seconds * ratio

        step = -min(map(of, self._measured))[-1]
        known = [one for one in self._measured if one.fixed_seconds is not None]
        fixed = median([one.fixed_seconds or 0.0 for one in known] or [_FIXED_SECONDS])
        alike = [one for one in known if (one.point.model, one.point.strategy) == (point.model, point.strategy)]
        # whatever came first waited for its process to start
        fixed = min([fixed, *(one.fixed_seconds or 0.0 for one in alike)])
        return fixed + _batches(point) * step

    def _edges(self, point: Point) -> float:
        """Return the edges of a point's graph: those of the same networks, or else by how many networks there are."""
        known = {(one.point.model, one.point.networks): one.edges for one in self._measured}
        if (point.model, point.networks) in known:
            return known[point.model, point.networks]
        largest = max(self._measured, key=lambda one: one.edges)
        chosen = len(point.networks) if isinstance(point.networks, tuple) else point.networks or largest.networks
        return largest.edges * chosen / largest.networks
