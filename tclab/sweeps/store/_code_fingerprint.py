"""A user's own code, imported here and in other processes; and which code and files a point runs on.

Rows of an earlier version of these never stand in for it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module, invalidate_caches, reload
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from typing import Any

from tclab.errors import InputError
from tclab.masking import get as strategy_of
from tclab.models import get as model_of
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import file_stamps

_STEP = ("graph", "masking", "message_passing", "models", "perturbation", "training")  # whose code a step runs
_TCLAB = sorted(file for package in _STEP for file in (Path(__file__).parents[2] / package).rglob("*.py"))


def import_file(path: str | Path) -> ModuleType:
    """Import a Python file as a module, again after each edit, and return the module.

    Strategies and models that it registers exist from then on, also for the worker processes that run points; its
    folder is put on the import path.

    **Arguments:**

    - `path`: of a `.py` file; no other module may have its name.

    **Raises:** `InputError` where there is no such file, or another module has its name.
    """
    file = Path(path).resolve()
    if file.suffix != ".py" or not file.is_file():
        raise InputError(f"path is {str(path)!r}, expected a Python file that exists (%%writefile makes one)")
    name = file.stem
    taken = sys.modules.get(name)
    if name in sys.stdlib_module_names or (taken and Path(getattr(taken, "__file__", None) or "").resolve() != file):
        raise InputError(f"path is {file.name!r}, the name of a module that exists already; expected another name")
    # within the same second an edited file is mistaken for the one that was compiled before
    Path(cache_from_source(str(file))).unlink(missing_ok=True)
    invalidate_caches()
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    return reload(taken) if taken else import_module(name)


def imports_of(*points: Point) -> dict[str, list[str]]:
    """Return what another process must import to know the strategies and models of some points, as a request's fields.

    `modules` are a user's own, `path` is where they are found; see `import_user_modules`.

    **Raises:** `InputError` for a strategy or model that was defined where no other process can import it.
    """
    modules = set()
    for point in points:
        strategy, model = strategy_of(point.strategy), model_of(point.model)
        for what, module in (("strategy", strategy.__module__), ("model", model.build.__module__)):
            if module == "__main__":
                raise InputError(
                    f"the {what} {getattr(point, what)!r} is defined in a notebook or script, where its child process "
                    "cannot find it; put it in a file of its own (%%writefile my_strategy.py) and import that"
                )
            if not module.startswith("tclab."):
                modules.add(module)
    return {"modules": sorted(modules), "path": [folder for folder in sys.path if folder] + [os.getcwd()]}


def import_user_modules(modules: Sequence[str], path: Sequence[str] = ()) -> None:
    """Import, in another process, the modules where strategies and models of the user's own are registered."""
    sys.path[:] = [*sys.path, *(folder for folder in path if folder not in sys.path)]
    for module in modules:
        import_module(module)


def files_of(point: Point) -> dict[str, Any]:
    """Return what tells whether files that a point reads have changed: its code's, its graph's, its samples'.

    The code is all of tclab's that a step runs, and the user's own modules with its strategy, that one's base classes
    and its model. What these import in turn is not looked at.
    """
    modules = {kind.__module__ for kind in strategy_of(point.strategy).__mro__}
    modules.add(model_of(point.model).build.__module__)
    code = {"tclab": _TCLAB}
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)  # a notebook has none
        if file is not None and not name.startswith("tclab."):
            code[name] = [Path(file)]
    digests = {name: _digest(tuple((file, file.stat().st_mtime_ns) for file in own)) for name, own in code.items()}
    return {**digests, **{str(Path(path).resolve()): stamp for path, stamp in file_stamps(point).items()}}


@lru_cache(maxsize=1024)
def _digest(files: tuple[tuple[Path, int], ...]) -> str:
    """Return the SHA-256 of some files' contents; the times, in ns, say when to read them again."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file, _ in files)).hexdigest()
