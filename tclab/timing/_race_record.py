"""The record of a race: its lines in a JSON Lines file, from which the race continues and verdicts can be computed."""

from __future__ import annotations

import errno
import json
import os
import warnings
from pathlib import Path
from typing import IO, Any

from tclab.errors import InputError

VERSION = 3  # increases when a line changes its meaning
_BLOCK = {"cell", "process", "phase", "extension", "round", "position", "arm", "role", "seconds", "spent_seconds"}
_FIELDS = {
    "header": {"cells", "machine", "settings"},
    "budget": {"budget_seconds"},
    "plan": {"cell", "calls", "block_seconds"},
    "block": _BLOCK,
    "stage": {"cell", "extension", "half", "busy_percent", "spent_seconds"},
}  # of each kind of line
Line = dict[str, Any]


class RaceRecord:
    """The lines of a race: a header, then those that are added, each round at once, so a kill loses at most one.

    Where the disk is full a warning says so, and the race goes on without a record.

    **Arguments:**

    - `path`: the file, or a folder, in which the file is `race.jsonl`; `None` keeps nothing.
    - `header`: arms, machine and settings. An existing record is continued only if its header is the same, but for a
      larger budget, with which the race goes on.

    **Raises:** `InputError` for a file that is no record of a race, is damaged, cannot be written, or is the record of
    another race, naming the difference.
    """

    def __init__(self, path: str | Path | None, header: Line) -> None:
        self.lines: list[Line] = []
        budget = header["settings"]["budget_seconds"]
        self.budgets = [budget]  # seconds, each larger than the one before
        self._file: IO[bytes] | None = None
        if path is None:
            return
        header = json.loads(json.dumps({"kind": "header", "version": VERSION, **header}))
        try:
            file = _file_of(path)
            file.parent.mkdir(parents=True, exist_ok=True)
            lines, length = read_lines(file) if file.exists() else ([], 0)
            if lines:
                self.budgets = [lines[0]["settings"]["budget_seconds"]]
                self.budgets += [line["budget_seconds"] for line in lines if line["kind"] == "budget"]
                _check_header(file, lines[0], header, self.budgets[-1])
            self.lines = [line for line in lines[1:] if line["kind"] != "budget"]
            self._file = file.open("ab", buffering=0)
            self._file.truncate(length)  # drops a line that a kill cut short
        except (OSError, TypeError, ValueError) as error:  # a ValueError is of a character that no path can have
            if isinstance(error, InputError):
                raise
            why = getattr(error, "strerror", None) or error
            raise InputError(f"record is {path!r}, expected a file or folder that can be written: {why}") from None
        if not lines:
            self.add(header)
        if budget > self.budgets[-1]:
            self.budgets.append(budget)
            self.add({"kind": "budget", "budget_seconds": budget})

    def add(self, *lines: Line) -> None:
        """Write lines, all at once."""
        if self._file is None:
            return
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        try:
            if self._file.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            warnings.warn(
                f"the race goes on without its record {self._file.name}: {error.strerror or error}", stacklevel=4
            )
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _file_of(path: str | Path) -> Path:
    file = Path(path)
    return file / "race.jsonl" if file.is_dir() or (not file.suffix and not file.is_file()) else file


def read_lines(path: Path) -> tuple[list[Line], int]:
    """Return the complete lines of a record and their length in bytes, without a last line that was cut short.

    **Raises:** `InputError` for a file that is no record of a race, or is damaged.
    """
    lines: list[Line] = []
    length = 0
    for raw in path.read_bytes().splitlines(keepends=True):
        if not raw.endswith(b"\n"):
            break
        try:
            line = json.loads(raw)
            known = line.keys() >= _FIELDS[line["kind"]] and (line["kind"] == "header") == (not lines)
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            known = False
        if not known and lines:
            raise InputError(
                f"{path} is damaged: line {len(lines) + 1} is {raw[:60]!r}; without it and the lines after it, the "
                "race continues from there"
            )
        if not known:
            raise InputError(f"{path} is no record of a race: line 1 is {raw[:60]!r}")
        lines.append(line)
        length += len(raw)
    return lines, length


def read_samples(path: str | Path) -> list[dict[str, Any]]:
    """Return the samples of a record, for `verdicts_of`; the race may have run on any machine.

    **Arguments:**

    - `path`: the file, or its folder.

    **Raises:** `InputError` for a file that is no record of a race, or is damaged.
    """
    try:
        lines, _ = read_lines(_file_of(path))
    except OSError as error:
        raise InputError(f"{path} is no record that can be read: {error.strerror or error}") from None
    return [line for line in lines if line["kind"] == "block"]


def _check_header(path: Path, theirs: Line, ours: Line, budget: float) -> None:
    """Check that a record's header is this race's, whose budget may be larger than the record's last, `budget`."""
    given = ours["settings"]["budget_seconds"]
    theirs = {**theirs, "settings": {**theirs["settings"], "budget_seconds": max(budget, given)}}
    for part, now in ours.items():
        was = theirs.get(part)
        if was == now:
            continue
        if isinstance(was, dict) and isinstance(now, dict):
            name = next(key for key in {**was, **now} if was.get(key) != now.get(key))
            was, now, part = was.get(name), now.get(name), f"{part}, {name}"
        raise InputError(
            f"{path} is the record of another race: {part} was {was!r} and is {now!r}; "
            "a race continues only with the same arms, machine and settings, so give another `record`"
        )
