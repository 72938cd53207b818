"""The chart of a spike-in: delays that were injected against what the ledger measured."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from tclab.lab.charts._style import chart_title, log_axis
from tclab.sweeps.analysis._machine_label import this_machine
from tclab.timing._spike_in import SpikeIn


def spike_chart(spikes: SpikeIn, *, where: str | None = None) -> alt.LayerChart:
    """Return measured over injected delays, a colour a stage, with a band of ±10 %.

    **Arguments:**

    - `spikes`: by `tclab.timing.spike_in`.
    - `where`: the machine, for the title; this machine unless given.
    """
    rows = pd.DataFrame(
        [
            {
                "stage": trial.stage,
                "injected": trial.injected_seconds * 1e3,
                "recovered": trial.recovered_seconds[trial.stage] * 1e3,
                "found": "yes" if trial.recovered() else "no",
            }
            for trial in spikes.trials
            if trial.injected_seconds
        ]
    )
    low, high = float(rows["injected"].min()) / 2, float(rows["injected"].max()) * 2
    line = pd.DataFrame({"x": [low, high]})
    line["low"], line["high"] = 0.9 * line["x"], 1.1 * line["x"]
    log = log_axis([*rows["injected"], *rows["recovered"]], domain=[low, high], clamp=True)
    x = alt.X("injected:Q", title="injected delay [ms]", **log)
    chart: Any = alt.layer(
        alt.Chart(line)
        .mark_area(color="#bbbbbb", opacity=0.4)
        .encode(x=alt.X("x:Q", **log), y=alt.Y("low:Q", **log), y2="high:Q"),
        alt.Chart(rows)
        .mark_point(size=70, strokeWidth=2)
        .encode(
            x=x,
            y=alt.Y("recovered:Q", title="delay that the ledger measured in that stage [ms]", **log),
            color=alt.Color("stage:N", title="stage"),
            shape=alt.Shape(
                "found:N",
                title="recovered",
                scale=alt.Scale(domain=["yes", "no"], range=["circle", "cross"]),
            ),
        ),
    ).properties(
        width=380,
        height=300,
        title=chart_title(
            f"{spikes.share():.0%} of {len(rows)} delays were measured in the stage that they were injected into",
            f"{where or this_machine()} · grey band: within 10 %",
        ),
    )
    return chart
