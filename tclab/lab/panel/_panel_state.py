"""The state of a panel: the parameters of `notebooks/sweep.ipynb`, by the same names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from tclab._io import atomic_write, writing
from tclab._limits import number_of
from tclab.errors import InputError, unknown
from tclab.lab._notebook import project_path
from tclab.sweeps.config._fields import declarations
from tclab.sweeps.config._grid import grid
from tclab.sweeps.config._point import Point

SAVED = "panel.json"  # in the results folder: the state of the last sweep of a panel


@dataclass(frozen=True)
class PanelState:
    """The parameters of the sweep notebook, each with its name there, so that a panel, papermill and Python agree.

    Those that tell a cluster about its jobs are left out: a panel sweeps on its own machine.

    `retry`: run points again that failed or ran out of memory, which are otherwise read as they are.

    Lists are text with commas between; "auto" and "none" are as `tclab.grid` reads them.

    **Raises:** `InputError` for a parameter that the sweep notebook does not have (`of`), a value out of its range
    (`points`).
    """

    graph: str = "synthetic"
    scale: float | str = 0.05
    models: str = "hetero_cell"
    strategies: str = "edge_mask,node_mask"
    batch_sizes: str | int = "1,2,4"
    networks: str | int = 3
    gpus: int | str = "auto"
    mode: str = "step"
    dtype: str = "float32"
    compile: bool = False
    perturbations: str = "none"
    num_deletions: int = 3
    hidden: int | str = "none"
    layers: int | str = "none"
    steps: int | str = 8
    seed: int = 0
    results: str = "runs/explore/rows"
    budget_seconds: float = 0
    retry: bool = False

    @classmethod
    def of(cls, **parameters: Any) -> PanelState:
        """Return the state of some parameters, with defaults for the others."""
        known = [field.name for field in fields(cls)]
        for name in parameters:
            if name not in known:
                raise unknown("parameter", name, known)
        return cls(**parameters)

    @property
    def folder(self) -> Path:
        """The results folder, wherever the kernel was started; `InputError` where none is named."""
        if not str(self.results).strip():
            raise InputError(f"results is {str(self.results)!r}, expected a folder")
        return project_path(str(self.results))

    @property
    def budget(self) -> float | None:
        """Seconds after which no point is started; `None` for no limit."""
        number = isinstance(self.budget_seconds, (int, float)) and not isinstance(self.budget_seconds, bool)
        if not number or self.budget_seconds < 0:
            raise InputError(f"budget_seconds is {self.budget_seconds!r}, expected a number from 0 up (0: no limit)")
        return self.budget_seconds or None

    def options(self) -> dict[str, Any]:
        """Return the arguments of `tclab.sweep` other than the points and the folder.

        **Raises:** `InputError` for a value that they cannot have.
        """
        if not isinstance(self.retry, bool):
            raise InputError(f"retry is {self.retry!r}, expected True or False")
        return {"retry": self.retry, "budget_seconds": self.budget}

    def _grid(self) -> dict[str, Any]:
        given = asdict(self)
        del given["results"], given["budget_seconds"], given["retry"]
        return given

    def points(self) -> list[Point]:
        """Return the points, by the same call that the sweep notebook makes."""
        given = self._grid()
        for name, synthetic in (("graph", "synthetic"), ("perturbations", "none")):
            if str(given[name]) != synthetic:
                given[name] = str(project_path(str(given[name])))
        return grid(**given)

    def papermill(self, out: str = "out.ipynb") -> str:
        """Return the command that runs the same points headlessly, in the project's folder."""
        words = ["papermill", "notebooks/sweep.ipynb", out]
        for name, value in asdict(self).items():
            # papermill makes numbers of what looks like one: a folder called 2024 has to be given raw
            like_one = str(value) in ("True", "False", "None") or number_of(str(value)) is not None
            raw = like_one and name in ("graph", "perturbations", "results")
            words += ["-r" if raw else "-p", name, str(value)]
        return shlex.join(words)

    def python(self) -> str:
        """Return the same as Python, to be run in the project's folder."""
        given = "".join(f"    {name}={value!r},\n" for name, value in self._grid().items())
        return (
            f"import tclab\n\npoints = tclab.grid(\n{given})\n"
            f"rows = tclab.sweep(\n    points, results={str(self.results)!r}, retry={self.retry!r}, "
            f"budget_seconds={self.budget!r}\n)\n"
        )

    def save(self) -> None:
        """Write the state into the results folder."""
        with writing("results", self.results):
            atomic_write(self.folder / SAVED, json.dumps(asdict(self), indent=1))

    @classmethod
    def saved(cls, results: str) -> PanelState | None:
        """Return the state that a panel wrote into a results folder; `None` without one."""
        try:
            found = json.loads((project_path(results) / SAVED).read_text())
            return cls.of(**found | {"results": results})
        except (OSError, ValueError, TypeError, RecursionError):  # no file, a damaged one, or another version's
            return None

    @classmethod
    def of_points(cls, points: Iterable[Point], results: str) -> PanelState | None:
        """Return the state whose grid has the last of some points and all that differ from it in a grid's axes.

        `None` where there is none: no points, or settings that a panel has no field for.
        """
        every = list(points)
        if not every:
            return None
        last = every[-1]
        alike = [
            p for p in every if _without_axes(p) == _without_axes(last) and isinstance(p.networks, type(last.networks))
        ]

        def several(name: str) -> str:
            return ",".join(dict.fromkeys(str(getattr(p, name)) for p in alike))

        networks = "all" if last.networks is None else several("networks")
        if isinstance(last.networks, tuple):
            alike = [p for p in alike if p.networks == last.networks]
            networks = ",".join(last.networks)
        given: dict[str, Any] = {}
        for name, declared in declarations(Point).items():
            if declared.panel and not declared.charted:
                value = getattr(last, name)
                missing = "none" if declared.default is None else declared.default
                given[declared.grid] = missing if value is None else value
        state = cls(
            **given,
            strategies=several("strategy"),
            batch_sizes=several("batch_size"),
            networks=networks,
            gpus=0 if last.device == "cpu" and last.ranks == 1 else last.ranks,
            results=results,
        )
        try:
            return state if set(alike) <= set(state.points()) else None
        except InputError:  # a file that it names is missing now, which running the points reports
            return state


def _without_axes(point: Point) -> Point:
    """Return a point with the axes of a panel's grid set to fixed values."""
    return replace(point, strategy="node_mask", batch_size=1, networks=None, collation="lean", ship_edges=False)
