"""The options of a sweep on Slurm, checked before anything is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tclab.errors import unknown
from tclab.sweeps.config._fields import NumberFrom1, checked, text_value

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
_NUMBERS = ("time", "array_parallelism")  # in minutes; how many jobs run at once


def checked_options(options: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Return sbatch's options as submitit takes them; `None`, "" and 0 leave one to the cluster.

    **Raises:** `InputError` for one that submitit does not know, or that is the sweep's own.
    """
    for name in options:
        if name not in known - _OURS:
            raise unknown("option of Slurm", name, known - _OURS)
    # submitit's warning comes 90 s before the end of a job, and would end one of a minute as it begins
    usual = {"signal_delay_s": 15, "time": 60}
    given = usual | {name: value for name, value in options.items() if value not in (None, "", 0)}
    if "cpus_per_task" in given:  # from 22.05 srun no longer takes it from the job that it runs in
        given["srun_args"] = [*given.get("srun_args", ()), f"--cpus-per-task={given['cpus_per_task']}"]
    numbers = {name: given[name] for name in _NUMBERS if name in given}
    for name, value in numbers.items():
        given[name] = checked(name, text_value(value) if isinstance(value, str) else value, NumberFrom1)
    return given
