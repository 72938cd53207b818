"""Small calls of notebooks: front end, how charts come out of a cell, paths."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from tclab._display import Shown
from tclab.errors import require
from tclab.sweeps._fingerprint import import_file
from tclab.sweeps._grid import names_numbers
from tclab.sweeps._rows import frame_html

_SESSION = "JPY_SESSION_NAME"  # Jupyter Server gives it to each kernel that it starts; papermill and nbval do not
_VS_CODE = "__vsc_ipynb_file__"  # VS Code's extension puts it among the names of a notebook that it runs
# without it, torch's profiler writes two lines to stderr each time, which a notebook shows as an error
_QUIET_PROFILER = ("KINETO_LOG_LEVEL", "6")
# Charts of this library are the same in both versions of Vega-Lite: `tests/test_browser.py` looks at one.
_DRAWN = "application/vnd.vegalite.v5+json"
_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
# JupyterLab draws a chart in the theme of that moment. As SVG on the page's own ground, with words in the page's own
# colour, it is right in whatever theme follows; these are all colours that JupyterLab's theme of charts would set.
_INK, _LINES = {"fill": "currentColor"}, "#888888"
_IN_ANY_THEME = {
    "background": "transparent",
    "view": {"stroke": _LINES, "continuousWidth": 300, "continuousHeight": 300},
    "title": {"color": "currentColor", "subtitleColor": "currentColor"},
    "style": {"guide-label": _INK, "guide-title": _INK},
    "axis": {"domainColor": _LINES, "gridColor": _LINES, "tickColor": _LINES},
}


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
        shell.display_formatter.formatters["text/plain"].for_type(pd.DataFrame, _table_text)
        # what a log of papermill has of a chart: its title, not `alt.LayerChart(...)`
        shell.display_formatter.formatters["text/plain"].for_type(alt.TopLevelMixin, _chart_text)
    alt.renderers.register("tclab", _chart_and_picture)
    interactive = has_front_end() if live is None else live
    alt.renderers.enable("tclab" if interactive else "png", scale_factor=scale_factor)


def _table_html(frame: pd.DataFrame) -> str:
    """Return a DataFrame as HTML; rows of a sweep show themselves."""
    return frame._repr_html_() if isinstance(frame, Shown) else frame_html(frame)


def _table_text(frame: pd.DataFrame, printer: Any, cycle: bool) -> None:
    printer.text(frame.attrs.get("empty", repr(frame)) if frame.empty else repr(frame))


def _chart_text(chart: Any, printer: Any, cycle: bool) -> None:
    title = getattr(chart.title, "text", chart.title)  # of alt.TitleParams, or as it is
    words = title if isinstance(title, (str, list)) else type(chart).__name__
    printer.text(f"chart: {words if isinstance(words, str) else ' '.join(words)}")


def _chart_and_picture(spec: dict[str, Any], *, scale_factor: float) -> dict[str, Any]:
    import vl_convert

    return {**drawn_by_jupyter(spec), "image/png": vl_convert.vegalite_to_png(spec, scale=scale_factor)}


def drawn_by_jupyter(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a chart as JupyterLab draws it by itself: without a network, in its own theme, also a later one."""
    if _VS_CODE not in getattr(_shell(), "user_ns", {}):  # whose page behind a chart nobody has looked at
        spec = {**spec, "config": _IN_ANY_THEME, "usermeta": {"embedOptions": {"renderer": "svg"}}}
    return {_DRAWN: {**spec, "$schema": _SCHEMA}}


def project_path(path: Any) -> Any:
    """Return a path relative to the folder that holds `notebooks/`, wherever the kernel was started.

    What names no file is returned as it is: "synthetic", a number, or several as text. JupyterLab starts a kernel in
    the notebook's folder, `notebooks/` or one in it, papermill where it was called: what is not there in the project is
    looked for in this folder. `TCLAB_RUNS`, where it is set, takes the place of a leading `runs`. A folder `notebooks`
    of the user's own, without `sweep.ipynb`, is a folder like any other.

    **Raises:** `InputError` for what is no path: papermill reads `-p graph None` as None.
    """
    if path == "synthetic" or names_numbers(path):
        return path
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
    return here / given if (here / given).exists() and not (root / given).exists() else root / given


def import_own(files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Import files that register strategies or models of one's own, and return their paths.

    **Arguments:**

    - `files`: a path, or several, as a list or with commas between; relative ones as `project_path` takes them.

    **Raises:** `InputError` where there is no such file.
    """
    if isinstance(files, (str, os.PathLike)):
        text = str(files)
        files = [text] if not text or project_path(text).exists() else [part.strip() for part in text.split(",")]
    paths = [str(project_path(file)) for file in files if str(file)]
    for path in paths:
        import_file(path)
    return paths
