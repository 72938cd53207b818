"""Names of a package that are fetched from their modules at first use, so that importing the package stays cheap."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_OFFERED = re.compile(r"^from (\S+) import ([^\W_]\w*) as \2$", re.MULTILINE)


def lazy(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return what looks a package's names up, what lists them, and the names.

    They are those of its `__init__.pyi`, which type checkers read, too: `from module import name as name`, a line each.

    **Arguments:**

    - `package`, `file`: its `__name__` and `__file__`.
    """
    modules = {name: module for module, name in _OFFERED.findall(Path(file).with_suffix(".pyi").read_text("utf-8"))}
    names = sorted(modules)

    def fetch(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name] == package:
            return import_module(f"{package}.{name}")
        return getattr(import_module(modules[name]), name)

    return fetch, names.copy, names  # completion offers these
