"""The record of a race: its lines in a JSON Lines file, from which the race continues and verdicts can be computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from tclab.errors import InputError

VERSION = 1  # increases when a line changes its meaning


class RaceRecord:
    """The lines of a race: a header, then those that are added; each is flushed, so a kill loses at most one block.

    **Arguments:**

    - `path`: the file, or a folder, in which the file is `race.jsonl`; `None` keeps the lines in memory only.
    - `header`: arms, machine and settings. An existing record is continued only if its header is the same.

    **Raises:** `InputError` for a file that is no record of a race, or that of another race, naming the difference.
    """

    def __init__(self, path: str | Path | None, header: dict[str, Any]) -> None:
        self.lines: list[dict[str, Any]] = []
        self._file: IO[str] | None = None
        if path is None:
            return
        place = Path(path)
        if place.is_dir() or (not place.suffix and not place.is_file()):
            place.mkdir(parents=True, exist_ok=True)
            place = place / "race.jsonl"
        place.parent.mkdir(parents=True, exist_ok=True)
        header = json.loads(json.dumps({"kind": "header", "version": VERSION, **header}))
        lines, length = read_lines(place) if place.exists() else ([], 0)
        if lines:
            _check_header(place, lines[0], header)
        self.lines = lines[1:]
        self._file = place.open("a")
        self._file.truncate(length)  # drops a line that a kill cut short
        if not lines:
            self._write(header)

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def add(self, line: dict[str, Any]) -> None:
        """Append a line."""
        self.lines.append(line)
        self._write(line)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the complete lines of a record and their length in bytes, without a last line that was cut short.

    **Raises:** `InputError` for a file that is no record of a race.
    """
    lines: list[dict[str, Any]] = []
    length = 0
    for raw in path.read_bytes().splitlines(keepends=True):
        if not raw.endswith(b"\n"):
            break
        try:
            line = json.loads(raw)
        except ValueError:
            line = None
        if not isinstance(line, dict) or "kind" not in line or (not lines and line["kind"] != "header"):
            raise InputError(f"{path} is no record of a race: line {len(lines) + 1} is {raw[:60]!r}")
        lines.append(line)
        length += len(raw)
    return lines, length


def read_samples(path: str | Path) -> list[dict[str, Any]]:
    """Return the samples of a record, for `verdict_of`; the race may have run on any machine.

    **Arguments:**

    - `path`: the file, or its folder.

    **Raises:** `InputError` for a file that is no record of a race.
    """
    place = Path(path)
    lines, _ = read_lines(place / "race.jsonl" if place.is_dir() else place)
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
