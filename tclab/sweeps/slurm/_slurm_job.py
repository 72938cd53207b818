"""A Slurm job: the same sweep as on one machine, of its points, into the same folder."""

from __future__ import annotations

import json
import os
import signal
from types import FrameType
from typing import Any

from tclab.errors import InputError
from tclab.sweeps.config._point import Point
from tclab.sweeps.execution._executor import LocalExecutor, Progress, SweepOptions
from tclab.sweeps.execution._worker_pool import abort, close_workers
from tclab.sweeps.slurm._submissions import JobOutcome, Submissions
from tclab.sweeps.store._code_fingerprint import import_user_modules
from tclab.sweeps.store._results import WHERE, Results


def run_job(request: str) -> None:
    """Run the points of a request, and write the outcome of each as soon as it is through.

    **Arguments:**

    - `request`: JSON: `results`, a folder; `points`, name of the submission → fields; `submission`, the job array;
      `options`, the sweep's; `where`, what decides the kind of machine; `modules` and `path`, what must be imported
      first.
    """
    signal.signal(signal.SIGTERM, _end)  # submitit ignores it, and a cancelled job would linger
    job: dict[str, Any] = json.loads(request)
    os.environ[WHERE] = json.dumps(job["where"])
    import_user_modules(job["modules"], job["path"])
    submissions = Submissions(Results(job["results"]).make())
    for name, fields in job["points"].items():
        point = Point.from_dict(fields)
        _run(submissions, name, point, job["submission"], job["options"])
    close_workers()


def _run(submissions: Submissions, name: str, point: Point, submission: str, options: dict[str, Any]) -> None:
    def record(progress: Progress) -> None:
        path = submissions.results.path(progress.point)
        status = progress.rows["status"][0].as_py()
        error = status if status.startswith("not run") else f"its rows could not be kept in {path.parent}"
        kept = {"rows": path.name} if path.exists() else {"error": error}
        submissions.record_outcome(name, JobOutcome(submission, **kept))

    try:
        LocalExecutor().run([point], SweepOptions(submissions.results.folder, progress=record, **options))
    except InputError as error:  # this machine cannot run it: device="cuda" where there is none
        submissions.record_outcome(name, JobOutcome(submission, error=str(error)))


def _end(number: int, frame: FrameType | None) -> None:
    """End at once, and the workers first."""
    abort()
    close_workers()
    os._exit(128 + number)
