"""How long a sweep will take, by the points that were measured on this machine before."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tclab._display import counted, duration_text
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.store._results import Results, folders_beside
from tclab.sweeps.store._rows import columns_of
from tclab.timing import environment

# what a point's time depends on by more than its size: only a point that has the same is like it
_ALIKE = ("model", "graph", "scale", "mode", "device", "ranks", "dtype", "compile", "hidden", "layers")
_MACHINE = ("cpu", "cores", "gpu")
_PAUSE = 10  # times what points usually take besides their steps: the process was stopped, or the file was copied
_NOTHING = "no estimate: nothing like it was measured here yet"


def sweep_seconds_text(
    points: Iterable[Point], results: str | Path, *, retry: bool = False, budget_seconds: float | None = None
) -> str:
    """Return in a sentence how long the points will take that a results folder does not have yet.

    It goes by the points of that folder, or else of the folders beside it, that ran on this machine with the same
    model, graph and mode. A step's time is that of the same strategy, where it was measured, at the nearest size, in
    proportion to samples and edge types.

    **Arguments:** as for `tclab.sweep`.
    """
    folder = Results(results)
    wanted = [resolve(point) for point in points]
    left = [point for point in wanted if point.skipped() is None and not _is_kept(folder, point, retry)]
    if not left:
        return "nothing is left to measure: all points are kept, or cannot run"
    measured = _measured(folder)
    known = [seconds for point in left if (seconds := _seconds(point, measured)) is not None]
    if not known:
        return _NOTHING
    of = f"{len(known)} of {len(left)} points" if len(known) < len(left) else counted(len(left), "point")
    words = f"about {duration_text(sum(known))} for {of}, by {counted(len(measured), 'point')} measured on this machine"
    if len(known) < len(left):
        words += "; nothing like the others was measured here yet"
    if budget_seconds and budget_seconds < sum(known):
        words += f"; the budget of {budget_seconds:g} s ends it before"
    return words


def _is_kept(folder: Results, point: Point, retry: bool) -> bool:
    """Return whether the folder has the point's rows; with `retry`, rows with a time."""
    if not retry:
        return folder.path(point).exists()
    rows = folder.read(point)
    return rows is not None and rows["status"][0].as_py() == "ok"


def _measured(folder: Results) -> list[dict[str, Any]]:
    """Return the step of each point that this machine has timed, with the seconds `besides` its steps."""
    here = environment()
    columns = ["strategy", "batch_size", "networks", "mean_seconds", "warmup", "steps", *_ALIKE, *_MACHINE]
    rows: list[dict[str, Any]] = []
    for paths in ([folder.folder], folders_beside(folder.folder)):
        every = [row for path in paths for row in Results(path).step_durations(columns)]
        rows = [row for row in every if row["mean_seconds"] and all(row[name] == here[name] for name in _MACHINE)]
        if rows:
            break
    for row in rows:
        row["besides"] = max(0.0, row["took_seconds"] - row["mean_seconds"] * _steps(row))
    usual = median(row["besides"] for row in rows) if rows else 0.0
    return [row for row in rows if row["besides"] <= _PAUSE * usual]


def _seconds(point: Point, measured: list[dict[str, Any]]) -> float | None:
    """Return the seconds of a point by those like it; `None` where none is."""
    own = columns_of(point)
    alike = [row for row in measured if all(row[name] == own[name] for name in _ALIKE)]
    if not alike:
        return None
    networks = point.network_count
    if networks == inf:  # all that the model reads
        networks = max(row["networks"] for row in alike)
    size = point.batch_size * networks

    def distance(row: dict[str, Any]) -> float:
        return abs(log(row["batch_size"] * row["networks"] / size))

    same = [row for row in alike if row["strategy"] == point.strategy] or alike
    # the nearest in size: a part of a step takes as long at any size, so a far one is off by much
    nearest = [row for row in same if distance(row) <= min(map(distance, same)) + 1e-9]
    each = fmean(row["mean_seconds"] / (row["batch_size"] * row["networks"]) for row in nearest)
    return median(row["besides"] for row in alike) + each * size * _steps(own)


def _steps(row: dict[str, Any]) -> int:
    return int(row["warmup"] + 1 + row["steps"])
