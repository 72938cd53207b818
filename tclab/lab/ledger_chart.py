"""Where the time of any loop's steps went, from its ledger, in the colours of every other chart."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from tclab.lab.colours import stage_colours
from tclab.lab.parts import SUMS, seconds_text
from tclab.lab.timeline import nothing
from tclab.sweeps.measured_on import this_machine
from tclab.timing import Ledger


def ledger_chart(ledger: Ledger, *, where: str | None = None) -> Any:
    """Return what each stage takes of a usual step, a bar a timeline, whose parts add up to the mean step.

    Timelines overlap, so they are never added: a worker makes a batch while the host trains.

    **Arguments:**

    - `ledger`: of any loop.
    - `where`: what it was measured on, for the title; this machine unless given.
    """
    frame = ledger.frame().dropna(subset=["seconds"])
    parts = frame[~frame["stage"].isin([*SUMS, "idle"])]
    if parts.empty:
        return nothing("The ledger has no step.")
    steps = parts.groupby("timeline")["step"].nunique()
    means = parts.groupby(["timeline", "stage"], sort=False)["seconds"].sum().reset_index()
    means["seconds"] = means["seconds"].astype(float) / means["timeline"].map(steps)
    colours = stage_colours(means["stage"])
    shown = [name for name in colours if name in set(means["stage"])]
    means["order"] = means["stage"].map({name: place for place, name in enumerate(shown)})
    sums = means.groupby("timeline")["seconds"].sum()
    means["line"] = means["timeline"] + means["timeline"].map(lambda name: f" · {seconds_text(sums[name])}")
    closed = ", ".join(f"{line} {share:.1%}" for line, share in ledger.closure.items() if share is not None)
    chart: Any = (
        alt.Chart(pd.DataFrame(means))
        .mark_bar()
        .encode(
            y=alt.Y("line:N", title=None, sort=None, axis=alt.Axis(labelLimit=260)),
            x=alt.X("seconds:Q", title="seconds a step (mean of each stage)"),
            color=alt.Color(
                "stage:N", scale=alt.Scale(domain=shown, range=[colours[name] for name in shown]), title="stage"
            ),
            order="order:Q",
        )
        .properties(
            width=520,
            height=alt.Step(30),
            title=alt.TitleParams(
                "Where a step's time goes",
                subtitle=[f"{where or this_machine()} · {len(ledger)} steps · adds up to its clock: {closed}"],
                anchor="start",
            ),
        )
    )
    return chart
