"""The points of a sweep on this machine, one after the other in warm workers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from time import monotonic

import pyarrow as pa

from tclab.errors import InputError
from tclab.sweeps.config._point import Point, Points
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._progress import Progress, SweepOptions, failed_or_oom
from tclab.sweeps.execution._run import point_rows
from tclab.sweeps.execution._worker_pool import pool, threads_of
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._rows import not_measured
from tclab.timing._environment import busy_cores, usable_cores

_STOPPED = "not run: stopped"
_OTHERS = 0.5  # cores that others keep busy, from which they are in the way of a sweep that wants all of them


@dataclass
class _Budget:
    """The seconds in which points may be started, and what those that ran took.

    **Arguments:**

    - `seconds`: `None` for no limit. `first`: how many points it cuts only when it is spent twice. `total`: points.
    - `runs`: points that were started. `took`: seconds of each that ran. The first one waited for its process to start,
      unlike the others.
    """

    seconds: float | None
    first: int
    total: int
    began: float = field(default_factory=monotonic)
    runs: int = 0
    took: list[float] = field(default_factory=list)

    def spent(self) -> float:
        """Return the share of it that is spent."""
        return 0.0 if self.seconds is None else (monotonic() - self.began) / self.seconds

    def is_over(self, i: int) -> bool:
        """Return whether point `i` is not to be started."""
        return self.spent() > (2 if i < self.first else 1)

    def seconds_left(self, done: int) -> float | None:
        """Return how long the points that are left will take; `None` where nothing tells."""
        if len(self.took) < 2:
            return None
        each = sum(self.took[1:]) / (len(self.took) - 1)
        left = (self.total - done) * each
        if self.seconds is None:
            return left
        since = monotonic() - self.began
        of_first = min(2 * self.seconds - since, (self.first - done) * each)
        return min(left, max(0.0, self.seconds - since, of_first))


def run_here(
    points: Points,
    options: SweepOptions,
    *,
    budget_seconds: float | None = None,
    refusal: Callable[[Point], str | None] = lambda _: None,
) -> list[pa.Table]:
    """Return the rows of each run of a point: those that are kept, and those of the runs that are made now.

    **Arguments:**

    - `budget_seconds`: start no point after so long; see `tclab.sweep`.
    - `refusal`: returns why a resolved point is not to be run, or `None`; asked before each that would be.
    """
    if budget_seconds is not None and not budget_seconds > 0:
        raise InputError(f"budget_seconds is {budget_seconds!r}, expected a number above 0, or None for no limit")
    results = Results(options.results).make()
    total = len(points) * options.repeats
    budget = _Budget(budget_seconds, points.first, total)
    full: str | None = None  # why no more rows can be kept
    tables: list[pa.Table] = []
    # every point once, then again: a machine that changes meanwhile is in what the runs of a point differ by
    for i, (repeat, point) in enumerate(product(range(options.repeats), points)):
        if repeat and _status(tables[i % len(points)]) != "ok":
            continue  # its first run has no time, and no other would have one
        if options.stopped:
            tables.append(not_measured(point, _STOPPED))
            continue
        definite = resolve(point)
        name = results.name(definite, repeat, memory_bytes=options.memory_bytes)
        if (rows := _kept(results, name, options)) is not None:
            tables.append(rows)
            options.report(Progress(i + 1, total, point, rows, kept=True))
            continue
        if full is None and budget.is_over(i):
            tables.append(not_measured(point, f"not run: the budget of {budget.seconds:g} s was spent"))
            continue
        why = full or (refusal(definite) if definite.skipped() is None else None)
        if why is not None:
            tables.append(not_measured(point, f"not run: {why}"))
            options.report(Progress(i + 1, total, point, tables[-1], kept=False))
            continue
        beyond = budget.spent() > 1
        rows = _run(definite, options, budget)
        if not _status(rows).startswith("not run"):
            try:
                results.write(point, rows, name)
            except InputError as error:  # the disk is full: what was measured is returned, and the rest waits
                full = str(error)
                warnings.warn(f"{full}. The sweep returns them, and runs no other point", stacklevel=3)
        tables.append(rows)
        if _status(rows) != _STOPPED:
            left = budget.seconds_left(i + 1)
            options.report(Progress(i + 1, total, point, rows, kept=False, seconds_left=left, beyond_budget=beyond))
    return tables


def _status(rows: pa.Table) -> str:
    return str(rows["status"][0].as_py())


def _kept(results: Results, name: str, options: SweepOptions) -> pa.Table | None:
    """Return a point's rows where they are in the folder and stand."""
    rows = results.read_file(name)
    return None if rows is None or (options.retry and failed_or_oom(rows)) else rows


def _run(point: Point, options: SweepOptions, budget: _Budget) -> pa.Table:
    """Run a resolved point and return its rows; tell the budget how long it took."""
    budget.runs += 1
    if budget.runs == 1:
        warn_of_others()
    begin = monotonic()
    rows = point_rows(
        point,
        fresh=options.fresh or options.repeats > 1,  # the runs of one process would share its luck
        memory_bytes=options.memory_bytes,
        hang_seconds=options.hang_seconds,
    )
    if options.stopped and failed_or_oom(rows):  # the stop killed its worker
        return not_measured(point, _STOPPED)
    if budget.runs == 1 and point.ranks > 1:  # it started the ranks, which is not what the budget is for
        budget.began = monotonic()
    if not _status(rows).startswith("skipped"):
        budget.took.append(monotonic() - begin)
    return rows


def warn_of_others() -> None:
    """Warn where other processes keep cores busy that the threads of a point would wait for.

    Threads that share the work of each operation wait for the one whose core another process has.
    """
    cores, threads = usable_cores(), threads_of(1)
    others = busy_cores(*(worker.pid for worker in pool.idle.values()))
    if cores is None or others is None or cores < 2 or others + threads < cores + _OTHERS:
        return
    fewer = ", or with fewer threads: OMP_NUM_THREADS=1" if threads > 1 else ""
    warnings.warn(
        f"other processes keep {others:.1f} of {cores} cores busy: steps that share them are slower, by far where "
        f"their threads wait for one another. Sweep when those have ended{fewer}",
        stacklevel=2,
    )
