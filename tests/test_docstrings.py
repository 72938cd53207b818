"""Every public name has a docstring, and one that lists its arguments lists all of them."""

import ast
import importlib
import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import tclab

_SECTION = re.compile(r"\*\*Arguments:\*\*(.*?)(?=\n\s*\*\*(?:Returns|Raises|Yields)|\Z)", re.DOTALL)


def parameters(thing):
    """Return the names that a list of arguments must hold."""
    if is_dataclass(thing):
        return [field.name for field in fields(thing) if field.init and not field.name.startswith("_")]
    if isinstance(thing, type) and issubclass(thing, tuple) and hasattr(thing, "_fields"):
        return list(thing._fields)  # a NamedTuple, whose __init__ is object's
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


ROOT = Path(tclab.__file__).parent
# tclab itself, its packages and theirs: whatever says which of its names are public
PUBLIC = sorted(
    ".".join(["tclab", *path.relative_to(ROOT).parent.parts])
    for path in ROOT.rglob("__init__.py")
    if "__all__" in path.read_text(encoding="utf-8")
)


def public(package):
    module = importlib.import_module(package)
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isfunction(thing) or isinstance(thing, type):
            yield f"{package}.{name}", thing
            if isinstance(thing, type):
                for method, function in vars(thing).items():
                    function = getattr(function, "__func__", function)
                    if inspect.isfunction(function) and not method.startswith("_") and function.__name__ != "<lambda>":
                        yield f"{package}.{name}.{method}", function


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_have_docstrings_whose_arguments_are_whole(package):
    silent, short = [], {}
    for name, thing in public(package):
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
               for package in PUBLIC for _, thing in public(package)) > 50  # fmt: skip


def test_docstrings_do_not_list_what_is_gone():
    """A line `- `name`:` names a parameter, a field or an attribute that is there."""
    gone = {}
    for package in PUBLIC:
        for name, thing in public(package):
            section = _SECTION.search(inspect.getdoc(thing) or "")
            if section is None or not parameters(thing) or "**" in section[1].replace("**Arguments:**", ""):
                continue
            first = re.findall(r"^\s*- `(\w+)`", section[1], re.MULTILINE)
            signature = set(parameters(thing)) | set(getattr(thing, "__annotations__", {}))
            if lost := [one for one in first if one not in signature]:
                gone[name] = lost
    assert gone == {}


def test_modules_say_what_they_are():
    for path in ROOT.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
