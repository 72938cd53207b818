"""Errors that a user can help: the bad value, what was expected, the nearest name that there is; what is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from numbers import Integral

_MEANT = {"gpu": "cuda"}  # what is typed often → its name here, which is not the nearest by letters


class InputError(ValueError):
    """A value that was typed is not one that tclab can use; the message is one line that says why.

    `name` is the argument or the field of a point that has the value, where there is one.
    """

    def __init__(self, message: str = "", *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


@contextmanager
def about(name: str) -> Iterator[None]:
    """Let whatever the block says is wrong be of this argument or field."""
    try:
        yield
    except InputError as error:
        error.name = name
        raise


def unknown(kind: str, value: object, known: Iterable[str]) -> InputError:
    """Return the error for a name that does not exist, with the nearest of those that do.

    `kind` is what has no such name, as the user calls it ("strategy", "model", "network").
    """
    names = sorted(set(known))
    typed = str(value)
    near = get_close_matches(_MEANT.get(typed, typed), names, n=1, cutoff=0.5)
    guess = f"; did you mean {near[0]!r}?" if near else ";"
    return InputError(f"unknown {kind} {value!r}{guess} known: {', '.join(names) or 'none'}", name=kind)


def check_known(kind: str, known: Collection[object], *values: object) -> None:
    """Check that names exist. **Raises:** `InputError` for the first that does not; see `unknown`."""
    for value in values:
        if value not in known:
            raise unknown(kind, value, map(str, known))


def require(name: str, value: object, kind: type | tuple[type, ...], expected: str) -> None:
    """Check the type of an argument; `expected` says in words which it may have.

    **Raises:** `InputError`: "point is 'x', expected a tclab.Point".
    """
    if not isinstance(value, kind):
        raise InputError(f"{name} is {shown(value)}, expected {expected}", name=name)


def shown(value: object) -> str:
    """Return a value as it was typed, or its type where that is long, or a number of 5,000 digits."""
    try:
        text = repr(value)
    except ValueError:
        text = ""
    return text if 0 < len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"


def check_whole(what: str, value: object, *, least: int = 0, most: int | None = None) -> None:
    """Check a count, a size or a seed: an `int`, or a whole number of numpy's; a `bool` is none.

    `what` is the value, with its verb ("the seed is").

    **Raises:** `InputError` for any other.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or int(value) < least or (most is not None and int(value) > most):  # type: ignore[call-overload]
        allowed = f", {least:,} or more" if most is None else f" from {least:,} to {most:,}"
        raise InputError(f"{what} {value!r}, expected a whole number{allowed}")


class MissingExtraError(ImportError, InputError):
    """A package that an extra of tclab brings is not installed."""


def need(what: str, extra: str, *modules: str) -> None:
    """Check that the top modules that `what` needs are installed, without importing them; `extra` brings them.

    **Raises:** `MissingExtraError`: "tclab.sweeps needs pandas: in tclab's folder, pip install '.[sweep]'".
    """
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtraError(f"{what} needs {module}: in tclab's folder, pip install '.[{extra}]'", name=module)
