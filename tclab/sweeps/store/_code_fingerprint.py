"""Which code a point runs, so that rows of an earlier version never stand in for it."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tclab.errors import InputError
from tclab.graph._synthetic_graph import synthetic_relations
from tclab.masking import get as strategy_of
from tclab.models import get as model_of
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import file_stamps


def _user_parts(point: Point) -> dict[str, str]:
    """Return what is a user's own in a point, in words → the module that it is defined in."""
    modules = {
        f"strategy {point.strategy!r}": strategy_of(point.strategy).__module__,
        f"model {point.model!r}": model_of(point.model).build.__module__,
    }
    return {what: module for what, module in modules.items() if not module.startswith("tclab.")}


def user_modules(point: Point) -> list[str]:
    """Return the modules that a child must import to know the point's strategy and model.

    **Raises:** `InputError` for one that was defined where no other process can import it.
    """
    modules = _user_parts(point)
    for what, module in modules.items():
        if module == "__main__":
            raise InputError(
                f"the {what} is defined in a notebook or script, where its child process cannot find it; "
                "put it in a file of its own (%%writefile my_strategy.py) and import that"
            )
    return list(modules.values())


def imports_of(*points: Point) -> dict[str, list[str]]:
    """Return what another process must import to know some points, as a request's fields; see `import_user_modules`.

    **Raises:** as `user_modules`.
    """
    modules = sorted({module for point in points for module in user_modules(point)})
    return {"modules": modules, "path": [folder for folder in sys.path if folder] + [os.getcwd()]}


def import_user_modules(modules: Sequence[str], path: Sequence[str] = ()) -> None:
    """Import, in another process, the modules where strategies and models of the user's own are registered."""
    sys.path[:] = [*sys.path, *(folder for folder in path if folder not in sys.path)]
    for module in modules:
        import_module(module)


def user_code_digests(point: Point) -> dict[str, str]:
    """Return module → SHA-256 of the file that it was read from, of a user's own strategy and model.

    What those files import in turn is not looked at. Empty where all is tclab's.
    """
    digests = {}
    for module in dict.fromkeys(_user_parts(point).values()):
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is not None and Path(file).is_file():
            digests[module] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return digests


def library_digests(point: Point) -> dict[str, str]:
    """Return module → SHA-256 of what it says, comments aside, of tclab's own strategies, models and synthetic graphs.

    Of the strategy's module and those of its base classes; and of all modules of `tclab.models` but the registry,
    so that a model that is added changes no other's. They are read once in a process, which runs what it has read.
    """
    strategy = strategy_of(point.strategy)
    modules = [one.__module__ for one in strategy.__mro__ if one.__module__.startswith("tclab.")]
    if point.graph == "synthetic":
        modules.append(synthetic_relations.__module__)
    return {module: _digest_of(module) for module in dict.fromkeys([*modules, *_model_modules()])}


_NOT_A_MODEL = ("__init__", "_model_registry")


@cache
def _model_modules() -> list[str]:
    folder = Path(str(sys.modules["tclab.models"].__file__)).parent
    return [f"tclab.models.{path.stem}" for path in sorted(folder.glob("*.py")) if path.stem not in _NOT_A_MODEL]


@cache
def _digest_of(module: str) -> str:
    return hashlib.sha256(ast.dump(ast.parse(_source(module))).encode()).hexdigest()


def _source(module: str) -> str:
    spec = find_spec(module)
    assert spec is not None  # it is one of tclab's
    assert spec.origin is not None
    return Path(spec.origin).read_text()


def files_of(point: Point) -> dict[str, Any]:
    """Return what tells whether files that a point reads have changed: its own code's, its graph's, its samples'."""
    stamps = {str(Path(path).resolve()): stamp for path, stamp in file_stamps(point).items()}
    return {**user_code_digests(point), **stamps}
