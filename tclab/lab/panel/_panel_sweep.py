"""What a panel is set to, the sweep that it describes and the rows that there are of it; no widgets."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import pyarrow as pa
from msgspec import Meta

from tclab._io import atomic_write, writing
from tclab.errors import InputError, unknown
from tclab.lab._notebook import import_own, project_path
from tclab.lab.panel._live_sweep import LiveSweep
from tclab.sweeps._fields import checked, declarations, text_value
from tclab.sweeps._grid import grid
from tclab.sweeps._point import Point, Points, varying_fields
from tclab.sweeps._progress import OPTIONS, SweepOptions
from tclab.sweeps._row_files import Results
from tclab.sweeps._rows import frame, point_of

_OF_SWEEP = {"results": "runs/explore/rows", "budget_seconds": 0, "retry": False, "repeats": 1}
_PATHS = ("graph", "perturbations")  # parameters that may be
# a minute on two cores, and enough for a verdict
_SMALL = {
    "scale": 0.1, "strategies": "subgraph,edge_mask,node_mask,delta", "batch_sizes": "1,2,4", "networks": 9,
    "gpus": "auto", "steps": 12,
}  # fmt: skip
_SAVED = "panel.json"  # in the results folder: what the last sweep of a panel was set to
_Budget = Annotated[float, Meta(ge=0, description="a number from 0 up (0: no limit)")]
Value = str | bool


def parameter_defaults() -> dict[str, Value]:
    """Return the parameters of a panel, each with its value unless given, as a field of the form holds it."""
    of_point = {one.grid: one.default for one in declarations(Point).values() if one.panel}
    return {name: _as_typed(value) for name, value in {**of_point, **_SMALL, **_OF_SWEEP}.items()}


def known_parameters() -> tuple[str, ...]:
    """Return all that a panel takes: the parameters of its form, any other of `tclab.grid`, options of a sweep."""
    of_grid = [one.grid for one in declarations(Point).values() if one.grid != "ranks"]
    return tuple(dict.fromkeys([*parameter_defaults(), *of_grid, *OPTIONS, "imports"]))


def _as_typed(value: Any) -> Value:
    """Return a value as text with commas between several, which `tclab.grid` reads; a switch as a `bool`."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    text = "none" if value is None else str(value)
    return text.lower() == "true" if text.lower() in ("true", "false") else text


def settings_of(rows: pd.DataFrame) -> dict[str, str]:
    """Return the parameters of the points that some rows are of, as a panel's fields have them."""
    steps = rows[rows["stage"] == "step"]
    points = [point_of(row) for row in steps.dropna(subset="network_names").to_dict("records")]
    if not points:
        return {}
    counts = sorted({int(count) for count in steps["networks"].dropna()})
    found: dict[str, Any] = {"networks": counts, "gpus": 0 if points[0].device == "cpu" else points[0].ranks}
    for name in {*varying_fields(points), *points[0].changed()} - {"networks", "device", "ranks", "loss"}:
        declared = declarations(Point)[name]
        found[declared.grid] = list(dict.fromkeys(declared.cell(getattr(point, name)) for point in points))
    return {name: str(_as_typed(value)) for name, value in found.items()}


