"""The chart of an advice: predicted and measured ratios of its suggestions."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from tclab.lab.charts._style import chart_title, empty_chart, log_ticks
from tclab.sweeps.analysis._machine_label import this_machine
from tclab.timing import UNDECIDED, Advice

_KINDS = {
    "predicted": ("diamond", "#0072b2"),
    "at best": ("triangle-left", "#56b4e9"),
    "measured": ("circle", "#d55e00"),
}
_WIDTH = 420


def advice_chart(advice: Advice, *, where: str | None = None) -> Any:
    """Return each suggestion's predicted and measured time of a step over the present one, with intervals.

    1 is the present. A triangle is a bound: a part's time removed entirely. A measured point is hollow, with a word
    at it, where its verdict is UNDECIDED.

    **Arguments:**

    - `advice`: measured or not.
    - `where`: the machine, for the title; the machine of the advice's rows, or this one, unless given.
    """
    lines: list[dict[str, Any]] = []
    for place, one in enumerate(advice.suggestions):
        low, high = one.interval or (None, None)
        kind = "at best" if one.basis == "at best" else "predicted"
        lines.append(
            {
                "change": one.change,
                "place": place,
                "ratio": one.ratio,
                "low": low,
                "high": high,
                "kind": kind,
                "word": "",
            }
        )
        pair = one.measured
        if pair is not None and pair.ratio is not None:
            low, high = pair.interval or (None, None)
            lines.append(
                {
                    "change": one.change,
                    "place": place,
                    "ratio": pair.ratio,
                    "low": low,
                    "high": high,
                    "kind": "measured",
                    "word": "undecided" if pair.verdict == UNDECIDED else "",
                }
            )
    if not lines:
        return empty_chart(f"{advice.of}: nothing to change that the evidence supports.")
    rows = pd.DataFrame(lines).astype({"low": "float64", "high": "float64"})
    kinds = [kind for kind in _KINDS if kind in set(rows["kind"])]
    y = alt.Y(
        "change:N",
        title=None,
        sort=alt.EncodingSortField("place", order="ascending"),
        axis=alt.Axis(labelLimit=380),
    )
    offset = alt.YOffset("kind:N", sort=kinds, scale=alt.Scale(domain=kinds, paddingOuter=0.5))
    x = alt.X(
        "ratio:Q",
        title="time of a step over the present one (logarithmic; left is faster)",
        scale=alt.Scale(type="log", nice=False, padding=16),
        axis=alt.Axis(format="~g", values=log_ticks([1.0, *rows["ratio"], *rows["low"], *rows["high"]])),
    )
    colour = alt.Color("kind:N", title=None, scale=alt.Scale(domain=kinds, range=[_KINDS[k][1] for k in kinds]))
    shape = alt.Shape("kind:N", title=None, scale=alt.Scale(domain=kinds, range=[_KINDS[k][0] for k in kinds]))
    base = alt.Chart(rows).encode(y=y, yOffset=offset, color=colour)
    subtitle = [f"{where or advice.where or this_machine()} · 95 % intervals", advice.of]
    sure, unsure = (base.transform_filter(f"datum.word {sign}== ''") for sign in "=!")
    chart: Any = alt.layer(
        alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(color="#888888").encode(x=alt.X("one:Q")),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q"),
        sure.mark_point(filled=True, size=80, opacity=1).encode(x=x, shape=shape),
        unsure.mark_point(filled=True, fill="white", size=80, opacity=1, strokeWidth=2).encode(
            x=x, shape=shape, stroke=colour
        ),
        unsure.mark_text(align="left", dx=9, fontStyle="italic", color="#333333").encode(
            x=x, text="word:N", color=alt.value("#333333")
        ),
    ).properties(
        width=_WIDTH,
        height=alt.Step(16),
        title=chart_title("What to change", *subtitle),
    )
    return chart
