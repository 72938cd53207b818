"""Rows that may be compared with one another, the settings that distinguish the others, and verdicts within a cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, hypot, log
from typing import Any

import pandas as pd

from tclab.masking._strategy import BASELINES
from tclab.sweeps.analysis._compare_runs import OF_THE_PLACE, SETTINGS
from tclab.sweeps.analysis._run_verdicts import pairs_of_runs
from tclab.sweeps.config._fields import declarations
from tclab.sweeps.config._point import Point
from tclab.sweeps.store._rows import keys_of
from tclab.timing._environment import HARDWARE
from tclab.timing._step_means import outliers
from tclab.timing._verdict import Pair

_Row = Mapping[str, Any] | pd.Series
_NAMED_OUTLIERS = 3  # points; more are counted
MARGIN = 0.05  # of runs that were not interleaved
# columns that distinguish the runs of one point; with them, columns that may differ among rows that are alike
_RUN = [name for name, declared in declarations(Point).items() if declared.role != "setting"]
_FREE = (*(name for name, declared in declarations(Point).items() if declared.charted), "network_names", *_RUN)
_NAMED = ("cpu", "cores", "gpu")  # columns by which a reader knows a machine
_BARE = ("cpu", "gpu", "network_names")  # columns whose values need no name before them


def alike(ok: pd.DataFrame, free: tuple[str, ...] = ()) -> list[tuple[str, pd.DataFrame]]:
    """Return each group of rows that may be compared, after the text of the settings that distinguish it.

    `free` settings may differ within a group, as strategy, batch size and networks may.
    """
    if ok.empty:
        return []
    names = _varying(ok, free)
    if not names:
        return [("", ok)]
    keys = keys_of(ok, names)
    named = [name for name in names if name not in ("model", "memory_bytes", *_NAMED)]  # which `place_text` has
    groups = []
    for key in dict.fromkeys(keys):
        group = ok[[other == key for other in keys]]
        groups.append((_settings_text(dict(zip(names, key, strict=True)), named), group))
    return groups


def with_labels(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with `setting`, which distinguishes points of one model and strategy, and with `label`.

    A label names a bar or a line: "hetero_cell · node_mask · hidden 64". It has no setting, machine or commit that
    all measured rows share.
    """
    made = rows.assign(setting="", label=rows["model"] + " · " + rows["strategy"])
    steps = rows[(rows["status"] == "ok") & (rows["stage"] == "step")]
    for model, group in steps.groupby("model", sort=False):
        names = _varying(group, ("model",))
        if (group.groupby("networks")["network_names"].nunique() > 1).any():
            names.append("network_names")
        if not names:
            continue
        mine = rows["model"] == model
        keys = keys_of(rows[mine], names)
        texts = {key: _settings_text(dict(zip(names, key, strict=True)), names) for key in dict.fromkeys(keys)}
        made.loc[mine, "setting"] = [texts[key] for key in keys]
    with_setting = made["setting"] != ""
    made.loc[with_setting, "label"] += " · " + made.loc[with_setting, "setting"]
    return made


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


def _varying(ok: pd.DataFrame, free: tuple[str, ...]) -> list[str]:
    names = [name for name in (*SETTINGS, *OF_THE_PLACE) if name not in (*_FREE, *free)]
    return [name for name in names if ok[name].nunique(dropna=False) > 1]


def _settings_text(values: Mapping[str, object], names: list[str]) -> str:
    """Return settings as text, without those that a point does not have; a machine by its name."""
    place = [name for name in names if name in HARDWARE]
    known = [name for name in place if name in _NAMED] or place
    texts = []
    for name in names:
        value = values[name]
        if value is None or value == "" or (name in place and name not in known):
            continue
        if name == "commit":
            value = str(value)[:8] + "+" * str(value)[8:].endswith("+")
        texts.append(str(value) if name in _BARE else f"{name.replace('_', ' ')} {value}")
    return ", ".join(texts)


