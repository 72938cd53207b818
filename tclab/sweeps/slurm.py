"""A sweep as jobs of a Slurm cluster, sent through submitit; the rows land in the same results folder."""

from __future__ import annotations

import json
import os
import threading
import uuid
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

import pandas as pd
import pyarrow as pa

from tclab.errors import InputError, unknown
from tclab.sweeps import slurm_queue
from tclab.sweeps.launched import HANG_SECONDS
from tclab.sweeps.own_code import imports_of
from tclab.sweeps.point import Point
from tclab.sweeps.results import Results
from tclab.sweeps.rows import SCHEMA, frame, not_measured
from tclab.sweeps.running import SOURCE
from tclab.sweeps.slurm_job import work
from tclab.sweeps.slurm_options import checked, machine_of
from tclab.sweeps.slurm_queue import Job, NoAnswerError
from tclab.sweeps.sweeping import Progress, failed_or_oom
from tclab.sweeps.tickets import Sent, Tickets, name_of, words_of

_LOOK_SECONDS = 0.5  # between looks at the folder
_TIDYING_SECONDS = 60.0  # a job that ended is waited for so long to say how; a node can hang in it


def sweep_on_slurm(
    points: Iterable[Point],
    *,
    results: str | Path,
    retry: bool = False,
    fresh: bool = False,
    memory_bytes: int | None = None,
    hang_seconds: float = HANG_SECONDS,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    points_per_job: int | None = None,
    poll_seconds: float = 5.0,
    **options: Any,
) -> pd.DataFrame:
    """Run points as jobs of a Slurm cluster and return their rows in the points' order; see `tclab.sweep`.

    What a job wrote, failures among it, is kept as a local sweep keeps it. A job that ended before its point was
    through gives `failed: job 12_3 …`, which is not kept: running again sends the point again.

    **Arguments:**

    - `points_per_job`: a job costs some seconds of imports, more points share them; `None` is one.
    - `poll_seconds`: between two questions to squeue.
    - `options`: sbatch's.

    **Raises:** `InputError` for options, an sbatch that refuses, a cluster that does not answer.
    """
    submitit = _submitit()
    points_per_job = 1 if points_per_job is None else points_per_job
    if isinstance(points_per_job, bool) or not isinstance(points_per_job, int) or points_per_job < 1:
        raise InputError(f"points_per_job is {points_per_job!r}, expected a whole number of at least 1")
    given = checked(options, submitit.SlurmExecutor._valid_parameters())
    sweep = _Sweep(
        Tickets(Results(Path(results).expanduser().resolve())),
        {"retry": retry, "fresh": fresh, "memory_bytes": memory_bytes, "hang_seconds": hang_seconds},
        given,
    )
    wanted = [_absolute(point) for point in dict.fromkeys(points)]
    stop = stop or threading.Event()
    try:
        sweep.begin(wanted, None if stop.is_set() else points_per_job)
    except NoAnswerError as error:
        raise InputError(f"Slurm refused or did not answer: {error}") from None
    sweep.tell(progress)
    asked = monotonic()
    while sweep.waiting and not stop.wait(_LOOK_SECONDS):
        sweep.look()
        if monotonic() - asked > poll_seconds:
            sweep.ask()
            asked = monotonic()
        sweep.tell(progress)
    if sweep.waiting:
        sweep.cancel()
    found = [sweep.rows[name] for name in sweep.names]
    _warn_of_machines(found)
    return frame(pa.concat_tables([SCHEMA.empty_table(), *found]))


