"""Declarations of a point's fields: for each one its check, column, unit, meaning, and what depends on it."""

from __future__ import annotations

import dataclasses
import math
import os
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tclab.errors import InputError, unknown

Column = Literal["text", "whole", "real", "flag"]
Check = Callable[[str, Any], Any]
_KEY = "tclab"  # of a declaration in the metadata of a dataclass field
_COLUMNS: dict[Any, Column] = {bool: "flag", int: "whole", float: "real", str: "text", tuple: "text"}
_WORDS: dict[str, Any] = {"none": None, "true": True, "false": False}


@dataclass(frozen=True)
class Condition:
    """What a field needs to mean anything; without it the field is null, whatever was given."""

    name: str  # of the field that decides, such as "workers"
    met: Callable[[Any], bool]  # point → whether the condition holds


@dataclass(frozen=True)
class Declaration:
    """All that the library knows of one field of a point; `declarations` fills in its name and default."""

    meaning: str  # for the docstring of `Point`
    # field name, value → the value as it is kept; raises `InputError` for one that cannot be
    check: Check
    unit: str | None = None  # of a number: "samples", "processes", "MiB"
    optional: bool = False  # `None` is a value of its own; where `usual` is given it stands for that
    usual: Any = None  # what `None` stands for: a value, or a function of the point
    needs: Condition | None = None  # without which the field is null
    # of its column in rows; by default that of its annotation. Names in a tuple are one text with commas between
    column: Column | None = None
    # its part in the equivalence check: "reference" if it decides graph, model or weights, and so the result of
    # `subgraph`; "candidate" if it decides how the strategy computes; `None` if the check ignores it
    equivalence: Literal["reference", "candidate"] | None = None
    memory: bool = True  # the memory estimate depends on it
    # in a comparison; an "amount" says how much was run, a "repetition" tells runs of one setting apart
    role: Literal["setting", "amount", "repetition"] = "setting"
    place: bool = False  # it says where the point runs: device, processes, machines
    charted: bool = False  # charts have it as an axis, so that rows which differ in it are comparable
    advised: bool = False  # another value is worth suggesting
    caution: str = ""  # is shown with such a suggestion
    step: bool = False  # it is an argument of the training step, by the same name
    grid: str = ""  # its name as a parameter of `grid`, where that is another one: "strategies"
    panel: bool = False  # the panel and the sweep notebook have it, under `grid`'s name
    reads: bool = False  # its value names files that the point is measured on, unless it is one of `synthetic`
    synthetic: tuple[str, ...] = ()
    label: str = ""  # its name in a form or a chart; the field's name in words unless given
    name: str = ""
    default: Any = None

    def resolved_value(self, point: Any, value: Any) -> Any:
        """Return the value that a point keeps for one that was given.

        **Raises:** `InputError` for a value that the field cannot have.
        """
        if value is not None:
            try:
                value = self.check(self.name, value)
            except InputError:
                raise
            except Exception:  # no check can compare it, as an array, or nobody print it, as a number of 5,000 digits
                kind = f"of type {type(value).__name__}, or too long"
                raise InputError(f"{self.name} is {kind}; see tclab.Point for its values") from None
        if self.needs is not None and not self.needs.met(point):
            return None
        if value is None and self.usual is not None:
            return self.usual(point) if callable(self.usual) else self.usual
        if value is None and not self.optional:
            self.check(self.name, None)
            raise InputError(f"{self.name} is None, expected a value")
        return value

    def cell(self, value: Any) -> Any:
        """Return a value as its column holds it."""
        return ",".join(value) if isinstance(value, tuple) else value

    def parsed(self, value: Any) -> Any:
        """Return a value that was typed as text, such as "none", "true" or "0.5", as the field has it."""
        if not isinstance(value, str):
            return str(value) if self.column == "text" and type(value) is int else value
        if value.lower() in _WORDS and (self.column == "flag" or value.lower() == "none"):
            return _WORDS[value.lower()]
        try:
            return {"whole": int, "real": float}.get(self.column or "text", str)(value)
        except ValueError:
            return value  # the check names the error


