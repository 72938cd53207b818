"""A sweep that runs beside the notebook: one pattern for JupyterLab, papermill and nbval."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from tclab.sweeps import Point, Progress, sweep
from tclab.sweeps.rows import SCHEMA, frame
from tclab.sweeps.running import abandon


def has_front_end() -> bool:
    """Return whether somebody looks on: Jupyter Server sets this name, papermill and nbval do not."""
    return "JPY_SESSION_NAME" in os.environ


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
        self.points = list(points)
        self._options: dict[str, Any] = {
            "results": results,
            "retry": retry,
            "budget_seconds": None if executor == "slurm" else budget_seconds,
            "executor": executor,
            **cluster,
        }
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._rows: pd.DataFrame | None = None
        self._error: BaseException | None = None
        self._seen: list[pa.Table] = []
        self._bar: Any = None
        self._label: Any = None

    def panel(self) -> Any:
        """Return the bar, what is under way and the button that stops it; `None` without a front end."""
        if not has_front_end():
            return None
        import ipywidgets

        self._bar = ipywidgets.IntProgress(max=len(self.points), description="sweep")
        self._label = ipywidgets.Label(f"{len(self.points)} points")
        button = ipywidgets.Button(description="Stop")
        button.on_click(lambda _: self.stop())
        return ipywidgets.VBox([ipywidgets.HBox([self._bar, button]), self._label])

    def start(self) -> LiveSweep:
        """Begin, and return at once."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the point under way and start no other, cancel jobs; what has been measured is kept."""
        self._stop.set()
        abandon()

    def rows(self) -> pd.DataFrame:
        """Return the rows there are so far."""
        return frame(pa.concat_tables([SCHEMA.empty_table(), *self._seen]))

    def join(self) -> pd.DataFrame:
        """Wait until it is through and return its rows.

        **Raises:** what the sweep raised.
        """
        assert self._thread is not None, "start() comes first"
        self._thread.join()
        if self._error is not None:
            raise self._error
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
            self._rows = sweep(self.points, **self._options, progress=self._tell, stop=self._stop)
        except BaseException as error:
            self._error = error

    def _tell(self, progress: Progress) -> None:
        self._seen.append(progress.rows)
        if self._bar is not None:
            self._bar.value, self._label.value = progress.done, str(progress)
        else:
            print(progress, flush=True)
