"""One chart that is drawn again as rows arrive: a fixed size, a choice of views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd

from tclab.lab.charts import (
    bytes_per_batch,
    stages,
    throughput_by_batch_size,
    throughput_by_networks,
    throughput_by_strategy,
)
from tclab.lab.timeline import NOTHING, nothing

VIEWS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "strategies": throughput_by_strategy,
    "over batch size": throughput_by_batch_size,
    "over edge types": throughput_by_networks,
    "stages of a step": stages,
    "bytes of a batch": bytes_per_batch,
}
_WIDTH, _HEIGHT = 420, 280  # pixels, of what lies within the axes


def picture(rows: pd.DataFrame, view: str = "strategies") -> Any:
    """Return a view of some rows at the size that it always has, also of none at all.

    **Arguments:**

    - `view`: one of `VIEWS`.
    """
    if rows.empty or not (rows["status"] == "ok").any():
        return _nothing(rows)
    return VIEWS[view](rows).properties(width=_WIDTH, height=_HEIGHT)


def _nothing(rows: pd.DataFrame) -> Any:
    lost = rows["status"].value_counts().to_dict() if len(rows) else {}
    text = [f"{number} × {status}" for status, number in lost.items()] or ["No point has been measured yet."]
    chart = nothing("\n".join(text[:8])).encode(y=alt.value(20))
    return chart.properties(width=_WIDTH, height=_HEIGHT, title=f"{NOTHING} yet")


class LiveChart:
    """A picture in a front end, drawn again with `show`.

    Each drawing embeds the chart anew, so it is best asked for a few times a second at most.
    """

    def __init__(self) -> None:
        import ipywidgets

        self._drawings = 0
        self._shown = _nothing(pd.DataFrame())
        alt.JupyterChart.enable_offline()  # a lab often has no internet
        self._chart = alt.JupyterChart(
            _nothing(pd.DataFrame()), embed_options={"actions": False, "renderer": "svg"}
        )
        # the page must not jump when a legend comes or goes
        self.box = ipywidgets.Box(
            [self._chart], layout=ipywidgets.Layout(height="380px", width="610px", overflow="auto")
        )

    def show(self, rows: pd.DataFrame, view: str) -> None:
        """Draw a view of some rows."""
        self._shown = picture(rows, view)
        self._chart.chart = self._shown

    def again(self) -> None:
        """Draw the same once more.

        The browser loses a picture that arrives while it still embeds the one before, most easily the first.
        """
        self._drawings += 1
        self._chart.chart = self._shown.properties(usermeta={"drawing": self._drawings})
