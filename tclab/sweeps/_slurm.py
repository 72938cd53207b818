"""A sweep's points as an array of Slurm jobs, a point a job, submitted through submitit."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from tclab._child_process import SOURCE
from tclab._display import counted
from tclab._io import atomic_write
from tclab.errors import InputError, need, require, unknown
from tclab.sweeps._fields import AtLeast1, checked, read_options, text_value
from tclab.sweeps._fingerprint import import_user_modules, imports_of
from tclab.sweeps._point import Point
from tclab.sweeps._point_inputs import absolute, resolve
from tclab.sweeps._progress import Progress, SweepOptions
from tclab.sweeps._rows import Results, not_measured
from tclab.sweeps._run import STOPPED, close_workers, point_rows
from tclab.timing._environment import SOFTWARE, environment

_OURS = {"nodes", "ntasks_per_node", "job_name", "use_srun"}  # a point is one job on one node, found by its number
# These say when or for whom a job runs. All others say on what, and tell one kind of machine from another.
_NOT_THE_MACHINE = {
    "account", "array_parallelism", "comment", "dependency", "mail_type", "mail_user", "qos", "signal_delay_s", "time",
    "timelimit", "wckey",
}  # fmt: skip
_LIVE = "PENDING,RUNNING,SUSPENDED,COMPLETING,CONFIGURING,REQUEUED"  # states of a job that may still write rows
_REMARK = re.compile(r"(?i)srun: .*(exit code|aborted|terminat(ed step|ion))")  # srun's own, on a job's end
# how squeue says that a job's options let it never start
_NEVER = re.compile(
    r"(?i)TimeLimit|NodeLimit|WallDuration|Max(Cpu|Memory)PerJob|BadConstraints|NotAllowed|held|hold|never"
)
# how sbatch says that it takes no such number of jobs in an array (MaxArraySize), or of a user (MaxSubmitJobs)
_TOO_MANY = re.compile(r"(?i)job array specification|Max\w*Submit|submit limit")
_ASK_SECONDS = 5.0  # between two questions to squeue


def run_on_slurm(points: list[Point], results: Results, options: SweepOptions) -> list[pa.Table]:
    """Return the rows of each point, run as a job of a Slurm cluster and waited for. See `tclab.sweep`.

    What a job wrote, failures among it, is kept as a local sweep keeps it, under a name that tells the kind of machine
    that was asked for. `slurm/jobs.json` in the results folder notes which job has which point, so that a later call
    waits for it. Where the site refuses so many jobs at once, smaller arrays are sent, and what it does not take yet
    when others have ended. A warning names the limit that keeps a job from ever starting, such as a partition's time.
    A job that ended without rows gives `failed: job 12_3 …`, which is not kept: running again sends the point again.

    **Raises:** `InputError` for an option that is not known, where there is no submitit or no Slurm, for an sbatch that
    refuses, or a cluster that does not answer.
    """
    need("a sweep on Slurm", "slurm", "submitit")
    given = _checked(options.slurm)
    _ask("sbatch", "--version")
    jobs = _Jobs(points, Results(results.folder.resolve()), options, given)
    unsent, ended, most = jobs.look(), set[str](), len(points) + 1
    while not options.stop.is_set():
        if unsent and len(jobs.waiting) < most:  # some have ended since the site took no more
            unsent = jobs.send(unsent)
            most = len(jobs.waiting)
        if not jobs.waiting or options.stop.wait(_ASK_SECONDS):
            break
        with suppress(InputError):  # a controller that is restarted; the jobs run on
            gone = {*jobs.look()} - {*unsent}
            for name in ended & gone:  # at two looks: its rows are not on their way
                jobs.fail(name)
            ended = gone
    if jobs.waiting:
        jobs.cancel()
    return [jobs.rows.get(name, not_measured(point, STOPPED)) for name, point in jobs.points.items()]


def _checked(options: Any) -> dict[str, Any]:
    """Return sbatch's options by name; of a text, "partition:gpu,time:90", as typed: an account may be 0042."""
    import submitit

    if isinstance(options, str):
        options = {name: ",".join(values) for name, values in read_options("slurm", options).items()}
    require("slurm", options, Mapping, "sbatch's options by name, such as 'partition:gpu,time:90'")
    given = dict(options)
    known = submitit.SlurmExecutor._valid_parameters() - _OURS
    for name in given.keys() - known:
        raise unknown("option of Slurm", name, known)
    for name in {"time", "array_parallelism"} & given.keys():  # minutes; how many jobs run at once
        given[name] = checked(name, text_value(given[name]), AtLeast1)
    return given


