"""The error for a bad file: which file, which line, what was expected there."""

from __future__ import annotations

from pathlib import Path

from tclab.errors import InputError


class ReadError(InputError):
    """A file is not what its format promises; the message is one line with file, line and reason."""


def bad_file(path: str | Path, why: str, *, line: int | None = None) -> ReadError:
    """Return the error for a file.

    **Arguments:**

    - `path`: the file, as the user would find it.
    - `why`: what is there and what was expected.
    - `line`: the line, counted from 1, where it is known.
    """
    place = f"{path}, line {line}" if line is not None else f"{path}"
    return ReadError(" ".join(f"{place}: {why}".split()))


def shown(value: object, most: int = 60) -> str:
    """Return a value as it stands in a message: quoted, and cut where it is long."""
    text = str(value)
    return repr(text if len(text) <= most else text[: most - 1] + "…")