@dataclass
class _Sweep:
    """What one call of `sweep_on_slurm` knows."""

    tickets: Tickets
    asked: dict[str, Any]  # of the sweep in each job
    options: dict[str, Any]  # of sbatch
    where: dict[str, Any] = field(
        default_factory=dict
    )  # of these what decides the kind of machine, and the cluster
    names: dict[str, Point] = field(default_factory=dict)  # tickets, in the points' order
    rows: dict[str, pa.Table] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    waiting: dict[str, Sent] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    over_since: dict[str, float] = field(default_factory=dict)  # when squeue first showed a job to be over

    @property
    def logs(self) -> Path:
        return self.tickets.folder / "logs"

    def begin(self, points: list[Point], points_per_job: int | None) -> None:
        """Read what is there, wait for what is queued or runs, send the rest, unless `points_per_job` is `None`."""
        cluster, most = slurm_queue.cluster()
        where = {**machine_of(self.options), "cluster": cluster}
        self.where = where
        self.names = {name_of(point, where): point for point in points}
        imports = imports_of(*points)
        with self.tickets.locked():
            jobs = slurm_queue.jobs()
            missing = []
            for name in self.names:
                sent = self.tickets.sent(name)
                rows = self.tickets.rows(name)
                job = None if sent is None else jobs.get((sent.submission, sent.index))
                if rows is not None and not (self.asked["retry"] and failed_or_oom(rows)):
                    self.rows[name] = rows
                    self.kept.add(name)
                elif sent is not None and job is not None and job.alive and not self.tickets.landed(name):
                    self.waiting[name] = replace(sent, job=job.job)
                else:
                    missing.append(name)
            if points_per_job is None:
                self.rows |= {name: not_measured(self.names[name], "not run: stopped") for name in missing}
                self.told |= set(missing)
                return
            for machines in dict.fromkeys(self.names[name].machines for name in missing):
                those = [name for name in missing if self.names[name].machines == machines]
                for begin in range(0, len(those), most * points_per_job):
                    self._send(those[begin : begin + most * points_per_job], machines, points_per_job, imports)

    def _send(self, names: list[str], machines: int, points_per_job: int, imports: dict[str, list[str]]) -> None:
        """Send points as one array of jobs, each on so many machines."""
        groups = [names[i : i + points_per_job] for i in range(0, len(names), points_per_job)]
        submission = f"{slurm_queue.PREFIX}{uuid.uuid4().hex[:12]}"
        for index, group in enumerate(groups):
            for name in group:
                self.tickets.send(name, Sent(submission, index))
        requests = [
            json.dumps({
                "results": str(self.tickets.results.folder),
                "submission": submission,
                "points": {name: self.names[name].to_dict() for name in group},
                "options": self.asked,
                "where": self.where,
                **imports,
            })
            for group in groups
        ]  # fmt: skip
        try:
            numbers = _submit(self.logs, {**self.options, "nodes": machines, "job_name": submission}, requests)
        except BaseException:
            for name in names:
                self.tickets.take_back(name)
            raise
        for index, (group, number) in enumerate(zip(groups, numbers, strict=True)):
            for name in group:
                self.waiting[name] = Sent(submission, index, number)
                self.tickets.note(name, self.waiting[name])

    def look(self) -> None:
        """Take up what has landed."""
        for name in self.tickets.all_landed() & self.waiting.keys():
            landed = self.tickets.landed(name)
            if landed is None or landed.submission != self.waiting[name].submission:
                continue  # of an earlier job, which was thought dead
            rows = self.tickets.rows(name)
            self._through(name, rows if rows is not None else self._failed(name, landed.error or "no rows"))

    def ask(self) -> None:
        """Ask Slurm for jobs that ended and left no rows; a second time, since rows may be on their way."""
        try:
            jobs = slurm_queue.jobs()
        except NoAnswerError:  # a controller that is restarted; the jobs run on
            return
        for name, sent in list(self.waiting.items()):
            job = jobs.get((sent.submission, sent.index))
            if job is not None and job.alive:
                self.over_since.pop(name, None)  # it had been taken back into the queue
                continue
            since = self.over_since.get(name)
            self.over_since.setdefault(name, monotonic())
            tidying = job is not None and job.state == "COMPLETING"
            if since is not None and (not tidying or monotonic() - since > _TIDYING_SECONDS):
                self._through(name, self._failed(name, self._how(sent, job)))

    def cancel(self) -> None:
        """Cancel the jobs that are waited for."""
        status = "not run: stopped"
        try:
            slurm_queue.cancel(sorted({sent.job for sent in self.waiting.values() if sent.job is not None}))
        except NoAnswerError as error:
            status = f"not run: stopped, and its job goes on: {error}"
        self.look()  # what landed at the last moment
        for name in list(self.waiting):
            if status == "not run: stopped":
                self.tickets.take_back(name)
            self._through(name, not_measured(self.names[name], status))

    def tell(self, progress: Callable[[Progress], None] | None) -> None:
        """Report the points that are through and have not been reported."""
        for name, rows in self.rows.items():
            if name not in self.told:
                self.told.add(name)
                if progress is not None:
                    done = Progress(len(self.told), len(self.names), self.names[name], rows, name in self.kept)
                    progress(done)

    def _through(self, name: str, rows: pa.Table) -> None:
        self.rows[name] = rows
        del self.waiting[name]

    def _failed(self, name: str, why: str) -> pa.Table:
        return not_measured(self.names[name], f"failed: {why}")

    def _how(self, sent: Sent, job: Job | None) -> str:
        state = "" if job is None else f" as {job.state}"
        return f"job {sent.job} ended{state}: {words_of(self.logs, sent.job) or 'it said nothing'}"


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise InputError("executor='slurm' needs the package submitit: pip install 'tclab[slurm]'") from None
    slurm_queue.ask("sbatch", "--version")
    return submitit


