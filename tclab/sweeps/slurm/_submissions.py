"""Which points of a results folder were sent to a cluster, as which jobs, and what came of them."""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import pyarrow as pa

from tclab._io import atomic_write
from tclab.sweeps.config._point import Point
from tclab.sweeps.store._results import Results, point_key
from tclab.timing._environment import fingerprint

# What srun says after whatever a job said itself.
_REMARKS = ("Exited with exit code", "Job step aborted", "Force Terminated", "Terminating StepId")
_SUBMISSION, _OUTCOME = ".submission.json", ".outcome.json"


@dataclass(frozen=True)
class Submission:
    """A point as it was sent."""

    # the name of the job array; written down before Slurm is asked, so that a job can be found again whose number was
    # never recorded
    submission: str
    index: int  # its place in the array
    job: str | None = None  # Slurm's number, "12_3"


@dataclass(frozen=True)
class JobOutcome:
    """What a job made of a point: the file with its rows, or why there is none."""

    submission: str  # that of the job
    rows: str | None = None  # the file's name, which tells the machine that it ran on
    error: str | None = None  # words for the person who asked

    def __post_init__(self) -> None:
        if self.rows is not None and (Path(self.rows).name != self.rows or not self.rows.endswith(".parquet")):
            raise ValueError(f"rows is {self.rows!r}, which is no file of the results folder")


_Record = TypeVar("_Record", Submission, JobOutcome)


def name_of(point: Point, where: Mapping[str, Any]) -> str:
    """Return the name of a point's submission: a hash of the point, its code, where it is to run, and the software.

    A row's own file is named by the machine that it ran on, and a node that submits is not that machine: it may
    have no GPU where the others have four. So a submission is named by the requested kind of machine, `where`: the
    cluster, its partition, GPUs and the like.
    """
    threads = os.environ.get("OMP_NUM_THREADS")
    return point_key(point, {"where": dict(where), "software": fingerprint("software"), "threads": threads})


class Submissions:
    """The folder `slurm/` within a results folder: two small JSON files a point.

    The side that submits writes `….submission.json`, and the job `….outcome.json`, so that no file has two writers;
    each is written atomically.
    """

    def __init__(self, results: Results) -> None:
        self.results = results
        self.folder = results.folder / "slurm"
        self.folder.mkdir(exist_ok=True)

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the folder against a second sweep that would submit the same points at this moment."""
        with (self.folder / ".lock").open("w") as file:
            with suppress(OSError):  # a file system without locks: two sweeps at one moment are its user's to avoid
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def submission(self, name: str) -> Submission | None:
        return self._read(name + _SUBMISSION, Submission)

    def record(self, name: str, submission: Submission) -> None:
        """Record how a point is about to be submitted, in place of an earlier submission and its outcome."""
        (self.folder / (name + _OUTCOME)).unlink(missing_ok=True)
        self.record_job(name, submission)

    def record_job(self, name: str, submission: Submission) -> None:
        """Record a submission with the number of its job, which may be through by now."""
        atomic_write(self.folder / (name + _SUBMISSION), json.dumps(asdict(submission)))

    def forget(self, name: str) -> None:
        (self.folder / (name + _SUBMISSION)).unlink(missing_ok=True)

    def record_outcome(self, name: str, outcome: JobOutcome) -> None:
        atomic_write(self.folder / (name + _OUTCOME), json.dumps(asdict(outcome)))

    def outcome(self, name: str) -> JobOutcome | None:
        """Return the outcome of a point's job; `None` before a job has finished it."""
        return self._read(name + _OUTCOME, JobOutcome)

    def rows(self, name: str) -> pa.Table | None:
        """Return a point's rows where a job has written them and they are still there."""
        outcome = self.outcome(name)
        return None if outcome is None or outcome.rows is None else self.results.read_file(outcome.rows)

    def names_with_outcome(self) -> set[str]:
        """Return the names of all points that jobs are through with.

        A folder that is listed is asked of the file server; a single file may be remembered as missing.
        """
        return {file.removesuffix(_OUTCOME) for file in os.listdir(self.folder) if file.endswith(_OUTCOME)}

    def _read(self, name: str, kind: type[_Record]) -> _Record | None:
        """Return a record; `None` where there is none, and, with a warning, for one that is damaged."""
        try:
            fields = json.loads((self.folder / name).read_text())
            for one, wanted in get_type_hints(kind).items():
                if not isinstance(fields.get(one), wanted):
                    raise TypeError(f"{one} is {fields.get(one)!r}")
            return kind(**fields)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            warnings.warn(f"{self.folder / name} is damaged, and left out: {error}", stacklevel=3)
            return None


def words_of(log_folder: Path, job: str | None) -> str | None:
    """Return the last thing that a job said that tells why it ended, or `None` where it said nothing.

    srun's remarks that a step came to its end come last and tell nothing; the line before them does.
    """
    if job is None:
        return None
    lines: list[str] = []
    for path in sorted(log_folder.glob(f"{job}_*_log.err")):
        lines += [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if not any(remark in line for remark in _REMARKS)]
    return (telling or lines)[-1] if lines else None
