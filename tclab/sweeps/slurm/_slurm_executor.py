"""The executor that runs a sweep's points as jobs of a Slurm cluster, submitted through submitit."""

from __future__ import annotations

import json
import os
import shlex
import threading
import uuid
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any, Unpack

import pyarrow as pa

from tclab._child_process import SOURCE
from tclab.errors import InputError, need, unknown
from tclab.sweeps.config._fields import NumberFrom1
from tclab.sweeps.config._fields import checked as check
from tclab.sweeps.config._point import Point
from tclab.sweeps.execution._executor import Progress, SweepOptions, failed_or_oom
from tclab.sweeps.slurm import _slurm_queue as slurm_queue
from tclab.sweeps.slurm._slurm_job import run_job
from tclab.sweeps.slurm._slurm_options import SlurmOptions, checked, machine_of
from tclab.sweeps.slurm._slurm_queue import NoAnswerError
from tclab.sweeps.slurm._submissions import Submission, Submissions, name_of, words_of
from tclab.sweeps.store._code_fingerprint import imports_of
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._rows import not_measured

_LOOK_SECONDS = 0.5  # between looks at the folder
_POLL_SECONDS = 5.0  # between two questions to squeue, unless given
_TIDYING_SECONDS = 60.0  # a job that ended is waited for so long to say how; a node can hang in it


class SlurmExecutor:
    """Runs points as jobs of a Slurm cluster; an `Executor`. See `tclab.sweep`.

    What a job wrote, failures among it, is kept as a local sweep keeps it. A job that ended before its point was
    through gives `failed: job 12_3 …`, which is not kept: running again sends the point again.

    **Raises:** `InputError` for an option that is not known, and where there is no submitit or no Slurm.
    """

    def __init__(self, **options: Unpack[SlurmOptions]) -> None:
        submitit = _submitit()
        given: dict[str, Any] = dict(options)
        every = given.pop("points_per_job", None)
        self._points_per_job = 1 if every is None else check("points_per_job", every, NumberFrom1)
        self._poll_seconds = given.pop("poll_seconds", _POLL_SECONDS)
        self._options = checked(given, submitit.SlurmExecutor._valid_parameters())

    def run(self, points: list[Point], options: SweepOptions) -> list[pa.Table]:
        """Return the rows of each point, waited for.

        **Raises:** `InputError` for an sbatch that refuses, or a cluster that does not answer.
        """
        job_options = {name: getattr(options, name) for name in ("retry", "fresh", "memory_bytes", "hang_seconds")}
        submissions = Submissions(Results(options.results.resolve()).make())
        sweep = _Sweep(submissions, job_options, self._options)
        stop = options.stop or threading.Event()
        absolute = [p if p.graph == "synthetic" else replace(p, graph=str(Path(p.graph).resolve())) for p in points]
        try:
            sweep.begin(absolute, None if stop.is_set() else self._points_per_job)
        except NoAnswerError as error:
            raise InputError(f"Slurm refused or did not answer: {error}") from None
        sweep.report(options)
        asked = monotonic()
        while sweep.waiting and not stop.wait(_LOOK_SECONDS):
            sweep.look()
            if monotonic() - asked > self._poll_seconds:
                sweep.ask()
                asked = monotonic()
            sweep.report(options)
        if sweep.waiting:
            sweep.cancel()
        tables = [sweep.rows[name] for name in sweep.names]
        _warn_of_machines(tables)
        return tables


