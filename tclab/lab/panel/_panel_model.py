"""What a panel runs and shows, without widgets: its state, its sweep, the rows of its results folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from tclab.errors import InputError
from tclab.lab._notebook import project_path
from tclab.lab.panel._live_sweep import LiveSweep, running_sweep
from tclab.lab.panel._panel_state import PanelState
from tclab.sweeps.config._fields import declarations
from tclab.sweeps.config._point import Point
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._rows import SCHEMA, frame


@dataclass(frozen=True)
class SavedSweep:
    """The last sweep of a folder, as far as it came."""

    rows: pd.DataFrame = field(default_factory=lambda: frame(SCHEMA.empty_table()))
    state: PanelState | None = None  # `None` if the settings are unknown or cannot be run here
    done: int = 0  # points that have rows
    wanted: int = 0  # points
    text: str = ""  # the same in words

    @classmethod
    def read(cls, folder: Path, results: str) -> SavedSweep:
        """Return the last sweep of a results folder; an empty sweep if there is no such folder.

        `results` is what the panel's field has for the folder's absolute path.

        **Raises:** `InputError` for a file that a newer version of tclab wrote, or a folder that cannot be made.
        """
        if not folder.is_dir():  # reading makes none
            there = next(place for place in (folder, *folder.parents) if place.exists())
            if not (there.is_dir() and os.access(there, os.W_OK)):
                why = "cannot be written" if there.is_dir() else "is a file"
                raise InputError(f"results is {results!r}, expected a folder: {str(there)!r} {why}")
            return cls()
        tables = Results(folder).kept()
        number = f"{len(tables)} point{' is' if len(tables) == 1 else 's are'} here"
        state = PanelState.saved(results) or PanelState.of_points(tables, results)
        if state is None:
            return cls(text=f"{number}, of settings that a panel has no field for." if tables else "")
        try:
            wanted = list(dict.fromkeys(state.points()))
        except InputError as error:  # a strategy that is not imported here, a graph folder that is gone
            rows = frame(pa.concat_tables([SCHEMA.empty_table(), *tables.values()]))
            return cls(rows, text=f"{number}; the last sweep cannot go on here: {error}")
        done = [tables[point] for point in wanted if point in tables]
        more = " Resume goes on with it." if len(done) < len(wanted) else ""
        text = f"The last sweep here: {len(done)} of {len(wanted)} points.{more}"
        return cls(frame(pa.concat_tables([SCHEMA.empty_table(), *done])), state, len(done), len(wanted), text)


# fields of a point that a panel has one value of; charts have an axis for the others
_ONE_OF_EACH = tuple(
    name
    for name, declared in declarations(Point).items()
    if declared.panel and not declared.charted and declared.role == "setting"
)


class PanelModel:
    """The sweep that a panel is set to, by the parameters of `PanelState`, and the one that it shows.

    **Raises:** `InputError` for a value out of its range, or several values where a panel has one.
    """

    def __init__(self, **parameters: Any) -> None:
        self.state = PanelState.of(**parameters)
        points = self.state.points()
        for name in _ONE_OF_EACH:
            values = list(dict.fromkeys(getattr(point, name) for point in points))
            if len(values) > 1:
                raise InputError(
                    f"{name} is {', '.join(map(str, values))}, expected one for a panel; "
                    "notebooks/sweep.ipynb takes several"
                )
        _ = self.state.options()
        self.sweep: LiveSweep | None = None
        self.saved = SavedSweep()

    @property
    def running(self) -> bool:
        """Whether a sweep of the panel is under way."""
        return self.sweep is not None and self.sweep.running

    @property
    def last(self) -> PanelState | None:
        """What the panel's sweep, or else the last one of the folder, was set to; `None` where that is not known."""
        return self.saved.state if self.sweep is None else self.state

    @property
    def unfinished(self) -> bool:
        """Whether that sweep has points left."""
        if self.sweep is None:
            return self.saved.done < self.saved.wanted
        return self.sweep.done < len(self.sweep.points)

    def rows(self) -> pd.DataFrame:
        """Return the rows of the panel's sweep so far, or else of the last sweep of the opened folder."""
        return self.saved.rows if self.sweep is None else self.sweep.rows()

    def kept_rows(self) -> pd.DataFrame:
        """Return the rows of the panel's points that its results folder has, also of an earlier session."""
        if not self.state.folder.is_dir():  # reading makes none
            return frame(SCHEMA.empty_table())
        folder = Results(self.state.folder)
        tables = [rows for point in self.state.points() if (rows := folder.read(point)) is not None]
        return frame(pa.concat_tables([SCHEMA.empty_table(), *tables]))

    def open(self, results: str) -> None:
        """Show the last sweep of a results folder, as far as it came, in place of the panel's own.

        **Raises:** what reading the folder raises, once the rows of another folder are gone.
        """
        self.saved, self.sweep = SavedSweep(), None
        self.saved = SavedSweep.read(project_path(results), results)

    def take_over(self, listener: Callable[[LiveSweep], None]) -> LiveSweep | None:
        """Take over the sweep that runs into the results folder already, as after a cell was run again.

        Returns it; `None` where there is none.
        """
        sweep = running_sweep(self.state.folder)
        if sweep is not None:
            self.state = PanelState.saved(self.state.results) or self.state
            self.sweep = sweep.listen(listener)
        return sweep

    def sweeping_elsewhere(self, folder: Path) -> str:
        """Return in a sentence which sweep that is not this panel's runs into a folder; empty without one."""
        owner = None if self.running else Results(folder).sweeping()
        return "" if owner is None else f"Another kernel or cell sweeps here: {owner}."

    def start(self, listener: Callable[[LiveSweep], None] | None = None) -> LiveSweep:
        """Start the sweep that the state asks for, into its results folder, and return at once.

        **Raises:** `InputError` for a value out of its range, a folder that cannot be written or that another kernel
        sweeps into.
        """
        points = self.state.points()
        if not points:
            raise InputError("no points: expected at least one strategy that serves the model")
        Results(self.state.folder).make()
        if elsewhere := self.sweeping_elsewhere(self.state.folder):
            raise InputError(f"{elsewhere} Wait for its end, or name another folder: both would measure at once.")
        self.state.save()
        sweep = LiveSweep(points, results=self.state.folder, **self.state.options())
        if listener is not None:
            sweep.listen(listener)
        self.sweep = sweep.start()
        return sweep
