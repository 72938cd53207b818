"""A sweep in a background thread of a notebook's kernel: one pattern for JupyterLab, papermill and nbval."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Generator, Iterable
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pandas as pd
import pyarrow as pa

from tclab._display import counted
from tclab.errors import unknown
from tclab.sweeps._point import Point, points_of
from tclab.sweeps._point_inputs import resolve
from tclab.sweeps._progress import OPTIONS, Progress, SweepOptions
from tclab.sweeps._row_files import Results
from tclab.sweeps._rows import frame
from tclab.sweeps._sweep import Foresight, sweep

STOPPING = "stopping: the point under way takes a moment to end"


def outlook(points: Iterable[Point], results: Path) -> str:
    """Return in words how many of some points a results folder has, how long the others take, and how many cannot run.

    How long is foretold by the rows that there are.
    """
    folder, every, foresight = Results(results), list(points), Foresight()
    reasons = [reason for point in every if (reason := point.skipped())]
    able = [(resolve(point), folder.read_point(point)) for point in every if point.skipped() is None]
    for point, rows in able:
        if rows is not None:
            foresight.learn(point, rows)
    left = [point for point, rows in able if rows is None]
    words = [f"{len(able) - len(left)} of {counted(len(every), 'point')} measured"]
    took = [seconds for point in left if (seconds := foresight.seconds(point)) is not None]
    if took:
        words.append(f"the others take about {timedelta(seconds=round(sum(took)))}")
    if reasons:
        words.append(f"{len(reasons)} cannot run ({reasons[0].removeprefix('skipped: ')})")
    return " · ".join(words)


class LiveSweep:
    """A sweep in a background thread: `rows = await LiveSweep(points, results=…).start()`.

    It prints a line a point. Interrupting the cell stops it, and keeps what was measured.

    **Arguments:** as for `tclab.sweep`; `budget_seconds` does not count on Slurm, where `time` limits each job.

    **Raises:** `InputError` for an option that is unknown, or a value that it cannot have.
    """

    def __init__(self, points: Iterable[Point] | Point, *, results: str | Path, **options: Any) -> None:
        self.points = points_of(points)
        self.results = Path(results)
        self.last: Progress | None = None
        self.error: BaseException | None = None
        self.tables: list[pa.Table] = []  # the rows of each point so far, of this run or an earlier one
        for name in options:
            if name not in OPTIONS:
                raise unknown("option of a sweep", name, OPTIONS)
        self._options = options
        self._local = options.get("slurm") in (None, "none")
        if not self._local:
            options["budget_seconds"] = None
        SweepOptions(**options)  # a wrong value is said here, not in the thread
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._rows: pd.DataFrame | None = None
        self._begin: float | None = None
        self._end: float | None = None
        self._listener: Callable[[], None] | None = None

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a listener after each point and at the end, in the sweep's thread, in place of printing a line."""
        self._listener = listener

    def start(self) -> LiveSweep:
        """Start the thread, and return at once."""
        self._begin = monotonic()
        atexit.register(self._close)
        self._thread.start()
        return self

    def _close(self) -> None:
        """Stop before Python ends, which hangs where a thread is within pyarrow then."""
        self.stop()
        self._thread.join(10.0)

    @property
    def running(self) -> bool:
        """Whether the sweep has been started and is not over."""
        return self._begin is not None and self._end is None

    def stop(self) -> None:
        """End the point under way, start no other and cancel jobs; what has been measured is kept.

        Points of other sweeps go on.
        """
        self._stop.set()

    def status(self) -> str:
        """Return how far the sweep is, the time that is left or that it took, and what to do about points left."""
        if self._begin is None:
            return outlook(self.points, self.results) if self._local else counted(len(self.points), "point")
        runs = len(self.points) * int(self._options.get("repeats", 1))
        done = f"{len(self.tables)} of {counted(runs, 'point' if runs == len(self.points) else 'run')}"
        if self._end is None:
            left = None if self.last is None else self.last.seconds_left
            return f"{done} · running" if left is None else f"{done} · about {timedelta(seconds=round(left))} left"
        took = timedelta(seconds=round(self._end - self._begin))
        if self.error is not None:
            return f"{done} in {took}, then an error"
        if len(self.tables) == runs:  # also where a stop came after the last point
            return f"{done} in {took}"
        why = "Stopped" if self._stop.is_set() else "The budget is spent"
        return f"{why}: {done} in {took}; run again to go on"

    def rows(self) -> pd.DataFrame:
        """Return the rows of the points so far."""
        return frame(*self.tables)

    def join(self) -> pd.DataFrame:
        """Wait for the end of the sweep and return its rows, those of points that were not run among them.

        **Raises:** what the sweep raised.
        """
        assert self._begin is not None, "call start() first"
        self._thread.join()
        if self.error is not None:
            raise self.error
        assert self._rows is not None  # set by a run that raised nothing
        return self._rows

    def __await__(self) -> Generator[Any, None, pd.DataFrame]:
        try:
            while self._thread.is_alive():  # an executor's thread would keep Python from ending
                yield from asyncio.sleep(0.05).__await__()
            return self.join()
        except asyncio.CancelledError:  # the kernel was interrupted: the thread would go on without its cell
            self.stop()
            raise

    def _run(self) -> None:
        try:
            if self._listener is None and self._local:
                print(outlook(self.points, self.results), flush=True)
            self._rows = sweep(
                self.points, results=self.results, progress=self._on_progress, stop=self._stop, **self._options
            )
            if self._listener is None:  # only points that were run have a line
                left = self._rows[self._rows["status"].str.startswith("not run")]["status"].value_counts()
                for status, number in left.items():
                    print(f"{counted(int(number), 'point')} {status}", flush=True)
        except BaseException as error:
            self.error = error
        finally:
            atexit.unregister(self._close)
            self._end = monotonic()
            if self._listener is not None:
                self._listener()

    def _on_progress(self, progress: Progress) -> None:
        self.tables.append(progress.rows)
        self.last = progress
        if self._listener is None:
            print(progress, flush=True)
        else:
            self._listener()
