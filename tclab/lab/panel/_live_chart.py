"""A chart in a front end that is drawn again as rows arrive."""

from __future__ import annotations

import altair as alt
import ipywidgets as widgets
import pandas as pd

from tclab.lab.charts._sweep_charts import sweep_chart


class LiveChart:
    """A chart in a front end, drawn again with `show`.

    Each drawing embeds the chart anew, so a few a second are the most that a browser can take.
    """

    def __init__(self) -> None:
        self._drawings = 0
        self._shown = sweep_chart(pd.DataFrame())
        alt.JupyterChart.enable_offline()  # a lab often has no internet
        self._chart = alt.JupyterChart(self._shown, embed_options={"actions": False, "renderer": "svg"})
        # the page must not jump when a legend comes or goes
        layout = widgets.Layout(height="380px", width="610px", overflow="auto")
        self.box = widgets.Box([self._chart], layout=layout)

    def show(self, rows: pd.DataFrame, view: str) -> None:
        """Draw a view of some rows."""
        self._shown = sweep_chart(rows, view)
        self._chart.chart = self._shown

    def again(self) -> None:
        """Draw the same once more.

        The browser loses a chart that arrives while it still embeds the one before, most easily the first.
        """
        self._drawings += 1
        self._chart.chart = self._shown.properties(usermeta={"drawing": self._drawings})