class PanelSweep:
    """The sweep that a panel's parameters describe; see `Panel`."""

    def __init__(self, **parameters: Any) -> None:
        for name in parameters:
            if name not in known_parameters():
                raise unknown("parameter", name, known_parameters())
        self._given = {name: _as_typed(value) for name, value in parameters.items()}
        # those of its fields, once it is shown
        self.parameters: dict[str, Value] = {**parameter_defaults(), **self._given}
        self._imports = import_own(str(self.parameters.get("imports", "")))
        self.points()
        self.sweep: LiveSweep | None = None  # the last that was started
        self._swept: dict[str, Value] = {}  # the parameters that it was started with
        self._kept: dict[tuple[Path, Point, int], pa.Table] = {}  # rows that were read

    @property
    def folder(self) -> Path:
        """The results folder, wherever the kernel was started; `InputError` where none is named."""
        if not str(self.parameters["results"]).strip():
            raise InputError(f"results is {self.parameters['results']!r}, expected a folder", name="results")
        return project_path(str(self.parameters["results"]))

    @property
    def running(self) -> bool:
        """Whether a sweep of the panel is under way."""
        return self.sweep is not None and self.sweep.running

    @property
    def shows_sweep(self) -> bool:
        """Whether its parameters are still those that its last sweep was started with."""
        return self.sweep is not None and self.parameters == self._swept

    def points(self) -> Points:
        """Return the points that its parameters describe, by the same call that the sweep notebook makes.

        **Raises:** `InputError` for a value that a parameter cannot have, those of the sweep among them.
        """
        _ = self.folder, self._options()
        given = self._grid()
        return grid(**given, **{name: project_path(self.parameters[name]) for name in _PATHS})

    def _grid(self) -> dict[str, Any]:
        others = (*OPTIONS, *_PATHS, "results", "imports")
        return {name: value for name, value in self.parameters.items() if name not in others}

    def _options(self) -> dict[str, Any]:
        options = {name: text_value(self.parameters[name]) for name in OPTIONS if name in self.parameters}
        budget = checked("budget_seconds", options["budget_seconds"], _Budget)
        options["budget_seconds"] = budget or None
        slurm = {} if options.get("slurm") is None else {"slurm": options.pop("slurm")}
        SweepOptions(**options)
        return options | slurm

    def papermill(self, out: str = "out.ipynb") -> str:
        """Return the papermill command that runs the same points, from the project's folder."""
        words = ["papermill", "notebooks/sweep.ipynb", out]
        for name, value in self.parameters.items():
            # papermill makes numbers of what looks like one: a folder called 2024 has to be given raw
            words += ["-r" if name in (*_PATHS, "results", "imports") else "-p", name, str(value)]
        return shlex.join(words)

    def python(self) -> str:
        """Return Python code that runs the same points, in the project's folder."""
        typed = {name: text_value(str(value)) for name, value in self._grid().items()}
        typed |= {name: self.parameters[name] for name in _PATHS}  # a folder may be called 2024
        given = "".join(f"    {name}={value!r},\n" for name, value in typed.items())
        options = {"results": self.parameters["results"], **self._options()}
        of_sweep = ", ".join(f"{name}={value!r}" for name, value in options.items())
        own = "".join(f"tclab.lab.import_file({path!r})\n" for path in self._imports)
        return f"import tclab\n\n{own}points = tclab.grid(\n{given})\nrows = tclab.sweep(points, {of_sweep})\n"

    def tables(self) -> list[pa.Table]:
        """Return the rows of each point that has some: of its sweep so far, or those that its results folder keeps.

        The first time they are read, later they are remembered.
        """
        if self.sweep is not None and self.shows_sweep:
            return list(self.sweep.tables)
        folder = Results(self.folder)
        if not folder.folder.is_dir():
            return []
        runs = range(self._options()["repeats"])
        keys = [(folder.folder, point, repeat) for repeat in runs for point in self.points()]
        for key in keys:
            if key not in self._kept and (table := folder.read_point(*key[1:])) is not None:
                self._kept[key] = table
        return [self._kept[key] for key in keys if key in self._kept]

    def rows(self) -> pd.DataFrame:
        """Return the rows that the panel shows: those of its points that have been measured."""
        return frame(*self.tables())

    def take_over(self) -> None:
        """Go on where the last panel with this results folder was left, so that no restart loses anything.

        That is the sweep that this kernel still runs into the folder; or the fields of the last sweep, by a panel
        whose cell had the same parameters, or for a cell that names the folder alone. Such a cell takes those of the
        folder's rows where no panel measured them.
        """
        before = _last_started.get(self.folder)
        if before is not None and before.running:
            self.sweep, self._swept, self.parameters = before.sweep, before._swept, before.parameters
            return
        alone = set(self._given) <= {"results", "imports"}
        with suppress(OSError, ValueError, TypeError, KeyError):  # a damaged file, or settings that cannot be here
            if (file := self.folder / _SAVED).exists():
                saved = json.loads(file.read_text())
                settings = saved["parameters"] if alone or saved["given"] == self._given else {}
            else:
                settings = settings_of(Results(self.folder).frame()) if alone and self.folder.is_dir() else {}
            self.parameters = PanelSweep(**{**self.parameters, **settings, **self._given}).parameters

    def start(self, listener: Callable[[], None] | None = None) -> LiveSweep:
        """Start a sweep of its points into its results folder, and return at once; points that are kept are read.

        **Arguments:**

        - `listener`: as for `LiveSweep.listen`.

        **Raises:** `InputError` for a value out of its range, or a folder that cannot be written or that another kernel
        sweeps into.
        """
        points, folder = self.points(), Results(self.folder)
        with folder.swept():  # nobody else's
            pass
        with writing("results", folder.folder):
            saved = {"given": self._given, "parameters": self.parameters}
            atomic_write(folder.folder / _SAVED, json.dumps(saved, indent=1))
        self._kept.clear()
        self.sweep = LiveSweep(points, results=folder.folder, **self._options())
        self._swept = dict(self.parameters)
        if listener is not None:
            self.sweep.listen(listener)
        _last_started[self.folder] = self
        return self.sweep.start()


_last_started: dict[Path, PanelSweep] = {}  # of this kernel, for each results folder
