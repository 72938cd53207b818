"""Which code and files a point runs on, so that rows of an earlier version never stand in for it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tclab.errors import InputError
from tclab.graph._synthetic_graph import synthetic_relations
from tclab.masking import get as strategy_of
from tclab.models import get as model_of
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import file_stamps

_NOT_A_MODEL = ("__init__", "_model_registry")  # which change when a model is added that the point does not use


def user_modules(point: Point) -> list[str]:
    """Return the modules that a child must import to know the point's strategy and model, where they are a user's own.

    **Raises:** `InputError` for one that was defined where no other process can import it.
    """
    modules = {
        f"strategy {point.strategy!r}": strategy_of(point.strategy).__module__,
        f"model {point.model!r}": model_of(point.model).build.__module__,
    }
    for what, module in modules.items():
        if module == "__main__":
            raise InputError(
                f"the {what} is defined in a notebook or script, where its child process cannot find it; "
                "put it in a file of its own (%%writefile my_strategy.py) and import that"
            )
    return [module for module in modules.values() if not module.startswith("tclab.")]


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


def code_digests(point: Point) -> dict[str, str]:
    """Return name → SHA-256 of each file of code that decides a point's step.

    These are the files of its strategy and that one's base classes, of its model and all of tclab's models, and of
    synthetic graphs. What a user's own file imports in turn is not looked at.
    """
    modules = {kind.__module__ for kind in strategy_of(point.strategy).__mro__}
    modules |= {model_of(point.model).build.__module__, synthetic_relations.__module__}
    files = [getattr(sys.modules.get(module), "__file__", None) for module in modules]
    models = Path(str(sys.modules["tclab.models"].__file__)).parent.glob("*.py")
    paths = {Path(file) for file in files if file is not None} | set(models)
    return {
        f"{path.parent.name}/{path.name}": _digest(path, path.stat().st_mtime_ns)
        for path in sorted(paths)
        if path.stem not in _NOT_A_MODEL and path.is_file()
    }


@lru_cache(maxsize=1024)
def _digest(path: Path, changed_ns: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_of(point: Point) -> dict[str, Any]:
    """Return what tells whether files that a point reads have changed: its code's, its graph's, its samples'."""
    return {**code_digests(point), **{str(Path(path).resolve()): s for path, s in file_stamps(point).items()}}
