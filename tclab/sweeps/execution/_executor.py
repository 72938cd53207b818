"""What runs the points of a sweep: the protocol of executors, their options and their progress."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from tclab.sweeps.config._point import Point
from tclab.sweeps.execution._rank_group import HANG_SECONDS

_SHOWN = [
    "stage", "status", "mean_seconds", "networks", "device", "backend", "file_samples", "file_rows_left_out",
    "unknown_genes",
]  # fmt: skip


@dataclass(frozen=True)
class Progress:
    """How far a sweep is.

    **Arguments:**

    - `done`, `total`: points.
    - `point`: the one that has just been run or read.
    - `rows`: its rows.
    - `kept`: they were there already.
    """

    done: int
    total: int
    point: Point
    rows: pa.Table
    kept: bool

    def __str__(self) -> str:
        rows = self.rows.select(_SHOWN).to_pylist()
        first = rows[0]
        what = f"{self.point.model} {self.point.strategy} batch {self.point.batch_size} networks {first['networks']}"
        if self.point.ranks > 1:
            what += f", {first['device']} · {first['backend']} · {self.point.ranks} ranks"
        if (number := first["file_samples"]) is not None:
            left_out, genes = first["file_rows_left_out"], first["unknown_genes"]
            file = Path(str(self.point.perturbations)).name
            what += f", {number:,} samples of {file} ({left_out:,} rows left out, {genes:,} unknown genes)"
        steps = [row for row in rows if row["stage"] == "step"]
        mean = steps[0]["mean_seconds"] if steps else None
        how = f"{mean:.3g} s a step" if mean is not None else steps[0]["status"]
        return f"[{self.done}/{self.total}] {what}: {how}{' (kept)' if self.kept else ''}"


def print_progress(progress: Progress) -> None:
    """Print a line to standard error, as a sweep that is run from a script does."""
    print(progress, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class SweepOptions:
    """What every executor is asked for; see `tclab.sweep`."""

    results: Path
    retry: bool = False
    fresh: bool = False
    memory_bytes: int | None = None
    hang_seconds: float = HANG_SECONDS
    progress: Callable[[Progress], None] | None = None
    stop: threading.Event | None = None

    def report(self, progress: Progress) -> None:
        """Report a point, where somebody wants to know."""
        if self.progress is not None:
            self.progress(progress)

    @property
    def stopped(self) -> bool:
        """Whether the sweep is to stop."""
        return self.stop is not None and self.stop.is_set()


class Executor(Protocol):
    """What runs the points of a sweep and keeps their rows in its results folder."""

    def run(self, points: list[Point], options: SweepOptions) -> list[pa.Table]:
        """Return the rows of each point, in the points' order; none of the points comes twice."""


def failed_or_oom(rows: pa.Table) -> bool:
    """Return whether a point's rows say that it ran out of memory or failed."""
    return any(status == "oom" or status.startswith("failed") for status in rows["status"].to_pylist())
