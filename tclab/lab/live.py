"""A sweep that runs beside the notebook: one pattern for JupyterLab, papermill and nbval."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from time import monotonic
from typing import Any

import pandas as pd
import pyarrow as pa

from tclab.lab.front_end import has_front_end
from tclab.sweeps import Point, Progress, sweep
from tclab.sweeps.rows import SCHEMA, frame
from tclab.sweeps.running import abandon


def project_path(path: str) -> Path:
    """Return a path as a notebook means it: beside the folder `notebooks/`, wherever the kernel was started.

    JupyterLab starts a kernel in the notebook's folder, papermill where it was called. `TCLAB_RUNS`, where it
    is set, takes the place of a leading `runs`.
    """
    given = Path(path).expanduser()
    runs = os.environ.get("TCLAB_RUNS")
    if given.is_absolute():
        return given
    if runs and given.parts[:1] == ("runs",):
        return Path(runs, *given.parts[1:])
    here = Path.cwd()
    return (here.parent if here.name == "notebooks" else here) / given


class LiveSweep:
    """A sweep in a thread of its own: `rows = await LiveSweep(points, results=…).start()`.

    Its panel shows a bar and a button that stops it where there is a front end; elsewhere it prints a line a
    point. Widgets are only told values: an `Output` widget can hang papermill.

    **Arguments:** as for `tclab.sweep`; `budget_seconds` is looked at where `executor` is "local", since on a
    cluster `time` limits each job.
    """

    def __init__(
        self,
        points: Iterable[Point],
        *,
        results: str | Path,
        retry: bool = False,
        budget_seconds: float | None = None,
        executor: str = "local",
        **cluster: Any,
    ) -> None:
        self.points = list(dict.fromkeys(points))
        self.results = Path(results)
        self.budget_seconds = None if executor == "slurm" else budget_seconds
        self._elsewhere = {"executor": executor, **cluster}
        self.done = 0  # points that are through, or were there
        self.last: Progress | None = None
        self.error: BaseException | None = None
        self._retry = retry
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._rows: pd.DataFrame | None = None
        self._seen: list[pa.Table] = [SCHEMA.empty_table()]
        self._measured: list[float] = []  # seconds that each point took that was not there already
        self._began = self._turned = 0.0
        self._ended: float | None = None
        self._listeners: list[Callable[[LiveSweep], None]] = []

    def listen(self, listener: Callable[[LiveSweep], None]) -> LiveSweep:
        """Call something after each point and at the end, in the sweep's thread; it must not raise.

        Nothing is printed where somebody listens.
        """
        self._listeners.append(listener)
        return self

    def panel(self, live: bool | None = None) -> Any:
        """Return the bar, what is under way and the button that stops it; `None` without a front end.

        **Arguments:**

        - `live`: whether there is a front end; found out unless given.
        """
        if not (has_front_end() if live is None else live):
            return None
        import ipywidgets

        bar = ipywidgets.IntProgress(max=len(self.points), description="sweep")
        label = ipywidgets.Label(f"{len(self.points)} points")
        button = ipywidgets.Button(description="Stop")
        button.on_click(lambda _: self.stop())

        def show(sweep: LiveSweep) -> None:
            bar.value = sweep.done
            button.disabled = not sweep.running
            if sweep.last is not None:
                label.value = str(sweep.last)

        self.listen(show)
        return ipywidgets.VBox([ipywidgets.HBox([bar, button]), label])

    def start(self) -> LiveSweep:
        """Begin, and return at once."""
        self._began = self._turned = monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        _under_way[self.results.absolute()] = self
        self._thread.start()
        return self

    @property
    def running(self) -> bool:
        """Whether it has begun and is not over."""
        return self._thread is not None and self._rows is None and self.error is None

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End the point under way and start no other, cancel jobs; what has been measured is kept.

        Another sweep's point goes on.
        """
        self._stop.set()
        if self.running and self._elsewhere["executor"] == "local":
            self._abandon_own()
            threading.Thread(target=self._abandon_what_is_left, daemon=True).start()

    def _abandon_own(self) -> None:
        if self._thread is not None and self._thread.ident is not None:  # None: it has no point yet
            abandon(self._thread.ident)

    def _abandon_what_is_left(self) -> None:
        """Go on until the thread is through: a point may have been on its way to its child at the stop."""
        assert self._thread is not None
        while self._thread.is_alive():
            self._abandon_own()
            self._thread.join(0.05)

    @property
    def seconds(self) -> float:
        """How long it has been running, or ran."""
        return (monotonic() if self._ended is None else self._ended) - self._began

    def seconds_left(self) -> float | None:
        """Return about how long it will still take, by the points so far; `None` before the first is measured."""
        if not self._measured or not self.running:
            return None
        left = (len(self.points) - self.done) * sum(self._measured) / len(self._measured)
        left = max(0.0, left - (monotonic() - self._turned))
        if self.budget_seconds is None:
            return left
        return min(left, max(0.0, self._began + self.budget_seconds - monotonic()))

    def rows(self) -> pd.DataFrame:
        """Return the rows there are so far."""
        return frame(pa.concat_tables(self._seen[: self.done + 1]))

    def join(self) -> pd.DataFrame:
        """Wait until it is through and return its rows.

        **Raises:** what the sweep raised.
        """
        assert self._thread is not None, "start() comes first"
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
            self._rows = sweep(
                self.points,
                results=self.results,
                retry=self._retry,
                budget_seconds=self.budget_seconds,
                progress=self._tell,
                stop=self._stop,
                **self._elsewhere,
            )
        except BaseException as error:
            self.error = error
        else:
            if not self._listeners:
                _print_what_was_not_run(self._rows)
        finally:
            self._ended = monotonic()
            if _under_way.get(self.results.absolute()) is self:
                del _under_way[self.results.absolute()]
            self._told()

    def _tell(self, progress: Progress) -> None:
        now = monotonic()
        if not progress.kept:
            self._measured.append(now - self._turned)
        self._turned = now
        self._seen.append(progress.rows)
        self.last = progress
        self.done += 1
        if not self._listeners:
            print(progress, flush=True)
        self._told()

    def _told(self) -> None:
        for listener in self._listeners:
            listener(self)


def _print_what_was_not_run(rows: pd.DataFrame) -> None:
    """Say what the lines of the points do not: of those that were not run there is none."""
    left = rows[rows["status"].str.startswith("not run")]["status"].value_counts()
    for status, number in left.items():
        print(f"{number} point{'' if number == 1 else 's'} {status}", flush=True)


_under_way: dict[Path, LiveSweep] = {}


def under_way(results: str | Path) -> LiveSweep | None:
    """Return the sweep that this process runs into a results folder now, if any."""
    return _under_way.get(Path(results).absolute())
