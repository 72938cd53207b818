"""A Slurm job: one point of a sweep, run as on any machine, into the sweep's folder."""

from __future__ import annotations

import json
import signal
from typing import Any

from tclab.errors import InputError
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._run import point_rows
from tclab.sweeps.execution._worker_pool import close_workers
from tclab.sweeps.store._code_fingerprint import import_user_modules
from tclab.sweeps.store._results import Results


def run_job(request: str) -> None:
    """Run the point of a request and keep its rows, unless an earlier run of the job, before a requeue, kept them.

    **Arguments:**

    - `request`: JSON: `results`, a folder; `name`, of the file; `point`, its fields; `options` of `point_rows`;
      `modules` and `path`, what must be imported first.

    **Raises:** `InputError` for a point that this machine cannot run: device="cuda" where there is none.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # submitit ignores it, and a cancelled job would linger
    job: dict[str, Any] = json.loads(request)
    import_user_modules(job["modules"], job["path"])
    results = Results(job["results"]).make()
    if results.read_file(job["name"]) is not None:
        return
    point = Point.from_dict(job["point"])
    try:
        rows = point_rows(resolve(point), **job["options"])
        if (status := rows["status"][0].as_py()).startswith("not run"):
            raise InputError(status)  # which is not kept
        results.write(point, rows, job["name"])
    finally:
        close_workers()
