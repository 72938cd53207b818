"""The record of a race: its lines in a JSON Lines file, from which the race continues and verdicts can be computed."""

from __future__ import annotations

import errno
import json
import os
import warnings
import zlib
from pathlib import Path
from typing import IO, Any

from tclab.errors import InputError

VERSION = 2  # increases when a line changes its meaning
_SUM = "crc32"  # the last entry of a line: a checksum of the others


class RaceRecord:
    """The lines of a race: a header, then those that are added, each at once, so a kill loses at most one block.

    Where the disk is full a warning says so, and the race goes on without a record.

    **Arguments:**

    - `path`: the file, or a folder, in which the file is `race.jsonl`; `None` keeps the lines in memory only.
    - `header`: arms, machine and settings. An existing record is continued only if its header is the same, but for a
      larger budget, with which the race goes on.

    **Raises:** `InputError` for a file that is no record of a race, is damaged, cannot be written, or is the record of
    another race, naming the difference.
    """

    def __init__(self, path: str | Path | None, header: dict[str, Any]) -> None:
        self.lines: list[dict[str, Any]] = []
        budget = header["settings"]["budget_seconds"]
        self.budgets = [budget]  # seconds, each larger than the one before
        self._file: IO[bytes] | None = None
        if path is None:
            return
        header = json.loads(json.dumps({"kind": "header", "version": VERSION, **header}))
        try:
            place = Path(path)
            if place.is_dir() or (not place.suffix and not place.is_file()):
                place.mkdir(parents=True, exist_ok=True)
                place = place / "race.jsonl"
            place.parent.mkdir(parents=True, exist_ok=True)
            lines, length = read_lines(place) if place.exists() else ([], 0)
            if lines:
                self.budgets = [line["budget_seconds"] for line in lines if line["kind"] == "budget"]
                self.budgets.insert(0, lines[0]["settings"]["budget_seconds"])
                recorded = {**lines[0]["settings"], "budget_seconds": self.budgets[-1]}
                given = {**header["settings"], "budget_seconds": min(self.budgets[-1], budget)}
                _check_header(place, {**lines[0], "settings": recorded}, {**header, "settings": given})
            self.lines = [line for line in lines[1:] if line["kind"] != "budget"]
            self._file = place.open("ab", buffering=0)
            self._file.truncate(length)  # drops a line that a kill cut short
        except (OSError, TypeError, ValueError) as error:  # a ValueError is of a character that no path can have
            if isinstance(error, InputError):
                raise
            why = getattr(error, "strerror", None) or error
            raise InputError(f"record is {path!r}, expected a file or folder that can be written: {why}") from None
        if not lines:
            self._write(header)
        if budget > self.budgets[-1]:
            self.budgets.append(budget)
            self._write({"kind": "budget", "budget_seconds": budget})

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            return
        data = json.dumps({**line, _SUM: _sum(line)}).encode() + b"\n"
        try:
            if self._file.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            warnings.warn(
                f"the race goes on without its record {self._file.name}: {error.strerror or error}", stacklevel=4
            )
            self.close()

    def add(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        self._write(line)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _sum(line: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(line).encode())


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the complete lines of a record and their length in bytes, without a last line that was cut short.

    **Raises:** `InputError` for a file that is no record of a race, or is damaged.
    """
    lines: list[dict[str, Any]] = []
    length = 0
    for raw in path.read_bytes().splitlines(keepends=True):
        if not raw.endswith(b"\n"):
            break
        try:
            line = json.loads(raw)
            known = line.pop(_SUM) == _sum(line) and (lines or line["kind"] == "header")
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            known = False
        if not known:
            if lines:
                raise InputError(
                    f"{path} is damaged: line {len(lines) + 1} is {raw[:60]!r}; without it and the lines after it, the "
                    "race continues from there"
                )
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
    place = Path(path)
    try:
        lines, _ = read_lines(place / "race.jsonl" if place.is_dir() else place)
    except OSError as error:
        raise InputError(f"{path} is no record that can be read: {error.strerror or error}") from None
    return [line for line in lines if line["kind"] == "block"]


def _check_header(path: Path, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    for part in ours:
        if theirs.get(part) == ours[part]:
            continue
        was, now = theirs.get(part), ours[part]
        if isinstance(was, dict) and isinstance(now, dict):
            name = next(k for k in {**was, **now} if was.get(k) != now.get(k))
            was, now, part = was.get(name), now.get(name), f"{part}, {name}"
        raise InputError(
            f"{path} is the record of another race: {part} was {was!r} and is {now!r}; "
            "a race continues only with the same arms, machine and settings, so give another `record`"
        )
