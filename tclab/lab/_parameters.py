"""A notebook's parameters: those of its `parameters` cell, and those that no cell of it names."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from tclab.errors import unknown
from tclab.lab._notebook import import_own
from tclab.lab._panel import LiveSweep, Panel, known_parameters
from tclab.sweeps._grid import grid
from tclab.sweeps._point import Point
from tclab.sweeps._progress import OPTIONS

_INJECTED = "# Parameters\n"  # how the cell begins that papermill puts behind a notebook's own parameters
# what a function's `**` argument stands for
_PASSED_ON: dict[Any, tuple[str, ...]] = {
    grid: tuple(field.name for field in fields(Point)),
    LiveSweep: OPTIONS,
    Panel: known_parameters(),
}


def check_parameters(*functions: Callable[..., Any], more: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Refuse a parameter that this notebook does not have, and return those that no cell of it names.

    papermill itself only warns of a parameter that is not in the notebook's `parameters` cell, and runs the whole
    notebook without it. Here such a parameter is passed on, if one of `functions` takes it, and refused otherwise.

    **Arguments:**

    - `functions`: those whose keyword arguments can be given to papermill although no cell names them
      (`-p mode data`); none unless given. `tclab.grid`, `LiveSweep` and `Panel` take further names, which their `**`
      argument stands for. A sweep's notebook takes `imports`, too: files of one's own, which are imported here.
    - `more`: further arguments of these functions, name → value, as a notebook's `parameters` cell gives them.

    Returns one dict for each of `functions`, name → value; a name that two of them take is in both.

    **Raises:** `InputError` with the nearest name.
    """
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    cells = [] if shell is None else [str(cell) for cell in shell.user_ns.get("In", [])]
    takes = [_parameters_of(function) for function in functions]
    others = dict(more or {})
    named: list[str] = []
    for cell in cells:
        if cell.startswith(_INJECTED):
            others |= {name: shell.user_ns.get(name) for name in _assigned(cell) if name not in named}
        else:
            named += _assigned(cell)
    known = list(dict.fromkeys(name for names in takes for name in names))
    if LiveSweep in functions and "imports" in others:
        import_own(others.pop("imports"))
    for name in others:
        if name not in known:
            raise unknown("parameter", name, [*named, *known])
    return [{name: value for name, value in others.items() if name in names} for names in takes]


def _parameters_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's keyword-only arguments, and those that its `**` argument stands for."""
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY] + list(_PASSED_ON.get(function, ()))


def _assigned(source: str) -> list[str]:
    """Return the names that a cell gives a value, in order; none of a cell that is no plain Python."""
    try:
        body = ast.parse(source).body
    except SyntaxError:  # magics
        return []
    targets = [target for line in body if isinstance(line, ast.Assign) for target in line.targets]
    targets += [line.target for line in body if isinstance(line, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]