class _Jobs:
    """What is known of one sweep's points, each by the name of its file."""

    def __init__(self, points: list[Point], results: Results, options: SweepOptions, cluster: dict[str, Any]) -> None:
        self._results, self._options, self._cluster = results, options, cluster
        self._folder = results.folder / "slurm"
        self._folder.mkdir(exist_ok=True)
        machine, absolutes = _machine_of(cluster), map(absolute, points)
        self.points = {results.name(point, machine=machine): point for point in absolutes}  # in their order
        self.rows: dict[str, pa.Table] = {}  # of those that are through
        self.waiting: set[str] = set()  # whose jobs are waited for
        self._warned: set[str] = set()  # reasons for which jobs never start
        self._notes = self._folder / "jobs.json"  # name → job of all points that were sent
        self._jobs: dict[str, str] = json.loads(self._notes.read_bytes()) if self._notes.exists() else {}

    def look(self) -> list[str]:
        """Take the rows that are there, and return the other points that no job is queued for or runs."""
        asked = ("--noheader", "--array", f"--states={_LIVE}", f"--user={os.getuid()}", "--format=%i %r")
        live, gone = dict(line.partition(" ")[::2] for line in _ask("squeue", *asked).splitlines()), []
        files = os.listdir(self._results.folder)  # which is asked of the file server, unlike a single file
        for name in [name for name in self.points if name not in self.rows]:
            rows, kept = self._results.read(name) if name in files else None, name not in self.waiting
            job = self._jobs.get(name, "")
            if rows is not None and (not kept or self._options.stands(rows)):
                self._through(name, rows, kept=kept)
            elif job in live:
                self.waiting.add(name)
                self._warn(job, live[job])
            else:
                gone.append(name)
        return gone

    def _warn(self, job: str, reason: str) -> None:
        if _NEVER.search(reason) and reason not in self._warned:
            self._warned.add(reason)
            asked = ", ".join(f"{name}:{value}" for name, value in self._cluster.items()) or "no options"
            warnings.warn(f"Slurm does not start job {job} because of {reason}; it was sent with {asked}", stacklevel=4)

    def send(self, names: list[str]) -> list[str]:
        """Send points, as arrays of as many jobs as the site takes; return those that must wait until others end."""
        size = len(names)
        while names and size:
            try:
                self._send(names[:size])
                names = names[size:]
            except InputError as error:
                size = size // 2 if _TOO_MANY.search(str(error)) else 0
                if not (size or self.waiting):
                    raise
        return names

    def _send(self, names: list[str]) -> None:
        """Send points, as an array of jobs, and note the jobs."""
        imports = imports_of(*(self.points[name] for name in names))
        given = {"results": str(self._results.folder), "hang_seconds": self._options.hang_seconds, **imports}
        for name in names:
            if self._results.read(name) is not None:  # of an earlier run, measured again
                (self._results.folder / name).unlink()
        requests = [json.dumps({**given, "name": name, "point": self.points[name].to_dict()}) for name in names]
        jobs = _submit(self._folder / "logs", self._cluster, requests)
        self.waiting |= set(names)
        self._note(self._jobs | dict(zip(names, jobs, strict=True)))

    def fail(self, name: str) -> None:
        """Give a point whose job ended without rows one that has the last line that the job wrote."""
        job = self._jobs[name]
        logs = [path.read_text(errors="replace") for path in (self._folder / "logs").glob(f"{job}_*_log.err")]
        lines = [line.strip() for log in logs for line in log.splitlines() if not _REMARK.match(line)]
        said = next(filter(None, reversed(lines)), "it said nothing")
        self._through(name, not_measured(self.points[name], f"failed: job {job} ended: {said}"), kept=False)

    def cancel(self) -> None:
        """Cancel the jobs that are waited for, and forget them."""
        try:
            _ask("scancel", "--quiet", *sorted(self._jobs[name] for name in self.waiting))
            self._note({name: job for name, job in self._jobs.items() if name not in self.waiting})
        except InputError as error:
            warnings.warn(f"the jobs continue, and a later sweep finds them: {error}", stacklevel=2)

    def _through(self, name: str, rows: pa.Table, *, kept: bool) -> None:
        self.rows[name] = rows
        self.waiting.discard(name)
        self._options.report(Progress(len(self.rows), len(self.points), self.points[name], rows, kept))

    def _note(self, jobs: dict[str, str]) -> None:
        self._jobs = jobs
        atomic_write(self._notes, json.dumps(jobs))


