"""Which rows may be compared with one another, what tells the others apart, and which of a cell is faster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from tclab.sweeps.comparing import MACHINE, OF_THE_PLACE, SETTINGS
from tclab.sweeps.originals import ORIGINAL_WAYS
from tclab.sweeps.rows import plain
from tclab.sweeps.run_verdicts import pairs_of_runs
from tclab.timing import Pair

MARGIN = 0.05  # of runs that did not take turns
# what is compared, or chosen among, within rows that are alike; and how much was run, which is no setting
_FREE = ("strategy", "batch_size", "networks", "network_names", "seed", "steps", "warmup")
_RUN = ["seed", "steps", "warmup"]  # what tells the runs of one point apart
_NAMED = ("cpu", "cores", "gpu")  # by which a machine is known
_BARE = ("cpu", "gpu", "network_names")  # values that need no name before them


def alike(ok: pd.DataFrame, free: tuple[str, ...] = ()) -> list[tuple[str, pd.DataFrame]]:
    """Return rows that may be compared, with the settings that tell them from the others, in words.

    **Arguments:**

    - `free`: settings that may differ within, beside strategy, batch size and networks.
    """
    if ok.empty:
        return []
    names = _varying(ok, free)
    if not names:
        return [("", ok)]
    keys = _keys(ok, names)
    told = [name for name in names if name not in ("model", "memory_bytes", *_NAMED)]  # as a place has them
    found = []
    for key in dict.fromkeys(keys):
        own = ok[[other == key for other in keys]]
        found.append((_told(dict(zip(names, key, strict=True)), told), own))
    return found


def with_ways(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with `setting`, what tells a point from others of its model and strategy, and with `way`.

    A way is what has a bar or a line of its own: "hetero_cell · node_mask · hidden 64". Settings, machines and
    commits that do not differ among what was measured are not named.
    """
    made = rows.assign(setting="", way=rows["model"] + " · " + rows["strategy"])
    steps = rows[(rows["status"] == "ok") & (rows["stage"] == "step")]
    for model, own in steps.groupby("model", sort=False):
        names = _varying(own, ("model",))
        if (own.groupby("networks")["network_names"].nunique() > 1).any():
            names.append("network_names")
        if not names:
            continue
        mine = rows["model"] == model
        keys = _keys(rows[mine], names)
        words = {key: _told(dict(zip(names, key, strict=True)), names) for key in dict.fromkeys(keys)}
        made.loc[mine, "setting"] = [words[key] for key in keys]
    told = made["setting"] != ""
    made.loc[told, "way"] += " · " + made.loc[told, "setting"]
    return made


def one_run_each(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one run of each point, the middle one of several, and what has no time.

    **Arguments:**

    - `rows`: with ways.
    """
    cell = ["way", "batch_size", "networks"]
    steps = rows[(rows["stage"] == "step") & (rows["status"] == "ok")].sort_values("median_seconds")
    if not steps.duplicated(cell).any():
        return rows
    of_a_cell = steps.groupby(cell)["way"]
    middle = steps[of_a_cell.cumcount() == of_a_cell.transform("size") // 2]
    chosen = rows.merge(middle[[*cell, *_RUN]], on=[*cell, *_RUN]).drop_duplicates([*cell, "stage", "where"])
    return pd.concat([chosen, rows[rows["status"] != "ok"]], ignore_index=True)


def _varying(ok: pd.DataFrame, free: tuple[str, ...]) -> list[str]:
    names = [name for name in (*SETTINGS, *OF_THE_PLACE) if name not in (*_FREE, *free)]
    return [name for name in names if ok[name].nunique(dropna=False) > 1]


def _keys(rows: pd.DataFrame, names: list[str]) -> list[tuple[object, ...]]:
    return [tuple(map(plain, values)) for values in zip(*(rows[name] for name in names), strict=True)]


def _told(values: Mapping[str, object], names: list[str]) -> str:
    """Return settings in words: not what a point does not have; of a machine what it is known by."""
    place = [name for name in names if name in MACHINE]
    known = [name for name in place if name in _NAMED] or place
    told = []
    for name in names:
        value = values[name]
        if value is None or value == "" or (name in place and name not in known):
            continue
        if name == "commit":
            value = str(value)[:8] + "+" * str(value)[8:].endswith("+")
        told.append(str(value) if name in _BARE else f"{name.replace('_', ' ')} {value}")
    return ", ".join(told)


def fullest(ok: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the cell that the most exact strategies were run in, the largest of them."""
    ok = ok[ok["exact"].fillna(True).astype(bool)]
    if ok.empty:
        return ok
    cells = [ok["networks"], ok["network_names"].fillna(""), ok["batch_size"]]
    counts = ok.groupby(cells)["strategy"].nunique()
    networks, names, batch = sorted(counts[counts == counts.max()].index)[-1]
    return ok[(cells[0] == networks) & (cells[1] == names) & (cells[2] == batch)]


def ends(there: pd.DataFrame) -> tuple[str, str]:
    """Return the strategies that are compared: the fastest, and `edge_mask` or else the slowest."""
    order = _by_time(there)
    original = ORIGINAL_WAYS[0]
    return order[0], original if original in order[1:] else order[-1]


def against_the_fastest(there: pd.DataFrame, known: Mapping[frozenset[str], Pair]) -> dict[str, Pair]:
    """Return for each strategy of one cell but the fastest what is decided, told of the fastest against it.

    All are judged together, so that false discoveries are held down over what a chart of them says.

    **Arguments:**

    - `there`: the steps of one cell, all runs of each strategy.
    - `known`: pairs of a race, by their arms, which decide where they are given.
    """
    fast, *others = _by_time(there)
    sides = {name: there[there["strategy"] == name] for name in (fast, *others)}
    points = [("", sides[other], sides[fast]) for other in others]
    found = dict(
        zip(others, pairs_of_runs(points, [(other, fast) for other in others], margin=MARGIN), strict=True)
    )
    for other in others:
        raced = known.get(frozenset((fast, other)))
        if raced is not None:
            found[other] = raced if raced.a == fast else raced.flipped()
    return found


def by_arms(pairs: Iterable[Pair], groups: int) -> dict[frozenset[str], Pair]:
    """Return pairs of a race by their arms; none of several groups, since of which the race was is not known."""
    return {frozenset((pair.a, pair.b)): pair for pair in pairs} if groups == 1 else {}


def _by_time(there: pd.DataFrame) -> list[str]:
    medians = there.groupby("strategy", sort=False)["median_seconds"].median().sort_values()
    return [str(name) for name in medians.index]