def fullest(ok: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the cell that the most exact strategies were run in, the largest of them."""
    ok = ok[ok["exact"].fillna(True).astype(bool)]
    if ok.empty:
        return ok
    cells = [ok["networks"], ok["network_names"].fillna(""), ok["batch_size"]]
    counts = ok.groupby(cells)["strategy"].nunique()
    networks, names, batch = sorted(counts[counts == counts.max()].index)[-1]
    return ok[(cells[0] == networks) & (cells[1] == names) & (cells[2] == batch)]


def fastest_and_reference(cell: pd.DataFrame) -> tuple[str, str]:
    """Return the strategies that are compared: the fastest, and `edge_mask` or else the slowest."""
    order = _by_time(cell)
    reference = BASELINES[0]
    return order[0], reference if reference in order[1:] else order[-1]


def against_the_fastest(cell: pd.DataFrame, known: Mapping[frozenset[str], Pair]) -> dict[str, Pair]:
    """Return the verdict on the fastest strategy against each other one of a cell, by the other's name.

    All pairs are decided together, so that the rate of false discoveries holds over a chart of all of them. The cell
    has the steps of all runs of each strategy. Pairs of a race, `known` by their arms, decide where they are given.
    """
    fast, *others = _by_time(cell)
    sides = {name: cell[cell["strategy"] == name] for name in (fast, *others)}
    points = [("", sides[other], sides[fast]) for other in others]
    pairs = dict(zip(others, pairs_of_runs(points, [(other, fast) for other in others], margin=MARGIN), strict=True))
    for other in others:
        raced = known.get(frozenset((fast, other)))
        if raced is not None:
            pairs[other] = raced if raced.a == fast else raced.flipped()
    return pairs


def by_arms(pairs: Iterable[Pair], groups: int) -> dict[frozenset[str], Pair]:
    """Return the pairs of a race by their arms; none where there are several groups: the race may be of any."""
    return {frozenset((pair.a, pair.b)): pair for pair in pairs} if groups == 1 else {}


def _by_time(cell: pd.DataFrame) -> list[str]:
    means = cell.groupby("strategy", sort=False)["mean_seconds"].median().sort_values()
    return [str(name) for name in means.index]


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def step_throughput(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the steps, one row a point, with `low` and `high`: the 95 % interval of samples a second.

    Where there are too few steps for one, both are the figure itself.
    """
    steps = rows[(rows["stage"] == "step")].copy()
    samples = steps["batch_size"] * steps["ranks"]
    steps["low"] = (samples / steps["high_seconds"]).fillna(steps["samples_per_second"])
    steps["high"] = (samples / steps["low_seconds"]).fillna(steps["samples_per_second"])
    return steps


def ratio_of_rows(first: _Row, second: _Row) -> tuple[float, float, float]:
    """Return the first row's mean time over the second's, and its 95 % interval; missing (nan) where one has none.

    The distances to the ends of both add up in squares, as of independent estimates.
    """
    ratio = float(first["mean_seconds"] / second["mean_seconds"])
    if any(pd.isna(row["high_seconds"]) for row in (first, second)):
        return ratio, float("nan"), float("nan")
    reach = exp(hypot(*(log(row["high_seconds"] / row["mean_seconds"]) for row in (first, second))))
    return ratio, ratio / reach, ratio * reach


def ratio_text(first: _Row, second: _Row) -> str:
    """Return `ratio_of_rows` as text: "2.41 × [2.2, 2.65]"."""
    ratio, low, high = ratio_of_rows(first, second)
    return f"{ratio:.3g} ×" + ("" if pd.isna(low) else f" [{low:.3g}, {high:.3g}]")


def outlier_sentences(rows: pd.DataFrame) -> list[str]:
    """Return a sentence on each point of which a few steps hold much of the time."""
    steps = rows[(rows["stage"] == "step") & rows["samples_seconds"].notna() & rows["cycle_steps"].notna()]
    found = [
        (f"{row['model']} with {row['strategy']}, batch {row['batch_size']}, mode {row['mode']}", text)
        for row in steps.to_dict("records")
        if (text := outliers(row["samples_seconds"], int(row["cycle_steps"])))
    ]
    named = [f"{point}: {text}." for point, text in found[:_NAMED_OUTLIERS]]
    more = len(found) - len(named)
    return [*named, f"Of {more} further points, too, a few steps hold much of the time."] if more > 0 else named


def fullest_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return, for each model, the rows of the cell with the most exact labels, the largest such cell."""
    ok = rows[(rows["status"] == "ok") & (rows["stage"] == "step")]
    exact = ok["exact"].fillna(True).astype(bool)
    ok = ok[exact] if exact.any() else ok
    counts = ok.groupby(["model", "networks", "batch_size"])["label"].nunique().reset_index()
    best = counts.sort_values(["label", "networks", "batch_size"]).groupby("model").tail(1)
    return rows.merge(best[["model", "networks", "batch_size"]], on=["model", "networks", "batch_size"])


def values_text(rows: pd.DataFrame, column: str) -> str:
    values = sorted({int(v) for v in rows[rows["status"] == "ok"][column].dropna()})
    name = {"networks": "networks", "batch_size": "batch" if (rows["ranks"] == 1).all() else "batch a rank"}[column]
    return f"{name} {' and '.join(map(str, values))}" if values else ""
