"""A public name's docstring that lists its arguments lists all of them, and no other."""

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


def wrong_in_list(thing):
    """Return the parameters that a docstring with a list of arguments leaves out, and what it lists that is gone."""
    section = _SECTION.search(inspect.getdoc(thing) or "")
    if section is None or not parameters(thing):
        return []
    named = {name.strip("*") for name in re.findall(r"`([\w*]+)`", section[1])}
    elsewhere = re.search(r"\bas for `|\bas `|\bsee `", section[1])  # another docstring has the rest
    missing = [] if elsewhere else [name for name in parameters(thing) if name not in named]
    first = re.findall(r"^\s*- `(\w+)`", section[1], re.MULTILINE)
    return missing + [name for name in first if name not in {*parameters(thing), *inspect.get_annotations(thing)}]


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
    silent, wrong = [], {}
    for name, thing in public(package):
        own = thing.__dict__.get("__doc__") if isinstance(thing, type) else thing.__doc__
        generated = is_dataclass(thing) and (own or "").startswith(f"{thing.__name__}(")
        if not own or generated:
            silent.append(name)
        if names := wrong_in_list(thing):
            wrong[name] = names
    assert silent == []
    assert wrong == {}


def test_a_list_that_is_not_whole_or_names_what_is_gone_is_seen():
    def whole(a, b):
        """**Arguments:**

        - `a`: one. `b`: two.
        """

    def part(a, b):
        """**Arguments:**

        - `a`: one.
        - `c`: gone.

        **Raises:** `b`
        """

    assert wrong_in_list(whole) == []
    assert wrong_in_list(part) == ["b", "c"]