def run_job(request: str) -> None:
    """Run, as a job, the point of a request, and keep its rows, unless the job kept them before it was requeued.

    **Arguments:**

    - `request`: JSON: `results`, a folder; `name`, of the file; `point`, its fields;
      `hang_seconds`, as for `run`; `modules` and `path`, what must be imported first.

    **Raises:** `InputError` for a point that this machine cannot run: device="cuda" where there is none.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # submitit ignores it, and a cancelled job would linger
    job: dict[str, Any] = json.loads(request)
    import_user_modules(job["modules"], job["path"])
    results = Results(job["results"])
    if results.read(job["name"]) is not None:
        return
    try:
        results.write(point_rows(resolve(Point(**job["point"])), hang_seconds=job["hang_seconds"]), job["name"])
    finally:
        close_workers()


def _machine_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return what tells the kind of machine and software that jobs will have, before one has it.

    sbatch's own variables (`SBATCH_PARTITION`, …) go before what a script says, so they are among the options.
    """
    prefix, here = "SBATCH_", environment()
    variables = {n.removeprefix(prefix).lower(): value for n, value in os.environ.items() if n.startswith(prefix)}
    asked = {name: value for name, value in {**options, **variables}.items() if name not in _NOT_THE_MACHINE}
    return {**asked, **{name: here[name] for name in SOFTWARE}, "threads": os.environ.get("OMP_NUM_THREADS")}


def _submit(logs: Path, options: dict[str, Any], requests: list[str]) -> list[str]:
    """Send one job a request, as an array, and return their numbers: "12_0", "12_1", ….

    **Raises:** `InputError` with the words of an sbatch that refuses.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    # submitit's warning comes 90 s before the end of a job, and would end one of a minute as it begins
    given = {"signal_delay_s": 15, "time": 60, "job_name": "tclab", **options}
    # the jobs must import the tclab that is running here, also where that one is not installed
    path = f'export PYTHONPATH={shlex.quote(str(SOURCE))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    given["setup"] = [path, *options.get("setup", ())]
    if "cpus_per_task" in options:  # from 22.05 srun no longer takes it from the job that it runs in
        given["srun_args"] = [*options.get("srun_args", ()), f"--cpus-per-task={options['cpus_per_task']}"]
    executor = submitit.SlurmExecutor(folder=logs)
    executor.update_parameters(**given)
    kind: Any = submitit.SlurmExecutor
    kind._get_job_id_from_submission_command = staticmethod(_number_in)  # submitit's own knows one form
    ours = {name: v for name, v in os.environ.items() if name == "SLURM_CONF" or name.startswith("SBATCH_")}
    try:
        # a notebook may itself run in a job, whose CPUs and memory these jobs must not inherit
        with submitit.helpers.clean_env():
            os.environ.update(ours)
            return [job.job_id for job in executor.map_array(run_job, requests)]
    except (FailedJobError, FailedSubmissionError) as error:
        why = [line.split("error:", 1)[1].strip() for line in str(error).splitlines() if "error:" in line]
        raise InputError(f"sbatch refused {counted(len(requests), 'job')}: {'; '.join(why) or error}") from None


def _number_in(said: str) -> str:
    """Return a job's number in what sbatch says; a site's own, or --parsable, gives it alone or with its cluster."""
    number = re.search(r"(?m)job (\d+)|^(\d+)(;\S+)?$", said)
    if number is None:
        raise InputError(f"sbatch said {said!r}, expected the number of a job")
    return number[1] or number[2]


def _ask(*command: str) -> str:
    """Return the output of a Slurm command.

    **Raises:** `InputError` with its words where it fails, and where there is no such command.
    """
    # what its user sees of squeue is his to choose: SQUEUE_PARTITION would hide jobs, which would be sent once more
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=plain).stdout
    except FileNotFoundError:
        expected = "expected a node of a Slurm cluster that may submit jobs"
        raise InputError(f"there is no {command[0]} on this machine; {expected}") from None
    except subprocess.SubprocessError as error:
        said = (str(getattr(error, "stderr", "") or "").strip() or str(error)).splitlines()[-1]
        raise InputError(f"Slurm refused or did not answer: {said}") from None
