"""What a prediction of an epoch was worth: a chart and tables of predicted and measured seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import pandas as pd

from tclab.sweeps.epoch import BOTH, COMPUTE, LOADER, Epoch
from tclab.sweeps.measured_on import this_machine

# Okabe and Ito's colours; points have shapes too
BINDING_COLOURS = {LOADER: "#e69f00", COMPUTE: "#0072b2", BOTH: "#009e73"}
_SHAPES = {LOADER: "square", COMPUTE: "circle", BOTH: "diamond"}
_WIDTH = 460
WITHIN = 0.10  # what a prediction is allowed to be off by


def _name(epoch: Epoch) -> str:
    point = epoch.point
    workers = "1 worker" if point.workers == 1 else f"{point.workers} workers"
    return f"{point.model} · {point.strategy} · {point.mode} · batch {point.batch_size} · {workers}"


def epoch_chart(epochs: Sequence[Epoch], *, where: str | None = None) -> alt.LayerChart:
    """Return predicted over measured seconds of each epoch, its interval, and the ±10 % that is allowed.

    **Arguments:**

    - `epochs`: predicted and run.
    - `where`: what they were run on, for the title; this machine, and their device, unless given.
    """
    rows = pd.DataFrame(
        [
            {
                "epoch": _name(epoch),
                "ratio": epoch.ratio,
                "low": epoch.predicted.low / epoch.measured_seconds,
                "high": epoch.predicted.high / epoch.measured_seconds,
                "binds": epoch.predicted.binds,
                "seconds": f"predicted {epoch.predicted.seconds:.3g} s, measured {epoch.measured_seconds:.3g} s",
            }
            for epoch in epochs
        ]
    )
    ends = [float(rows["low"].min()), float(rows["high"].max()), 1 - 2 * WITHIN, 1 + 2 * WITHIN]
    scale = alt.Scale(domain=[min(ends) - 0.05, max(ends) + 0.05], nice=False, zero=False)
    x = alt.X("ratio:Q", title="predicted over measured seconds of the epoch", scale=scale)
    y = alt.Y("epoch:N", title=None, sort=list(dict.fromkeys(rows["epoch"])), axis=alt.Axis(labelLimit=380))
    shown = [name for name in BINDING_COLOURS if name in set(rows["binds"])]
    colour = alt.Color(
        "binds:N",
        title="bound by",
        scale=alt.Scale(domain=shown, range=[BINDING_COLOURS[name] for name in shown]),
        legend=alt.Legend(orient="bottom"),
    )
    shape = alt.Shape(
        "binds:N", title="bound by", scale=alt.Scale(domain=shown, range=[_SHAPES[name] for name in shown])
    )
    band = pd.DataFrame({"low": [1 - WITHIN], "high": [1 + WITHIN]})
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
    inside = int((abs(rows["ratio"] - 1) <= WITHIN).sum())
    return chart.properties(
        width=_WIDTH,
        height=alt.Step(26),
        title=alt.TitleParams(
            f"{inside} of {len(rows)} epochs took what was predicted, within {WITHIN:.0%}",
            subtitle=[f"{where} · grey band: within {WITHIN:.0%}; bars: nine in ten simulations"],
            anchor="start",
        ),
    )


def epoch_table(epochs: Iterable[Epoch]) -> pd.DataFrame:
    """Return a line an epoch: when it was predicted and begun, both times, what binds, and the full epoch."""
    return pd.DataFrame(
        [
            {
                "epoch": _name(epoch),
                "steps": epoch.predicted.steps,
                "predicted at (UTC)": epoch.written_at[11:23],
                "begun at (UTC)": epoch.began_at[11:23],
                "predicted s": epoch.predicted.seconds,
                "5 % to 95 %": f"{epoch.predicted.low:.3g} to {epoch.predicted.high:.3g}",
                "measured s": epoch.measured_seconds,
                "predicted over measured": epoch.ratio,
                "bound by": epoch.predicted.binds,
                "drift": epoch.drift,
                "load": epoch.load,
                "full epoch steps": epoch.full.steps,
                "full epoch s, predicted": epoch.full.seconds,
            }
            for epoch in epochs
        ]
    ).set_index("epoch")


def model_ratios(epochs: Iterable[Epoch]) -> pd.DataFrame:
    """Return how much longer each model's epoch takes than the fastest one's, predicted and measured.

    Of epochs in the same mode, with as many workers and steps; a row a model but the fastest. An epoch of all
    training samples has the steps that the model's batch makes of them.
    """
    groups: dict[tuple[str, int, int], list[Epoch]] = {}
    for epoch in epochs:
        groups.setdefault((epoch.point.mode, epoch.point.workers, epoch.predicted.steps), []).append(epoch)
    rows = []
    for (mode, workers, steps), own in groups.items():
        fastest, *others = sorted(own, key=lambda epoch: epoch.measured_seconds)
        rows += [
            {
                "models": f"{other.point.model} : {fastest.point.model}",
                "mode": mode,
                "workers": workers,
                "steps": steps,
                "predicted": other.predicted.seconds / fastest.predicted.seconds,
                "measured": other.measured_seconds / fastest.measured_seconds,
                "full epoch, predicted": other.full.seconds / fastest.full.seconds,
            }
            for other in others
            if other.point.model != fastest.point.model
        ]
    columns = ["models", "mode", "workers", "steps", "predicted", "measured", "full epoch, predicted"]
    return pd.DataFrame(rows, columns=columns).set_index("models")
