"""The DataFrame of rows, which shows a line a point with its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from tclab._display import Display, Shown
from tclab._format import bytes_text
from tclab.sweeps.config._fields import declarations
from tclab.sweeps.config._point import Point

_MOST = 25  # points that are shown
_POINT = ("model", "strategy", "batch_size", "networks")
_NEEDED = {*_POINT, "mean_seconds", "status"}
_SETTINGS = [name for name, declared in declarations(Point).items() if declared.role != "amount"]


class Rows(Shown, pd.DataFrame):
    """Rows of a sweep: any DataFrame operation gives rows again; what lacks a step's columns shows as a DataFrame."""

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
        return super()._repr_html_() if self._is_of_steps() else str(pd.DataFrame(self)._repr_html_())  # type: ignore[operator]

    def _is_of_steps(self) -> bool:
        return set(self.columns) >= _NEEDED

    def _display(self) -> Display:
        steps = pd.DataFrame(self[self["stage"] == "step"] if "stage" in self else self)
        varying = [name for name in _SETTINGS if name in steps and steps[name].nunique(dropna=False) > 1]
        shown = [name for name in _POINT if name == "strategy" or name in varying]
        shown += [name for name in varying if name not in _POINT]
        common = [name for name in _POINT if name not in shown]
        fixed = [f"{name.replace('_', ' ')} {_cell(row, name)}" for _, row in steps[:1].iterrows() for name in common]
        lines = [
            (*(_cell(row, name) for name in shown), _time(row), _cell(row, "samples_per_second", "{:.4g}".format),
             _cell(row, "batch_bytes", bytes_text))
            for _, row in steps.head(_MOST).iterrows()
        ]  # fmt: skip
        timed = int((steps["status"] == "ok").sum())
        title = f"{len(steps)} point{'' if len(steps) == 1 else 's'}, {timed} with a time"
        more = [f"{len(steps) - _MOST} more points are not shown"] if len(steps) > _MOST else []
        more += [f"{len(self)} rows of {len(self.columns)} columns"]
        columns = (*shown, "mean step [95 %]", "samples/s", "a batch")
        return Display(", ".join([title, *fixed]), columns if lines else (), lines, more)


def _cell(row: pd.Series, name: str, text: Callable[[Any], str] = str) -> str:
    value = row.get(name)
    return "" if value is None or pd.isna(value) else text(value)


def _time(row: pd.Series) -> str:
    """Return the mean step with its 95 % interval, "12.3 ms [12.1, 13]"; of a point without one its status."""
    if row["status"] != "ok" or not _cell(row, "mean_seconds"):
        return str(row["status"])
    units = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
    unit, factor = next((pair for pair in units if row["mean_seconds"] * pair[1] >= 1), units[-1])
    ends = ", ".join(f"{factor * row[name]:.3g}" for name in ("low_seconds", "high_seconds") if _cell(row, name))
    return f"{factor * row['mean_seconds']:.3g} {unit}{f' [{ends}]' if ends else ''}"
