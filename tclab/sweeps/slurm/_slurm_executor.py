"""A sweep's points as an array of Slurm jobs, a point a job, submitted through submitit."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tclab._child_process import SOURCE
from tclab._io import atomic_write
from tclab.errors import InputError, need
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import paths_of, resolve
from tclab.sweeps.execution._progress import Progress, SweepOptions
from tclab.sweeps.execution._run import STOPPED, close_workers, point_rows
from tclab.sweeps.slurm._slurm_options import NOT_THE_MACHINE, checked
from tclab.sweeps.store._code_fingerprint import import_user_modules, imports_of
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._rows import not_measured
from tclab.timing import environment

_LIVE = "PENDING,RUNNING,SUSPENDED,COMPLETING,CONFIGURING,REQUEUED"  # states of a job that may still write rows
_REMARK = re.compile(r"(?i)srun: .*(exit code|aborted|terminat(ed step|ion))")  # srun's own, on a job's end
_ASK_SECONDS = 5.0  # between two questions to squeue
_MAX_ARRAY = 1000  # Slurm's default MaxArraySize is 1001, and that is the first index too many


def run_on_slurm(points: list[Point], results: Results, options: SweepOptions, **cluster: Any) -> list[pa.Table]:
    """Return the rows of each point, run as a job of a Slurm cluster and waited for. See `tclab.sweep`.

    What a job wrote, failures among it, is kept as a local sweep keeps it, under a name that tells the kind of machine
    that was asked for. `slurm/jobs.json` in the results folder notes which job has which point, so that a later call
    waits for it. A job that ended without rows gives `failed: job 12_3 …`, which is not kept: running again sends the
    point again.

    **Raises:** `InputError` for an option that is not known, where there is no submitit or no Slurm, for an sbatch that
    refuses, or a cluster that does not answer.
    """
    need("executor='slurm'", "slurm", "submitit")
    import submitit

    given = checked(cluster, submitit.SlurmExecutor._valid_parameters())
    _ask("sbatch", "--version")
    sweep = _Sweep(points, Results(results.folder.resolve()), options, given)
    stop = options.stop or threading.Event()
    missing = sweep.look_up()
    if not stop.is_set():
        sweep.send(missing)
    while sweep.waiting and not stop.wait(_ASK_SECONDS):
        sweep.look()
    if sweep.waiting:
        sweep.cancel()
    return [sweep.rows.get(name, not_measured(point, STOPPED)) for name, point in sweep.points.items()]


class _Sweep:
    """What is known of one sweep's points, each by the name of its file."""

    def __init__(self, points: list[Point], results: Results, options: SweepOptions, cluster: dict[str, Any]) -> None:
        self._results, self._options, self._cluster = results, options, cluster
        self._folder = results.folder / "slurm"
        self._folder.mkdir(exist_ok=True)
        machine = _machine_of(cluster)
        absolute = [_absolute(point) for point in points]
        limit = options.memory_bytes
        self.points = {results.name(p, machine=machine, memory_bytes=limit): p for p in absolute}  # in their order
        self.rows: dict[str, pa.Table] = {}  # of those that are through
        self.waiting: dict[str, str] = {}  # name → the job that is waited for
        self._over: set[str] = set()  # whose jobs had ended at the last look

    def look_up(self) -> list[str]:
        """Take finished points, wait for those whose jobs are queued or run, and return the others."""
        noted, live = self._noted(), _live()
        missing = []
        for name in self.points:
            rows = self._results.read_file(name)
            if rows is not None and self._options.stands(rows):
                self._through(name, rows, kept=True)
            elif noted.get(name) in live:
                self.waiting[name] = noted[name]
            else:
                missing.append(name)
        return missing

    def send(self, names: list[str]) -> None:
        """Send points, as arrays of jobs, and note the jobs."""
        imports = imports_of(*(self.points[name] for name in names))
        limits = {name: getattr(self._options, name) for name in ("memory_bytes", "hang_seconds")}
        for begin in range(0, len(names), _MAX_ARRAY):
            requests = {}
            for name in names[begin : begin + _MAX_ARRAY]:
                (self._results.folder / name).unlink(missing_ok=True)  # rows of an earlier run, measured again
                point = {"results": str(self._results.folder), "name": name, "point": self.points[name].to_dict()}
                requests[name] = json.dumps({**point, **imports, "options": limits})
            jobs = _submit(self._folder / "logs", self._cluster, list(requests.values()))
            self.waiting |= dict(zip(requests, jobs, strict=True))
            self._note(self._noted() | self.waiting)

    def look(self) -> None:
        """Take the rows that have come; a job that ended and left none, at two looks, has failed."""
        try:
            live = _live()
        except InputError:  # a controller that is restarted; the jobs run on
            live = set(self.waiting.values())
        there = os.listdir(self._results.folder)  # which is asked of the file server, unlike a single file
        for name, job in list(self.waiting.items()):
            rows = self._results.read_file(name) if name in there else None
            if rows is not None:
                self._through(name, rows)
            elif job in live:
                self._over.discard(name)
            elif name not in self._over:
                self._over.add(name)  # rows may be on their way
            else:
                why = f"failed: job {job} ended: {self._last_words(job)}"
                self._through(name, not_measured(self.points[name], why))

    def cancel(self) -> None:
        """Cancel the jobs that are waited for, and forget them."""
        try:
            _ask("scancel", "--quiet", *sorted(self.waiting.values()))
            self._note({name: job for name, job in self._noted().items() if name not in self.waiting})
        except InputError as error:
            warnings.warn(f"the jobs go on, and a later sweep finds them: {error}", stacklevel=2)

    def _through(self, name: str, rows: pa.Table, *, kept: bool = False) -> None:
        self.rows[name] = rows
        self.waiting.pop(name, None)
        self._options.report(Progress(len(self.rows), len(self.points), self.points[name], rows, kept))

    def _noted(self) -> dict[str, str]:
        """Return name → job of all points that were sent; none, with a warning, where their file is damaged."""
        path = self._folder / "jobs.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            warnings.warn(f"{path} is damaged, and its jobs are not found again: {error}", stacklevel=2)
            return {}

    def _note(self, jobs: dict[str, str]) -> None:
        atomic_write(self._folder / "jobs.json", msgspec.json.encode(jobs))

    def _last_words(self, job: str) -> str:
        """Return the last line that a job wrote; srun's own, that a step ended, tells nothing."""
        logs = [path.read_text(errors="replace") for path in (self._folder / "logs").glob(f"{job}_*_log.err")]
        lines = [line.strip() for log in logs for line in log.splitlines() if not _REMARK.match(line)]
        return next((line for line in reversed(lines) if line), "it said nothing")


