"""Every public name says what it is, and where it lists its arguments, it lists all of them."""

import ast
import importlib
import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from test_rooms import ROOMS

import tclab

_SECTION = re.compile(r"\*\*Arguments:\*\*(.*?)(?=\n\s*\*\*(?:Returns|Raises|Yields)|\Z)", re.DOTALL)


def parameters(thing):
    """Return the names that a list of arguments must hold."""
    if is_dataclass(thing):
        return [field.name for field in fields(thing) if field.init and not field.name.startswith("_")]
    try:
        found = inspect.signature(thing.__init__ if isinstance(thing, type) else thing).parameters
    except (TypeError, ValueError):
        return []
    return [name for name in found if name not in ("self", "cls") and not name.startswith("_")]


def unlisted(thing):
    """Return the parameters that a docstring with a list of arguments leaves out."""
    section = _SECTION.search(inspect.getdoc(thing) or "")
    if section is None or re.search(r"\bas for `|\bas `|\bsee `", section[1]):
        return []  # another docstring has the rest
    listed = {name.strip("*") for name in re.findall(r"`([\w*]+)`", section[1])}
    return [name for name in parameters(thing) if name not in listed]


def public(room):
    module = importlib.import_module(f"tclab.{room}" if room else "tclab")
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isfunction(thing) or isinstance(thing, type):
            yield f"{room}.{name}", thing
            if isinstance(thing, type):
                for method, function in vars(thing).items():
                    function = getattr(function, "__func__", function)
                    if (
                        inspect.isfunction(function)
                        and not method.startswith("_")
                        and function.__name__ != "<lambda>"
                    ):
                        yield f"{room}.{name}.{method}", function


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_have_docstrings_whose_arguments_are_whole(room):
    silent, short = [], {}
    for name, thing in public(room):
        own = thing.__dict__.get("__doc__") if isinstance(thing, type) else thing.__doc__
        generated = is_dataclass(thing) and (own or "").startswith(f"{thing.__name__}(")
        if not own or generated:
            silent.append(name)
        if missing := unlisted(thing):
            short[name] = missing
    assert silent == []
    assert short == {}


def test_the_lists_that_are_read_are_really_lists():
    def whole(a, b):
        """Do it.

        **Arguments:**

        - `a`: one. `b`: two.
        """

    def part(a, b):
        """Do it.

        **Arguments:**

        - `a`: one.

        **Raises:** `b`
        """

    assert unlisted(whole) == []
    assert unlisted(part) == ["b"]
    assert sum(unlisted is not None and "**Arguments:**" in (inspect.getdoc(thing) or "")
               for room in ROOMS for _, thing in public(room)) > 50  # fmt: skip


def test_docstrings_do_not_list_what_is_gone():
    """A line `- `name`:` names a parameter, a field or an attribute that is there."""
    gone = {}
    for room in ROOMS:
        for name, thing in public(room):
            section = _SECTION.search(inspect.getdoc(thing) or "")
            if section is None or not parameters(thing) or "**" in section[1].replace("**Arguments:**", ""):
                continue
            first = re.findall(r"^\s*- `(\w+)`", section[1], re.MULTILINE)
            signature = set(parameters(thing)) | set(getattr(thing, "__annotations__", {}))
            if lost := [one for one in first if one not in signature]:
                gone[name] = lost
    assert gone == {}


def test_modules_say_what_they_are():
    for path in Path(tclab.__file__).parent.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
