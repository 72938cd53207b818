"""Rows that may be compared with one another, what distinguishes the others, verdicts, and the stages of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, hypot, log
from typing import Any

import pandas as pd

from tclab.errors import require
from tclab.masking._strategy import BASELINES
from tclab.sweeps._compare import OF_THE_PLACE, SETTINGS, pairs_of_runs
from tclab.sweeps._fields import declarations
from tclab.sweeps._point import Point
from tclab.sweeps._rows import ENVIRONMENT_COLUMNS, Runs, cell_text, graph_name, keys_of, rows_of
from tclab.timing._environment import HARDWARE, environment
from tclab.timing._ledger import SUMS, TOLERANCE
from tclab.timing._verdict import BUSY, Pair
from tclab.training._step import MODES

_CELL = ["networks", "network_names", "batch_size"]
_POINT = ["mode", "model", "strategy"]
_RUN = [name for name, declared in declarations(Point).items() if declared.role != "setting"]  # apart: runs of a point
_CHARTED = ("strategy", "batch_size", "networks")  # axes of charts
# settings, machine and code that rows must share to be compared
_DEPEND = {"network_names": "networks", "threads": "ranks"}  # columns that may differ with another
_FIXED = [name for name in (*SETTINGS, *OF_THE_PLACE) if name not in (*_CHARTED, *_RUN, *_DEPEND)]
_OF_RANKS = ("whole", "overlapped")  # of a rank: the sum of its stages; of older rows also what its backward hides
_NAMED = ("cpu", "cores", "gpu")  # columns by which a reader knows a machine
_ALIKE = 0.05  # share of the time by which strategies of a sweep may differ and count as alike
_BARE = ("cpu", "gpu", "network_names")  # columns whose values need no name before them


def with_labels(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with `setting`, which distinguishes points of one model and strategy, and with `label`.

    A label names a bar or a line: "hetero_cell · node_mask · hidden 64". It has no setting, machine or commit that
    all measured rows share.
    """
    made = rows.assign(setting="", label=rows["model"] + " · " + rows["strategy"])
    steps = rows[(rows["status"] == "ok") & (rows["stage"] == "step")]
    for model, group in steps.groupby("model", sort=False):
        varying = [name for name in _FIXED if group[name].nunique(dropna=False) > 1]
        varying += [name for name, on in _DEPEND.items() if (group.groupby(on)[name].nunique() > 1).any()]
        if varying:
            mine = rows["model"] == model
            texts = [_settings_text(dict(zip(varying, key, strict=True)), varying) for key in
                     keys_of(rows[mine], varying)]  # fmt: skip
            made.loc[mine, "setting"] = texts
    made.loc[made["setting"] != "", "label"] += " · " + made["setting"]
    return made


def _settings_text(values: Mapping[str, object], wanted: list[str]) -> str:
    """Return settings as text, without those that a point does not have; a machine by its name."""
    place = [name for name in wanted if name in HARDWARE]
    known = [name for name in place if name in _NAMED] or place
    texts = []
    for name in wanted:
        value = values[name]
        if value is None or value == "" or (name in place and name not in known):
            continue
        if name == "commit":
            value = str(value)[:8] + "+" * str(value).endswith("+")
        if name == "graph":
            value = graph_name(str(value))
        texts.append(str(value) if name in _BARE else f"{name.replace('_', ' ')} {value}")
    return ", ".join(texts)


