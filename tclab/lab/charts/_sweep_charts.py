"""The charts of a sweep that the panel and the report show, each by the name of its view."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import altair as alt
import pandas as pd

from tclab.lab.charts._bytes_charts import bytes_per_batch
from tclab.lab.charts._stage_charts import stages
from tclab.lab.charts._style import EMPTY, empty_chart
from tclab.lab.charts._throughput_charts import throughput

SWEEP_CHARTS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "strategies": throughput,
    "over batch size": partial(throughput, by="batch_size"),
    "over edge types": partial(throughput, by="networks"),
    "stages of a step": stages,
    "bytes of a batch": bytes_per_batch,
}
_WIDTH, _HEIGHT = 600, 370  # pixels, with titles, names and the legend


def sweep_chart(rows: pd.DataFrame, view: str = "strategies") -> Any:
    """Return one of `SWEEP_CHARTS` at a fixed size; without any time, a chart that says why."""
    if rows.empty or not (rows["status"] == "ok").any():
        return _without_figures(rows)
    return _sized(SWEEP_CHARTS[view](rows))


def _sized(chart: Any) -> Any:
    """Return a chart whose axes give way to its names and its legend, so that nothing is cut."""
    fit = alt.AutoSizeParams(type="fit", contains="padding")
    return chart.properties(width=_WIDTH, height=_HEIGHT, autosize=fit)


def _without_figures(rows: pd.DataFrame) -> Any:
    statuses = rows["status"].value_counts().to_dict() if len(rows) else {}
    text = [f"{number} × {status}" for status, number in statuses.items()] or ["No point has been measured yet."]
    chart = empty_chart("\n".join(text[:8])).encode(y=alt.value(20))
    return _sized(chart.properties(title=f"{EMPTY} yet"))
