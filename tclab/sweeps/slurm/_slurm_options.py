"""The options of a sweep on Slurm, checked before anything is submitted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tclab.errors import InputError, unknown

# Options of sbatch that the command and the notebooks have by name; `tclab.sweep` takes all that submitit knows.
OPTIONS = (
    "partition", "gpus_per_node", "time", "account", "constraint", "cpus_per_task", "mem", "qos", "array_parallelism",
)  # fmt: skip
_OURS = {"nodes", "ntasks_per_node", "job_name", "use_srun"}  # a point is one job on one node, found by its number
# These say when or for whom a job runs. All others say on what, and tell one kind of machine from another.
NOT_THE_MACHINE = {
    "account", "array_parallelism", "comment", "dependency", "mail_type", "mail_user", "qos", "signal_delay_s",
    "srun_args", "stderr_to_stdout", "teardown", "time", "timelimit", "wckey",
}  # fmt: skip


def checked(options: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Return sbatch's options as submitit takes them; `None`, "" and 0 leave one to the cluster.

    **Raises:** `InputError` for one that submitit does not know, or is the sweep's own, or has several lines.
    """
    for name, value in options.items():
        if name not in known - _OURS:
            raise unknown("option of Slurm", name, known - _OURS)
        lines = value.values() if isinstance(value, Mapping) else [value]
        if any("\n" in str(line) for line in lines):
            raise InputError(f"{name} is {value!r}, expected one line: the job's shell would run the next one")
    given = {name: value for name, value in options.items() if value not in (None, "", 0)}
    if "cpus_per_task" in given:  # from 22.05 srun no longer takes it from the job that it runs in
        given["srun_args"] = [*given.get("srun_args", ()), f"--cpus-per-task={given['cpus_per_task']}"]
    # submitit's warning comes 90 s before the end of a job, and would end one of a minute as it begins
    return {"signal_delay_s": 15, **given, "time": minutes_of(given.get("time", 60))}


def minutes_of(time: int | str) -> int:
    """Return a time in minutes: 90, "90", "1:30:00" or "1-12:00:00"; seconds round up.

    **Raises:** `InputError` for anything else.
    """
    minutes = int(time) if str(time).isdigit() else 0
    if match := re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", str(time)):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        minutes += 1440 * days + 60 * hours + (seconds > 0)
    if not minutes:
        raise InputError(f"time is {time!r}, expected minutes, or 'hours:minutes:seconds', with 'days-' before or not")
    return minutes
