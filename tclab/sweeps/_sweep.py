"""Running many points: kept, resumable, within a budget."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from math import inf, log
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from tclab.errors import InputError
from tclab.graph._synthetic_graph import NETWORK_SIZES, NUM_GENES
from tclab.sweeps._point import Point, Points, points_of, varying_fields
from tclab.sweeps._point_inputs import networks_of, resolve
from tclab.sweeps._progress import Progress, SweepOptions, print_progress
from tclab.sweeps._rows import Results, frame, not_measured
from tclab.sweeps._run import STOPPED, others_now, point_rows
from tclab.sweeps._slurm import run_on_slurm

_FIXED_SECONDS = 5.0  # around the steps, until a setting has shown it: the check, the graph, the workers
_SIZES = ("batch_size", "networks")  # what the seconds of a step are taken to be proportional to


# What a step of edge_mask took and held with 64 features in 3 layers, quiet: two cores, an H100. The other strategies
# that train on whole graphs lie below it, but for those that loop.
_EDGE_SECONDS = {"cpu": 2e-6, "cuda": 1e-8}  # of an edge of a sample
_EDGE_BYTES, _NODE_BYTES, _KEPT_BYTES = 200, 5_000, 1_000  # of a sample's edge, of its node in a network, of an edge
_PROCESS_BYTES = 600_000_000


def rough(point: Point) -> tuple[float, float] | None:
    """Return roughly the seconds and the bytes that a setting of a synthetic graph needs at most, before any is run."""
    if point.scale is None:
        return None
    names = networks_of(point)
    edges = sum(NETWORK_SIZES[name].edges for name in names) * point.scale**2
    wide = (point.hidden or 64) / 64 * (point.layers or 3) / 3
    seconds = _FIXED_SECONDS + _batches(point) * point.batch_size * edges * wide * _EDGE_SECONDS[point.device]
    held = point.batch_size * (_EDGE_BYTES * edges + _NODE_BYTES * NUM_GENES * point.scale * len(names)) * wide
    return seconds, held + _KEPT_BYTES * edges + _PROCESS_BYTES


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
        of_all = [(one.point, one.fixed_seconds) for one in self._measured if one.fixed_seconds is not None]
        alike = [s for one, s in of_all if (one.model, one.strategy) == (point.model, point.strategy)]
        # whatever came first waited for its process to start
        fixed = min([median([seconds for _, seconds in of_all] or [_FIXED_SECONDS]), *alike])
        return fixed + _batches(point) * step

    def _edges(self, point: Point) -> float:
        """Return the edges of a point's graph: those of the same networks, or else by how many networks there are.

        A synthetic graph's grow with the square of its scale; a graph that was not measured is taken to be as large.
        """
        alike = [one for one in self._measured if one.point.graph == point.graph] or self._measured
        known = {(one.point.scale, one.point.model, one.point.networks): one.edges for one in alike}
        if (point.scale, point.model, point.networks) in known:
            return known[point.scale, point.model, point.networks]
        largest = max(alike, key=lambda one: one.edges)
        chosen = len(point.networks) if isinstance(point.networks, tuple) else point.networks or largest.networks
        size = ((point.scale or 1.0) / (largest.point.scale or 1.0)) ** 2 if largest.point.graph == point.graph else 1.0
        return largest.edges * chosen / largest.networks * size


def sweep(
    points: Iterable[Point] | Point, *, results: str | Path, retry: bool = False, budget_seconds: float | None = None,
    hang_seconds: float | None = None, progress: Callable[[Progress], None] | None = print_progress,
    stop: threading.Event | None = None, repeats: int = 1, slurm: str | Mapping[str, Any] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Run points one after the other here, or as jobs of a Slurm cluster, and return their rows in the points' order.

    Each point's rows are kept in the results folder as soon as it is through. Points that are there already,
    from this machine and these versions, are read, so a sweep that was killed goes on where it stopped.

    **Arguments:**

    - `points`: several, or one.
    - `results`: the folder that rows are kept in.
    - `retry`: run points again that ran out of memory or failed.
    - `hang_seconds`: as for `run`.
    - `budget_seconds`: run no point that would end later, by the time that others took; those left have a row
      `not run: …`, which is not kept. 0 is no limit.
    - `progress`: called after each point; a line to stderr unless given, `None` for silence.
    - `stop`: ends the point under way, and starts no other; on Slurm it cancels the jobs.
    - `repeats`: run each point so often, every time in a fresh process, all points once before any runs again; the rows
      of a point's runs differ in `measured_at`. How much runs differ is what `compare` needs. Runs that are kept count,
      so that a larger number adds to them. A point whose first run has no time is not repeated. Not on Slurm.
    - `slurm`: run an array of jobs, sent from here, one a point, with these options of sbatch by name (partition,
      gpus_per_node, cpus_per_task, mem, account, constraint, …; time in minutes, 60 where it is not given):
      {"partition": "gpu", "time": 90}, or as a text "partition:gpu,time:90". Jobs are found again by a later call with
      the same points and results, wherever the earlier one was closed. What is there already is judged by the options,
      too: rows of one partition do not stand in for another's.

    One process at a time sweeps into a folder; jobs of a cluster are the process's that waits for them.

    A file of rows that is damaged is named in a warning, and its point is run again. Where the disk is full, a
    warning says so: what was measured is returned, and no other point is run.

    **Raises:** `InputError` for a folder that cannot be written, or that another process sweeps into. On Slurm also for
    options that it refuses.
    """
    wanted = points_of(points)
    options = SweepOptions(retry, budget_seconds, hang_seconds, repeats, slurm, progress, stop or threading.Event())
    kept = Results(results)
    with kept.swept():
        tables = (_run_here if options.slurm is None else run_on_slurm)(wanted, kept, options)
    return frame(*tables)


