"""Running many points: kept, resumable, within a budget."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from math import inf
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any

import pandas as pd
import pyarrow as pa

from tclab.errors import InputError
from tclab.sweeps.config._fields import AtLeast1, checked
from tclab.sweeps.config._point import Point, Points, points_of
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._progress import Progress, SweepOptions, print_progress
from tclab.sweeps.execution._run import STOPPED, others_now, point_rows
from tclab.sweeps.slurm._slurm_executor import run_on_slurm
from tclab.sweeps.store._row_files import Results
from tclab.sweeps.store._rows import frame, not_measured


def sweep(
    points: Iterable[Point] | Point,
    *,
    results: str | Path,
    retry: bool = False,
    budget_seconds: float | None = None,
    hang_seconds: float | None = None,
    progress: Callable[[Progress], None] | None = print_progress,
    stop: threading.Event | None = None,
    repeats: int = 1,
    slurm: str | Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Run points one after the other here, or as jobs of a Slurm cluster, and return their rows in the points' order.

    Each point's rows are kept in the results folder as soon as it is through. Points that are there already,
    from this machine and these versions, are read, so a sweep that was killed goes on where it stopped.

    **Arguments:**

    - `points`: several, or one. `results`: the folder.
    - `retry`: run points again that ran out of memory or failed.
    - `hang_seconds`: as for `run`.
    - `budget_seconds`: start no point after so long; those left have a row `not run: …`, which is not kept.
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
    checked("repeats", repeats, AtLeast1)
    if slurm is not None and (budget_seconds or repeats > 1):
        raise InputError("budget_seconds and repeats are not for a sweep on Slurm; its time limits each job")
    if budget_seconds is not None and not budget_seconds > 0:
        raise InputError(f"budget_seconds is {budget_seconds!r}, expected a number above 0, or None for no limit")
    kept = Results(results)
    options = SweepOptions(retry, hang_seconds, progress, stop or threading.Event(), repeats)
    with kept.swept():
        if slurm is None:
            tables = _run_here(wanted, kept, options, budget_seconds)
        else:
            tables = run_on_slurm(wanted, kept, options, slurm)
    return frame(*tables)


def _run_here(points: Points, results: Results, options: SweepOptions, budget: float | None) -> list[pa.Table]:
    """Return the rows of each run of a point: those that are kept, and those of the runs that are made now.

    - `budget`: seconds in which points may be started; `None` for no limit.
    """
    total, end = len(points) * options.repeats, inf if budget is None else monotonic() + budget
    why: str | None = None  # no other point is run
    took: list[float] = []  # seconds of points that were run
    tables: list[pa.Table] = []
    # every point once, then again: a machine that changes meanwhile is in what the runs of a point differ by
    for i, (repeat, point) in enumerate(product(range(options.repeats), points)):
        if repeat and _status(tables[i % len(points)]) != "ok":
            continue  # its first run has no time, and no other would have one
        if options.stop.is_set():
            tables.append(not_measured(point, STOPPED))
            continue
        definite = resolve(point)
        name = results.name(definite, repeat)
        rows = results.read(name)
        kept = options.stands(rows)
        if rows is None or not kept:
            if why is None and monotonic() > end:
                why = f"the budget of {budget:g} s was spent"
            rows = not_measured(point, f"not run: {why}") if why else _run(definite, options, took)
        tables.append(rows)
        if _status(rows).startswith("not run"):
            continue
        if not kept:
            try:
                results.write(rows, name)
            except InputError as error:  # the disk is full: what was measured is returned, and the rest waits
                why = str(error)
                warnings.warn(f"{why}. The sweep returns what it measured, and runs no other point", stacklevel=3)
        # the first that was run waited for its process to start, unlike the others
        left = min((total - i - 1) * fmean(took[1:]), max(0.0, end - monotonic())) if took[1:] else None
        options.report(Progress(i + 1, total, point, rows, kept, left))
    return tables


def _status(rows: pa.Table) -> str:
    return str(rows["status"][0].as_py())


def _run(point: Point, options: SweepOptions, took: list[float]) -> pa.Table:
    """Run a resolved point and return its rows; note the seconds that it took, unless it cannot be run."""
    if point.skipped():
        return point_rows(point)  # which says why
    if not took and (busy := others_now()):
        options.say(busy)
    begin = monotonic()
    # the runs of one process would share its luck
    rows = point_rows(point, fresh=options.repeats > 1, stop=options.stop, hang_seconds=options.hang_seconds)
    took.append(monotonic() - begin)
    return rows