@dataclass
class _Sweep:
    """What is known of one sweep's points, each by the name of its submission."""

    submissions: Submissions  # the folder that knows of earlier sweeps
    job_options: dict[str, Any]  # of the local sweep in each job
    options: dict[str, Any]  # of sbatch
    where: dict[str, Any] = field(default_factory=dict)  # what of these decides the kind of machine, and the cluster
    names: dict[str, Point] = field(default_factory=dict)  # in the points' order
    rows: dict[str, pa.Table] = field(default_factory=dict)  # of those that are through
    kept: set[str] = field(default_factory=set)  # whose rows were there already
    waiting: dict[str, Submission] = field(default_factory=dict)  # those whose jobs are waited for
    reported: set[str] = field(default_factory=set)
    over_since: dict[str, float] = field(default_factory=dict)  # when squeue first showed a job to be over

    @property
    def logs(self) -> Path:
        return self.submissions.folder / "logs"

    def begin(self, points: list[Point], points_per_job: int | None) -> None:
        """Read finished points, wait for queued or running jobs, submit the rest unless `points_per_job` is `None`."""
        cluster, most = slurm_queue.cluster()
        self.where = {**machine_of(self.options), "cluster": cluster}
        self.names = {name_of(point, self.where): point for point in points}
        imports = imports_of(*points)
        with self.submissions.locked():
            jobs = slurm_queue.jobs()
            missing = []
            for name in self.names:
                submission = self.submissions.submission(name)
                rows = self.submissions.rows(name)
                job = None if submission is None else jobs.get((submission.submission, submission.index))
                if rows is not None and not (self.job_options["retry"] and failed_or_oom(rows)):
                    self.rows[name] = rows
                    self.kept.add(name)
                elif submission is not None and job is not None and job.alive and not self.submissions.outcome(name):
                    self.waiting[name] = replace(submission, job=job.job)
                else:
                    missing.append(name)
            if points_per_job is None:
                self.rows |= {name: not_measured(self.names[name], "not run: stopped") for name in missing}
                self.reported |= set(missing)
                return
            for begin in range(0, len(missing), most * points_per_job):
                self._send(missing[begin : begin + most * points_per_job], points_per_job, imports)

    def _send(self, names: list[str], points_per_job: int, imports: dict[str, list[str]]) -> None:
        """Send points as one array of jobs."""
        groups = [names[i : i + points_per_job] for i in range(0, len(names), points_per_job)]
        submission = f"{slurm_queue.PREFIX}{uuid.uuid4().hex[:12]}"
        for index, group in enumerate(groups):
            for name in group:
                self.submissions.record(name, Submission(submission, index))
        requests = [
            json.dumps({
                "results": str(self.submissions.results.folder),
                "submission": submission,
                "points": {name: self.names[name].to_dict() for name in group},
                "options": self.job_options,
                "where": self.where,
                **imports,
            })
            for group in groups
        ]  # fmt: skip
        try:
            numbers = _submit(self.logs, {**self.options, "nodes": 1, "job_name": submission}, requests)
        except BaseException:
            for name in names:
                self.submissions.forget(name)
            raise
        for index, (group, number) in enumerate(zip(groups, numbers, strict=True)):
            for name in group:
                self.waiting[name] = Submission(submission, index, number)
                self.submissions.record_job(name, self.waiting[name])

    def look(self) -> None:
        for name in self.submissions.names_with_outcome() & self.waiting.keys():
            outcome = self.submissions.outcome(name)
            if outcome is None or outcome.submission != self.waiting[name].submission:
                continue  # of an earlier job, which was thought dead
            rows = self.submissions.rows(name)
            self._through(name, rows if rows is not None else self._failed(name, outcome.error or "no rows"))

    def ask(self) -> None:
        """Ask Slurm for jobs that ended and left no rows; a second time, since rows may be on their way."""
        try:
            jobs = slurm_queue.jobs()
        except NoAnswerError:  # a controller that is restarted; the jobs run on
            return
        for name, submission in list(self.waiting.items()):
            job = jobs.get((submission.submission, submission.index))
            if job is not None and job.alive:
                self.over_since.pop(name, None)  # it had been taken back into the queue
                continue
            since = self.over_since.get(name)
            self.over_since.setdefault(name, monotonic())
            tidying = job is not None and job.state == "COMPLETING"
            if since is not None and (not tidying or monotonic() - since > _TIDYING_SECONDS):
                how = f"job {submission.job} ended{'' if job is None else f' as {job.state}'}"
                said = words_of(self.logs, submission.job) or "it said nothing"
                self._through(name, self._failed(name, f"{how}: {said}"))

    def cancel(self) -> None:
        status = "not run: stopped"
        try:
            slurm_queue.cancel(sorted({sent.job for sent in self.waiting.values() if sent.job is not None}))
        except NoAnswerError as error:
            status = f"not run: stopped, and its job goes on: {error}"
        self.look()  # for outcomes written at the last moment
        for name in list(self.waiting):
            if status == "not run: stopped":
                self.submissions.forget(name)
            self._through(name, not_measured(self.names[name], status))

    def report(self, options: SweepOptions) -> None:
        for name, rows in self.rows.items():
            if name not in self.reported:
                self.reported.add(name)
                done, total = len(self.reported), len(self.names)
                options.report(Progress(done, total, self.names[name], rows, name in self.kept))

    def _through(self, name: str, rows: pa.Table) -> None:
        self.rows[name] = rows
        del self.waiting[name]

    def _failed(self, name: str, why: str) -> pa.Table:
        return not_measured(self.names[name], f"failed: {why}")


def _submitit() -> Any:
    need("executor='slurm'", "slurm", "submitit")
    import submitit

    slurm_queue.ask("sbatch", "--version")
    return submitit


def _submit(folder: Path, options: dict[str, Any], requests: list[str]) -> list[str]:
    """Send one job a request, as an array, and return their numbers.

    **Raises:** `InputError` with the words of an sbatch that refuses.
    """
    submitit = _submitit()
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    # the jobs must import the tclab that is running here, also where that one is not installed
    path = f'export PYTHONPATH={shlex.quote(str(SOURCE))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    asked = {**options, "setup": [path, *options.get("setup", ())], "ntasks_per_node": 1}
    executor = submitit.SlurmExecutor(folder=folder)
    executor.update_parameters(**asked)
    ours = {name: v for name, v in os.environ.items() if name == "SLURM_CONF" or name.startswith("SBATCH_")}
    try:
        # a notebook may itself run in a job, whose CPUs and memory these jobs must not inherit
        with submitit.helpers.clean_env():
            os.environ.update(ours)
            jobs = executor.map_array(run_job, requests)
    except (FailedJobError, FailedSubmissionError) as error:
        raise _refused(str(error), options) from None
    return [job.job_id for job in jobs]


def _refused(output: str, options: dict[str, Any]) -> InputError:
    lines = [line.split("error:", 1)[1].strip() for line in output.splitlines() if "error:" in line]
    partition = options.get("partition")
    known = slurm_queue.partitions()
    if partition is not None and any("partition" in line for line in lines) and str(partition) not in known:
        return unknown("partition", partition, known)
    return InputError(f"sbatch refused: {'; '.join(lines) or output.strip().splitlines()[-1]}")


def _warn_of_machines(tables: list[pa.Table]) -> None:
    """Warn of rows that more than one kind of machine has measured: they are not to be compared."""
    kinds = {
        row["gpu"] or row["cpu"]
        for table in tables
        for row in table.select(["gpu", "cpu", "status"]).to_pylist()
        if row["status"] == "ok"
    }
    if len(kinds) > 1:
        warnings.warn(
            f"these rows are of {len(kinds)} kinds of machine ({', '.join(sorted(map(str, kinds)))}), whose times "
            "must not be compared; partition= or constraint= chooses one",
            stacklevel=4,
        )
