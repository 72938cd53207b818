"""Small calls of notebooks: front end, how charts come out of a cell, paths, parameters."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from tclab._display import Shown
from tclab.errors import require, unknown
from tclab.sweeps.config._grid import grid
from tclab.sweeps.config._point import Point
from tclab.sweeps.slurm._slurm_options import OPTIONS
from tclab.sweeps.store._row_frame import frame_html

_SESSION = "JPY_SESSION_NAME"  # Jupyter Server gives it to each kernel that it starts; papermill and nbval do not
_VS_CODE = "__vsc_ipynb_file__"  # VS Code's extension puts it among the names of a notebook that it runs
# without it, torch's profiler writes two lines to stderr each time, which a notebook shows as an error
_QUIET_PROFILER = ("KINETO_LOG_LEVEL", "6")
# What JupyterLab draws by itself, without a network and in its own theme. Charts of this library are the same in both
# versions of Vega-Lite: `tests/test_browser.py` looks at one.
_DRAWN = "application/vnd.vegalite.v5+json"
_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
_INJECTED = "# Parameters\n"  # how the cell begins that papermill puts behind a notebook's own parameters


def has_front_end() -> bool:
    """Return whether this kernel has an interactive front end: a Jupyter Server or VS Code started it.

    A process that a cell starts inherits the server's variable: where the parent has the same value, there is none.
    """
    names = getattr(_shell(), "user_ns", {})
    return _VS_CODE in names or (_SESSION in os.environ and _of_parent(_SESSION) != os.environ[_SESSION])


def _shell() -> Any:
    """Return the shell of IPython that runs this; `None` in a script."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def _of_parent(name: str) -> str | None:
    """Return a variable that this process's parent was started with; `None` without it, or where it cannot be read."""
    import psutil

    try:
        return psutil.Process(os.getppid()).environ().get(name)
    except (psutil.Error, OSError):
        return None


def show_charts(*, scale_factor: float = 1.0, live: bool | None = None) -> None:
    """Show charts as pictures; in an interactive front end as charts, with figures under the mouse and in its theme.

    DataFrames are shown as results are. A notebook keeps the picture beside the chart, for whatever draws none: a
    browser of repositories, nbconvert.

    **Arguments:**

    - `scale_factor`: of a picture's pixels.
    - `live`: whether there is an interactive front end; detected unless given.
    """
    os.environ.setdefault(*_QUIET_PROFILER)
    shell = _shell()
    if shell is not None:
        shell.display_formatter.formatters["text/html"].for_type(pd.DataFrame, _table_html)
        # what a log of papermill has of a chart: its title, not `alt.LayerChart(...)`
        shell.display_formatter.formatters["text/plain"].for_type(alt.TopLevelMixin, _chart_text)
    if not (has_front_end() if live is None else live):
        alt.renderers.enable("png", scale_factor=scale_factor)
        return
    alt.renderers.register("tclab", _chart_and_picture)
    alt.renderers.enable("tclab", scale_factor=scale_factor)


def _table_html(frame: pd.DataFrame) -> str:
    """Return a DataFrame as HTML; rows of a sweep show themselves."""
    return frame._repr_html_() if isinstance(frame, Shown) else frame_html(frame)


def _chart_text(chart: Any, printer: Any, cycle: bool) -> None:
    title = getattr(chart.title, "text", chart.title)  # of alt.TitleParams, or as it is
    words = title if isinstance(title, (str, list)) else type(chart).__name__
    printer.text(f"chart: {words if isinstance(words, str) else ' '.join(words)}")


def _chart_and_picture(spec: dict[str, Any], *, scale_factor: float) -> dict[str, Any]:
    import vl_convert

    picture = vl_convert.vegalite_to_png(spec, scale=scale_factor)
    return {_DRAWN: {**spec, "$schema": _SCHEMA}, "image/png": picture}


def project_path(path: str) -> Path:
    """Return a path relative to the folder that holds `notebooks/`, wherever the kernel was started.

    JupyterLab starts a kernel in the notebook's folder, `notebooks/` or one in it, papermill where it was called.
    `TCLAB_RUNS`, where it is set, takes the place of a leading `runs`. A folder `notebooks` of the user's own, without
    `sweep.ipynb`, is a folder like any other.

    **Raises:** `InputError` for what is no path: papermill reads `-p graph None` as None.
    """
    require("a notebook's parameter", path, (str, os.PathLike), "the path of a file or a folder")
    given = Path(path).expanduser()
    runs = os.environ.get("TCLAB_RUNS")
    if given.is_absolute():
        return given
    if runs and given.parts[:1] == ("runs",):
        return Path(runs, *given.parts[1:])
    here = Path.cwd()
    ours = [
        folder for folder in (here, here.parent) if folder.name == "notebooks" and (folder / "sweep.ipynb").exists()
    ]
    root = ours[0].parent if ours else here
    return root / given


def check_parameters(*functions: Callable[..., Any], more: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Refuse a parameter that this notebook does not have, and return those that no cell of it names.

    papermill itself only warns of a parameter that is not in the notebook's `parameters` cell, and runs the whole
    notebook without it. Here such a parameter is passed on, if one of `functions` takes it, and refused otherwise.

    **Arguments:**

    - `functions`: those whose keyword arguments can be given to papermill although no cell names them
      (`-p mode data`); none unless given. `tclab.grid`, `Panel` and `LiveSweep` take further names, which
      their `**` argument stands for.
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
            others |= {name: shell.user_ns[name] for name in _assigned(cell) if name not in named}
        named += _assigned(cell)
    known = list(dict.fromkeys(name for names in takes for name in names))
    for name in others:
        if name not in known:
            raise unknown("parameter", name, [*known, *(one for one in named if one not in others)])
    return [{name: value for name, value in others.items() if name in names} for names in takes]


def _parameters_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's keyword-only arguments, and those that its `**` argument stands for."""
    from tclab.lab.panel._live_sweep import LiveSweep
    from tclab.lab.panel._panel import Panel
    from tclab.lab.panel._panel_sweep import parameter_defaults

    passed_on: dict[Any, list[str]] = {
        grid: [field.name for field in fields(Point)],
        Panel: list(parameter_defaults()),
        LiveSweep: list(OPTIONS),
    }
    more = passed_on.get(function, [])
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY] + more


def _assigned(source: str) -> list[str]:
    """Return the names that a cell gives a value, in order; none of a cell that is no plain Python."""
    try:
        body = ast.parse(source).body
    except SyntaxError:  # magics
        return []
    targets = [target for line in body if isinstance(line, ast.Assign) for target in line.targets]
    targets += [line.target for line in body if isinstance(line, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]
