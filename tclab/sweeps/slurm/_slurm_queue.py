"""Queries by Slurm's own commands: the jobs, their states, the name of the cluster."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from tclab.errors import InputError

# States of a job that will write no more rows. One that is COMPLETING has ended, and its node is tidying up.
_OVER = frozenset([
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "SPECIAL_EXIT", "TIMEOUT",
])  # fmt: skip
PREFIX = "tclab-"
_MAX_ARRAY = 1000  # Slurm's default MaxArraySize is 1001, and that is the first index too many


@dataclass(frozen=True)
class Job:
    """One job of an array as squeue shows it."""

    job: str  # its number, "12_3"
    state: str  # Slurm's word
    reason: str  # why it waits, or how it ended

    @property
    def alive(self) -> bool:
        """Whether rows are still to be expected of it."""
        never = self.state == "PENDING" and "held" in self.reason.lower() and "launch" in self.reason.lower()
        return self.state not in _OVER and not never


class NoAnswerError(Exception):
    """Slurm did not answer; a controller that is restarted does not for a while."""


def ask(*command: str) -> str:
    """Return the output of a Slurm command.

    **Raises:** `NoAnswerError` with its words where it fails; `InputError` where there is no such command.
    """
    if shutil.which(command[0]) is None:
        raise InputError(
            f"executor is 'slurm', and there is no {command[0]} on this machine; expected a node of a Slurm "
            "cluster that may submit, or executor='local'"
        )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"{command[0]} did not answer within 120 s") from None
    if done.returncode:
        raise NoAnswerError((done.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1])
    return done.stdout


def jobs() -> dict[tuple[str, int], Job]:
    """Return this user's jobs that are tclab's, those just ended among them, by submission and index.

    **Raises:** as `ask`.
    """
    output = ask("squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%F|%K|%T|%r|%j")
    jobs_by_index = {}
    for line in output.splitlines():
        number, index, state, reason, name = line.strip().split("|", 4)
        if name.startswith(PREFIX):
            alone = not index.isdigit()  # "N/A": no array
            job = number if alone else f"{number}_{index}"
            jobs_by_index[name, 0 if alone else int(index)] = Job(job, state, reason)
    return jobs_by_index


def cancel(numbers: Iterable[str]) -> None:
    """Cancel jobs; one that is over by now is no matter.

    **Raises:** as `ask`.
    """
    wanted = list(numbers)
    for begin in range(0, len(wanted), 500):  # a command line has a length
        ask("scancel", "--quiet", *wanted[begin : begin + 500])


def cluster() -> tuple[str, int]:
    """Return the cluster's name and how many jobs an array of it may have.

    **Raises:** as `ask`.
    """
    output = ask("scontrol", "show", "config")
    name = re.search(r"^ClusterName\s*=\s*(\S+)", output, re.MULTILINE)
    most = re.search(r"^MaxArraySize\s*=\s*(\d+)", output, re.MULTILINE)
    return name[1] if name else "", min(_MAX_ARRAY, max(1, int(most[1]) - 1)) if most else _MAX_ARRAY


def partitions() -> list[str]:
    """Return the names of the cluster's partitions, none where Slurm does not tell."""
    try:
        return sorted(set(ask("sinfo", "--noheader", "--format=%R").split()))
    except NoAnswerError:
        return []
