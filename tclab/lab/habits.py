"""What each of the original's habits costs: the ratio of a step with it to one without, and how sure that is."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from tclab.lab.charts import _colour, _title
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
    low, high = min(costs["low"].min(), 0.95), max(costs["high"].max(), 1.05)
    x = alt.X(
        "ratio:Q",
        title="time of a step with the habit : without (1 = it costs nothing)",
        scale=alt.Scale(type="log", domain=[low / 1.03, high * 1.03], nice=False),
        axis=alt.Axis(format="~g", tickCount=8, gridOpacity=0.4),
    )
    panels = []
    models = sorted(costs["model"].unique(), key=lambda name: (not name.startswith("hetero"), name))
    for model in models:
        own = costs[costs["model"] == model]
        names = [name for name in HABITS if name in set(own["habit"])]
        ways = len(own["strategy"].unique())
        base = alt.Chart(own).encode(
            y=alt.Y(
                "habit:N",
                scale=alt.Scale(domain=names, paddingInner=0.25),
                title=model,
                axis=alt.Axis(grid=True, bandPosition=-0.12, ticks=False, labelLimit=260, gridOpacity=0.5),
            ),
            yOffset=alt.YOffset("strategy:N"),
            color=_colour(costs),
        )
        one = alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(color="#888888").encode(x=alt.X("one:Q"))
        panel = (
            one
            + base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q")
            + base.mark_point(filled=True, size=70, opacity=1, strokeWidth=2).encode(
                x=x if model == models[-1] else x.title(None),
                fill=alt.condition("datum.sure", alt.Color("strategy:N", legend=None), alt.value("#ffffff")),
            )
            + base.mark_text(align="left", fontSize=10, color="#444444").encode(
                x=alt.value(_WIDTH + 8), text="text:N", color=alt.value("#444444")
            )
        )
        panels.append(panel.properties(width=_WIDTH, height=24 * ways * len(names)))
    chart = alt.vconcat(*panels, spacing=12).resolve_scale(color="shared")
    return chart.properties(title=_title("What each habit costs", rows, _rounds_words(costs)))


def _rounds_words(costs: pd.DataFrame) -> str:
    least, most = int(costs["rounds"].min()), int(costs["rounds"].max())
    if most < _FEWEST_ROUNDS:
        return "one round: the lines tell how steps scatter, not how runs do"
    return f"{least if least == most else f'{least} to {most}'} rounds side by side, 95 % intervals"


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
        said.append(f"{len(missing)} points of habits have no time: {missing['status'].mode().iloc[0]}.")
    return said or ["No habit was measured beside a step without it."]
