"""The cost of each overhead: the time of a step with it over one without, with an interval and a verdict."""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import counted
from tclab.lab.charts._marks import ratios
from tclab.lab.charts._style import chart_title, colours_of, empty_chart
from tclab.sweeps._point import OVERHEADS
from tclab.sweeps._row_files import Runs, rows_of
from tclab.timing._step_means import Estimate, cycle_means

_AT = ["model", "strategy", "batch_size", "networks", "mode"]
_NOTHING = "No overhead was measured together with a step without it."


def overhead_costs(rows: Runs) -> pd.DataFrame:
    """Return how many times as long a step takes with each overhead, a line for each model, strategy and overhead.

    Columns: model, strategy, overhead, ratio, `low` and `high` (its 95 % interval), rounds, verdict ("costs", "saves"
    or "undecided"), what. Points of one seed are one round, on the same batches: step `i` with the overhead is compared
    with step `i` without; where steps wait for several workers, whole cycles of them (`tclab.timing._step_means`). A
    round's value is the median of these ratios, and the interval is Student's of the rounds. One round has no interval
    and decides nothing.

    **Arguments:**

    - `rows`: of the points of `tclab.sweeps.config.with_each_overhead`.
    """
    rows = rows_of(rows)
    steps = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    named = steps["overheads"].fillna("")
    bases = steps[named == ""].drop_duplicates([*_AT, "seed"], keep="last")
    both = steps[named.isin(OVERHEADS)].merge(bases, on=[*_AT, "seed"], suffixes=("", "_without"))
    found: list[dict[str, Any]] = []
    for key, group in both.groupby([*_AT, "overheads"], sort=False):
        model, strategy, overhead = map(str, (key[0], key[1], key[-1]))
        rounds = [_log_ratios(row) for _, row in group.iterrows()]
        line = {"model": model, "strategy": strategy, "overhead": overhead}
        found.append({**line, **_cost(rounds), "what": OVERHEADS[overhead].what})
    columns = ["model", "strategy", "overhead", "ratio", "low", "high", "rounds", "verdict", "what"]
    table = pd.DataFrame(found, columns=columns)
    table.attrs["empty"] = _NOTHING
    return table


def _log_ratios(row: pd.Series) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the logarithm of each step's time, or each cycle's, over that of the same step without the overhead."""
    steps, cycle = min(row["n"], row["n_without"]), max(row["cycle_steps"], row["cycle_steps_without"])
    both = row["samples_seconds"], row["samples_seconds_without"]
    own, without = (cycle_means(np.asarray(seconds)[:steps], cycle) for seconds in both)
    return np.log(own / without)


def _cost(groups: list[Any]) -> dict[str, Any]:
    medians, n = np.array([np.median(group) for group in groups]), len(groups)
    error = float(medians.std(ddof=1)) / n**0.5 if n > 1 else None
    ends = Estimate(float(medians.mean()), error, n - 1).interval()
    low, high = (nan, nan) if ends is None else np.exp(ends).tolist()
    verdict = "costs" if low > 1 else "saves" if high < 1 else "undecided"
    return {"ratio": float(np.exp(medians.mean())), "low": low, "high": high, "rounds": n, "verdict": verdict}


def overheads_chart(costs: pd.DataFrame, rows: Runs) -> Any:
    """Return the chart of each overhead's cost with its interval; hollow where it is undecided.

    **Arguments:**

    - `costs`: of `overhead_costs`. `rows`: those it was made of, for the title.
    """
    rows = rows_of(rows)
    if costs.empty:
        return empty_chart(_NOTHING)
    found = costs.rename(columns={"ratio": "value", "what": "why"}).assign(
        line=costs["model"] + " · " + costs["strategy"] + " · " + costs["overhead"],
        sure=costs["verdict"] != "undecided",
        text=costs["ratio"].map("{:.2f} × ".format) + costs["verdict"],
    )
    colour = colours_of(costs["strategy"])
    colours = dict(zip(found["line"], map(colour.__getitem__, costs["strategy"]), strict=True))
    least, most = costs["rounds"].min(), costs["rounds"].max()
    rounds = f"in {counted(most, 'round')}" if least == most else f"in {least} to {most} rounds"
    said = f"{rounds}; line: 95 % interval; hollow: undecided"
    title = chart_title("What each overhead costs", said, rows=rows)
    return ratios(found, title, axis="time of a step with the overhead : without (logarithmic)", colours=colours)
