"""What each of the original's habits costs: the ratio of a step with it to one without, and how sure that is."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from tclab.lab.charts import _colour, _title
from tclab.lab.log_ticks import log_ticks
from tclab.lab.timeline import nothing
from tclab.timing.statistics import intervals
from tclab.training import HABITS

COSTS, SAVES, UNDECIDED = "costs", "saves", "undecided"
_FEWEST_ROUNDS = 2  # of one, how far two runs of the same lie apart is not known
_LEVEL = 0.95
_WIDTH = 420
_AT = ["model", "strategy", "batch_size", "networks", "mode"]


def habit_costs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how many times as long a step takes with each habit, a line for each model, strategy and habit.

    Points of one seed are one round, on the same batches: step `i` with the habit is compared with step `i`
    without. The interval, 95 %, is of the median of the log ratios by bootstrap over rounds and their steps, no
    narrower than Student's over rounds; see `tclab.timing.statistics.intervals`. One round decides nothing.

    Columns: model, strategy, habit, what, ratio, low, high, rounds, steps, verdict ("costs", "saves" or
    "undecided").
    """
    steps = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    found: list[dict[str, Any]] = []
    for key, own in steps.groupby(_AT, sort=False):
        named = own["habits"].fillna("")
        bases = {row["seed"]: row["samples_seconds"] for _, row in own[named == ""].iterrows()}
        for habit in (name for name in HABITS if (named == name).any()):
            groups = [
                _log_ratios(row["samples_seconds"], bases[row["seed"]])
                for _, row in own[named == habit].iterrows()
                if row["seed"] in bases
            ]
            if groups:
                found.append({"model": key[0], "strategy": key[1], "habit": habit, **_cost(groups)})
    columns = ["model", "strategy", "habit", "what", "ratio", "low", "high", "rounds", "steps", "verdict"]
    made = pd.DataFrame(found, columns=columns)
    return made.assign(what=made["habit"].map({name: habit.what for name, habit in HABITS.items()}))


def _log_ratios(seconds: Any, base: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    both = min(len(seconds), len(base))
    return np.log(np.asarray(seconds, dtype=np.float64)[:both] / np.asarray(base, dtype=np.float64)[:both])


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


def cost_of_habits(rows: pd.DataFrame) -> Any:
    """Return each habit's cost with its interval, a panel a model; hollow where it is undecided."""
    costs = habit_costs(rows)
    if costs.empty:
        return nothing("No habit was measured beside a step without it.")
    decided = costs["verdict"] != UNDECIDED
    costs["text"] = [
        f"{row['ratio']:.2f} ×" if sure else f"{row['ratio']:.2f} ×, undecided"
        for (_, row), sure in zip(costs.iterrows(), decided, strict=True)
    ]
    costs["sure"] = decided
    low, high = min(costs["ratio"].min(), 0.8) / 1.5, max(costs["ratio"].max(), 1.25) * 1.5
    x = alt.X(
        "ratio:Q",
        title="time of a step with the habit : without (1 = it costs nothing)",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(format="~g", values=log_ticks([low, high]), gridOpacity=0.4),
    )
    models = sorted(costs["model"].unique(), key=lambda name: (not name.startswith("hetero"), name))
    panels = [
        _panel(costs[costs["model"] == model], model, x if model == models[-1] else x.title(None), _colour(costs))
        for model in models
    ]
    chart = alt.vconcat(*panels, spacing=12).resolve_scale(color="shared", y="independent", yOffset="independent")
    return chart.properties(title=_title("What each habit costs", rows, _rounds_words(costs)))


def _panel(costs: pd.DataFrame, model: str, x: alt.X, colour: Any) -> Any:
    """Return the habits of one model; a line that leaves the picture goes on."""
    names = [name for name in HABITS if name in set(costs["habit"])]
    strategies = list(dict.fromkeys(costs["strategy"]))
    # a lane for each habit and strategy, and half a lane between habits
    places = {
        (n, s): i * (len(strategies) + 0.5) + k for i, n in enumerate(names) for k, s in enumerate(strategies)
    }
    costs = costs.assign(
        place=[places[pair] + 0.75 for pair in zip(costs["habit"], costs["strategy"], strict=True)]
    )
    end = len(names) * (len(strategies) + 0.5)
    labels = pd.DataFrame(
        {"habit": names, "place": [places[n, strategies[0]] + 0.25 + len(strategies) / 2 for n in names]}
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
        alt.Chart(labels).mark_text(align="right", fontSize=11).encode(y=y, x=alt.value(-6), text="habit:N"),
    ]
    title = alt.TitleParams(model, anchor="start", frame="group", fontSize=12)
    return alt.layer(*layers).properties(width=_WIDTH, height=16 * end, title=title)


def _rounds_words(costs: pd.DataFrame) -> str:
    least, most = int(costs["rounds"].min()), int(costs["rounds"].max())
    if most < _FEWEST_ROUNDS:
        return "one round: the lines tell how steps scatter, not how runs do"
    return (
        f"{least if least == most else f'{least} to {most}'} rounds side by side, 95 % intervals; hollow: undecided"
    )


def habit_words(rows: pd.DataFrame) -> list[str]:
    """Return what the rows say of habits, a sentence for each model: what costs, what saves, what is undecided."""
    costs = habit_costs(rows)
    said = []
    for (model, strategy), own in costs.groupby(["model", "strategy"], sort=False):
        place = f"{model} ({strategy})"
        if own["rounds"].max() < _FEWEST_ROUNDS:
            said.append(f"{place}: one round of each habit was run, which decides nothing; give rounds.")
            continue
        parts = []
        for verdict, words in ((COSTS, "cost time"), (SAVES, "save time")):
            sure = own[own["verdict"] == verdict].sort_values("ratio", ascending=verdict == SAVES)
            named = [f"{row['habit']} {row['ratio']:.2f} × [{row['low']:.2f}, {row['high']:.2f}]" for _, row in
                     sure.iterrows()]  # fmt: skip
            if named:
                parts.append(f"{', '.join(named)} {words}")
        unsure = own[own["verdict"] == UNDECIDED]["habit"].tolist()
        if unsure:
            parts.append(f"undecided: {', '.join(unsure)}")
        said.append(f"{place}: {'; '.join(parts)}.")
    missing = rows[(rows["stage"] == "step") & (rows["status"] != "ok")]
    if len(missing):
        points = "1 point of habits has" if len(missing) == 1 else f"{len(missing)} points of habits have"
        said.append(f"{points} no time: {missing['status'].mode().iloc[0]}.")
    return said or ["No habit was measured beside a step without it."]