def _submit(folder: Path, options: dict[str, Any], requests: list[str]) -> list[str]:
    """Send one job a request, as an array, and return their numbers.

    **Raises:** `InputError` with the words of an sbatch that refuses.
    """
    submitit = _submitit()
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    # the jobs must import the tclab that is running here, also where that one is not installed
    path = f'export PYTHONPATH="{SOURCE}${{PYTHONPATH:+:$PYTHONPATH}}"'
    asked = {**options, "setup": [path, *options.get("setup", ())], "ntasks_per_node": 1}
    if options["nodes"] > 1:  # what is left of a point when a machine has failed would wait for it
        asked["srun_args"] = [*options.get("srun_args", ()), "--kill-on-bad-exit=1"]
    executor = submitit.SlurmExecutor(folder=folder)
    executor.update_parameters(**asked)
    ours = {name: v for name, v in os.environ.items() if name == "SLURM_CONF" or name.startswith("SBATCH_")}
    try:
        # a notebook may itself run in a job, whose CPUs and memory these jobs must not inherit
        with submitit.helpers.clean_env():
            os.environ.update(ours)
            sent = executor.map_array(work, requests)
    except (FailedJobError, FailedSubmissionError) as error:
        raise _refused(str(error), options) from None
    return [job.job_id for job in sent]


def _refused(said: str, options: dict[str, Any]) -> InputError:
    lines = [line.split("error:", 1)[1].strip() for line in said.splitlines() if "error:" in line]
    partition = options.get("partition")
    known = slurm_queue.partitions()
    if partition is not None and any("partition" in line for line in lines) and str(partition) not in known:
        return unknown("partition", partition, known)
    return InputError(f"sbatch refused: {'; '.join(lines) or said.strip().splitlines()[-1]}")


def _absolute(point: Point) -> Point:
    return point if point.graph == "synthetic" else replace(point, graph=str(Path(point.graph).resolve()))


def _warn_of_machines(found: list[pa.Table]) -> None:
    """Warn of rows that more than one kind of machine has measured: they are not to be compared."""
    kinds = {
        row["gpu"] or row["cpu"]
        for table in found
        for row in table.select(["gpu", "cpu", "status"]).to_pylist()
        if row["status"] == "ok"
    }
    if len(kinds) > 1:
        warnings.warn(
            f"these rows are of {len(kinds)} kinds of machine ({', '.join(sorted(map(str, kinds)))}), whose times "
            "must not be compared; partition= or constraint= chooses one",
            stacklevel=3,
        )
