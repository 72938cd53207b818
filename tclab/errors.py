"""Errors in a user's input: the bad value, what was expected, the nearest name that exists."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """A value that was typed is not one that tclab can use; the message is one line that says why."""


def unknown(kind: str, value: object, known: Iterable[str]) -> InputError:
    """Return the error for a name that does not exist, with its nearest neighbour.

    **Arguments:**

    - `kind`: the kind of thing that has no such name, as the user calls it ("strategy", "model", "network").
    - `value`: the unknown name.
    - `known`: every name that would have been right.
    """
    names = sorted(known)
    near = get_close_matches(str(value), names, n=1, cutoff=0.5)
    guess = f"; did you mean {near[0]!r}?" if near else ";"
    return InputError(f"unknown {kind} {value!r}{guess} known: {', '.join(names) or 'none'}")
