"""Parameters that papermill gives a notebook."""

from __future__ import annotations

import ast

from tclab.errors import unknown

_INJECTED = "# Parameters\n"  # how the cell begins that papermill puts behind a notebook's own parameters


def check_parameters() -> None:
    """Refuse a parameter that papermill was given and this notebook does not have.

    papermill itself says so among its warnings and runs the whole notebook with what it has by default.

    **Raises:** `InputError` with the nearest name.
    """
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    cells = [] if shell is None else [str(cell) for cell in shell.user_ns.get("In", [])]
    for place, cell in enumerate(cells):
        if cell.startswith(_INJECTED):
            known = [name for own in cells[:place] for name in _assigned(own)]
            for name in _assigned(cell):
                if name not in known:
                    raise unknown("parameter", name, known)


def _assigned(source: str) -> list[str]:
    """Return the names that a cell gives a value, in order."""
    found: list[str] = []
    for line in ast.parse(source).body:
        targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
        found += [target.id for target in targets if isinstance(target, ast.Name)]
    return found
