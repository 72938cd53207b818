"""What runs the points of a sweep: the protocol of executors with its options and progress, and the local one."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Protocol

import pyarrow as pa

from tclab._display import duration_text, say
from tclab.errors import InputError
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._run import point_rows
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._rows import not_measured

_SHOWN = [
    "stage", "status", "mean_seconds", "networks", "device", "backend", "file_samples", "file_rows_left_out",
    "unknown_genes",
]  # fmt: skip


@dataclass(frozen=True)
class Progress:
    """How far a sweep is.

    **Arguments:**

    - `done`, `total`: points.
    - `point`: the one that has just been run or read.
    - `rows`: its rows.
    - `kept`: they were there already.
    - `seconds_left`: by the points that were run so far; `None` where that is not known.
    - `beyond_budget`: the budget was spent before, and the point is one of those that show each axis.
    """

    done: int
    total: int
    point: Point
    rows: pa.Table
    kept: bool
    seconds_left: float | None = None
    beyond_budget: bool = False

    def __str__(self) -> str:
        rows = self.rows.select(_SHOWN).to_pylist()
        first = rows[0]
        what = f"{self.point.model} {self.point.strategy} batch {self.point.batch_size} networks {first['networks']}"
        if self.point.ranks > 1:
            what += f", {first['device']} · {first['backend']} · {self.point.ranks} ranks"
        if (number := first["file_samples"]) is not None:
            left_out, genes = first["file_rows_left_out"], first["unknown_genes"]
            file = Path(str(self.point.perturbations)).name
            what += f", {number:,} samples of {file} ({left_out:,} rows left out, {genes:,} unknown genes)"
        steps = [row for row in rows if row["stage"] == "step"]
        mean = steps[0]["mean_seconds"] if steps else None
        how = f"{mean:.3g} s a step" if mean is not None else steps[0]["status"]
        beyond = "; beyond the budget, so that each axis has two points"
        return f"[{self.done}/{self.total}] {what}: {how}{' (kept)' if self.kept else ''}{beyond * self.beyond_budget}"


def print_progress(progress: Progress) -> None:
    """Print a line with the time that is left."""
    left = progress.seconds_left if progress.done < progress.total else None
    say(str(progress) if left is None else f"{progress} · about {duration_text(left)} left")


@dataclass(frozen=True)
class SweepOptions:
    """What every executor is asked for; see `tclab.sweep`."""

    results: Path
    retry: bool = False
    fresh: bool = False
    memory_bytes: int | None = None
    hang_seconds: float | None = None
    progress: Callable[[Progress], None] | None = None
    stop: threading.Event | None = None
    repeats: int = 1

    def report(self, progress: Progress) -> None:
        if self.progress is not None:
            self.progress(progress)

    @property
    def stopped(self) -> bool:
        return self.stop is not None and self.stop.is_set()


class Executor(Protocol):
    """What runs the points of a sweep and keeps their rows in its results folder."""

    def run(self, points: list[Point], options: SweepOptions) -> list[pa.Table]:
        """Return the rows of each point, in the points' order; none of the points comes twice."""


def failed_or_oom(rows: pa.Table) -> bool:
    """Return whether a point's rows say that it ran out of memory or failed."""
    return any(status == "oom" or status.startswith("failed") for status in rows["status"].to_pylist())