def run_job(request: str) -> None:
    """Run, as a job, the point of a request, and keep its rows, unless the job kept them before it was requeued.

    **Arguments:**

    - `request`: JSON: `results`, a folder; `name`, of the file; `point`, its fields; `options` of `point_rows`;
      `modules` and `path`, what must be imported first.

    **Raises:** `InputError` for a point that this machine cannot run: device="cuda" where there is none.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # submitit ignores it, and a cancelled job would linger
    job: dict[str, Any] = json.loads(request)
    import_user_modules(job["modules"], job["path"])
    results = Results(job["results"])
    if results.read_file(job["name"]) is not None:
        return
    point = Point(**job["point"])
    try:
        results.write(point, point_rows(resolve(point), **job["options"]), job["name"])
    finally:
        close_workers()


def _absolute(point: Point) -> Point:
    paths: dict[str, Any] = {name: str(Path(path).resolve()) for name, path in paths_of(point).items()}
    return replace(point, **paths)


def _machine_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return what tells the kind of machine and software that jobs will have, before one has it.

    sbatch's own variables (`SBATCH_PARTITION`, …) go before what a script says, so they are among the options.
    """
    prefix = "SBATCH_"
    variables = {n.removeprefix(prefix).lower(): value for n, value in os.environ.items() if n.startswith(prefix)}
    here = environment()
    return {
        **{name: value for name, value in {**options, **variables}.items() if name not in NOT_THE_MACHINE},
        "software": [here[name] for name in ("python", "torch", "torch_geometric", "numpy")],
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def _submit(logs: Path, options: dict[str, Any], requests: list[str]) -> list[str]:
    """Send one job a request, as an array, and return their numbers: "12_0", "12_1", ….

    **Raises:** `InputError` with the words of an sbatch that refuses.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    # the jobs must import the tclab that is running here, also where that one is not installed
    path = f'export PYTHONPATH={shlex.quote(str(SOURCE))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    executor = submitit.SlurmExecutor(folder=logs)
    executor.update_parameters(**{**options, "setup": [path, *options.get("setup", ())], "job_name": "tclab"})
    ours = {name: v for name, v in os.environ.items() if name == "SLURM_CONF" or name.startswith("SBATCH_")}
    try:
        # a notebook may itself run in a job, whose CPUs and memory these jobs must not inherit
        with submitit.helpers.clean_env():
            os.environ.update(ours)
            return [job.job_id for job in executor.map_array(run_job, requests)]
    except (FailedJobError, FailedSubmissionError) as error:
        why = [line.split("error:", 1)[1].strip() for line in str(error).splitlines() if "error:" in line]
        partitions = ", ".join(sorted(set(_ask("sinfo", "--noheader", "--format=%R").split())))
        raise InputError(f"sbatch refused: {'; '.join(why) or error}; the partitions here are {partitions}") from None


def _live() -> set[str]:
    """Return the numbers of this user's jobs that are queued or run."""
    asked = ("--noheader", "--array", f"--states={_LIVE}", f"--user={os.getuid()}", "--format=%i")
    return set(_ask("squeue", *asked).split())


def _ask(*command: str) -> str:
    """Return the output of a Slurm command.

    **Raises:** `InputError` with its words where it fails, and where there is no such command.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        raise InputError(
            f"executor is 'slurm', and there is no {command[0]} on this machine; expected a node of a Slurm "
            "cluster that may submit, or executor='local'"
        ) from None
    except subprocess.TimeoutExpired:
        raise InputError(f"{command[0]} did not answer within 120 s") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1]
        raise InputError(f"Slurm refused or did not answer: {said}")
    return done.stdout