def switch(name: str, value: Any) -> Any:
    """Check that a value is True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} is {value!r}, expected True or False")
    return value


def declare(default: Any, meaning: str, check: Check = switch, **more: Any) -> Any:
    """Return a dataclass field with its default and its `Declaration`; one that is given no check is a switch."""
    return dataclasses.field(default=default, metadata={_KEY: Declaration(meaning, check, **more)})


@cache
def declarations(of: Any) -> dict[str, Declaration]:
    """Return field → declaration of a dataclass, in the order of its fields.

    **Raises:** `TypeError` for a field without a declaration, or one of a type that no column holds.
    """
    types_of = get_type_hints(of)
    declared_fields = {}
    for field in dataclasses.fields(of):
        declared = field.metadata.get(_KEY)
        if declared is None:
            raise TypeError(f"the field {field.name} of {of.__name__} has no declaration: give it one with declare()")
        name, column = field.name, declared.column or _column_of(field.name, types_of[field.name])
        grid, label = declared.grid or name, declared.label or name.replace("_", " ")
        declared_fields[name] = dataclasses.replace(
            declared, name=name, default=field.default, column=column, grid=grid, label=label
        )
    return declared_fields


def _column_of(name: str, annotation: Any) -> Column:
    """Return the column of an annotation such as `float | None`."""
    several = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    kinds = {get_origin(one) or one for one in several} - {type(None)}
    if len(kinds) != 1 or not kinds <= set(_COLUMNS):
        raise TypeError(f"no column holds the field {name} of type {annotation}: declare a column for it")
    return _COLUMNS[kinds.pop()]


def arguments_text(of: type) -> str:
    """Return the fields of a dataclass as the `**Arguments:**` of its docstring, a bullet each."""
    lines = []
    for name, declared in declarations(of).items():
        unit = f" Unit: {declared.unit}." if declared.unit else ""
        lines.append(f"- `{name}` ({declared.default!r}): {declared.meaning}{unit}")
    return "\n".join(lines)


# ---- checks


def one_of(known: Iterable[str] | Callable[[], Iterable[str]]) -> Check:
    """Return the check of a name: one of those known, or of those that a function returns when it is asked."""

    def check(name: str, value: Any) -> Any:
        names = known() if callable(known) else known
        if not isinstance(value, str) or value not in names:
            raise unknown(name, value, names)
        return value

    return check


def whole_number(least: int, *, or_none: bool = False) -> Check:
    """Return the check of a whole number of at least `least`; `or_none` is for the words of its error."""
    more = ", or None" if or_none else ""

    def check(name: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name} is {value!r}, expected a whole number of at least {least}{more}")
        if value >= 1 << 63:  # its column has 64 bits
            raise InputError(f"{name} is {value}, expected a number below 2**63")
        return int(value)

    return check


def above_zero(expected: str) -> Check:
    """Return the check of a number above 0, kept as a float; `expected` is for the words of its error."""

    def check(name: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise InputError(f"{name} is {value!r}, expected {expected}")
        return float(value)

    return check


def path(expected: str) -> Check:
    """Return the check of a path, which is kept as text; whether there is such a file is not asked here."""

    def check(name: str, value: Any) -> Any:
        text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
        if not isinstance(text, str) or not text or "\0" in text:
            raise InputError(f"{name} is {value!r}, expected {expected}")
        return str(text)

    return check


def count_or_names(name: str, value: Any) -> Any:
    """Check a number of at least 1, or names, which are kept as a tuple."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence):
        return whole_number(1)(name, value)
    if not names or not all(isinstance(one, str) and one for one in names):
        raise InputError(f"{name} is {value!r}, expected a number of at least 1, or names")
    return tuple(map(str, names))
