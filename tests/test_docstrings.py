"""A docstring that lists its arguments lists all of them, and no other; ruff holds that there is one."""

import importlib
import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import tclab

SECTION = re.compile(r"\*\*Arguments:\*\*(.*?)(?=\n\s*\*\*(?:Returns|Raises|Yields)|\Z)", re.DOTALL)
ROOT = Path(tclab.__file__).parent
PUBLIC = sorted(
    ".".join(["tclab", *path.relative_to(ROOT).parent.parts])
    for path in ROOT.rglob("__init__.py")
    if "__all__" in path.read_text(encoding="utf-8")
)


def parameters(thing):
    """Return the names that a list of arguments must hold."""
    if is_dataclass(thing):
        return [field.name for field in fields(thing) if field.init and not field.name.startswith("_")]
    if hasattr(thing, "_fields"):
        return list(thing._fields)  # a NamedTuple, whose __init__ is object's
    found = inspect.signature(thing.__init__ if isinstance(thing, type) else thing).parameters
    return [name for name in found if name not in ("self", "cls") and not name.startswith("_")]


def wrong_in_list(thing):
    """Return the parameters that a docstring with a list of arguments leaves out, and what it lists that is gone."""
    section = SECTION.search(inspect.getdoc(thing) or "")
    if section is None or not parameters(thing):
        return []
    named = {name.strip("*") for name in re.findall(r"`([\w*]+)`", section[1])}
    elsewhere = re.search(r"\bas for `|\bas `|\bsee `", section[1])  # another docstring has the rest
    missing = [] if elsewhere else [name for name in parameters(thing) if name not in named]
    first = re.findall(r"^\s*- `(\w+)`", section[1], re.MULTILINE)
    return missing + [name for name in first if name not in {*parameters(thing), *inspect.get_annotations(thing)}]


def public(package):
    module = importlib.import_module(package)
    things = {name: getattr(module, name) for name in module.__all__}
    for name, thing in things.items():
        if isinstance(thing, type):
            methods = {key: getattr(one, "__func__", one) for key, one in vars(thing).items() if key[0] != "_"}
            yield from ((f"{name}.{key}", one) for key, one in methods.items() if inspect.isfunction(one))
        if inspect.isfunction(thing) or isinstance(thing, type):
            yield name, thing


@pytest.mark.parametrize("package", PUBLIC)
def test_the_lists_of_arguments_are_whole(package):
    assert {name: wrong for name, thing in public(package) if (wrong := wrong_in_list(thing))} == {}
