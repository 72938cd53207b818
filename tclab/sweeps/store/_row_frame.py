"""The DataFrame of rows, which shows a line a point with its time; cells of tables as text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tclab._display import Display, Shown, bytes_text, counted, seconds_text
from tclab.sweeps.config._fields import declarations
from tclab.sweeps.config._point import Point
from tclab.sweeps.store._machine_label import busy_text, points_text

_MOST = 25  # points that are shown
_MOST_LINES = 60  # of another table
_NEEDED = {
    *("stage", "status", "model", "strategy", "batch_size", "networks", "mean_seconds", "low_seconds"),
    *("samples_per_second", "batch_bytes", "contention", "threads"),
}
_SETTINGS = [name for name, declared in declarations(Point).items() if declared.role != "amount"]


class Rows(Shown, pd.DataFrame):
    """Rows of a sweep: any DataFrame operation gives rows again; what lacks steps or their columns shows as it is."""

    @property
    def _constructor(self) -> Any:
        return Rows

    def _constructor_from_mgr(self, mgr: Any, axes: Any) -> Any:
        return Rows._from_mgr(mgr, axes)  # type: ignore[attr-defined]  # `_constructor` would go through every column again

    def __str__(self) -> str:
        return super().__str__() if self._is_of_steps() else pd.DataFrame.__repr__(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return super()._repr_html_() if self._is_of_steps() else frame_html(self)

    def _is_of_steps(self) -> bool:
        return set(self.columns) >= _NEEDED and (self.empty or bool((self["stage"] == "step").any()))

    def _display(self) -> Display:
        steps = pd.DataFrame(self[self["stage"] == "step"])
        timed = steps[steps["status"] == "ok"]
        varying = varying_settings(timed if len(timed) else steps)
        if "loss" in varying and (timed.groupby("model")["loss"].nunique() <= 1).all():  # each model has its own
            varying.remove("loss")
        shown = [name for name in _SETTINGS if name == "strategy" or name in varying]
        # a sweep measures breadth first; of what is alike the fastest stands first
        order = [name for name in ("model", "batch_size", "networks") if name in shown]
        lines = [
            (*(cell_text(row[name]) for name in shown), _time(row), cell_text(row["samples_per_second"]),
             "" if pd.isna(row["batch_bytes"]) else bytes_text(row["batch_bytes"]))
            for _, row in timed.sort_values([*order, "mean_seconds"], kind="stable").head(_MOST).iterrows()
        ]  # fmt: skip
        notes = [f"{counted(len(timed) - _MOST, 'more point')} with a time not shown"] if len(timed) > _MOST else []
        notes += [*without_time(steps), *filter(None, [busy_text(self)])]
        notes.append(f"{len(self)} rows of {len(self.columns)} columns")
        title = f"{counted(len(steps), 'point')}, {len(timed)} with a time"
        columns = (*shown, "mean step [95 %]", "samples/s", "a batch")
        return Display(title, columns if lines else (), lines, notes)


def without_time(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each status of points that have no time: how many points, and which."""
    steps = rows[(rows["stage"] == "step") & (rows["status"] != "ok")]
    sentences = []
    for status, group in steps.groupby("status", sort=False):
        more = "; run it again, or raise budget_seconds" if "budget" in str(status) else ""
        if status == "wrong" and "equivalence_fp64_error" in group:
            more = f", in fp64 off by {group['equivalence_fp64_error'].max():.1e}"
        sentences.append(f"{counted(len(group), 'point')} ({points_text(group)}): {status}{more}.")
    return sentences


def varying_settings(rows: pd.DataFrame) -> list[str]:
    """Return the fields of a point that differ among some rows, but for those that only say how long it is run."""
    return [name for name in _SETTINGS if name in rows and rows[name].nunique(dropna=False) > 1]


def frame_html(frame: pd.DataFrame) -> str:
    """Return a DataFrame as pandas' table, numbers with four digits and what is missing blank.

    An empty one shows its `attrs["empty"]`, a sentence, where it has one.
    """
    if frame.empty:
        return Display(notes=[str(frame.attrs.get("empty", "nothing"))]).html()
    cells = pd.DataFrame(frame).map(cell_text)
    return str(cells.to_html(notebook=True, max_rows=_MOST_LINES, index=not isinstance(frame.index, pd.RangeIndex)))


def cell_text(value: Any) -> str:
    """Return a value as a cell of a table has it: four digits of a number, nothing for what is missing."""
    if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 9999.5 or abs(value) > 1e15 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else str(value)


def _time(row: pd.Series) -> str:
    """Return the mean step with its 95 % interval: "12.3 ms [12.1, 13]"."""
    mean = row["mean_seconds"]
    if pd.isna(row["low_seconds"]):
        return seconds_text(mean)
    low, high = (seconds_text(row[name], mean).split()[0] for name in ("low_seconds", "high_seconds"))
    return f"{seconds_text(mean)} [{low}, {high}]"
