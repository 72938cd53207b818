"""The options of a sweep on Slurm, checked before anything is submitted."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, TypedDict

from tclab.errors import InputError, unknown

# These say when or for whom a job runs. All others say on what, and tell one kind of machine from another.
_NOT_THE_MACHINE = frozenset([
    "account", "array_parallelism", "comment", "dependency", "mail_type", "mail_user", "qos", "signal_delay_s",
    "stderr_to_stdout", "teardown", "time", "timelimit", "wckey",
])  # fmt: skip


class SlurmOptions(TypedDict, total=False):
    """What `tclab.sweep(…, executor="slurm")` takes besides its own parameters: sbatch's options, and two more.

    `None`, "" and 0 leave an option to the cluster.

    **Arguments:**

    - `points_per_job`: 1 unless given; a job costs some seconds of imports, which more points share.
    - `poll_seconds`: between two questions to squeue, 5 unless given.
    - `time`: minutes, or text as sbatch takes it, "1:30:00" or "1-12"; 60 minutes unless given.
    - the others: see `man sbatch` and submitit; one that is not listed there goes into `additional_parameters`.
    """

    points_per_job: int | None
    poll_seconds: float
    account: str | None
    additional_parameters: dict[str, Any] | None
    array_parallelism: int | None
    comment: str | None
    constraint: str | None
    cpus_per_gpu: int | None
    cpus_per_task: int | None
    dependency: str | None
    exclude: str | None
    exclusive: bool | str | None
    gpus_per_node: int | str | None
    gpus_per_task: int | str | None
    gres: str | None
    mail_type: str | None
    mail_user: str | None
    mem: str | None
    mem_per_cpu: str | None
    mem_per_gpu: str | None
    nodelist: str | None
    num_gpus: int | None
    partition: str | None
    qos: str | None
    setup: list[str] | None
    signal_delay_s: int | None
    srun_args: list[str] | None
    stderr_to_stdout: bool | None
    teardown: list[str] | None
    time: int | str | None
    wckey: str | None


_OURS = {
    "nodes": "one: docs/cluster.md has a script for ranks on several",
    "ntasks_per_node": "one, which starts a point's ranks; see ranks of Point",
    "job_name": "the name by which the sweep finds its jobs again",
    "use_srun": "always",
}
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})")


def minutes_of(time: Any) -> int:
    """Return Slurm's ways to write a time in minutes: 90, "90", "1:30:00", "2-12", "1-00:30"; seconds round up.

    **Raises:** `InputError` for anything else.
    """
    match = _TIME.fullmatch(str(time).strip())
    if not match or isinstance(time, bool):
        raise InputError(f"time is {time!r}, expected minutes, 'hours:minutes:seconds' or 'days-hours'")
    parts = [int(part) for part in match["parts"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    else:  # sbatch's: minutes, minutes:seconds, hours:minutes:seconds
        hours, minutes, seconds = parts if len(parts) == 3 else [0, *parts, 0][:3]
    whole = int(match["days"] or 0) * 1440 + hours * 60 + minutes + -(-seconds // 60)
    if not whole:
        raise InputError(f"time is {time!r}, expected a minute at least")
    return whole


def checked(options: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Return sbatch's options as submitit takes them; `None`, "" and 0 leave one to the cluster.

    **Raises:** `InputError` for one that submitit does not know, or is the sweep's own.
    """
    for name, value in options.items():
        if name in _OURS:
            raise InputError(f"{name} is not an option of the sweep's: it is {_OURS[name]}")
        if name not in known:
            raise unknown("option of Slurm", name, known - set(_OURS))
        lines = value.values() if isinstance(value, Mapping) else [value]
        if any(isinstance(line, str) and "\n" in line for line in lines):
            raise InputError(f"{name} is {value!r}, expected one line: the job's shell would run the next one")
    given = {name: value for name, value in options.items() if value not in (None, "", 0)}
    given["time"] = minutes_of(given.get("time", 60))
    # Slurm warns a job before its time is up; one that is shorter than the warning would be warned as it starts
    given.setdefault("signal_delay_s", min(90, 15 * given["time"]))
    if "cpus_per_task" in given:  # from 22.05 srun no longer takes it from the job that it runs in
        given["srun_args"] = [*given.get("srun_args", ()), f"--cpus-per-task={given['cpus_per_task']}"]
    return given


def machine_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that decide on what kind of machine a job runs.

    sbatch's own variables (`SBATCH_PARTITION`, …) go before what a script says, so they are among them.
    """
    variables = {name: value for name, value in os.environ.items() if name.startswith("SBATCH_")}
    asked = {**options, **{name.removeprefix("SBATCH_").lower(): value for name, value in variables.items()}}
    return {name: value for name, value in asked.items() if name not in _NOT_THE_MACHINE}
