"""Running many points: kept, resumable, within a budget."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import pandas as pd
import pyarrow as pa

from tclab.errors import InputError, unknown
from tclab.sweeps.fitting import fits
from tclab.sweeps.launched import HANG_SECONDS
from tclab.sweeps.point import Point
from tclab.sweeps.results import Results
from tclab.sweeps.rows import SCHEMA, frame, not_measured
from tclab.sweeps.running import rows_of

EXECUTORS = ("local", "slurm")


@dataclass(frozen=True)
class Progress:
    """How far a sweep is.

    **Arguments:**

    - `done`, `total`: points.
    - `point`: the one that has just been run or read.
    - `rows`: its rows.
    - `kept`: they were there already.
    """

    done: int
    total: int
    point: Point
    rows: pa.Table
    kept: bool

    def __str__(self) -> str:
        networks = self.rows["networks"][0].as_py()
        what = f"{self.point.model} {self.point.strategy} batch {self.point.batch_size} networks {networks}"
        columns = self.rows.slice(0, 1).to_pylist()[0]
        if self.point.ranks > 1:
            what += f", {columns['device']} · {columns['backend']} · {self.point.ranks} ranks"
        steps = [row for row in self.rows.to_pylist() if row["stage"] == "step"]
        median = steps[0]["median_seconds"] if steps else None
        how = f"{median:.3g} s a step" if median is not None else steps[0]["status"]
        return f"[{self.done}/{self.total}] {what}: {how}{' (kept)' if self.kept else ''}"


def say(progress: Progress) -> None:
    """Print a line to where errors go, as a sweep that is run from a script does."""
    print(progress, file=sys.stderr, flush=True)


def failed_or_oom(rows: pa.Table) -> bool:
    """Return whether a point's rows say that it ran out of memory or failed."""
    return any(status == "oom" or status.startswith("failed") for status in rows["status"].to_pylist())


def sweep(
    points: Iterable[Point] | Point,
    *,
    results: str | Path,
    retry: bool = False,
    fresh: bool = False,
    budget_seconds: float | None = None,
    memory_bytes: int | None = None,
    hang_seconds: float = HANG_SECONDS,
    progress: Callable[[Progress], None] | None = say,
    stop: threading.Event | None = None,
    refuse: bool = False,
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
      several ranks it begins with the second point: the first one starts them.
    - `progress`: called after each point; a line to stderr unless given, `None` for silence.
    - `stop`: looked at before each point; on Slurm it cancels the jobs.
    - `refuse`: do not run a point that `fits` says cannot run here; it has a row `not run: …` with both numbers,
      which is not kept, as another machine, or this one at another time, may have more. Not on Slurm.
    - `executor`: "local", or "slurm": a job array, sent from here, whose jobs run this function. They are found
      again by a later call with the same points and results, wherever the earlier one was closed.
    - `cluster`: for Slurm, sbatch's options by name (`partition`, `gpus_per_node`, `cpus_per_task`, `mem`,
      `account`, `constraint`, …; `time` in minutes or as "1:30:00", 60 minutes where it is not given), and
      `points_per_job` (1). `None` leaves one to the cluster. What is there already is judged by these, too: rows
      of one partition do not stand in for another's.

    **Raises:** `InputError` for a folder that cannot be written; what has been measured stays. On Slurm also for
    options that it refuses.
    """
    if executor not in EXECUTORS:
        raise unknown("executor", executor, EXECUTORS)
    points = [points] if isinstance(points, Point) else points
    if executor == "slurm":
        from tclab.sweeps.slurm import sweep_on_slurm

        if budget_seconds is not None:
            raise InputError("budget_seconds is for executor='local'; on Slurm `time` is each job's limit")
        if refuse:
            raise InputError(
                "refuse is for executor='local': this machine cannot say what fits on those of a cluster"
            )
        return sweep_on_slurm(
            points, results=results, retry=retry, fresh=fresh, memory_bytes=memory_bytes,
            hang_seconds=hang_seconds, progress=progress, stop=stop, **cluster,
        )  # fmt: skip
    if given := [name for name, value in cluster.items() if value not in (None, "", 0)]:
        raise InputError(f"{', '.join(given)}: no option of a local sweep; executor='slurm' takes those of sbatch")
    wanted = list(dict.fromkeys(points))
    if budget_seconds is not None and not budget_seconds > 0:
        raise InputError(f"budget_seconds is {budget_seconds!r}, expected a number above 0, or None for no limit")
    folder = Results(results)
    begin, any_run = monotonic(), False
    found: list[pa.Table] = [SCHEMA.empty_table()]
    for done, point in enumerate(wanted, start=1):
        if stop is not None and stop.is_set():
            found.append(not_measured(point, "not run: stopped"))
            continue
        rows = folder.read(point)
        kept = rows is not None and not (retry and failed_or_oom(rows))
        if not kept:
            if budget_seconds is not None and monotonic() - begin > budget_seconds:
                found.append(not_measured(point, f"not run: the budget of {budget_seconds:g} s was spent"))
                continue
            refusal = fits(point, memory_bytes=memory_bytes).refusal if refuse and not point.skipped() else None
            if refusal is not None:
                found.append(not_measured(point, f"not run: {refusal}"))
                if progress is not None:
                    progress(Progress(done, len(wanted), point, found[-1], kept=False))
                continue
            first = not any_run and point.ranks > 1
            any_run = True
            rows = rows_of(point, fresh=fresh, memory_bytes=memory_bytes, hang_seconds=hang_seconds)
            if stop is not None and stop.is_set() and failed_or_oom(rows):
                found.append(not_measured(point, "not run: stopped"))  # its child was killed by the stop
                continue
            if first:  # it had to start all its ranks, which is not what the budget is for
                begin = monotonic()
            if not rows["status"][0].as_py().startswith("not run"):
                folder.write(point, rows)
        assert rows is not None
        found.append(rows)
        if progress is not None:
            progress(Progress(done, len(wanted), point, rows, kept))
    return frame(pa.concat_tables(found))
