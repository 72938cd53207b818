"""The live panel: set a sweep up, run it, watch it, stop it, go on; the same rows as headless."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from tclab.errors import InputError
from tclab.lab.front_end import has_front_end
from tclab.lab.html_report import report
from tclab.lab.live import LiveSweep
from tclab.lab.live_chart import picture
from tclab.lab.panel_state import PanelState
from tclab.sweeps import Results, write_rows
from tclab.sweeps.rows import SCHEMA, frame

if TYPE_CHECKING:
    from tclab.lab.panel_view import PanelView

_ONE_OF_EACH = ("graph", "scale", "model", "mode", "dtype", "compile", "deleted", "hidden", "layers")


class Panel:
    """A sweep that a person sets up, runs, watches, stops and goes on with.

    `await panel.show()` shows it in a front end. Where nobody looks on it runs the sweep and shows one picture.
    Rows are kept in the results folder, the same as a headless sweep's; opening that folder again shows them.

    **Arguments:**

    - `parameters`: those of `notebooks/sweep.ipynb`, by the same names; see `PanelState`. A panel has one graph,
      model, mode and dtype, and several strategies, batch sizes and networks.

    **Raises:** `InputError` that names the value, what was expected and the nearest thing that exists.
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
        self.view: PanelView | None = None  # the widgets, once they are shown

    def asked(self) -> PanelState:
        """Return what the panel is set to now: by its fields, where they are shown.

        **Raises:** `InputError` for ranks that this machine's devices cannot be told.
        """
        return self.state if self.view is None else self.view.form.read()

    def papermill(self, out: str = "out.ipynb") -> str:
        """Return the line that runs headlessly what the panel is set to now, from the project's folder."""
        return self.asked().papermill(out)

    def python(self) -> str:
        """Return the same as Python."""
        return self.asked().python()

    def rows(self) -> pd.DataFrame:
        """Return the rows that the panel shows: of its sweep so far, or of the folder's last one before it.

        Where no panel is shown, those of its points, also of an earlier session.
        """
        if self.view is not None:
            return self.view.rows()
        if self.sweep is not None:
            return self.sweep.rows()
        if not self.state.folder.is_dir():  # looking makes none
            return frame(SCHEMA.empty_table())
        folder = Results(self.state.folder)
        tables = [rows for point in self.state.points() if (rows := folder.read(point)) is not None]
        return frame(pa.concat_tables([SCHEMA.empty_table(), *tables]))

    def export(self) -> list[Path]:
        """Write `report.html` and `rows.csv` of the rows that the panel shows into its results folder.

        Returns their paths; none where there are no rows yet.
        """
        rows, folder = self.rows(), self.asked().folder
        if rows.empty:
            return []
        return [report(rows, folder / "report.html"), write_rows(rows, folder / "rows.csv")]

    async def show(self, live: bool | None = None) -> None:
        """Show the panel; where nobody looks on, run the sweep to its end and show its picture.

        **Arguments:**

        - `live`: whether somebody looks on; found out unless given. JupyterLab, Jupyter Notebook and VS Code are
          known; any other front end with widgets may need `live=True`.

        **Raises:** headless, what the sweep raised.
        """
        from IPython.display import display

        if has_front_end() if live is None else live:
            from tclab.lab.panel_view import PanelView

            display(PanelView(self).box)
            return
        display(picture(await self.start()))

    def start(self, listener: Callable[[LiveSweep], None] | None = None) -> LiveSweep:
        """Begin to run what the panel is set to, into its results folder, and return at once.

        **Arguments:**

        - `listener`: as for `LiveSweep.listen`.

        **Raises:** `InputError` for a value out of its range or a folder that cannot be written.
        """
        points = self.state.points()
        if not points:
            raise InputError("no points: expected at least one strategy that serves the model")
        Results(self.state.folder)  # raises where it cannot be written
        self.state.save()
        self.sweep = LiveSweep(points, results=self.state.folder, **self.state.options())
        if listener is not None:
            self.sweep.listen(listener)
        return self.sweep.start()
