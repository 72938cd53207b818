"""The cost of each overhead: the time of a step with it over one without, with an interval and a verdict."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from tclab.lab.charts._style import empty_chart, log_axis, rows_title, strategy_colour
from tclab.lab.reports._tables import without_time
from tclab.sweeps.store._rows_of import Runs, rows_of
from tclab.timing._statistics import intervals
from tclab.timing._step_means import cycle_means
from tclab.training import OVERHEADS

COSTS, SAVES, UNDECIDED = "costs", "saves", "undecided"
_WIDTH = 420
_FEWEST_ROUNDS = 2  # one does not show how far two runs of the same lie apart
_LEVEL = 0.95
_AT = ["model", "strategy", "batch_size", "networks", "mode"]


def overhead_costs(rows: Runs) -> pd.DataFrame:
    """Return how many times as long a step takes with each overhead, a line for each model, strategy and overhead.

    Points of one seed are one round, on the same batches: step `i` with the overhead is compared with step `i` without;
    where steps wait for several workers, whole cycles of them (`tclab.timing._step_means`). The interval, 95 %, is of
    the median of the log ratios by bootstrap over rounds and their steps, no narrower than Student's over rounds; see
    `tclab.timing._statistics.intervals`. One round decides nothing.

    **Arguments:**

    - `rows`: of the points of `tclab.sweeps.config.with_each_overhead`.

    Columns: model, strategy, overhead, what, ratio, low, high, rounds, steps, verdict ("costs", "saves" or
    "undecided").
    """
    rows = rows_of(rows)
    steps = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    found: list[dict[str, Any]] = []
    for key, group in steps.groupby(_AT, sort=False):
        named = group["overheads"].fillna("")
        bases = {row["seed"]: row for _, row in group[named == ""].iterrows()}
        for overhead in (name for name in OVERHEADS if (named == name).any()):
            groups = [
                _log_ratios(row, bases[row["seed"]])
                for _, row in group[named == overhead].iterrows()
                if row["seed"] in bases
            ]
            if groups:
                found.append({"model": key[0], "strategy": key[1], "overhead": overhead, **_cost(groups)})
    columns = ["model", "strategy", "overhead", "what", "ratio", "low", "high", "rounds", "steps", "verdict"]
    made = pd.DataFrame(found, columns=columns)
    return made.assign(what=made["overhead"].map({name: overhead.what for name, overhead in OVERHEADS.items()}))


def _log_ratios(row: pd.Series, base: pd.Series) -> np.ndarray[Any, np.dtype[np.float64]]:
    both, cycle = min(row["n"], base["n"]), max(row["cycle_steps"], base["cycle_steps"])
    own, without = (cycle_means(np.asarray(one["samples_seconds"])[:both], cycle) for one in (row, base))
    return np.log(own / without)


def _cost(groups: list[Any]) -> dict[str, Any]:
    ((low, high),) = intervals(groups, [_LEVEL])
    verdict = UNDECIDED
    if len(groups) >= _FEWEST_ROUNDS:
        verdict = COSTS if low > 0 else SAVES if high < 0 else UNDECIDED
    return {
        "ratio": float(np.exp(np.median(np.concatenate(groups)))),
        "low": float(np.exp(low)),
        "high": float(np.exp(high)),
        "rounds": len(groups),
        "steps": sum(map(len, groups)),
        "verdict": verdict,
    }


def overhead_costs_chart(rows: Runs) -> Any:
    """Return the chart of each overhead's cost with its interval, a panel a model; hollow where it is undecided.

    **Arguments:** as for `overhead_costs`.
    """
    rows = rows_of(rows)
    costs = overhead_costs(rows)
    if costs.empty:
        return empty_chart("No overhead was measured together with a step without it.")
    sure = costs["verdict"] != UNDECIDED
    text = costs["ratio"].map("{:.2f} ×".format) + sure.map({True: "", False: ", undecided"})
    costs = costs.assign(sure=sure, text=text)
    low, high = min(costs["ratio"].min(), 0.8) / 1.5, max(costs["ratio"].max(), 1.25) * 1.5
    title = "time of a step with the overhead : without (1 = it costs nothing)"
    x = alt.X("ratio:Q", title=title, **log_axis([low, high], domain=[low, high]))
    models = sorted(costs["model"].unique(), key=lambda name: (not name.startswith("hetero"), name))
    colour = strategy_colour(costs)
    panels = [
        _panel(costs[costs["model"] == model], model, x if model == models[-1] else x.title(None), colour)
        for model in models
    ]
    chart = alt.vconcat(*panels, spacing=12).resolve_scale(color="shared", y="independent", yOffset="independent")
    return chart.properties(title=rows_title("What each overhead costs", rows, _rounds_text(costs)))


def _panel(costs: pd.DataFrame, model: str, x: Any, colour: Any) -> Any:
    """Return the overheads of one model; an interval that leaves the axis is cut."""
    names = [name for name in OVERHEADS if name in set(costs["overhead"])]
    strategies = list(dict.fromkeys(costs["strategy"]))
    # a lane for each overhead and strategy, and half a lane between overheads
    places = {(n, s): i * (len(strategies) + 0.5) + k for i, n in enumerate(names) for k, s in enumerate(strategies)}
    costs = costs.assign(place=[places[pair] + 0.75 for pair in zip(costs["overhead"], costs["strategy"], strict=True)])
    end = len(names) * (len(strategies) + 0.5)
    labels = pd.DataFrame(
        {"overhead": names, "place": [places[n, strategies[0]] + 0.25 + len(strategies) / 2 for n in names]}
    )
    y = alt.Y("place:Q", scale=alt.Scale(domain=[end, 0], nice=False), axis=None)
    base = alt.Chart(costs).encode(y=y)
    sure, unsure = (base.transform_filter(f"datum.sure == {flag}") for flag in ("true", "false"))
    grey = alt.value("#444444")
    layers = [
        alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(color="#888888").encode(x=alt.X("one:Q")),
        base.mark_rule(strokeWidth=2, clip=True).encode(x=alt.X("low:Q"), x2="high:Q", color=colour),
        sure.mark_point(filled=True, size=70, opacity=1).encode(x=x, color=colour),
        unsure.mark_point(filled=True, fill="white", size=60, opacity=1, strokeWidth=2).encode(x=x, stroke=colour),
        base.mark_text(align="left", fontSize=10).encode(x=alt.value(_WIDTH + 8), text="text:N", color=grey),
        alt.Chart(labels).mark_text(align="right", fontSize=11).encode(y=y, x=alt.value(-6), text="overhead:N"),
    ]
    title = alt.TitleParams(model, anchor="start", frame="group", fontSize=12)
    return alt.layer(*layers).properties(width=_WIDTH, height=16 * end, title=title)


def _rounds_text(costs: pd.DataFrame) -> str:
    least, most = int(costs["rounds"].min()), int(costs["rounds"].max())
    if most < _FEWEST_ROUNDS:
        return "one round: the lines show how steps scatter, not how runs do"
    return f"{least if least == most else f'{least} to {most}'} rounds side by side, 95 % intervals; hollow: undecided"


def overhead_findings(rows: Runs) -> list[str]:
    """Return a sentence for each model: which overheads cost time, which save it, which are undecided.

    **Arguments:** as for `overhead_costs`.
    """
    rows = rows_of(rows)
    costs = overhead_costs(rows)
    sentences = []
    for (model, strategy), group in costs.groupby(["model", "strategy"], sort=False):
        place = f"{model} ({strategy})"
        if group["rounds"].max() < _FEWEST_ROUNDS:
            sentences.append(f"{place}: one round of each overhead was run, which decides nothing; give rounds.")
            continue
        parts = []
        for verdict, words in ((COSTS, "cost time"), (SAVES, "save time")):
            sure = group[group["verdict"] == verdict].sort_values("ratio", ascending=verdict == SAVES)
            named = [f"{row['overhead']} {row['ratio']:.2f} × [{row['low']:.2f}, {row['high']:.2f}]" for _, row in
                     sure.iterrows()]  # fmt: skip
            if named:
                parts.append(f"{', '.join(named)} {words}")
        unsure = group[group["verdict"] == UNDECIDED]["overhead"].tolist()
        if unsure:
            parts.append(f"undecided: {', '.join(unsure)}")
        sentences.append(f"{place}: {'; '.join(parts)}.")
    return [*sentences, *without_time(rows)] or ["No overhead was measured together with a step without it."]
