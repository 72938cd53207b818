"""A user's own code, imported here and in other processes; and which code a process has loaded.

Rows stand for the code that measured them: a worker says what it loaded, imports of imports among it, rows keep that,
and where a file is another one now, neither the rows nor a worker that is warm stand in for a new measurement.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module, invalidate_caches, reload
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from typing import Any

from tclab._child_process import SOURCE
from tclab.errors import InputError
from tclab.masking import get as strategy_of
from tclab.models import get as model_of
from tclab.models._model_registry import SHIPPED
from tclab.sweeps._point import Point

_LIBRARIES = {"site-packages", "dist-packages", f"python{sys.version_info[0]}.{sys.version_info[1]}"}  # folders of them
_DIGITS = 16  # of a digest


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
    modules = {_module_of(kind, point) for point in points for kind in ("strategy", "model")}
    known = sorted(name for name in modules if not name.startswith("tclab."))
    return {"modules": known, "path": [folder for folder in sys.path if folder] + [os.getcwd()]}


def _module_of(kind: str, point: Point) -> str:
    """Return the name of the module that a point's strategy or model is defined in, which another process imports."""
    model = model_of(point.model)
    parts = [strategy_of(point.strategy)] if kind == "strategy" else [model.build, model.forward]
    name = next((one for one in map(_defined_in, parts) if not one.startswith("tclab.")), _defined_in(parts[0]))
    what, file = f"the {kind} {getattr(point, kind)!r}", getattr(sys.modules.get(name), "__file__", None) or ""
    if name == "__main__" or (kind == "model" and name.startswith("tclab.") and point.model not in SHIPPED):
        raise InputError(
            f"{what} is defined in a notebook or script, where its child process cannot find it; put it in a file of "
            "its own (%%writefile my_strategy.py), with a function of its own, and import that", name=kind,
        )  # fmt: skip
    if file and not os.path.exists(file):
        raise InputError(f"{what} was read from {file}, which is no longer there", name=kind)
    return name


def _defined_in(part: Any) -> str:
    """Return the name of the module of a class or a function; of a `partial` that of its function."""
    while isinstance(part, partial):
        part = part.func
    return str(part.__module__)


def import_user_modules(modules: Sequence[str], path: Sequence[str] = ()) -> None:
    """Import, in another process, the modules where strategies and models of the user's own are registered."""
    sys.path[:] = [*sys.path, *(folder for folder in path if folder not in sys.path)]
    for module in modules:
        import_module(module)


# ---- the code that runs: tclab's files, and a user's own


def loaded_code(modules: Sequence[str] = ()) -> dict[str, str]:
    """Return file → SHA-256 of each Python file of tclab's that this process has loaded, and of the user's own.

    The user's are those that lie beside no library, and those of the packages of `modules`; none without `modules`,
    which are what a point's strategy and model are registered in. Names of tclab's are relative to its folder.
    """
    found = {}
    packages = {"tclab", *(name.partition(".")[0] for name in modules)}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        ours = name.partition(".")[0] in packages or (modules and not _LIBRARIES.intersection(Path(file).parts))
        if ours and file.endswith(".py") and (digest := _digest_of(Path(file))):
            found[_name_of(Path(file))] = digest
    return found


def unchanged(code: Mapping[str, str]) -> bool:
    """Return whether files are still as `loaded_code` named them; one that is gone is not."""
    return all(_digest_of(SOURCE / name) == digest for name, digest in code.items())


def code_of(*points: Point) -> dict[str, str]:
    """Return the code that a race of some points stands for, the same in each process: all of tclab's, and the own."""
    own = loaded_code(imports_of(*points)["modules"])
    every = [f"{file.relative_to(SOURCE)} {_digest_of(file)}" for file in sorted(SOURCE.glob("tclab/**/*.py"))]
    whole = hashlib.sha256("\n".join(every).encode()).hexdigest()
    return {"tclab": whole, **{name: digest for name, digest in own.items() if Path(name).is_absolute()}}


def _name_of(file: Path) -> str:
    file = file.absolute()
    return str(file.relative_to(SOURCE)) if file.is_relative_to(SOURCE / "tclab") else str(file)


def _digest_of(file: Path) -> str | None:
    try:
        stat = file.stat()
        return _digest(file, stat.st_mtime_ns, stat.st_size)
    except OSError:  # it is gone
        return None


@lru_cache(maxsize=4096)
def _digest(file: Path, mtime_ns: int, size: int) -> str:
    """Return the SHA-256 of a file's content; its time and its size say when to read it again."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:_DIGITS]
