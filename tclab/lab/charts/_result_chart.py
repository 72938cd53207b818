"""The chart of a result: one function for what other functions of tclab return, and the chart of an advice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd

from tclab.errors import require
from tclab.lab.charts._cost_charts import largest_batches_chart
from tclab.lab.charts._scaling_charts import epoch_chart
from tclab.lab.charts._stage_charts import ledger_chart
from tclab.lab.charts._style import GREY, chart_title, empty_chart, fixed_colour, log_axis, machine_text
from tclab.lab.charts._trace_charts import trace_comparison_chart
from tclab.lab.charts._trust_charts import comparison_chart, spike_chart
from tclab.sweeps.analysis._compare_runs import Comparison
from tclab.sweeps.predict._epoch import Epoch
from tclab.sweeps.predict._fits import LargestBatch
from tclab.timing import Ledger
from tclab.timing._advice import Advice
from tclab.timing._self_test import SpikeIn
from tclab.timing._verdict import UNDECIDED
from tclab.trace._compare_traces import Comparison as TraceComparison

_COLOURS = {"predicted": "#0072b2", "at best": "#56b4e9", "measured": "#d55e00"}
_SHAPES = {"predicted": "diamond", "at best": "triangle-left", "measured": "circle"}


def _advice_chart(advice: Advice, *, where: str | None = None) -> Any:
    """Return each suggestion's predicted and measured time of a step over the present one, with intervals.

    1 is the present. A triangle is a bound: a part's time removed entirely. A measured point is hollow, with a word
    at it, where its verdict is UNDECIDED.
    """
    lines: list[tuple[Any, ...]] = []
    for place, one in enumerate(advice.suggestions):
        kind = "at best" if one.basis == "at best" else "predicted"
        change = one.change if one.subject == "a step" else f"{one.change} ({one.subject})"
        lines.append((change, place, one.ratio, *(one.interval or (None, None)), kind, ""))
        pair = one.measured
        if pair is not None and pair.ratio is not None:
            word = "undecided" if pair.verdict == UNDECIDED else ""
            lines.append((change, place, pair.ratio, *(pair.interval or (None, None)), "measured", word))
    if not lines:
        return empty_chart(f"{advice.subject}: nothing to change that the evidence supports.")
    rows = pd.DataFrame(lines, columns=["change", "place", "ratio", "low", "high", "kind", "word"])
    rows = rows.astype({"low": "float64", "high": "float64"})
    rows["end"] = rows["high"].fillna(rows["ratio"])  # beyond its own interval, which would strike the word out
    kinds = [kind for kind in _COLOURS if kind in set(rows["kind"])]
    x = alt.X(
        "ratio:Q",
        title="time of a step over the present one (logarithmic; left is faster)",
        **log_axis([1.0, *rows["ratio"], *rows["low"], *rows["high"]], padding=16),
    )
    in_order = alt.EncodingSortField("place", order="ascending")
    colour = fixed_colour("kind", _COLOURS, kinds, title=None)
    shape = alt.Shape("kind:N", title=None, scale=alt.Scale(domain=kinds, range=[_SHAPES[kind] for kind in kinds]))
    base = alt.Chart(rows).encode(
        y=alt.Y("change:N", title=None, sort=in_order, axis=alt.Axis(labelLimit=380)),
        yOffset=alt.YOffset("kind:N", sort=kinds, scale=alt.Scale(domain=kinds, paddingOuter=0.5)),
        color=colour,
    )
    sure, unsure = (base.transform_filter(f"datum.word {sign}== ''") for sign in "=!")
    layers = [
        alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(color="#888888").encode(x=alt.X("one:Q")),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q"),
        sure.mark_point(filled=True, size=80, opacity=1).encode(x=x, shape=shape),
        unsure.mark_point(filled=True, fill="white", size=80, opacity=1, strokeWidth=2).encode(
            x=x, shape=shape, stroke=colour
        ),
        unsure.mark_text(align="left", dx=6, fontStyle="italic").encode(
            x=alt.X("end:Q"), text="word:N", color=alt.value(GREY)
        ),
    ]
    machine = f"{machine_text(where or advice.where)} · 95 % intervals"
    return alt.layer(*layers).properties(
        width=420, height=alt.Step(16), title=chart_title("What to change", machine, advice.subject)
    )


_CHARTS: dict[type, Callable[..., Any]] = {
    Advice: _advice_chart,
    Comparison: comparison_chart,
    Epoch: epoch_chart,
    LargestBatch: largest_batches_chart,
    Ledger: ledger_chart,
    SpikeIn: spike_chart,
    TraceComparison: trace_comparison_chart,
}


def result_chart(result: Any, *, where: str | None = None) -> Any:
    """Return the chart of a result.

    | result of | chart |
    |---|---|
    | `advise`, of `tclab` or `tclab.timing` | each suggestion's ratio to the present step, predicted and measured |
    | `tclab.compare` | the second runs' time over the first's, point by point |
    | `tclab.timing.Ledger` | a bar of stages for each timeline, which add up to the mean step |
    | `tclab.timing.spike_in` | measured over injected delays |
    | `tclab.trace.compare` | two runs by category |
    | `tclab.sweeps.run_epoch`, a list of them | predicted over measured seconds of each epoch |
    | `tclab.sweeps.largest_batch`, a list of them | the largest batch of each strategy that ran, and the expected one |

    Intervals are of 95 %; what is undecided is hollow.

    **Arguments:**

    - `result`: of one of these.
    - `where`: the machine, for the title; unless given that of the result, or of its rows, or this one. "cpu" and
      "cuda" are this machine's.

    **Raises:** `InputError` for anything else.
    """
    one = result[0] if isinstance(result, list | tuple) and result else result
    require("result", one, tuple(_CHARTS), "an advice, a comparison, a ledger, spikes, or a list of "
            "epochs or largest batches")  # fmt: skip
    draw = next(draw for kind, draw in _CHARTS.items() if isinstance(one, kind))
    return draw(result, where=where)
