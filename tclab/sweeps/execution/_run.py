"""Running one point on this machine, and the request for its rows that goes to a worker."""

from __future__ import annotations

import threading
from typing import Any

import pandas as pd
import pyarrow as pa

from tclab.errors import require
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._worker_pool import ask
from tclab.sweeps.store._code_fingerprint import imports_of
from tclab.sweeps.store._rows import frame, not_measured, table

_MEASURE = "tclab.sweeps.execution._measure:measure"


def run(
    point: Point, *, fresh: bool = False, memory_bytes: int | None = None, hang_seconds: float | None = None
) -> pd.DataFrame:
    """Run one point in a worker process, or its ranks in one each, and return its rows, one for each stage.

    The equivalence check comes first: a strategy that does not compute what `subgraph` computes has one row,
    `wrong`, and no time. A point that cannot be run, runs out of memory or crashes has one row that says so in
    `status`.

    **Arguments:**

    - `point`: what is run; a device "auto" is resolved here.
    - `fresh`: in a process of its own, so that nothing is carried over from earlier points; otherwise the worker is
      kept warm for the next point.
    - `memory_bytes`: refuse to let the worker's memory, or that of each rank, grow past this (Linux).
    - `hang_seconds`: how long the whole point may take, the start of its worker included; it is then ended, with a row
      that says so. Without a limit unless given.

    **Raises:** `InputError` for `device="cuda"` where there is none, or a strategy that no worker could import.
    """
    require("point", point, Point, "a tclab.Point")
    return frame(point_rows(resolve(point), fresh=fresh, memory_bytes=memory_bytes, hang_seconds=hang_seconds))


def point_rows(
    point: Point,
    *,
    fresh: bool = False,
    memory_bytes: int | None = None,
    hang_seconds: float | None = None,
    stop: threading.Event | None = None,
) -> pa.Table:
    """Return the rows of a resolved point as an arrow table; see `run`. With `stop` it ends as `not run: stopped`."""
    if (reason := point.skipped()) is not None:
        return not_measured(point, reason)
    answer = ask(point, request_of(point), fresh=fresh, memory_bytes=memory_bytes, hang_seconds=hang_seconds, stop=stop)
    return not_measured(point, answer) if isinstance(answer, str) else table(answer)


def request_of(point: Point, task: str = _MEASURE, **arguments: Any) -> dict[str, Any]:
    """Return the request for a resolved point's rows, as JSON can hold it.

    The task is the "module:function" that returns them; it takes the point, and the arguments by name.

    **Raises:** `InputError` for a strategy or model that no other process could import.
    """
    return {"point": point.to_dict(), **imports_of(point), "task": task, "arguments": arguments}
