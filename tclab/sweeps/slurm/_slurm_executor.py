"""The executor that runs a sweep's points as an array of Slurm jobs, a point a job, submitted through submitit."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pyarrow as pa

from tclab._child_process import SOURCE
from tclab._io import atomic_write
from tclab.errors import InputError, need
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import paths_of
from tclab.sweeps.execution._progress import Progress, SweepOptions, failed_or_oom
from tclab.sweeps.slurm._slurm_job import run_job
from tclab.sweeps.slurm._slurm_options import NOT_THE_MACHINE, checked
from tclab.sweeps.store._code_fingerprint import imports_of
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._rows import not_measured
from tclab.timing import environment

# States of a job that will write no more rows
_OVER = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "SPECIAL_EXIT", "TIMEOUT", "LAUNCH_FAILED",
}  # fmt: skip
_REMARK = re.compile(r"(?i)srun: .*(exit code|aborted|terminat(ed step|ion))")  # srun's own, on a job's end
_LOOK_SECONDS = 0.5  # between looks at the folder
_MAX_ARRAY = 1000  # Slurm's default MaxArraySize is 1001, and that is the first index too many


class NoAnswerError(InputError):
    """Slurm refused or did not answer; a controller that is restarted does not for a while."""


class SlurmExecutor:
    """Runs points as jobs of a Slurm cluster. See `tclab.sweep`.

    What a job wrote, failures among it, is kept as a local sweep keeps it, under a name that tells the kind of machine
    that was asked for. `slurm/jobs.json` in the results folder notes which job has which point, so that a later call
    waits for it. A job that ended without rows gives `failed: job 12_3 …`, which is not kept: running again sends the
    point again.

    **Raises:** `InputError` for an option that is not known, and where there is no submitit or no Slurm.
    """

    def __init__(self, *, poll_seconds: float = 5.0, **options: Any) -> None:
        need("executor='slurm'", "slurm", "submitit")
        import submitit

        _ask("sbatch", "--version")
        self._poll_seconds = poll_seconds
        self._options = checked(options, submitit.SlurmExecutor._valid_parameters())

    def run(self, points: list[Point], options: SweepOptions) -> list[pa.Table]:
        """Return the rows of each point, waited for.

        **Raises:** `InputError` for an sbatch that refuses, or a cluster that does not answer.
        """
        sweep = _Sweep(Results(options.results.resolve()).make(), points, options, _machine_of(self._options))
        stop = options.stop or threading.Event()
        with sweep.locked():
            missing = sweep.look_up()
            if stop.is_set():
                sweep.give_up(missing, "not run: stopped")
            else:
                sweep.send(missing, self._options)
        asked = monotonic()
        sweep.report()
        while sweep.waiting and not stop.wait(_LOOK_SECONDS):
            sweep.look()
            if monotonic() - asked > self._poll_seconds:
                sweep.ask()
                asked = monotonic()
            sweep.report()
        if sweep.waiting:
            sweep.cancel()
        return [sweep.rows[name] for name in sweep.points]


class _Sweep:
    """What is known of one sweep's points, each by the name of its file."""

    def __init__(self, results: Results, points: list[Point], options: SweepOptions, machine: dict[str, Any]) -> None:
        self._results, self._options = results, options
        self._folder = results.folder / "slurm"
        self._folder.mkdir(exist_ok=True)
        absolute = [_absolute(point) for point in points]
        limit = options.memory_bytes
        self.points = {results.name(p, machine=machine, memory_bytes=limit): p for p in absolute}  # in their order
        self.rows: dict[str, pa.Table] = {}  # of those that are through
        self._kept: set[str] = set()  # whose rows were there already
        self.waiting: dict[str, str] = {}  # name → the job that is waited for
        self._over: set[str] = set()  # whose jobs had ended when Slurm was last asked
        self._reported: set[str] = set()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against another sweep that would send the same points at this moment."""
        from filelock import FileLock  # takes 80 ms, and only sweeps need it

        with FileLock(self._folder / ".lock"):
            yield

    def look_up(self) -> list[str]:
        """Take finished points, wait for those whose jobs are queued or run, and return the others."""
        noted, states = noted_jobs(self._folder), _states()
        for name in self.points:
            rows = self._results.read_file(name)
            if rows is not None and not (self._options.retry and failed_or_oom(rows)):
                self.rows[name] = rows
                self._kept.add(name)
            elif _runs(states.get(noted.get(name, ""))):
                self.waiting[name] = noted[name]
        return [name for name in self.points if name not in self.rows and name not in self.waiting]

    def send(self, names: list[str], options: dict[str, Any]) -> None:
        """Send points, as arrays of jobs, and note the jobs."""
        imports = imports_of(*(self.points[name] for name in names))
        own = {name: getattr(self._options, name) for name in ("fresh", "memory_bytes", "hang_seconds")}
        for begin in range(0, len(names), _MAX_ARRAY):
            array = names[begin : begin + _MAX_ARRAY]
            for name in array:  # rows of an earlier run, which are measured again
                (self._results.folder / name).unlink(missing_ok=True)
            requests = [
                {"results": str(self._results.folder), "name": name, "point": self.points[name].to_dict()}
                for name in array
            ]
            jobs = _submit(
                self._folder / "logs", options, [json.dumps(one | imports | {"options": own}) for one in requests]
            )
            self.waiting |= dict(zip(array, jobs, strict=True))
            self._note(noted_jobs(self._folder) | self.waiting)

    def look(self) -> None:
        """Take the rows that have come; a folder that is listed is asked of the file server, unlike a single file."""
        for name in self.waiting.keys() & set(os.listdir(self._results.folder)):
            if (rows := self._results.read_file(name)) is not None:
                self._through(name, rows)

    def ask(self) -> None:
        """Ask Slurm for jobs that ended and left no rows; a second time, since rows may be on their way."""
        try:
            states = _states()
        except NoAnswerError:  # a controller that is restarted; the jobs run on
            return
        for name, job in list(self.waiting.items()):
            if _runs(states.get(job)):
                self._over.discard(name)
            elif name not in self._over:
                self._over.add(name)
            else:
                how = f"failed: job {job} ended{f' as {states[job]}' if job in states else ''}"
                self._through(name, not_measured(self.points[name], f"{how}: {self._last_words(job)}"))

    def cancel(self) -> None:
        """Cancel the jobs that are waited for, and forget them."""
        status = "not run: stopped"
        try:
            _ask("scancel", "--quiet", *sorted(self.waiting.values()))
            with self.locked():
                self._note({name: job for name, job in noted_jobs(self._folder).items() if name not in self.waiting})
        except NoAnswerError as error:
            status = f"not run: stopped, and its job goes on: {error}"
        self.look()  # for rows that came at the last moment
        self.give_up(list(self.waiting), status)

    def give_up(self, names: list[str], status: str) -> None:
        """Give points a row that says why they were not run, and report nothing of them."""
        self._reported |= set(names)
        for name in names:
            self._through(name, not_measured(self.points[name], status))

    def report(self) -> None:
        """Report the points that are through since the last time."""
        for name in [name for name in self.rows if name not in self._reported]:
            self._reported.add(name)
            done = Progress(
                len(self._reported), len(self.points), self.points[name], self.rows[name], name in self._kept
            )
            self._options.report(done)

    def _through(self, name: str, rows: pa.Table) -> None:
        self.rows[name] = rows
        self.waiting.pop(name, None)

    def _note(self, jobs: dict[str, str]) -> None:
        atomic_write(self._folder / "jobs.json", msgspec.json.encode(jobs))

    def _last_words(self, job: str) -> str:
        """Return the last line that a job wrote; srun's own, that a step ended, comes last and tells nothing."""
        logs = [path.read_text(errors="replace") for path in (self._folder / "logs").glob(f"{job}_*_log.err")]
        lines = [line.strip() for log in logs for line in log.splitlines() if line.strip()]
        telling = [line for line in lines if not _REMARK.match(line)]
        return ([*lines[-1:], *telling[-1:]] or ["it said nothing"])[-1]