class LocalExecutor:
    """Runs points one after the other in warm worker processes of this machine; an `Executor`.

    **Arguments:**

    - `budget_seconds`: start no point after so long; see `tclab.sweep`.
    - `refusal`: returns why a point is not to be run, or `None`; asked before each that would be.
    - `first`: how many of the points the budget cuts only when it is spent twice.
    """

    def __init__(
        self,
        *,
        budget_seconds: float | None = None,
        refusal: Callable[[Point], str | None] | None = None,
        first: int = 0,
    ) -> None:
        if budget_seconds is not None and not budget_seconds > 0:
            raise InputError(f"budget_seconds is {budget_seconds!r}, expected a number above 0, or None for no limit")
        self._budget_seconds = budget_seconds
        self._refusal = refusal
        self._first = first

    def run(self, points: list[Point], options: SweepOptions) -> list[pa.Table]:
        """Return the rows of each run of a point: those that are kept, and those of the runs that are made now."""
        results = Results(options.results).make()
        begin, any_run = monotonic(), False
        took: list[float] = []  # seconds of each point that was run now
        fresh = options.fresh or options.repeats > 1  # the runs of one process would share its luck
        not_kept: str | None = None  # why no more rows can be kept
        tables: list[pa.Table] = []
        total = len(points) * options.repeats
        # every point once, then again: a machine that changes meanwhile is in what the runs of a point differ by
        for place, (repeat, point) in enumerate(product(range(options.repeats), points)):
            done = place + 1
            if repeat and tables[place % len(points)]["status"][0].as_py() != "ok":
                continue  # its first run has no time, and no other would have one
            if options.stopped:
                tables.append(not_measured(point, "not run: stopped"))
                continue
            definite = resolve(point)
            name = results.name(definite, repeat)
            if (rows := _kept(results, name, options)) is not None:
                tables.append(rows)
                options.report(Progress(done, total, point, rows, kept=True))
                continue
            spent = 0.0 if self._budget_seconds is None else (monotonic() - begin) / self._budget_seconds
            if not_kept is None and spent > (2 if place < self._first else 1):
                tables.append(not_measured(point, f"not run: the budget of {self._budget_seconds:g} s was spent"))
                continue
            refusal = not_kept
            if refusal is None and self._refusal is not None and not definite.skipped():
                refusal = self._refusal(definite)
            if refusal is not None:
                tables.append(not_measured(point, f"not run: {refusal}"))
                options.report(Progress(done, total, point, tables[-1], kept=False))
                continue
            starts_ranks = not any_run and point.ranks > 1
            any_run, began = True, monotonic()
            rows = point_rows(
                definite, fresh=fresh, memory_bytes=options.memory_bytes, hang_seconds=options.hang_seconds
            )
            if options.stopped and failed_or_oom(rows):  # the stop killed its worker
                tables.append(not_measured(point, "not run: stopped"))
                continue
            if starts_ranks:  # which is not what the budget is for
                begin = monotonic()
            if not rows["status"][0].as_py().startswith("not run"):
                try:
                    results.write(point, rows, name)
                except InputError as error:  # the disk is full: what was measured is returned, and the rest waits
                    not_kept = str(error)
                    warnings.warn(f"{not_kept}. The sweep returns them, and runs no other point", stacklevel=3)
            tables.append(rows)
            if not rows["status"][0].as_py().startswith("skipped"):
                took.append(monotonic() - began)
            left = self._seconds_left(took, done, total, monotonic() - begin)
            options.report(Progress(done, total, point, rows, False, left, beyond_budget=spent > 1))
        return tables

    def _seconds_left(self, took: list[float], done: int, total: int, since: float) -> float | None:
        """Return how long the points that are left will take; `None` where nothing tells.

        **Arguments:**

        - `took`: seconds of each point that ran. The first one waited for its process to start, unlike the others.
        - `done`, `total`: points. `since`: seconds of the budget that are spent.
        """
        if len(took) < 2:
            return None
        each = sum(took[1:]) / (len(took) - 1)
        left = (total - done) * each
        if self._budget_seconds is None:
            return left
        of_first = min(2 * self._budget_seconds - since, (self._first - done) * each)
        return min(left, max(0.0, self._budget_seconds - since, of_first))


def _kept(results: Results, name: str, options: SweepOptions) -> pa.Table | None:
    """Return a point's rows where they are in the folder and stand."""
    rows = results.read_file(name)
    return None if rows is None or (options.retry and failed_or_oom(rows)) else rows
