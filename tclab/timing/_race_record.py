"""The record of a race: a header line that says which race it is, and then a line of JSON for each round.

A round is the list of its samples; see `tclab.timing._race_blocks`. A race goes on from its record, and verdicts can be
computed from it.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tclab._io import held, writing
from tclab.errors import InputError

VERSION = 5  # increases when a line changes its meaning
Round = list[dict[str, Any]]  # the samples of its blocks


class RaceRecord:
    """The rounds of a race's earlier sessions; `add` writes each new one at once, so a kill loses at most one.

    **Arguments:**

    - `path`: the file; `None` for none.
    - `samples`: of the rounds that are in it.
    """

    def __init__(self, path: Path | None, samples: list[dict[str, Any]]) -> None:
        self.samples = samples
        self._path = path

    def add(self, line: Round | Mapping[str, Any]) -> None:
        """Write a line. Where that fails a warning says so, and the race goes on without a record."""
        if self._path is None:
            return
        try:
            with self._path.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            warnings.warn(f"the race goes on without its record {self._path}: {error.strerror}", stacklevel=4)
            self._path = None


@contextmanager
def open_record(path: str | Path | None, header: Mapping[str, Any]) -> Iterator[RaceRecord]:
    """Open the record of a race within the block, held against other processes.

    **Arguments:**

    - `path`: the file; `None` keeps nothing.
    - `header`: arms, machine and settings. An existing record is continued only if its header is the same.

    **Raises:** `InputError` for a file that is no record of a race, is damaged, cannot be written, is being written by
    another race, or is the record of another, naming the difference.
    """
    if path is None:
        yield RaceRecord(None, [])
        return
    file, header = Path(path), json.loads(json.dumps({"version": VERSION, **header}))
    with writing("record", path):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    with held(file.with_name(f".{file.name}.lock")) as owner:
        if owner is not None:
            raise InputError(f"record {file} is being written by {owner}")
        theirs, samples, length = _read(file)
        os.truncate(file, length)  # drops a line that a kill cut short
        record = RaceRecord(file, samples)
        if not theirs:
            record.add(header)
        for name, ours in header.items() if theirs else ():
            if theirs.get(name) != ours:
                raise InputError(
                    f"{file} is the record of another race: {name} was {theirs.get(name)!r} and is {ours!r}; a race "
                    "goes on only with the same arms, machine and settings, so give another `record`"
                )
        yield record


def read_samples(path: str | Path) -> list[dict[str, Any]]:
    """Return the samples of a record, for `verdicts_of`; the race may have run on any machine.

    **Arguments:**

    - `path`: the file; or the folder of a race of several cells.

    **Raises:** `InputError` for a file that is no record of a race, or is damaged.
    """
    place = Path(path)
    if not place.is_dir():
        return _read(place)[1]
    return [{**sample, "cell": one.stem} for one in sorted(place.glob("*.jsonl")) for sample in _read(one)[1]]


def _read(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """Return a record's header and samples, and the length in bytes of all but a last line that was cut short."""
    if not file.is_file():
        raise InputError(f"{file} is no record of a race")
    data, found = file.read_bytes(), []
    *lines, rest = data.split(b"\n")
    for i, line in enumerate(lines):
        try:
            found.append(json.loads(line))
            _ = [sample["seconds"] for sample in found[-1]] if i else found[0]["version"]
        except (KeyError, RecursionError, TypeError, ValueError):
            raise InputError(f"{file} is damaged, or no record of a race: line {i + 1} is {line[:60]!r}") from None
    header, *rounds = found or [{}]
    return header, [sample for one in rounds for sample in one], len(data) - len(rest)
