"""Tables of a sweep's rows, and the pairs of a race that one arm is in."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from tclab.errors import require
from tclab.sweeps._point import Point
from tclab.sweeps._row_files import Runs, rows_of
from tclab.sweeps._rows import ENVIRONMENT_COLUMNS, cell_text
from tclab.timing._environment import environment
from tclab.timing._verdict import Pair

_OF_A_POINT = ("allocator_settings", "threads")  # columns of the environment that a point decides, on one machine
KEY = ["model", "strategy", "ranks", "batch_size", "accumulate"]


def machine(rows: Runs | None = None) -> pd.DataFrame:
    """Return the machine and the versions of its software, one row each; missing ones are left out.

    **Arguments:**

    - `rows`: show the machines that measured these rows, a column each; this machine unless given.
    """
    if rows is None:
        made = pd.DataFrame([environment()])
    else:
        of_a_machine = [name for name in ENVIRONMENT_COLUMNS if name not in _OF_A_POINT]
        made = rows_of(rows).dropna(subset="torch")[["tclab", *of_a_machine]]
    made = made.drop_duplicates().dropna(axis="columns", how="all")
    return made.map(cell_text).set_axis([f"machine {number + 1}" for number in range(len(made))]).T


def equivalence(rows: Runs) -> pd.DataFrame:
    """Return the result of the equivalence check for each model and strategy, the worst over its points.

    `fp64_error` is the largest relative difference from `subgraph` of predictions or a parameter's gradient, on the
    part of the graph that the check uses; `seconds` is the shortest mean step, missing where none was measured.
    """
    rows = rows_of(rows)
    tried = rows[(rows["stage"] == "step") & rows["equivalence"].notna()]
    return tried.groupby(["model", "strategy"], sort=False).agg(
        equivalence=("equivalence", "last"),
        fp64_error=("equivalence_fp64_error", "max"),
        fp32_ratio=("equivalence_fp32_ratio", "max"),
        nodes=("equivalence_nodes", "max"),
        edges=("equivalence_edges", "max"),
        seconds=("mean_seconds", "min"),
    )


def pairs_against(pairs: Iterable[Pair], arm: str) -> list[Pair]:
    """Return the pairs that an arm is in, each as the other arm against it."""
    pairs = list(pairs)
    for pair in pairs:
        require("a pair", pair, Pair, "Race.pairs, or tclab.timing.verdicts_of(samples)")
    return [pair if pair.b == arm else pair.flipped() for pair in pairs if arm in (pair.a, pair.b)]


def rows_of_points(rows: Runs, points: Iterable[Point]) -> pd.DataFrame:
    """Return the rows of some points of a sweep over ranks, whose points differ in `KEY` alone."""
    rows = rows_of(rows)
    wanted = {tuple(getattr(point, name) for name in KEY) for point in points}
    keys = pd.Series(list(zip(*(rows[name] for name in KEY), strict=True)), index=rows.index)
    return rows[keys.isin(wanted)]
