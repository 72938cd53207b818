"""The import of a user's file, which registers a strategy or a model."""

from __future__ import annotations

import importlib
import sys
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType

from tclab.errors import InputError


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
    importlib.invalidate_caches()
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    return importlib.reload(taken) if taken else importlib.import_module(name)
