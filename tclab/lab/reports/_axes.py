"""What a sweep says of each of its axes: which strategy leads, by how much, and from where on that changes."""

from __future__ import annotations

from itertools import groupby

import pandas as pd

from tclab._display import counted, first_of
from tclab.errors import unknown
from tclab.lab.reports import _cells as cells
from tclab.sweeps._row_files import Runs, rows_of

AXES = {"batch_size": "batch size", "networks": "number of networks"}
_TYPED = {"batch_size": "batch_sizes 1,2,4,8", "networks": "networks 1,3,9"}
_BUSY = "Other programs used the CPU, so no strategy is named the fastest: measure again on a quiet machine."
_LEVEL = 0.05  # a share of samples a second below which single runs tell nothing apart


def along(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the steps of rows `with_labels` over one axis, one run of each point, as `step_throughput` does.

    The other axis has, for each model and setting, its value in the cell that is the answer: see `fullest`.
    """
    other = "networks" if by == "batch_size" else "batch_size"
    answer = cells.fullest(rows)[["model", "setting", other]].drop_duplicates()
    return cells.step_throughput(cells.one_run_each(rows)).merge(answer)


def axis_sentences(rows: Runs, by: str = "strategy") -> list[str]:
    """Return what rows say of an axis, a sentence for each model and setting.

    **Arguments:**

    - `rows`: of a sweep.
    - `by`: "strategy", at the batch size and networks that most of them ran at; "batch_size"; or "networks".
    """
    if by not in ("strategy", *AXES):
        raise unknown("axis of a sweep", by, ["strategy", *AXES])
    every = rows_of(rows)
    rows = cells.with_labels(cells.comparable(cells.in_one_mode(every)))
    if rows.empty:
        return []
    steps = along(rows, by) if by in AXES else cells.step_throughput(cells.one_run_each(cells.fullest(rows)))
    groups = list(steps.groupby(["model", "setting"], sort=False))
    said = []
    for (model, setting), group in groups:
        alone = by in AXES and group[by].nunique() < 2
        if alone:
            left = bool(every["status"].str.startswith("not run").any())
            sentence = _alone(by, group[by].iloc[0], left=left)
        elif group["contention"].notna().any():
            sentence = _BUSY
        else:
            sentence = _over(group, by) if by in AXES else _at_one_size(group)
        if len(groups) > 1 and sentence != _BUSY:
            sentence = f"{', '.join(filter(None, map(str, (model, setting))))}: {sentence}"
        elif not sentence.startswith(tuple(group["strategy"])):
            sentence = sentence[0].upper() + sentence[1:]
        said.append(sentence)
    return list(dict.fromkeys(said))


def _at_one_size(steps: pd.DataFrame) -> str:
    names, text = _leaders(steps)
    if steps["strategy"].nunique() == 1:
        return f"{names[0]} trains {text}."
    return f"{_lead(names, steps)}: {text}."


def _over(steps: pd.DataFrame, by: str) -> str:
    values = sorted(steps[by].dropna().unique())
    leads = [(value, _leaders(steps[steps[by] == value])[0]) for value in values]
    ahead, parts = "", []
    for names, group in groupby(leads, key=lambda lead: sorted(lead[1])):
        each = [value for value, _ in group]
        if len(each) == len(values):
            where = f"at every {AXES[by]}"
        elif each[-1] == values[-1]:
            where = f"from {_at(by, each[0])} on" if len(each) > 1 else f"at {_at(by, each[0])}"
        else:
            where = f"at {' and '.join(_at(by, value) for value in dict.fromkeys([each[0], each[-1]]))}"
        ahead = _lead(names, steps[steps[by] == each[-1]])
        parts.append(f"{where} {ahead}")
    last = steps[steps[by] == values[-1]]
    return f"{'; '.join(parts)}: {_leaders(last)[1]} at {_at(by, values[-1])}."


def _alone(by: str, value: float, *, left: bool) -> str:
    do = "run the sweep again, whose budget left others out" if left else f"set {_TYPED[by]}"
    return f"measured at {_at(by, value)} alone: {do}, for a line over the {AXES[by]}."


def _at(by: str, value: float) -> str:
    return f"batch {value:g}" if by == "batch_size" else counted(int(value), "network")


def _leaders(steps: pd.DataFrame) -> tuple[list[str], str]:
    """Return the strategies that lead at one size, and the first one's samples a second, beside the reference's."""
    ranked = steps.sort_values("samples_per_second", ascending=False)
    best = ranked.iloc[0]
    near = ranked["samples_per_second"] * (1 + _LEVEL) >= best["samples_per_second"]
    others = [name for name in ranked["strategy"] if name != best["strategy"]]
    text = f"{cells.figure_text(best['samples_per_second'])} samples/s"
    if others:
        reference = cells.reference_of(others)
        speed = ranked[ranked["strategy"] == reference]["samples_per_second"].iloc[0]
        text += f", {cells.figure_text(best['samples_per_second'] / speed)}× {reference}'s {cells.figure_text(speed)}"
    return list(ranked[near | (ranked["high"] >= best["low"])]["strategy"]), text


def _lead(names: list[str], steps: pd.DataFrame) -> str:
    if len(names) == 1:
        return f"{names[0]} trains the most"
    if len(names) == steps["strategy"].nunique() > 2:
        return f"all {len(names)} strategies are level"
    return f"{names[0]} and {first_of(names[1:])} are level"
