"""Names of a package that are fetched from their modules at first use, so that importing the package stays cheap."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy(
    package: str, names: Mapping[str, str], packages: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return what looks a package's names up, what lists them, and the names; type checkers read its `__init__.pyi`.

    **Arguments:**

    - `package`: its `__name__`.
    - `names`: name → where it is, "package.module:name".
    - `packages`: sub-packages that are names as well.
    """
    every = sorted([*names, *packages])

    def fetch(name: str) -> Any:
        if name in names:
            return pkgutil.resolve_name(names[name])
        if name in packages:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return fetch, every.copy, every  # completion offers these
