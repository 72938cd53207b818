"""The raw blocks of a race as JSON lines in a file: written as they end, read again to go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from tclab.timing.errors import TimingError

VERSION = 1  # raised when a line changes its meaning


class RaceRecord:
    """A race's lines: a header, then whatever is added; each is flushed, so a kill loses a block at most.

    **Arguments:**

    - `path`: the file, or a folder, in which it is `race.jsonl`; `None` keeps the lines in memory alone.
    - `header`: arms, machine and settings. Lines that are there already are taken up only where theirs agree.

    **Raises:** `TimingError` for a file that is no record, or the record of another race; it says what differs.
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
        found, length = read_lines(place) if place.exists() else ([], 0)
        if found:
            _refuse_another(place, found[0], header)
        self.lines = found[1:]
        self._file = place.open("a")
        self._file.truncate(length)  # a line that a kill cut short
        if not found:
            self._write(header)

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def add(self, line: dict[str, Any]) -> None:
        """Keep a line."""
        self.lines.append(line)
        self._write(line)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the whole lines of a record, and how many bytes they take; a last one that was cut short is left out.

    **Raises:** `TimingError` for a file that is no record of a race.
    """
    found: list[dict[str, Any]] = []
    length = 0
    for raw in path.read_bytes().splitlines(keepends=True):
        if not raw.endswith(b"\n"):
            break
        try:
            line = json.loads(raw)
        except ValueError:
            line = None
        if not isinstance(line, dict) or "kind" not in line or (not found and line["kind"] != "header"):
            raise TimingError(f"{path} is no record of a race: line {len(found) + 1} is {raw[:60]!r}")
        found.append(line)
        length += len(raw)
    return found, length


def samples_of(path: str | Path) -> list[dict[str, Any]]:
    """Return the raw blocks that a record holds, for `verdict_of`, on any machine.

    **Raises:** `TimingError` for a file that is no record of a race.
    """
    place = Path(path)
    lines, _ = read_lines(place / "race.jsonl" if place.is_dir() else place)
    return [line for line in lines if line["kind"] == "block"]


def _refuse_another(path: Path, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    for part in ours:
        if theirs.get(part) == ours[part]:
            continue
        was, now = theirs.get(part), ours[part]
        if isinstance(was, dict) and isinstance(now, dict):
            name = next(k for k in {**was, **now} if was.get(k) != now.get(k))
            was, now, part = was.get(name), now.get(name), f"{part}, {name}"
        raise TimingError(
            f"{path} is the record of another race: {part} was {was!r} and is {now!r}; "
            "a race goes on only with the same arms, machine and settings, so give another `record`"
        )
