"""A verb's options, made from the declarations of a point's fields and from the parameters of Python's functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, fields, make_dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from tclab.sweeps.config._fields import Declaration


def option(name: str, help: str, default: Any = None, *, group: Group, metavar: str = "TEXT") -> Any:
    """Return a field of `options_class`: a text that is `None` unless it was given.

    **Arguments:**

    - `name`: of the parameter in Python. `help`: its meaning. `default`: what Python takes where it is not given.
    - `group`: the heading in the help. `metavar`: what stands for the value there.
    """
    shown = None if default in (None, ()) else str(default)
    parameter = Parameter(
        help=help,
        metavar=metavar,
        show_default=False if shown is None else lambda _: shown,
        group=group,
        allow_leading_hyphen=True,
    )
    return name, Annotated[str | None, parameter], field(default=None)


def of_declaration(declared: Declaration, name: str, default: Any, *, group: Group) -> Any:
    """Return the option of a point's field, under its own name or a grid's."""
    unit = f" Unit: {declared.unit}." if declared.unit else ""
    metavar = "true|false" if declared.column == "flag" else "TEXT"
    return option(name, declared.meaning + unit, default, group=group, metavar=metavar)


def options_class(name: str, options: Iterable[Any]) -> Any:
    """Return a dataclass of options, which a verb takes as one argument."""
    made = make_dataclass(name, list(options), frozen=True)
    made.__module__ = __name__  # of the standard library's classes, as it is made to be, no field is read
    # None where no option is given: cyclopts has pydantic check it where that is loaded
    return Annotated[made | None, Parameter(name="*")]


def given(options: Any) -> dict[str, str]:
    """Return name → text of the options that were given."""
    every = {one.name: getattr(options, one.name) for one in fields(options)}
    return {name: value for name, value in every.items() if value is not None}


def value_of(text: str) -> Any:
    """Return a text as papermill's `-p` reads it: a number, true, false or none where it is one."""
    words: Mapping[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
