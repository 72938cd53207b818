"""Which points of a results folder were sent to a cluster, as which jobs, and what came of them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tclab import __version__
from tclab.sweeps.own_code import own_code
from tclab.sweeps.point import Point
from tclab.sweeps.results import Results
from tclab.sweeps.rows import SCHEMA_VERSION
from tclab.sweeps.stamps import folder_stamp
from tclab.sweeps.whole_files import write_whole
from tclab.timing import environment

# What the submitting side knows of the software that a job will run; the machine is the job's to know.
_OF_THE_SOFTWARE = ("python", "torch", "torch_geometric", "numpy")
# What srun says after whatever a job said itself.
_REMARKS = ("Exited with exit code", "Job step aborted", "Force Terminated", "Terminating StepId")
_SENT, _LANDED = ".sent.json", ".landed.json"


@dataclass(frozen=True)
class Sent:
    """A point as it was sent.

    **Arguments:**

    - `submission`: the name of the job array; written down before Slurm is asked, so that a job can be found
      again whose number nobody lived to write down.
    - `index`: its place in the array. `job`: Slurm's number, "12_3".
    """

    submission: str
    index: int
    job: str | None = None


@dataclass(frozen=True)
class Landed:
    """What a job made of a point: the file with its rows, or why there is none.

    **Arguments:**

    - `submission`: that of the job. `rows`: the file's name, which tells the machine that it ran on.
    - `error`: words for the person who asked.
    """

    submission: str
    rows: str | None = None
    error: str | None = None


def name_of(point: Point, where: Mapping[str, Any]) -> str:
    """Return the name of a point's ticket: a hash of the point, its code, where it is to run, and the software.

    A row's own file is named by the machine that it ran on, and a node that submits is not that machine: it may
    have no GPU where the others have four. So what is there already is told by what was asked for.

    **Arguments:**

    - `where`: what decides the kind of machine: the cluster, its partition, GPUs and the like.
    """
    here = environment()
    what = {
        "schema": SCHEMA_VERSION,
        "tclab": __version__,
        "point": point.to_dict(),
        "where": dict(where),
        "software": {name: here[name] for name in _OF_THE_SOFTWARE},
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "files": folder_stamp(point.graph),
    }
    if own := own_code(point):  # of a user's own, each version of its file stands for itself
        what["own_code"] = own
    canonical = json.dumps(what, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:24]


class Tickets:
    """The folder `slurm/` within a results folder: two small JSON files a point.

    `….sent.json` is written by the side that submits, `….landed.json` by the job, so that no file has two
    writers; each is written under another name and renamed.
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

    def sent(self, name: str) -> Sent | None:
        """Return how a point was sent, or `None`."""
        found = self._read(name + _SENT)
        return None if found is None else Sent(**found)

    def send(self, name: str, sent: Sent) -> None:
        """Write down how a point is sent, in place of what was known of it."""
        (self.folder / (name + _LANDED)).unlink(missing_ok=True)
        self.note(name, sent)

    def note(self, name: str, sent: Sent) -> None:
        """Write down more of how a point was sent; its job may be through by now."""
        self._write(name + _SENT, asdict(sent))

    def take_back(self, name: str) -> None:
        """Forget that a point was sent."""
        (self.folder / (name + _SENT)).unlink(missing_ok=True)

    def land(self, name: str, landed: Landed) -> None:
        """Write down what a job made of a point."""
        self._write(name + _LANDED, asdict(landed))

    def landed(self, name: str) -> Landed | None:
        """Return what a job made of a point, or `None` where none is through with it."""
        found = self._read(name + _LANDED)
        return None if found is None else Landed(**found)

    def rows(self, name: str) -> pa.Table | None:
        """Return a point's rows where a job has written them and nobody has removed them."""
        landed = self.landed(name)
        return None if landed is None or landed.rows is None else self.results.read_file(landed.rows)

    def all_landed(self) -> set[str]:
        """Return the names of all points that jobs are through with.

        A folder that is listed is asked of the file server; a single file may be remembered as missing.
        """
        return {f.removesuffix(_LANDED) for f in os.listdir(self.folder) if f.endswith(_LANDED)}

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.folder / name).read_text())
        except FileNotFoundError:
            return None
        return found

    def _write(self, name: str, what: dict[str, Any]) -> None:
        write_whole(self.folder / name, json.dumps(what))


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
