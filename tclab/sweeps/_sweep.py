"""Running many points: kept, resumable, within a budget."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from tclab.errors import InputError, unknown
from tclab.sweeps.config._fields import NumberFrom1, checked
from tclab.sweeps.config._point import Point, points_of
from tclab.sweeps.execution._local_sweep import run_here
from tclab.sweeps.execution._progress import Progress, SweepOptions, print_progress
from tclab.sweeps.predict._fits import fits
from tclab.sweeps.slurm._slurm_executor import SlurmExecutor
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._rows import SCHEMA, frame


def sweep(
    points: Iterable[Point] | Point,
    *,
    results: str | Path,
    retry: bool = False,
    fresh: bool = False,
    budget_seconds: float | None = None,
    memory_bytes: int | None = None,
    hang_seconds: float | None = None,
    progress: Callable[[Progress], None] | None = print_progress,
    stop: threading.Event | None = None,
    refuse: bool = False,
    repeats: int = 1,
    executor: str = "local",
    **cluster: Any,
) -> pd.DataFrame:
    """Run points one after the other here, or as jobs of a cluster, and return their rows in the points' order.

    Each point's rows are kept in the results folder as soon as it is through. Points that are there already,
    from this machine and these versions, are read, so a sweep that was killed goes on where it stopped.

    **Arguments:**

    - `points`: several, or one. `results`: the folder.
    - `retry`: run points again that ran out of memory or failed.
    - `fresh`, `memory_bytes`, `hang_seconds`: as for `run`.
    - `budget_seconds`: start no point after so long; those left have a row `not run: …`, which is not kept. Of
      several ranks it begins with the second point: the first one starts them. The first points of `tclab.grid`, which
      show each model at two batch sizes and two numbers of networks, may be started until twice as long.
    - `progress`: called after each point; a line to stderr unless given, `None` for silence.
    - `stop`: looked at before each point; on Slurm it cancels the jobs.
    - `refuse`: do not run a point that `fits` says cannot run here; it has a row `not run: …` with both numbers,
      which is not kept, as another machine, or this one at another time, may have more. Not on Slurm.
    - `repeats`: run each point so often, every time in a fresh process, all points once before any runs again; the rows
      of a point's runs differ in `measured_at`. How much runs differ is what `compare` needs. Runs that are kept count,
      so that a larger number adds to them. A point whose first run has no time is not repeated. Not on Slurm.
    - `executor`: "local", or "slurm": an array of jobs, sent from here, one a point. They are found
      again by a later call with the same points and results, wherever the earlier one was closed.
    - `cluster`: for Slurm, sbatch's options by name (`partition`, `gpus_per_node`, `cpus_per_task`, `mem`,
      `account`, `constraint`, …; `time` in minutes or as "1:30:00", 60 minutes where it is not given), and
      `poll_seconds` (5) between two questions to squeue. `None` leaves one to the cluster. What is there already is
      judged by these, too: rows of one partition do not stand in for another's.

    One process at a time sweeps into a folder; jobs of a cluster are one process's.

    A file of rows that is damaged is named in a warning, and its point is run again. Where the disk is full, a
    warning says so: what was measured is returned, and no other point is run.

    **Raises:** `InputError` for a folder that cannot be written, or that another process sweeps into. On Slurm also for
    options that it refuses.
    """
    wanted = points_of(points)
    checked("repeats", repeats, NumberFrom1)
    if executor not in ("local", "slurm"):
        raise unknown("executor", executor, ("local", "slurm"))
    kept = Results(results)
    options = SweepOptions(kept.folder, retry, fresh, memory_bytes, hang_seconds, progress, stop, repeats)
    if executor == "local":
        if given := [name for name, value in cluster.items() if value not in (None, "", 0)]:
            raise InputError(f"{', '.join(given)}: no option of a local sweep; executor='slurm' takes those of sbatch")
        more = {"refusal": partial(_refusal, memory_bytes)} if refuse else {}
        with kept.make().swept():
            tables = run_here(wanted, options, budget_seconds=budget_seconds, **more)
    else:
        if budget_seconds is not None:
            raise InputError("budget_seconds is for executor='local'; on Slurm `time` is each job's limit")
        if repeats > 1:
            raise InputError("repeats is for executor='local'; on Slurm sweep into a folder for each repeat")
        if refuse:
            raise InputError("refuse is for executor='local': this machine cannot say what fits on those of a cluster")
        tables = SlurmExecutor(**cluster).run(wanted, options)
    return frame(pa.concat_tables([SCHEMA.empty_table(), *tables]))


def _refusal(memory_bytes: int | None, point: Point) -> str | None:
    """Return why a point cannot run here for want of memory; `None` where it can, or where that cannot be estimated."""
    try:
        return fits(point, memory_bytes=memory_bytes).refusal
    except InputError:
        return None
