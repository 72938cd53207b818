"""What a sweep is asked for, wherever its points run, and how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

import pyarrow as pa
from msgspec import Meta

from tclab._display import say
from tclab.errors import InputError
from tclab.sweeps._fields import AtLeast1, checked, declarations, text_value
from tclab.sweeps._point import Point

_Budget = Annotated[float, Meta(ge=0, description="a number from 0 up (0: no limit)")] | None
_Seconds = Annotated[float, Meta(gt=0, description="a number above 0")] | None
_KINDS: dict[str, Any] = {"retry": bool, "budget_seconds": _Budget, "hang_seconds": _Seconds, "repeats": AtLeast1}
OPTIONS = (*_KINDS, "slurm")  # of a sweep, that a notebook, the panel and the command take
_NAMED = ("model", "strategy", "batch_size", "networks", "ranks")  # fields that a line of progress has in any case


@dataclass(frozen=True)
class Progress:
    """How far a sweep is.

    **Arguments:**

    - `done`, `total`: points.
    - `point`: the one that has just been run or read.
    - `rows`: its rows.
    - `kept`: they were there already.
    - `seconds_left`: foretold from the points that were run so far; `None` where that is not known.
    - `varying`: fields that differ among the sweep's points.
    """

    done: int
    total: int
    point: Point
    rows: pa.Table
    kept: bool
    seconds_left: float | None = None
    varying: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = self.rows.select(["stage", "status", "mean_seconds", "networks"]).to_pylist()
        step = next((row for row in rows if row["stage"] == "step"), rows[0])
        what = f"{self.point.model} {self.point.strategy} batch {self.point.batch_size}"
        if step["networks"] is not None:  # a point that cannot run has none
            what += f" networks {step['networks']}"
        if self.point.ranks > 1:
            what += f", {self.point.ranks} ranks"
        for name in self.varying:
            if name not in _NAMED:
                value = declarations(Point)[name].cell(getattr(self.point, name))
                what += f", {name.replace('_', ' ')} {'none' if value in (None, '') else value}"
        mean = step["mean_seconds"]
        how = step["status"] if mean is None else f"{mean:.3g} s per step"
        return f"[{self.done}/{self.total}] {what}: {how}{' (kept)' if self.kept else ''}"


def print_progress(progress: Progress) -> None:
    """Print a line with the time that is left."""
    left = progress.seconds_left if progress.done < progress.total else None
    say(str(progress) if left is None else f"{progress} · about {timedelta(seconds=round(left))} left")


@dataclass(frozen=True)
class SweepOptions:
    """What a sweep is asked for, here and on a cluster; see `sweep`. Numbers may be text, as papermill gives them.

    **Raises:** `InputError` for a value that an option cannot have.
    """

    retry: bool = False
    budget_seconds: float | None = None
    hang_seconds: float | None = None
    repeats: int = 1
    slurm: str | Mapping[str, Any] | None = None
    progress: Callable[[Progress], None] | None = print_progress
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            object.__setattr__(self, name, checked(name, text_value(getattr(self, name)), kind))
        object.__setattr__(self, "budget_seconds", self.budget_seconds or None)
        object.__setattr__(self, "slurm", None if self.slurm == "none" else self.slurm)
        if self.slurm is not None and (self.budget_seconds or self.repeats > 1):
            raise InputError("budget_seconds and repeats are not for a sweep on Slurm; its time limits each job")

    def report(self, progress: Progress) -> None:
        if self.progress is not None:
            self.progress(progress)

    def say(self, sentence: str) -> None:
        """Print a sentence, unless the sweep is to be silent: a warning would name a line of the sweep's thread."""
        if self.progress is not None:
            say(sentence)

    def stands(self, rows: pa.Table | None) -> bool:
        """Return whether rows that are kept stand in for a new measurement."""
        statuses = [] if rows is None else rows["status"].to_pylist()
        bad = any(status == "oom" or status.startswith("failed") for status in statuses)
        return rows is not None and not (self.retry and bad)