def one_run_each(rows: pd.DataFrame) -> pd.DataFrame:
    """Return, of rows `with_labels`, one run of each point, the median one of several, and those without a time."""
    cell = ["label", "batch_size", "networks"]
    steps = rows[(rows["stage"] == "step") & (rows["status"] == "ok")].sort_values("mean_seconds")
    if not steps.duplicated(cell).any():
        return rows
    of_a_cell = steps.groupby(cell)["label"]
    middle = steps[of_a_cell.cumcount() == of_a_cell.transform("size") // 2]
    run = [*cell, *_RUN, "measured_at"]  # repeats differ in the last alone
    chosen = rows.merge(middle[run], on=run).drop_duplicates([*cell, "stage", "where"])
    return pd.concat([chosen, rows[rows["status"] != "ok"]], ignore_index=True)


def fullest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the cell that the most exact strategies ran in, the largest of them.

    That is one for each model and, of rows `with_labels`, for each setting: the cell of the answer, of its sentence and
    its chart.
    """
    named = rows.assign(network_names=rows["network_names"].fillna(""))
    ok = named[(named["status"] == "ok") & (named["stage"] == "step")]
    exact = ok["exact"].fillna(True).astype(bool)
    ok = ok[exact] if exact.any() else ok
    return _with_most("strategy", named, ok, ["model", "setting"] if "setting" in rows else ["model"], _CELL)


def _with_most(column: str, rows: pd.DataFrame, counted: pd.DataFrame, of: list[str], cell: list[str]) -> pd.DataFrame:
    """Return, for each group, the rows of the cell that has the most values of a column, the largest of them."""
    counts = counted.groupby([*of, *cell])[column].nunique().reset_index()
    best = counts.sort_values([column, "networks", "batch_size"]).groupby(of).tail(1)
    return rows.merge(best[[*of, *cell]], on=[*of, *cell])


def in_one_mode(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of mode `step`, where strategies are compared, or of the first mode where that was not run."""
    modes = list(rows[rows["status"] == "ok"]["mode"].dropna().unique())
    return rows[rows["mode"] == ("step" if "step" in modes else modes[0])] if modes else rows


def comparable(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the measured steps of `in_one_mode` that strategies are compared by: exact, and without overheads."""
    ok = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    return ok[ok["overheads"].fillna("").eq("") & ok["exact"].fillna(True).astype(bool)]


def against_the_fastest(cell: pd.DataFrame) -> tuple[str, dict[str, Pair]]:
    """Return the fastest exact strategy of a cell, and its verdict against each other one, by the other's name.

    All pairs are decided together, so that the rate of false discoveries holds over a chart of all of them. The cell
    has the measured steps of all runs of each strategy.
    """
    cell = cell[cell["exact"].fillna(True).astype(bool)]
    means = cell.groupby("strategy", sort=False)["mean_seconds"].median().sort_values()
    fast, *others = map(str, means.index)
    sides = {name: cell[cell["strategy"] == name] for name in (fast, *others)}
    points = [("", sides[other], sides[fast]) for other in others]
    pairs = pairs_of_runs(points, [(other, fast) for other in others], margin=_ALIKE)
    return fast, dict(zip(others, pairs, strict=True))


def why_undecided(pair: Pair) -> str:
    """Return why two points are undecided, in few words."""
    if pair.obstacle == BUSY:
        return "the machine was busy"
    return pair.reason or f"the interval crosses ±{pair.margin:.0%}: set more repeats"


def reference_of(others: list[str]) -> str:
    """Return what the fastest strategy is compared with: `edge_mask`, or else the slowest."""
    return BASELINES[0] if BASELINES[0] in others else others[-1]


def step_throughput(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the steps, one row a point, with `low` and `high`: the 95 % interval of samples a second.

    Where there are too few steps for one, both are the figure itself.
    """
    steps = rows[rows["stage"] == "step"].copy()
    samples = steps["batch_size"] * steps["ranks"]
    steps["low"] = (samples / steps["high_seconds"]).fillna(steps["samples_per_second"])
    steps["high"] = (samples / steps["low_seconds"]).fillna(steps["samples_per_second"])
    return steps


def ratio_of_rows(
    first: Mapping[str, Any] | pd.Series, second: Mapping[str, Any] | pd.Series
) -> tuple[float, float, float]:
    """Return the first row's mean time over the second's, and its 95 % interval; missing (nan) where one has none.

    The distances to the ends of both add up in squares, as of independent estimates.
    """
    ratio = float(first["mean_seconds"] / second["mean_seconds"])
    if any(pd.isna(row["high_seconds"]) for row in (first, second)):
        return ratio, float("nan"), float("nan")
    reach = exp(hypot(*(log(row["high_seconds"] / row["mean_seconds"]) for row in (first, second))))
    return ratio, ratio / reach, ratio * reach


def times_text(ratio: float, low: float = float("nan"), high: float = float("nan")) -> str:
    """Return a ratio with its interval as text: "2.41 × [2.2, 2.65]", "243 ×"."""
    ends = "" if pd.isna(low) else f" [{low:.3g}, {high:.3g}]"
    return f"{figure_text(ratio)} ×{ends}"


def figure_text(value: float) -> str:
    """Return a figure with three digits, or all those before the point: "2.41", "1,234"."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def sizes_text(rows: pd.DataFrame) -> str:
    """Return batch sizes and numbers of networks that were measured, of each model if they differ.

    "batch 1 to 8, 9 networks"; "hetero_cell batch 4, 1 to 9 networks · dango batch 8, 9 networks".
    """
    ok = rows[rows["status"] == "ok"]
    each = " a rank" * bool((ok["ranks"] > 1).any())
    found = {}
    for model, own in ok.dropna(subset=["batch_size", "networks"]).groupby("model", sort=False):
        batch, networks = (_span(sorted({*map(int, own[name])})) for name in ("batch_size", "networks"))
        found[model] = f"batch {batch}{each}, {networks} network{'s' * (networks != '1')}"
    if len({*found.values()}) < 2:
        return next(iter(found.values()), "")
    return " · ".join(f"{model} {sizes}" for model, sizes in found.items())


def _span(values: list[int]) -> str:
    return f"{values[0]} to {values[-1]}" if len(values) > 2 else " and ".join(map(str, values))


# ---- the stages of a step


def points_of_modes(rows: pd.DataFrame) -> pd.DataFrame:
    """Return, for each mode, model, strategy and further setting, the rows of one run of one point, with its `label`.

    Among several batch sizes or numbers of networks it is the one with the most modes, the largest such. Rows with
    overheads are left out.
    """
    ok = rows[(rows["status"] == "ok") & rows["overheads"].fillna("").eq("")]
    if ok.empty:
        return ok.assign(label="")
    ok = _with_most("mode", ok, ok, _POINT[1:], ["batch_size", "networks"])
    seeds = ok["seed"].fillna(0)
    ok = ok[seeds == seeds.groupby([ok[name] for name in _POINT]).transform("min")]
    return pd.concat([one_run_each(with_labels(group)) for _, group in ok.groupby(_POINT, sort=False)])


def one_point_each(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what `points_of_modes` does, of the first setting of each mode, model and strategy alone."""
    chosen = points_of_modes(rows)
    return chosen[chosen["label"] == chosen.groupby(_POINT)["label"].transform("first")]


def stage_parts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean seconds of each stage in a step, a row for each timeline and stage of each point.

    Means are over all steps of whole cycles (`mean_seconds` of rows), so that the stages of a timeline add up to its
    whole, and the step to the throughput. `idle` is a worker's time until the next batch is requested, and is in no
    whole.

    Columns: label, mode, model, strategy, where, stage, seconds; `whole_seconds`, the sum of the timeline's stages;
    `accounted`, the share of the timeline's clock that its stages account for, missing where it has no clock.
    """
    of = ["label", *_POINT]
    chosen = points_of_modes(rows)
    steps = chosen[chosen["stage"] == "step"].set_index(of)
    parts = chosen[chosen["where"].notna() & ~chosen["stage"].isin([*SUMS, *_OF_RANKS])]
    parts = parts[[*of, "where", "stage"]].assign(seconds=parts["mean_seconds"].astype(float))
    busy = parts["seconds"].where(parts["stage"] != "idle", 0.0)
    parts["whole_seconds"] = busy.groupby([parts[name] for name in (*of, "where")]).transform("sum")
    clocks = [(tuple(key), f"{where}_accounted") for *key, where in keys_of(parts, (*of, "where"))]
    accounted = [steps.at[key, clock] if clock in steps else None for key, clock in clocks]
    parts["accounted"] = pd.Series(accounted, parts.index, "Float64")
    return parts.sort_values("mode", key=lambda modes: modes.map([*MODES].index), kind="stable").reset_index(drop=True)


def adds_up(accounted: float | None) -> bool:
    """Return whether a timeline may be drawn: its stages account for its clock, or there is no clock."""
    return accounted is None or bool(pd.isna(accounted)) or abs(accounted - 1.0) <= TOLERANCE


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


# ---- tables, and the pairs of a race that one arm is in

_OF_A_POINT = ("allocator_settings", "threads")  # columns of the environment that a point decides, on one machine
KEY = ["model", "strategy", "ranks", "batch_size", "accumulate"]


def machine(rows: Runs | None = None) -> pd.DataFrame:
    """Return the machine and the versions of its software, one row each; missing ones are left out.

    **Arguments:**

    - `rows`: show the machines that measured these rows, a column each; this machine unless given.
    """
    names = ["tclab", *(name for name in ENVIRONMENT_COLUMNS if name not in _OF_A_POINT)]
    made = pd.DataFrame([environment()]) if rows is None else rows_of(rows).dropna(subset="torch")[names]
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
