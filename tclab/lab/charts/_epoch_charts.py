"""The chart of predicted over measured seconds of epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from tclab.lab.charts._style import chart_title, fixed_colour
from tclab.lab.reports._epoch_tables import epoch_name
from tclab.sweeps.analysis._machine_label import this_machine
from tclab.sweeps.predict._epoch import BOTH, COMPUTE, LOADER, Epoch

# Okabe and Ito's colours; points have shapes too
_COLOURS = {LOADER: "#e69f00", COMPUTE: "#0072b2", BOTH: "#009e73"}
_SHAPES = {LOADER: "square", COMPUTE: "circle", BOTH: "diamond"}
_WIDTH = 460
_WITHIN = 0.10  # error that a prediction may have


def epoch_chart(epochs: Sequence[Epoch], *, where: str | None = None) -> alt.LayerChart:
    """Return predicted over measured seconds of each epoch, its interval, and a band of ±10 %.

    **Arguments:**

    - `epochs`: predicted and run.
    - `where`: the machine, for the title; this machine, and their device, unless given.
    """
    rows = pd.DataFrame(
        [
            {
                "epoch": epoch_name(epoch),
                "ratio": epoch.ratio,
                "low": epoch.predicted.low / epoch.measured_seconds,
                "high": epoch.predicted.high / epoch.measured_seconds,
                "binds": epoch.predicted.binds,
                "seconds": f"predicted {epoch.predicted.seconds:.3g} s, measured {epoch.measured_seconds:.3g} s",
            }
            for epoch in epochs
        ]
    )
    ends = [float(rows["low"].min()), float(rows["high"].max()), 1 - 2 * _WITHIN, 1 + 2 * _WITHIN]
    scale = alt.Scale(domain=[min(ends) - 0.05, max(ends) + 0.05], nice=False, zero=False)
    x = alt.X("ratio:Q", title="predicted over measured seconds of the epoch", scale=scale)
    y = alt.Y("epoch:N", title=None, sort=list(dict.fromkeys(rows["epoch"])), axis=alt.Axis(labelLimit=380))
    shown = [name for name in _COLOURS if name in set(rows["binds"])]
    colour = fixed_colour("binds", _COLOURS, shown, title="bound by", legend=alt.Legend(orient="bottom"))
    shapes = alt.Scale(domain=shown, range=[_SHAPES[name] for name in shown])
    shape = alt.Shape("binds:N", title="bound by", scale=shapes)
    band = pd.DataFrame({"low": [1 - _WITHIN], "high": [1 + _WITHIN]})
    base = alt.Chart(rows)
    chart: Any = alt.layer(
        alt.Chart(band).mark_rect(color="#bbbbbb", opacity=0.4).encode(x=alt.X("low:Q", scale=scale), x2="high:Q"),
        alt.Chart(pd.DataFrame({"at": [1.0]}))
        .mark_rule(color="#333333", strokeDash=[4, 3])
        .encode(x=alt.X("at:Q", scale=scale)),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y, color=colour),
        base.mark_point(filled=True, size=80, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
        base.mark_text(align="left", dx=8, color="#555555").encode(x=alt.value(_WIDTH), y=y, text="seconds:N"),
    )
    devices = {epoch.point.device for epoch in epochs}
    where = where or this_machine(devices.pop() if len(devices) == 1 else None)
    inside = int((abs(rows["ratio"] - 1) <= _WITHIN).sum())
    return chart.properties(
        width=_WIDTH,
        height=alt.Step(26),
        title=chart_title(
            f"{inside} of {len(rows)} epochs took the predicted time, within {_WITHIN:.0%}",
            f"{where} · grey band: within {_WITHIN:.0%}; bars: nine in ten simulations",
        ),
    )
