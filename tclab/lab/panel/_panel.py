"""The live panel: a sweep that is set up, run, watched, stopped and resumed in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from tclab.lab._html_report import report
from tclab.lab._notebook import has_front_end
from tclab.lab.charts._sweep_charts import sweep_chart
from tclab.lab.panel._live_sweep import LiveSweep
from tclab.lab.panel._panel_model import PanelModel
from tclab.lab.panel._panel_state import PanelState
from tclab.lab.panel._panel_view import PanelView
from tclab.lab.reports._findings import findings
from tclab.sweeps import write_rows


class Panel:
    """A sweep that a person sets up, runs, watches, stops and resumes in a notebook.

    `await panel.show()` shows it in an interactive front end. Without one it runs the sweep, shows one chart and prints
    what was found. Rows are kept in the results folder, the same as a headless sweep's; opening that folder again shows
    them.

    **Arguments:**

    - `parameters`: those of `notebooks/sweep.ipynb`, by the same names: `graph`, `scale`, `models`, `strategies`,
      `batch_sizes`, `networks`, `gpus`, `mode`, `dtype`, `compile`, `perturbations`, `num_deletions`, `hidden`,
      `layers`, `steps` and `seed` as for `tclab.grid`; `results`, `budget_seconds` (0: no limit) and `retry` as for
      `tclab.sweep`. A panel has one graph, model, mode and dtype, and several strategies, batch sizes and networks.

    **Raises:** `InputError` that names the value, the expected values and the nearest one that exists.
    """

    def __init__(self, **parameters: Any) -> None:
        self._model = PanelModel(**parameters)
        self.view: PanelView | None = None  # the widgets, once they are shown

    @property
    def state(self) -> PanelState:
        """What the last sweep was set to, or the first one will be."""
        return self._model.state

    @property
    def sweep(self) -> LiveSweep | None:
        """The sweep that was started last; `None` before the first, or where another folder was opened since."""
        return self._model.sweep

    def settings(self) -> PanelState:
        """Return the present settings of the panel: those of its fields, once it is shown.

        **Raises:** `InputError` for several ranks on the CPU of a machine that has GPUs.
        """
        return self.state if self.view is None else self.view.form.read()

    def papermill(self, out: str = "out.ipynb") -> str:
        """Return the papermill command that runs the panel's present settings, from the project's folder."""
        return self.settings().papermill(out)

    def python(self) -> str:
        """Return Python code that runs the panel's present settings."""
        return self.settings().python()

    def rows(self) -> pd.DataFrame:
        """Return the rows that the panel shows: of its sweep so far, or of the folder's last one before it.

        Where no panel is shown, those of its points, also of an earlier session.
        """
        if self.view is not None:
            self.view.wait()
            return self._model.rows()
        return self._model.kept_rows() if self.sweep is None else self._model.rows()

    def export(self) -> list[Path]:
        """Write `report.html` and `rows.csv` of the rows that the panel shows into its results folder.

        Returns their paths; none where there are no rows yet.
        """
        rows, folder = self.rows(), self.settings().folder
        if rows.empty:
            return []
        return [report(rows, folder / "report.html"), write_rows(rows, folder / "rows.csv")]

    async def show(self, live: bool | None = None) -> None:
        """Show the panel; without an interactive front end, run the sweep and show its chart and what was found.

        **Arguments:**

        - `live`: whether there is an interactive front end; detected unless given. JupyterLab, Jupyter Notebook and
          VS Code are known; any other front end with widgets may need `live=True`.

        **Raises:** headless, what the sweep raised.
        """
        from IPython.display import display

        if has_front_end() if live is None else live:
            self.view = PanelView(self._model)
            display(self.view.box)
            return
        rows = await self.start()
        display(sweep_chart(rows))
        display(findings(rows))

    def start(self, listener: Callable[[LiveSweep], None] | None = None) -> LiveSweep:
        """Start a sweep with the panel's settings, into its results folder, and return at once.

        **Arguments:**

        - `listener`: as for `LiveSweep.listen`.

        **Raises:** `InputError` for a value out of its range or a folder that cannot be written.
        """
        return self._model.start(listener)
