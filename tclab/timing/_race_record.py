"""The record of a race: its rounds in a JSON Lines file, from which it continues and verdicts can be computed.

The first line says which race it is: arms, machine and settings. Each budget, the first and larger ones, has a line,
`{"budget_seconds": 60.0}`, and each block has its sample; see `tclab.timing._race_blocks`.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from tclab._io import held, writing
from tclab.errors import InputError

VERSION = 4  # increases when a line changes its meaning
_BLOCK = {"process", "extension", "half", "round", "position", "arm", "calls", "seconds", "spent_seconds"}
Line = dict[str, Any]


class RaceRecord:
    """The lines of a race, with which it goes on; `add` writes each round at once, so a kill loses at most one.

    **Arguments:**

    - `lines`: those of earlier sessions.
    - `file`: to which new ones are written; `None` for none.
    """

    def __init__(self, lines: list[Line], file: IO[bytes] | None) -> None:
        self.budgets = [line["budget_seconds"] for line in lines if "budget_seconds" in line]
        self.samples = [line for line in lines if "arm" in line]
        self._file = file

    def go_on(self, budget_seconds: float) -> list[float]:
        """Return all budgets of the race, of which a new one must be larger than those before."""
        if self.budgets and budget_seconds < self.budgets[-1]:
            raise InputError(f"budget_seconds was {self.budgets[-1]} and is {budget_seconds}, expected as much or more")
        if budget_seconds not in self.budgets:
            self.budgets.append(budget_seconds)
            self.add({"budget_seconds": budget_seconds})
        return self.budgets

    def add(self, *lines: Line) -> None:
        """Write lines. Where the disk is full a warning says so, and the race goes on without a record."""
        if self._file is None:
            return
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        try:
            if self._file.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            warnings.warn(f"the race goes on without its record {self._file.name}: {error.strerror}", stacklevel=4)
            self._file = None


@contextmanager
def open_record(path: str | Path | None, header: Line) -> Iterator[RaceRecord]:
    """Open the record of a race within the block, held against other processes.

    **Arguments:**

    - `path`: the file, or a folder, in which the file is `race.jsonl`; `None` keeps nothing.
    - `header`: arms, machine and settings. An existing record is continued only if its header is the same.

    **Raises:** `InputError` for a file that is no record of a race, is damaged, cannot be written, is being written by
    another race, or is the record of another, naming the difference.
    """
    if path is None:
        yield RaceRecord([], None)
        return
    header = json.loads(json.dumps({"version": VERSION, **header}))
    with ExitStack() as opened:
        with writing("record", path):
            place = _file_of(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            if (owner := opened.enter_context(held(place.with_name(f".{place.name}.lock")))) is not None:
                raise InputError(f"record {place} is being written by {owner}")
            lines, length = _lines_of(place) if place.exists() else ([], 0)
            if lines:
                _check_header(place, lines[0], header)
            file = opened.enter_context(place.open("ab", buffering=0))
            file.truncate(length)  # drops a line that a kill cut short
        record = RaceRecord(lines, file)
        if not lines:
            record.add(header)
        yield record


def read_samples(path: str | Path) -> list[dict[str, Any]]:
    """Return the samples of a record, for `verdicts_of`; the race may have run on any machine.

    **Arguments:**

    - `path`: the file or its folder; or the folder of a race of several cells.

    **Raises:** `InputError` for a file that is no record of a race, or is damaged.
    """
    file = _file_of(path)
    if file.is_file():
        return RaceRecord(_lines_of(file)[0], None).samples
    records = sorted(Path(path).glob("*.jsonl"))
    if not records:
        raise InputError(f"{path} is no record of a race")
    return [{**sample, "cell": record.stem} for record in records for sample in read_samples(record)]


def _file_of(path: str | Path) -> Path:
    file = Path(path)
    return file / "race.jsonl" if file.is_dir() or (not file.suffix and not file.is_file()) else file


def _lines_of(path: Path) -> tuple[list[Line], int]:
    """Return the complete lines of a record and their length in bytes, without a last line that was cut short."""
    lines: list[Line] = []
    length = 0
    for raw in path.read_bytes().splitlines(keepends=True):
        if not raw.endswith(b"\n"):
            break
        kinds = [{"budget_seconds"}, _BLOCK] if lines else [{"version"}]
        try:
            line = json.loads(raw)
            known = any(line.keys() >= kind for kind in kinds)
        except (AttributeError, RecursionError, ValueError):
            known = False
        if not known:
            what = "is damaged" if lines else "is no record of a race"
            raise InputError(f"{path} {what}: line {len(lines) + 1} is {raw[:60]!r}")
        lines.append(line)
        length += len(raw)
    return lines, length


def _check_header(path: Path, theirs: Line, ours: Line) -> None:
    for name, now in ours.items():
        if theirs.get(name) != now:
            raise InputError(
                f"{path} is the record of another race: {name} was {theirs.get(name)!r} and is {now!r}; "
                "a race continues only with the same arms, machine and settings, so give another `record`"
            )
