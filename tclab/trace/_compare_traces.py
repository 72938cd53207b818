"""Comparison of two runs: by category, operator and step."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from tclab._display import Display, Shown, us_text
from tclab.trace._report import Report, analyze, shown_parts

_SETTINGS = ("world_size", "record_shapes", "with_stack", "device_events", "device_names")


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Times of `a` and `b` with ratios b / a; null where one side is missing or 0."""

    whole: pd.DataFrame  # whole ("mean step"; "all that was recorded", of main threads), a_us, b_us, ratio
    categories: pd.DataFrame  # category, a_us, b_us, ratio: a step's mean where both sides mark steps, else in all
    stages: pd.DataFrame  # as categories, by stage
    ops: pd.DataFrame  # name, category, a_calls, a_us, b_calls, b_us, ratio, difference_us: in all
    warnings: list[str]  # why the two may not be comparable
    a: str  # the files of `a`, or their folder
    b: str

    def _display(self) -> Display:
        of = "of a mean step" if self.whole["ratio"].notna().all() else "in all"
        title = f"a is {self.a}, b is {self.b}; stages and kinds of work are self time of the main threads {of}"
        parts = [("whole", row["whole"], row) for row in self.whole.to_dict("records")]
        parts += shown_parts(self.stages, self.categories, ["a_us", "b_us"])
        lines = []
        for by, name, row in parts:
            times = ["" if np.isnan(row[side]) else us_text(row[side]) for side in ("a_us", "b_us")]
            lines.append((by, name, *times, "" if np.isnan(row["ratio"]) else f"{row['ratio']:.3g} ×"))
        warnings = [f"Beware: {warning}" for warning in self.warnings]
        return Display(title, ("by", "", "a", "b", "b : a"), lines, warnings)


def compare(a: Report | str | Path, b: Report | str | Path) -> Comparison:
    """Return the comparison of two runs. Ratios are b / a; times in µs are self times.

    `warnings` lists where the two differ in steps, ranks or profiler settings; then compare steps, or not at all.

    **Arguments:**

    - `a`, `b`: reports, or paths to analyze first.

    **Raises:** `TraceError` for a path that is no trace.
    """
    a, b = (side if isinstance(side, Report) else analyze(side) for side in (a, b))
    return Comparison(
        whole=_wholes(a, b),
        categories=_parts(a, b, "categories", "category"),
        stages=_parts(a, b, "stages", "stage"),
        ops=_ops(a.ops, b.ops),
        warnings=list(_warnings(a, b)),
        a=_place(a),
        b=_place(b),
    )


def _place(report: Report) -> str:
    paths = [trace.path for trace in report.traces]
    return str(paths[0] if len(paths) == 1 else paths[0].parent)


def _ratio(b: "pd.Series[float]", a: "pd.Series[float]") -> "pd.Series[float]":
    return b / a.where(a > 0)


def _side_by_side(a: pd.DataFrame, b: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return the rows of both sides by their keys: self_us as a_us and b_us, calls likewise, and the ratio."""
    sides = [side.set_index(keys).rename(columns={"self_us": "us"}) for side in (a, b)]
    table = pd.concat([sides[0].add_prefix("a_"), sides[1].add_prefix("b_")], axis=1).reset_index()
    return table.assign(ratio=_ratio(table["b_us"], table["a_us"]))


def _wholes(a: Report, b: Report) -> pd.DataFrame:
    table = pd.DataFrame({"whole": ["mean step", "all that was recorded"]})
    for name, report in (("a_us", a), ("b_us", b)):
        table[name] = [report.steps["wall_us"].mean(), report.categories["self_us"].sum()]
    return table.assign(ratio=_ratio(table["b_us"], table["a_us"]))


def _parts(a: Report, b: Report, name: str, key: str) -> pd.DataFrame:
    """Return a table of both sides by their parts, of a step where both mark steps."""
    sides = [getattr(report, name)[[key, "self_us"]] for report in (a, b)]
    if len(a.steps) and len(b.steps):
        sides = [side.assign(self_us=side["self_us"] / len(r.steps)) for side, r in zip(sides, (a, b), strict=True)]
    return _side_by_side(sides[0], sides[1], [key])


def _ops(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    columns = ["name", "category", "calls", "self_us"]
    table = _side_by_side(a[columns], b[columns], ["name", "category"])
    # A name that one side lacks was called 0 times there; its time stays null.
    table[["a_calls", "b_calls"]] = table[["a_calls", "b_calls"]].fillna(0).astype("int64")
    table["difference_us"] = table["b_us"].fillna(0) - table["a_us"].fillna(0)
    order = table["difference_us"].abs().sort_values(ascending=False, kind="stable").index
    return table.loc[order].reset_index(drop=True)


def _warnings(a: Report, b: Report) -> Iterator[str]:
    if len(a.traces) != len(b.traces):
        yield f"a has {len(a.traces)} ranks and b {len(b.traces)}"
    steps = [len(r.steps) / len(r.traces) for r in (a, b)]
    if steps[0] != steps[1]:
        yield f"a has {steps[0]:g} steps per rank and b {steps[1]:g}: compare mean steps, not all that was recorded"
    for name in _SETTINGS:
        values = [sorted({"unknown" if value is pd.NA else str(value) for value in r.settings[name]}) for r in (a, b)]
        if values[0] != values[1]:
            yield f"{name.replace('_size', ' size')} differs: {', '.join(values[0])} in a, {', '.join(values[1])} in b"
