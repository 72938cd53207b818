"""A point's timelines as parts that add up: worker, host and device, each by itself."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

from tclab.sweeps.busy import busy_text
from tclab.timing.accounts import TOLERANCE
from tclab.training import MODES

# Timelines in the order in which a batch meets them, as a person calls them. They overlap, so they are never added.
TIMELINES = {"worker": "worker", "loading": "loading, within the host's wait", "host": "host", "device": "device"}
SUMS = ("step", "batch")  # the whole of a timeline's parts
_POINT = ["mode", "model", "strategy"]


def one_point_each(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that were measured without habits, of one point for each mode, model and strategy.

    Where several batch sizes or numbers of networks were run, of the one at which most modes were, the largest.
    """
    plain = rows["habits"].isna() | (rows["habits"] == "")
    ok = rows[(rows["status"] == "ok") & plain]
    if ok.empty:
        return ok
    cells = ok.groupby(["model", "strategy", "batch_size", "networks"])["mode"].nunique().reset_index()
    best = cells.sort_values(["mode", "batch_size", "networks"]).groupby(["model", "strategy"]).tail(1)
    ok = ok.merge(best[["model", "strategy", "batch_size", "networks"]])
    first = ok.groupby(_POINT)["seed"].transform(lambda seeds: seeds.fillna(0).min())
    return ok[ok["seed"].fillna(0) == first]


def stage_parts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what each stage takes of a usual step, a line for each timeline and stage of each point.

    Steps whose whole time lies between the quartiles are averaged, so that the parts add up to a whole and one
    slow step changes nothing; all steps, where some stage is not in every step. `idle` is a worker's time until
    it is asked for its next batch, and is in no whole.

    Columns: mode, model, strategy, where, stage, seconds; `q1_seconds` and `q3_seconds` of that stage by itself,
    `whole_seconds`, `whole_q1_seconds` and `whole_q3_seconds` of its timeline, and `closure`.
    """
    found: list[dict[str, Any]] = []
    chosen = one_point_each(rows)
    closures = {tuple(row[_POINT]): row for _, row in chosen[chosen["stage"] == "step"].iterrows()}
    for key, own in chosen.groupby([*_POINT, "where"], sort=False):
        *point, where = key
        parts = own[~own["stage"].isin(SUMS)]
        samples = {row["stage"]: np.asarray(row["samples_seconds"], dtype=float) for _, row in parts.iterrows()}
        idle = samples.pop("idle", None)
        seconds, whole = _of_a_usual_step(samples)
        if idle is not None and len(idle):
            seconds["idle"] = float(np.median(idle))
        step = closures.get(tuple(point))
        closure = None if step is None else step.get(f"{where}_closure")
        for _, row in parts[parts["stage"].isin(list(seconds))].iterrows():
            found.append(
                dict(zip(_POINT, point, strict=True))
                | {
                    "where": where,
                    "stage": row["stage"],
                    "seconds": seconds[row["stage"]],
                    "q1_seconds": float(row["q1_seconds"]),
                    "q3_seconds": float(row["q3_seconds"]),
                    "whole_seconds": whole[1],
                    "whole_q1_seconds": whole[0],
                    "whole_q3_seconds": whole[2],
                    "closure": None if pd.isna(closure) else float(closure),
                }
            )
    columns = [*_POINT, "where", "stage", "seconds", "q1_seconds", "q3_seconds", "whole_seconds"]
    made = pd.DataFrame(found, columns=[*columns, "whole_q1_seconds", "whole_q3_seconds", "closure"])
    order = {mode: place for place, mode in enumerate(MODES)}
    return made.sort_values("mode", key=lambda modes: modes.map(order), kind="stable").reset_index(drop=True)


def _of_a_usual_step(
    samples: dict[str, np.ndarray[Any, Any]],
) -> tuple[dict[str, float], tuple[float, float, float]]:
    """Return stage → seconds in a usual step, and first quartile, sum of the parts and third quartile."""
    steps = max(map(len, samples.values()), default=0)
    if not steps:
        return {}, (0.0, 0.0, 0.0)
    if any(len(values) < steps for values in samples.values()):
        mean = {stage: float(values.sum()) / steps for stage, values in samples.items()}
        total = sum(mean.values())
        return mean, (total, total, total)  # which step a sample is of is not known: no spread of wholes
    whole = np.sum(list(samples.values()), axis=0)
    q1, q3 = np.quantile(whole, [0.25, 0.75])
    inside = (whole >= q1) & (whole <= q3)
    if not inside.any():  # of two steps none lies between the quartiles
        inside[:] = True
    usual = {stage: float(values[inside].mean()) for stage, values in samples.items()}
    return usual, (float(q1), sum(usual.values()), float(q3))


def closes(closure: float | None) -> bool:
    """Return whether a timeline may be drawn: what it adds up to is its clock's, or there is no clock."""
    return closure is None or bool(pd.isna(closure)) or abs(closure - 1.0) <= TOLERANCE


def closure_text(closure: float | None) -> str:
    """Return how far a timeline closes, in a word or two: "closed: 99.9 %"."""
    if closure is None or pd.isna(closure):
        return "no clock of its own"
    if closes(closure):
        return f"closed: {100 * closure:.1f} %"
    return f"does not close: stages add up to {100 * closure:.1f} % of its clock"


def seconds_text(value: float) -> str:
    """Return a time as people read it: "1.27 µs", "84.7 ms", "7.29 s"."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}" if value * factor < 1000 else f"{value * factor:,.0f} {unit}"
    return f"{value * 1e9:.3g} ns"


def times_text(ratio: float) -> str:
    """Return a ratio as people read it: "2.41 ×", "243 ×"."""
    return f"{ratio:.3g} ×" if ratio < 100 else f"{ratio:,.0f} ×"


def busy(rows: pd.DataFrame) -> str:
    """Return what else went on while rows were measured, in words; empty where nothing is known."""
    if told := busy_text(rows):
        return told
    loads, pressures = [], []
    for text in rows["conditions"].dropna():
        for moment in json.loads(text):
            loads += [moment["load"]] if moment.get("load") is not None else []
            pressures += [moment["cpu_pressure_percent"]] if moment.get("cpu_pressure_percent") is not None else []
    if not loads:
        return ""
    cores = rows["cores"].dropna().max()
    waiting = f"; for {max(pressures):.0f} % of the time at worst, something waited for a core" if pressures else ""
    crowded = (
        "others' or their own, more than the cores: believe ratios, not seconds"
        if max(loads) > cores
        else "a quiet machine"
    )
    return f"Load {min(loads):.1f} to {max(loads):.1f} on {cores} cores{waiting}: {crowded}."
