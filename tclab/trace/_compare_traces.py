"""Comparison of two runs: by category, operator and step."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import Display, Shown, us_text
from tclab.trace._categories import OUTSIDE
from tclab.trace._host_work import host_tables, whole_steps
from tclab.trace._report import Report, analyze, shown_parts, unmarked_forward
from tclab.trace._trace_findings import short

_SETTINGS = ("world_size", "record_shapes", "with_stack", "device_events", "device_names")


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Times of `a` and `b` with ratios b / a and differences b - a; null where one side is missing or 0.

    Categories, stages and operations are of a mean whole step where both sides mark steps on the host, else of the
    whole recording. A step within which a recording begins or ends is not counted.
    """

    whole: pd.DataFrame  # whole ("mean step"; "whole recording", of the main threads), a_us, b_us, ratio, difference_us
    categories: pd.DataFrame  # category, a_us, b_us, ratio, difference_us
    stages: pd.DataFrame  # as categories, by stage
    ops: pd.DataFrame  # name, category, a_calls, a_us, b_calls, b_us, ratio, difference_us, which decides the order
    findings: list[str]  # what differs most
    warnings: list[str]  # why the two may not be comparable
    a: str  # the files of `a`, or their folder
    b: str

    def _display(self) -> Display:
        title = "\n".join([f"a is {self.a}, b is {self.b}.", *self.findings])
        parts = [("whole", row["whole"], row) for row in self.whole.to_dict("records")]
        parts += shown_parts(self.stages, self.categories, ["a_us", "b_us"])
        lines = []
        for by, name, row in parts:
            times = ["" if np.isnan(row[side]) else us_text(row[side]) for side in ("a_us", "b_us")]
            lines.append((by, name, *times, "" if np.isnan(row["ratio"]) else f"{row['ratio']:.3g} ×"))
        of = "of a mean step" if self.whole["ratio"].notna().all() else "in all"
        notes = [f"Stages and kinds of work are self time of the main threads {of}."]
        notes += (f"Beware: {warning}" for warning in self.warnings)
        return Display(title, ("by", "", "a", "b", "b : a"), lines, notes)


def compare(a: Report | str | Path, b: Report | str | Path) -> Comparison:
    """Return the comparison of two runs. Ratios are b / a; times in µs are self times.

    `findings` says what differs most. `warnings` lists where the two differ in steps, ranks or profiler settings; then
    compare steps, or not at all.

    **Arguments:**

    - `a`, `b`: reports, or paths to analyze first.

    **Raises:** `TraceError` for a path that is no trace.
    """
    a, b = (side if isinstance(side, Report) else analyze(side) for side in (a, b))
    steps = [int((side.steps["whole"] & (side.steps["marked_on"] == "host")).sum()) for side in (a, b)]
    works = [[(rank.trace, rank.host, whole_steps(rank.trace)) for rank in side.ranks] for side in (a, b)]
    sides = [host_tables(work) for work in works] if all(steps) else [vars(a), vars(b)]
    steps = steps if all(steps) else [1, 1]
    whole = _side_by_side([_whole(a), _whole(b)], ["whole"], [1, 1])
    keys = {"stages": ["stage"], "categories": ["category"], "ops": ["name", "category"]}
    stages, categories, ops = (_side_by_side([side[name] for side in sides], by, steps) for name, by in keys.items())
    ops = ops.fillna({"a_calls": 0, "b_calls": 0})
    ops = ops.sort_values("difference_us", key=abs, ascending=False, kind="stable", ignore_index=True)
    findings = dict.fromkeys([*_differences(whole, stages, ops), *unmarked_forward(a), *unmarked_forward(b)])
    paths = [str(side.traces[0].path if len(side.traces) == 1 else side.traces[0].path.parent) for side in (a, b)]
    return Comparison(whole, categories, stages, ops, list(findings), list(_warnings(a, b)), *paths)


def _whole(report: Report) -> pd.DataFrame:
    times = [report.steps["wall_us"][report.steps["whole"].astype(bool)].mean(), report.categories["self_us"].sum()]
    return pd.DataFrame({"whole": ["mean step", "whole recording"], "self_us": times})


def _side_by_side(sides: list[pd.DataFrame], keys: list[str], steps: list[int]) -> pd.DataFrame:
    """Return the rows of both sides by their keys: self_us as a_us and b_us, calls likewise, each of one of `steps`."""
    of_step = [side.set_index(keys).filter(["calls", "self_us"]) / n for side, n in zip(sides, steps, strict=True)]
    table = pd.concat([of_step[0].add_prefix("a_"), of_step[1].add_prefix("b_")], axis=1).reset_index()
    table.columns = table.columns.str.replace("self_us", "us")
    difference = table["b_us"].fillna(0) - table["a_us"].fillna(0)
    return table.assign(ratio=table["b_us"] / table["a_us"].where(table["a_us"] > 0), difference_us=difference)


def _differences(whole: pd.DataFrame, stages: pd.DataFrame, ops: pd.DataFrame) -> Iterator[str]:
    """Yield by how much b takes longer, and in which stages; then which operations differ most."""
    for row in whole.dropna(subset="ratio").head(1).to_dict("records"):
        longer = row["difference_us"]
        parts = [f"{change} in {stage['stage']}" for change, stage in _largest(stages)]
        among = ", ".join(parts).replace(f"in {OUTSIDE}", OUTSIDE) or "no stage differs"
        taken = f"{us_text(abs(longer))} {'shorter' if longer < 0 else 'longer'} ({row['ratio']:.3g} ×)"
        yield f"b's {row['whole']} is {taken}: {among}."
        named = [f"{short(op['name'])} {change}{_calls(op)}" for change, op in _largest(ops)]
        if named:
            yield f"The operations that differ most, in a {row['whole']} on all host threads: {'; '.join(named)}."


def _largest(table: pd.DataFrame) -> Iterator[tuple[str, dict[Any, Any]]]:
    """Yield the three rows that differ most, each after its change, without those below a tenth of the largest."""
    size = table["difference_us"].abs().nlargest(3)
    for row in table.loc[size[size > size.max() / 10].index].to_dict("records"):
        yield f"{'−' if row['difference_us'] < 0 else '+'}{us_text(abs(row['difference_us']))}", row


def _calls(op: dict[Any, Any]) -> str:
    """Return how often an operation was called on both sides, where that differs."""
    a, b = (f"{op[side]:,.1f}".removesuffix(".0") for side in ("a_calls", "b_calls"))
    return "" if a == b else f", {a} → {b} calls"


def _warnings(a: Report, b: Report) -> Iterator[str]:
    if len(a.traces) != len(b.traces):
        yield f"a has {len(a.traces)} ranks and b {len(b.traces)}"
    steps = [len(r.steps) / len(r.traces) for r in (a, b)]
    if steps[0] != steps[1]:
        yield f"a has {steps[0]:g} steps per rank and b {steps[1]:g}: compare mean steps, not whole recordings"
    for name in _SETTINGS:
        values = [sorted({"unknown" if value is pd.NA else str(value) for value in r.settings[name]}) for r in (a, b)]
        if values[0] != values[1]:
            yield f"{name.replace('_size', ' size')} differs: {', '.join(values[0])} in a, {', '.join(values[1])} in b"
