"""The live panel: set a sweep up, run it, watch it, stop it, go on; the same rows as headless."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa

from tclab.errors import InputError
from tclab.lab.live import LiveSweep, has_front_end
from tclab.lab.live_chart import picture
from tclab.lab.panel_state import PanelState
from tclab.sweeps import Results
from tclab.sweeps.rows import SCHEMA, frame

_ONE_OF_EACH = ("graph", "scale", "model", "mode", "dtype", "deleted", "hidden", "layers")


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
        _ = self.state.budget
        self.sweep: LiveSweep | None = None
        self.view: Any = None  # the widgets, once they are shown

    def papermill(self, out: str = "out.ipynb") -> str:
        """Return the line that runs the same points headlessly, from the project's folder."""
        return self.state.papermill(out)

    def python(self) -> str:
        """Return the same as Python."""
        return self.state.python()

    def rows(self) -> pd.DataFrame:
        """Return the rows of this sweep that there are so far, also those of an earlier session."""
        if self.sweep is not None:
            return self.sweep.rows()
        folder = Results(self.state.folder)
        tables = [rows for point in self.state.points() if (rows := folder.read(point)) is not None]
        return frame(pa.concat_tables([SCHEMA.empty_table(), *tables]))

    async def show(self) -> None:
        """Show the panel; where nobody looks on, run the sweep to its end and show its picture.

        **Raises:** headless, what the sweep raised.
        """
        from IPython.display import display

        if has_front_end():
            from tclab.lab.panel_view import PanelView

            self.view = PanelView(self)
            display(self.view.box)
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
        self.sweep = LiveSweep(points, results=self.state.folder, budget_seconds=self.state.budget)
        if listener is not None:
            self.sweep.listen(listener)
        return self.sweep.start()
