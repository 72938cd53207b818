"""The options of a sweep on Slurm, checked before anything is submitted."""

from __future__ import annotations

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
_WHOLE = {"time": "minutes, such as 90", "array_parallelism": "how many jobs run at once"}


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
    given = {"time": 60, **given}
    for name, expected in _WHOLE.items():
        if name in given:
            if not str(given[name]).isdecimal():
                raise InputError(f"{name} is {given[name]!r}, expected {expected}")
            given[name] = int(given[name])
    # submitit's warning comes 90 s before the end of a job, and would end one of a minute as it begins
    return {"signal_delay_s": 15, **given}