def noted_jobs(folder: Path) -> dict[str, str]:
    """Return name → job of all points that were sent; none, with a warning, where their file is damaged."""
    path = folder / "jobs.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        warnings.warn(f"{path} is damaged, and its jobs are not found again: {error}", stacklevel=2)
        return {}


def _absolute(point: Point) -> Point:
    paths: dict[str, Any] = {name: str(Path(path).resolve()) for name, path in paths_of(point).items()}
    return replace(point, **paths)


def _machine_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return what tells the kind of machine and software that jobs will have, before one has it.

    sbatch's own variables (`SBATCH_PARTITION`, …) go before what a script says, so they are among the options.
    """
    variables = {
        name.removeprefix("SBATCH_").lower(): v for name, v in os.environ.items() if name.startswith("SBATCH_")
    }
    here = environment()
    cluster = re.search(r"^ClusterName\s*=\s*(\S+)", _ask("scontrol", "show", "config"), re.MULTILINE)
    return {
        **{name: value for name, value in {**options, **variables}.items() if name not in NOT_THE_MACHINE},
        "cluster": cluster[1] if cluster else None,
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


def _states() -> dict[str, str]:
    """Return number → state of this user's jobs, those just ended among them."""
    asked = ("--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i|%T|%r")
    lines = [line.strip().split("|", 2) for line in _ask("squeue", *asked).splitlines()]
    # one that its node could not start is pending until somebody releases it
    return {
        job: "LAUNCH_FAILED" if "launch failed" in reason.replace("_", " ") else state for job, state, reason in lines
    }


def _runs(state: str | None) -> bool:
    """Return whether rows are still to be expected of a job in a state; `None` is one that Slurm has forgotten."""
    return state is not None and state not in _OVER


def _ask(*command: str) -> str:
    """Return the output of a Slurm command.

    **Raises:** `NoAnswerError` with its words where it fails; `InputError` where there is no such command.
    """
    if shutil.which(command[0]) is None:
        raise InputError(
            f"executor is 'slurm', and there is no {command[0]} on this machine; expected a node of a Slurm "
            "cluster that may submit, or executor='local'"
        )
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"{command[0]} did not answer within 120 s") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1]
        raise NoAnswerError(f"Slurm refused or did not answer: {said}") from None
