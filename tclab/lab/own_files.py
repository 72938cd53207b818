"""Python files of a user's own: models and strategies that notebooks write and child processes import."""

from __future__ import annotations

import importlib
import sys
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType

from tclab.errors import InputError


def import_file(path: str | Path) -> ModuleType:
    """Import a Python file anew, as it is now, and return it as a module.

    What it registers is known from then on, here and to the child processes that run points; its folder is put on
    the import path. A cell that is run again after an edit gets the edit.

    **Arguments:**

    - `path`: of a `.py` file, whose name is that of no module that exists already.

    **Raises:** `InputError` where there is no such file, or its name is another module's.
    """
    file = Path(path).resolve()
    if file.suffix != ".py" or not file.is_file():
        raise InputError(f"path is {str(path)!r}, expected a Python file that exists (%%writefile makes one)")
    name = file.stem
    taken = sys.modules.get(name)
    if name in sys.stdlib_module_names or (
        taken and Path(getattr(taken, "__file__", None) or "").resolve() != file
    ):
        raise InputError(f"{file.name} has the name of a module that exists already; give it another one")
    # an edit within the same second would be taken for what was compiled before it
    Path(cache_from_source(str(file))).unlink(missing_ok=True)
    importlib.invalidate_caches()
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    return importlib.reload(taken) if taken else importlib.import_module(name)
