"""A sweep in a background thread of a notebook's kernel: one pattern for JupyterLab, papermill and nbval."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from time import monotonic
from typing import Any

import pandas as pd
import pyarrow as pa

from tclab._display import counted, duration_text
from tclab.lab._notebook import has_front_end
from tclab.sweeps._sweep import sweep
from tclab.sweeps.config._point import Point, points_of
from tclab.sweeps.execution._progress import Progress, failed_or_oom
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._rows import SCHEMA, frame


def sweep_seconds_text(
    points: Iterable[Point], results: str | Path, *, retry: bool = False, budget_seconds: float | None = None
) -> str:
    """Return in a sentence how long the points will take that a results folder lacks, by the mean of those it has.

    **Arguments:** as for `tclab.sweep`.
    """
    folder = Results(results)

    def is_kept(point: Point) -> bool:
        if not retry:
            return folder.path(point).exists()
        return (rows := folder.read(point)) is not None and not failed_or_oom(rows)

    left = [point for point in points if point.skipped() is None and not is_kept(point)]
    if not left:
        return "nothing is left to measure: all points are kept, or cannot run"
    each = folder.seconds_a_point()
    if each is None:
        return "no estimate: nothing was measured into this folder yet"
    words = f"about {duration_text(each * len(left))} for {counted(len(left), 'point')}, by the mean of those kept here"
    if budget_seconds and budget_seconds < each * len(left):
        words += f"; the budget of {budget_seconds:g} s ends it before"
    return words


class LiveSweep:
    """A sweep in a background thread: `rows = await LiveSweep(points, results=…).start()`.

    Its panel shows a bar and a button that stops it where there is an interactive front end; elsewhere it prints a
    line a point. No `Output` widget is used, which can hang papermill.

    **Arguments:** as for `tclab.sweep`; `budget_seconds` counts where `executor` is "local", since on a cluster
    `time` limits each job.
    """

    def __init__(
        self,
        points: Iterable[Point] | Point,
        *,
        results: str | Path,
        retry: bool = False,
        budget_seconds: float | None = None,
        executor: str = "local",
        **cluster: Any,
    ) -> None:
        self.points = points_of(points)
        self.results = Path(results)
        self.budget_seconds = None if executor == "slurm" else budget_seconds
        self._executor = {"executor": executor, **cluster}
        self.done = 0  # points that have rows, of this run or an earlier one
        self.last: Progress | None = None
        self.error: BaseException | None = None
        self._retry = retry
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._rows: pd.DataFrame | None = None
        self._tables: list[pa.Table] = [SCHEMA.empty_table()]
        self._end_estimate: float | None = None  # when the points may be through, by the same clock
        self._start_time = 0.0
        self._end_time: float | None = None
        self._listeners: list[Callable[[LiveSweep], None]] = []

    def listen(self, listener: Callable[[LiveSweep], None]) -> LiveSweep:
        """Call a listener after each point and at the end, in the sweep's thread; it must not raise.

        With a listener nothing is printed.
        """
        self._listeners.append(listener)
        return self

    def panel(self, live: bool | None = None) -> Any:
        """Return a bar, the last point's line and a button that stops the sweep; `None` without a front end.

        **Arguments:**

        - `live`: whether there is an interactive front end; detected unless given.
        """
        if not (has_front_end() if live is None else live):
            return None
        import ipywidgets

        bar = ipywidgets.IntProgress(max=len(self.points), description="sweep")
        label = ipywidgets.Label(f"{len(self.points)} points · {self._seconds_text()}")
        button = ipywidgets.Button(description="Stop")
        button.on_click(lambda _: self.stop())

        def show(sweep: LiveSweep) -> None:
            bar.value = sweep.done
            button.disabled = not sweep.running
            label.value = " · ".join([sweep._time_text(), *([] if sweep.last is None else [str(sweep.last)])])

        self.listen(show)
        return ipywidgets.VBox([ipywidgets.HBox([bar, button]), label])

    def start(self) -> LiveSweep:
        """Start the thread, and return at once."""
        self._start_time = monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        _running_sweeps[self.results.absolute()] = self
        self._thread.start()
        return self

    @property
    def running(self) -> bool:
        """Whether the sweep has been started and is not over."""
        return self._thread is not None and self._rows is None and self.error is None

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End the point under way, start no other and cancel jobs; what has been measured is kept.

        Points of other sweeps go on.
        """
        self._stop.set()

    @property
    def seconds(self) -> float:
        """How long the sweep has been running, or ran."""
        return (monotonic() if self._end_time is None else self._end_time) - self._start_time

    def seconds_left(self) -> float | None:
        """Estimate the seconds left from the points so far; `None` where nothing tells yet."""
        if self._end_estimate is None or not self.running:
            return None
        return max(0.0, self._end_estimate - monotonic())

    def _seconds_text(self) -> str:
        """Return how long the sweep will take, as far as that is known before it begins."""
        if self._executor["executor"] == "slurm":
            return "no estimate: a cluster measures"
        return sweep_seconds_text(self.points, self.results, retry=self._retry, budget_seconds=self.budget_seconds)

    def _time_text(self) -> str:
        """Return the time that is left, or what to do about the points that are."""
        if self.running:
            left = self.seconds_left()
            return "begun" if left is None else f"about {duration_text(left)} left"
        points = len(self.points) - self.done
        if self.error is not None or not points:
            return f"{'it ended with an error' if points else 'through'} after {duration_text(self.seconds)}"
        if self.stopped:
            return f"stopped, {points} points left: run the cell again"
        return f"the budget is spent, {points} points left: run the cell again, or raise budget_seconds"

    def rows(self) -> pd.DataFrame:
        """Return the rows there are so far."""
        return frame(pa.concat_tables(self._tables[: self.done + 1]))

    def join(self) -> pd.DataFrame:
        """Wait for the end of the sweep and return its rows.

        **Raises:** what the sweep raised.
        """
        assert self._thread is not None, "call start() first"
        self._thread.join()
        if self.error is not None:
            raise self.error
        assert self._rows is not None  # set by a run that raised nothing
        return self._rows

    def __await__(self) -> Generator[Any, None, pd.DataFrame]:
        try:
            return (yield from asyncio.to_thread(self.join).__await__())
        except asyncio.CancelledError:  # the kernel was interrupted: the thread would go on without its cell
            self.stop()
            raise

    def _run(self) -> None:
        try:
            if not self._listeners and self._executor["executor"] == "local":
                print(f"{len(self.points)} points · {self._seconds_text()}", flush=True)
            self._rows = sweep(
                self.points,
                results=self.results,
                retry=self._retry,
                budget_seconds=self.budget_seconds,
                progress=self._on_progress,
                stop=self._stop,
                **self._executor,
            )
        except BaseException as error:
            self.error = error
        else:
            if not self._listeners:  # only points that were run have a line
                left = self._rows[self._rows["status"].str.startswith("not run")]["status"].value_counts()
                for status, number in left.items():
                    print(f"{counted(int(number), 'point')} {status}", flush=True)
        finally:
            self._end_time = monotonic()
            if _running_sweeps.get(self.results.absolute()) is self:
                del _running_sweeps[self.results.absolute()]
            self._notify()

    def _on_progress(self, progress: Progress) -> None:
        if progress.seconds_left is not None:
            self._end_estimate = monotonic() + progress.seconds_left
        self._tables.append(progress.rows)
        self.last = progress
        self.done += 1
        if not self._listeners:
            print(progress, flush=True)
        self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener(self)


_running_sweeps: dict[Path, LiveSweep] = {}


def running_sweep(results: str | Path) -> LiveSweep | None:
    """Return the sweep that this process is running into a results folder; `None` without one."""
    sweep = _running_sweeps.get(Path(results).absolute())
    return sweep if sweep is not None and sweep.running else None  # it ends before it leaves the table
