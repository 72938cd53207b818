"""The cost of each overhead: the time of a step with it over one without, with an interval and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import Display, Shown
from tclab.lab.charts._case_study_charts import draw_overhead_costs
from tclab.sweeps.config._overhead_names import OVERHEADS
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.sweeps.store._row_frame import without_time
from tclab.timing._statistics import Series, centre_of
from tclab.timing._step_means import cycle_means

COSTS, SAVES, UNDECIDED = "costs", "saves", "undecided"
_MIN_ROUNDS = 2  # one does not show how far two runs of the same lie apart
_LEVEL = 0.95
_AT = ["model", "strategy", "batch_size", "networks", "mode"]


@dataclass(frozen=True, repr=False)
class OverheadCosts(Shown):
    """How many times as long a step takes with each overhead; displayed as a table and a sentence for each model.

    **Arguments:**

    - `table`: a line for each model, strategy and overhead: model, strategy, overhead, what, ratio, low, high, rounds,
      steps, verdict ("costs", "saves" or "undecided").
    - `rows`: that they are of.
    """

    table: pd.DataFrame
    rows: pd.DataFrame

    def _display(self) -> Display:
        lines = [
            (row["model"], row["strategy"], row["overhead"], f"{row['ratio']:.2f} ×",
             f"[{row['low']:.2f}, {row['high']:.2f}]", str(row["rounds"]), row["verdict"])
            for _, row in self.table.iterrows()
        ]  # fmt: skip
        columns = ("model", "strategy", "overhead", "a step takes", "95 % interval", "rounds", "verdict")
        return Display("", columns if lines else (), lines, self._sentences())

    def _sentences(self) -> list[str]:
        """Return a sentence for each model: which overheads cost time, which save it, which are undecided."""
        sentences = []
        for (model, strategy), group in self.table.groupby(["model", "strategy"], sort=False):
            place = f"{model} ({strategy})"
            if group["rounds"].max() < _MIN_ROUNDS:
                sentences.append(
                    f"{place}: one round of each overhead was measured, which decides nothing; "
                    "it takes more rounds, and a budget for them."
                )
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
        return [*sentences, *without_time(self.rows)] or ["No overhead was measured together with a step without it."]

    def chart(self) -> Any:
        """Return the chart of each overhead's cost with its interval, a panel a model; hollow where it is undecided."""
        costs = self.table.assign(sure=self.table["verdict"] != UNDECIDED)
        order = sorted(costs["overhead"].unique(), key=lambda label: list(OVERHEADS).index(label.partition(" ")[0]))
        return draw_overhead_costs(costs, self.rows, order, _rounds_text(costs) if len(costs) else "")


def overhead_costs(rows: Runs) -> OverheadCosts:
    """Return how many times as long a step takes with each overhead; its `chart()` draws it.

    Points of one seed are one round, on the same batches: step `i` with the overhead is compared with step `i` without;
    where steps wait for several workers, or some of them log, whole cycles of them (`tclab.timing._step_means`). The
    interval, 95 %, is that of a race whose processes are the rounds; see `tclab.timing._statistics`. One round decides
    nothing.

    **Arguments:**

    - `rows`: of the points of `tclab.sweeps.config.with_each_overhead`; with `log_every`, a line for each.
    """
    rows = rows_of(rows)
    steps = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    found: list[dict[str, Any]] = []
    for key, group in steps.groupby(_AT, sort=False):
        named = group["overheads"].fillna("")
        bases = {row["seed"]: row for _, row in group[named == ""].iterrows()}
        for overhead in (name for name in OVERHEADS if (named == name).any()):
            for every, alike in group[named == overhead].groupby(group["log_every"].fillna(1)):
                groups = [_log_ratios(row, bases[row["seed"]]) for _, row in alike.iterrows() if row["seed"] in bases]
                if groups:
                    label = overhead if every == 1 else f"{overhead} every {every} steps"
                    made = {"model": key[0], "strategy": key[1], "overhead": label, "what": OVERHEADS[overhead].what}
                    found.append(made | _cost(groups))
    columns = ["model", "strategy", "overhead", "what", "ratio", "low", "high", "rounds", "steps", "verdict"]
    return OverheadCosts(pd.DataFrame(found, columns=columns), rows)


def _log_ratios(row: pd.Series, base: pd.Series) -> np.ndarray[Any, np.dtype[np.float64]]:
    both, cycle = min(row["n"], base["n"]), max(row["cycle_steps"], base["cycle_steps"])
    own, without = (cycle_means(np.asarray(one["samples_seconds"])[:both], cycle) for one in (row, base))
    return np.log(own / without)


def _cost(groups: list[Any]) -> dict[str, Any]:
    every = np.concatenate(groups)
    rounds = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    low, high = centre_of(Series(every, np.arange(float(len(every))), rounds)).interval(_LEVEL)
    verdict = UNDECIDED
    if len(groups) >= _MIN_ROUNDS:
        verdict = COSTS if low > 0 else SAVES if high < 0 else UNDECIDED
    return {
        "ratio": float(np.exp(np.median(every))),
        "low": float(np.exp(low)),
        "high": float(np.exp(high)),
        "rounds": len(groups),
        "steps": sum(map(len, groups)),
        "verdict": verdict,
    }


def _rounds_text(costs: pd.DataFrame) -> str:
    least, most = int(costs["rounds"].min()), int(costs["rounds"].max())
    if most < _MIN_ROUNDS:
        return "one round: the lines show how steps scatter, not how runs do"
    rounds = f"{least if least == most else f'{least} to {most}'} rounds side by side"
    return f"{rounds}; thick: 95 % interval, thin: the one that decides; hollow: undecided"
