"""What a person typed that timing cannot use; this room imports nothing of ours, so the error is its own."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class TimingError(ValueError):
    """A value that cannot be timed with; the message names it, what was expected and the nearest that exists."""


def unknown(kind: str, value: object, known: Iterable[str]) -> TimingError:
    """Return the error for a name that does not exist, with its nearest neighbour among `known`."""
    names = list(known)
    near = get_close_matches(str(value), names, n=1, cutoff=0.5)
    guess = f"; did you mean {near[0]!r}?" if near else ";"
    return TimingError(f"unknown {kind} {value!r}{guess} known: {', '.join(names) or 'none'}")