class _Run(NamedTuple):
    """One run of a point of a sweep."""

    point: Point  # as it was given
    definite: Point  # resolved
    name: str  # of its file


def _run_here(points: Points, results: Results, options: SweepOptions) -> list[pa.Table]:
    """Return the rows of each run of a point: those that are kept, and those of the runs that are made now."""
    foresight, unwritten = Foresight(), ""  # why no other point is run
    end = monotonic() + (options.budget_seconds or inf)
    spent = f"not run: the budget of {options.budget_seconds or inf:g} s was spent"
    definite = list(map(resolve, points))  # a file that is missing is said before the first is run
    # every point once, then again: a machine that changes meanwhile is in what the runs of a point differ by
    runs = [_Run(point, exact, results.name(exact, repeat))
            for repeat in range(options.repeats) for point, exact in zip(points, definite, strict=True)]  # fmt: skip
    # the runs of one process would share its luck
    limits = {"fresh": options.repeats > 1, "stop": options.stop, "hang_seconds": options.hang_seconds}
    kept = {run.name: rows for run in runs if options.stands(rows := results.read(run.name))}
    for run in runs:
        if run.name in kept:
            foresight.learn(run.definite, kept[run.name])
    varying = tuple(varying_fields(points))
    new = [run for run in runs if run.name not in kept and not run.definite.skipped()]
    if new and not options.stop.is_set() and (busy := others_now()):
        options.say(busy)
    tables: list[pa.Table] = []
    lost, passed = set[int](), 0  # points whose first run has no time, as no other would have; other runs of these
    for i, run in enumerate(runs):
        if i >= len(points) and i % len(points) in lost:
            passed += 1
            continue
        is_kept, begin, reason = run.name in kept, monotonic(), ""
        if options.stop.is_set():
            reason = STOPPED
        elif not is_kept:
            late = not run.definite.skipped() and begin + (foresight.seconds(run.definite) or 0.0) > end
            reason = unwritten or spent * late
        if is_kept and not reason:
            rows = kept[run.name]
        else:
            rows = not_measured(run.point, reason) if reason else point_rows(run.definite, **limits)
        tables.append(rows)
        if i < len(points) and _status(rows) != "ok":
            lost.add(i)
        if _status(rows).startswith("not run"):
            continue
        if not is_kept:
            foresight.learn(run.definite, rows, monotonic() - begin)
            kept[run.name] = rows  # also for a point that is the same once it is resolved
            try:
                results.write(rows, run.name)
            except InputError as error:  # the disk is full: what was measured is returned, and the rest waits
                unwritten = f"not run: {error}"
                warnings.warn(f"{error}. The sweep returns what it measured, and runs no other point", stacklevel=3)
        rest = (later for j, later in enumerate(runs) if j > i and (j < len(points) or j % len(points) not in lost))
        waiting = [later.definite for later in rest if later.name not in kept and not later.definite.skipped()]
        left = _seconds_left([foresight.seconds(point) for point in waiting], end)
        total = len(runs) - (options.repeats - 1) * len(lost)
        options.report(Progress(i + 1 - passed, total, run.point, rows, is_kept, left, varying))
    return tables


def _status(rows: pa.Table) -> str:
    return str(rows["status"][0].as_py())


def _seconds_left(runs: list[float | None], end: float) -> float | None:
    """Return how long those of some runs will take that the budget has time for; `None` where nothing tells."""
    until = now = monotonic()
    for took in runs:
        if took is None:
            return None
        until += took if until + took <= end else 0.0
    return until - now
