"""Runs against runs: the points that two sets of rows share, and a verdict on each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import Display, Shown, counted
from tclab.errors import InputError, unknown
from tclab.sweeps.analysis._run_verdicts import pairs_of_runs, runs_of
from tclab.sweeps.config._fields import declarations
from tclab.sweeps.config._point import Point
from tclab.sweeps.store._machine_label import where_measured
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.sweeps.store._rows import keys_of, python_value
from tclab.timing._environment import HARDWARE, SOFTWARE
from tclab.timing._step_means import outliers
from tclab.timing._verdict import MARGIN, UNDECIDED, Pair

SETTINGS = (*declarations(Point), "network_names")
_COUNTS = tuple(name for name, declared in declarations(Point).items() if declared.role == "amount")
_CODE = ("commit", "tclab", *SOFTWARE)
OF_THE_PLACE = (*HARDWARE, *_CODE)  # rows that differ in one of these are of another machine, or of other code
Side = dict[tuple[Any, ...], pd.DataFrame]  # point → the rows of its runs
_CONDITIONS = ("os", "gpu_driver", "threads", "allocator_settings")


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Two sets of runs, point by point; `print` shows the verdicts.

    **Arguments:**

    - `names`: of the first and the second runs.
    - `stage`: whose seconds are compared.
    - `pairs`: a comparison for each point that is in both, about the second: FASTER means that the second is.
      `Pair.cell` is the label of the point.
    - `differs`: a field of the point or of the machine that differs → its values, first and second.
    - `only_first`, `only_second`: labels of the points that one of them alone has.
    - `cautions`: what weakens the comparison, a sentence each.
    - `table`: a line a point: both mean steps, of how many runs, and the share that these spread by (a standard
      deviation), the ratio with its interval, the verdict, bytes and host syncs.
    - `where`: the machine that measured each.
    """

    names: tuple[str, str]
    stage: str
    pairs: tuple[Pair, ...]
    differs: Mapping[str, tuple[str, str]]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    cautions: tuple[str, ...]
    table: pd.DataFrame
    where: tuple[str, str]

    def verdict(self, cell: str) -> str:
        """Return the verdict on a point, by its label in `table`.

        **Raises:** `InputError` for a point that is not in both, with the nearest.
        """
        for pair in self.pairs:
            if pair.cell == cell:
                return pair.verdict
        raise unknown("point", cell, [pair.cell or "" for pair in self.pairs])

    def _display(self) -> Display:
        first, second = self.names
        notes = [f"they differ in {name}: {was} → {now}" for name, (was, now) in self.differs.items()]
        for name, only in ((first, self.only_first), (second, self.only_second)):
            notes += [f"only in {name}: {'; '.join(only)}"] if only else []
        lines = [(pair.cell or "", pair.verdict, pair.ratio_text, pair.why) for pair in self.pairs]
        columns = ("point", "verdict", "ratio [95 % interval]", "why") if lines else ()
        return Display(f"{second} against {first}, {self.stage}:", columns, lines, [*notes, *self.cautions])


def compare(
    first: Runs,
    second: Runs,
    *,
    between: str | Sequence[str] | None = None,
    stage: str = "step",
    names: tuple[str, str] | None = None,
    margin: float = MARGIN,
) -> Comparison:
    """Compare runs of two commits, machines or settings, with a verdict on each point that both have.

    Two points match where they differ in nothing but what is compared. A verdict is about the second: FASTER, SLOWER,
    SAME or UNDECIDED. Runs at different times are weaker evidence than a race (`tclab.sweeps.race_points`), where both
    take turns: a machine that changed in between looks like a change of the code. Therefore the difference must exceed
    `margin`, and runs of different machines get no verdict where the code, or anything else, may differ too. A point
    whose runs on one side are of several machines, or of several versions of the code, gets none either.

    The steps of one run share what happened to it and say nothing of the next run. So where a point has several runs
    (`tclab.sweep(…, repeats=3)`), each is one measurement, and the interval is of what they differ by. Where it has
    one, how much two runs of the same differ is not known, and the verdict says "of one run each".

    **Arguments:**

    - `first`, `second`: rows, a folder of results, or a file that `tclab.sweeps.write_rows` wrote.
    - `between`: the settings (fields of `Point`) that are compared, such as "strategy"; by default those that have
      one value throughout the first and another throughout the second.
    - `stage`: "step", or one stage of it.
    - `names`: of the two; unless given, those of the files or folders (of their parent folders where both have one
      name), or "first" and "second".
    - `margin`: the share that a difference must exceed (0.02 is 2 %); what the runs of a side spread by if that is
      more, and at least 5 %, a convention, where a side has one run. A spread of more than 10 % calls nothing SAME.

    **Raises:** `InputError` for what holds no rows, an unknown setting, one of which both sides have a value, or a
    margin that is not above 0.
    """
    if not margin > 0:
        raise InputError(f"margin is {margin!r}, expected a share above 0 (0.05 is 5 %)")
    both = [rows_of(runs) for runs in (first, second)]
    named = names or _names(first, second)
    steps = [_of_stage(rows, stage) for rows in both]
    compared = _between(between, steps)
    same = [name for name in SETTINGS if name not in compared and name not in _COUNTS]
    if any(rows["network_names"].isna().any() for rows in steps):  # what could not be run may know only how many
        same = [name for name in same if name != "network_names"]
    points = [_by_point(rows, same) for rows in steps]
    shared = [key for key in points[0] if key in points[1]]
    labels = _labels([*points[0], *points[1]], same)
    sides = [[side[key] for key in shared] for side in points]
    # rows of what died do not say where
    of_shared = [_ok(pd.concat(rows)) for rows in sides] if shared else []
    differs = _differing(steps, compared)
    differs |= _differing(of_shared, (*HARDWARE, *_CODE, *_CONDITIONS)) if shared else {}
    commits = [value for side in sides for rows in side for value in _values(rows, "commit")]
    confounded = _confounded(differs, compared, commits)
    pairs = pairs_of_runs(
        [(labels[key], *both) for key, *both in zip(shared, *sides, strict=True)], named, margin=margin
    )
    for i, (pair, *both) in enumerate(zip(pairs, *sides, strict=True)):
        why = confounded or " and ".join(filter(None, map(_mixed, both, named)))
        if why and pair.ratio is not None:
            pairs[i] = replace(pair, verdict=UNDECIDED, why=why)
    return Comparison(
        named,
        stage,
        tuple(pairs),
        differs,
        tuple(labels[key] for key in points[0] if key not in points[1]),
        tuple(labels[key] for key in points[1] if key not in points[0]),
        tuple(_cautions(steps, sides, differs, pairs)),
        _table(pairs, sides, named),
        (where_measured(steps[0]), where_measured(steps[1])),
    )


def _names(first: Runs, second: Runs) -> tuple[str, str]:
    if isinstance(first, pd.DataFrame) or isinstance(second, pd.DataFrame):
        return "first", "second"
    files = [Path(runs).absolute() for runs in (first, second)]
    words = [[file.stem, *(folder.name for folder in file.parents)] for file in files]
    differ = ((a, b) for a, b in zip(*words, strict=False) if a and b and a != b)
    return next(differ, ("first", "second"))


def _of_stage(rows: pd.DataFrame, stage: str) -> pd.DataFrame:
    """Return the rows of one stage, of points that were tried, by the clock that the step is timed on.

    On CUDA that is the device's: a stage has a row of the host's, too. A worker's stages are not the step's.
    """
    rows = rows[~rows["status"].str.startswith(("skipped", "not run"))]
    stages = [str(name) for name in rows["stage"].dropna().unique()]
    if len(rows) and stage not in stages:
        raise unknown("stage", stage, stages)
    own = rows[rows["stage"] == stage]
    clock = np.where(own["device"] == "cuda", "device", "host")
    return own[own["where"].isna() | (own["where"] == clock)]


def _between(between: str | Sequence[str] | None, steps: list[pd.DataFrame]) -> list[str]:
    if between is None:
        found = {name: [_values(rows, name) for rows in steps] for name in SETTINGS if name not in _COUNTS}
        return [name for name, (a, b) in found.items() if len(a) == len(b) == 1 and a != b]
    wanted = [word.strip() for word in between.split(",")] if isinstance(between, str) else list(between)
    for name in wanted:
        if name not in SETTINGS:
            raise unknown("field of a point", name, SETTINGS)
        first, second = (set(_values(rows, name)) for rows in steps)
        if first & second and len(first | second) > 1:
            raise InputError(
                f"between is {name!r}, but both sides have {name} {' and '.join(sorted(first & second))}: expected "
                "other values on each side. Of one folder, take the rows of each value: rows[rows[name] == value]"
            )
    return wanted


def _by_point(rows: pd.DataFrame, same: list[str]) -> Side:
    """Return the values of some fields → the rows that have them, one for each time the point was run."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for i, key in enumerate(keys_of(rows, same)):
        found.setdefault(key, []).append(i)
    return {key: rows.iloc[runs] for key, runs in found.items()}


def _values(rows: pd.DataFrame, name: str) -> list[str]:
    return sorted({"none" if value is None else str(value) for value in map(python_value, rows[name])})


def _differing(both: Sequence[pd.DataFrame], names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the columns whose values differ, with those of each side; none where a side has no rows."""
    named = {name: (", ".join(_values(both[0], name)), ", ".join(_values(both[1], name))) for name in names}
    return {name: ends for name, ends in named.items() if ends[0] != ends[1] and all(map(len, both))}


def _confounded(differs: Iterable[str], compared: list[str], commits: list[str]) -> str:
    """Return why no point can have a verdict; empty where one can."""
    machine = [name for name in HARDWARE if name in differs]
    other = [name for name in (*compared, *_CODE) if name in differs]
    if not other and any(value == "none" or value.endswith("+") for value in commits):
        other = ["commit, perhaps: it is not known"]
    if not machine or not other:
        return ""
    return f"other machines ({', '.join(machine)}), and another {', '.join(other)}: which of them it is cannot be told"


def _mixed(rows: pd.DataFrame, name: str) -> str:
    """Return why one side of a point cannot be compared, runs of several machines or versions; else empty."""
    differ = [column for column in OF_THE_PLACE if _ok(rows)[column].nunique(dropna=False) > 1]
    return f"{name} has runs of several machines or versions ({', '.join(differ)}): give those of one" if differ else ""


def _ok(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["status"] == "ok"]


def _labels(keys: list[tuple[Any, ...]], same: list[str]) -> dict[tuple[Any, ...], str]:
    """Return point → its label: model, strategy, batch and networks, and whatever else distinguishes points."""
    vary = [name for i, name in enumerate(same) if len({key[i] for key in keys}) > 1]
    shown = [name for name in same if name in ("model", "strategy", "batch_size", "networks") or name in vary]
    if "network_names" in shown and "networks" in shown:
        pairs = {(key[same.index("networks")], key[same.index("network_names")]) for key in keys}
        if len({count for count, _ in pairs}) == len(pairs):
            shown.remove("network_names")
    return {key: ", ".join(_setting_text(name, key[same.index(name)]) for name in shown) for key in keys}


def _setting_text(name: str, value: Any) -> str:
    if name in ("model", "strategy"):
        return str(value)
    if name == "networks":  # None: of all networks that its model reads, which died before it knew how many
        return "all networks" if value is None else counted(value, "network")
    return f"{name.removesuffix('_size')} {'none' if value in (None, '') else value}"


def _cautions(
    steps: list[pd.DataFrame], sides: list[list[pd.DataFrame]], differs: Iterable[str], pairs: Sequence[Pair]
) -> list[str]:
    if not pairs:
        apart = [name for name in SETTINGS if name not in _COUNTS and _is_apart(steps, name)]
        hint = f" They differ in {', '.join(apart)}: give between={apart!r} to compare that." if apart else ""
        return [f"No point is in both.{hint}"]
    margins = sorted({pair.margin for pair in pairs})
    widest = " to ".join(dict.fromkeys(f"{100 * share:.2g}%" for share in (margins[0], margins[-1])))
    cautions = [
        f"These ran at different times, not in turns as a race does: differences within ±{widest} are not "
        "claimed, and a machine that changed in between would look like a change."
    ]
    if any(value.endswith("+") for side in sides for rows in side for value in _values(rows, "commit")):
        cautions.append("A commit with + had changes that were not committed: which code ran is not known.")
    if moved := [name for name in _CONDITIONS if name in differs]:
        cautions.append(f"Conditions differ too: {', '.join(moved)}.")
    runs = [[runs_of(rows) for rows in side] for side in sides]
    if once := sum(1 in (len(one.seconds), len(other.seconds)) for one, other in zip(*runs, strict=True)):
        cautions.append(
            f"{once} of {len(pairs)} points ran once on a side: how much two runs of the same differ is not known of "
            "them. tclab.sweep(…, repeats=3) into each folder measures it."
        )
    every = [one for side in runs for one in side]
    if uneven := sum(any(outliers(np.asarray(run), one.cycle) for run in one.seconds) for one in every):
        text = "a few steps hold much of the time: means are of them, too."
        cautions.append(f"In {uneven} of {len(every)} points' runs {text}")
    return cautions


def _is_apart(steps: list[pd.DataFrame], name: str) -> bool:
    first, second = (set(_values(rows, name)) for rows in steps)
    return bool(first) and bool(second) and not first & second


def _table(pairs: Sequence[Pair], sides: list[list[pd.DataFrame]], names: tuple[str, str]) -> pd.DataFrame:
    lines = []
    for pair, *both in zip(pairs, *sides, strict=True):
        line: dict[str, Any] = {"point": pair.cell}
        named = list(zip(names, both, strict=True))
        for name, rows in named:
            runs = runs_of(rows)
            line |= {f"{name} s": _mean(rows), f"{name} runs": len(runs.seconds), f"{name} spread": runs.spread}
        low, high = pair.interval or (None, None)
        line |= {"ratio": pair.ratio, "low": low, "high": high, "verdict": pair.verdict}
        for column in ("batch_bytes", "host_syncs", "peak_bytes"):
            known = {name: rows[column].dropna() for name, rows in named}
            line |= {f"{name} {column}": int(own.iloc[-1]) if len(own) else None for name, own in known.items()}
        lines.append({**line, "why": pair.why})
    return pd.DataFrame(lines).set_index("point") if lines else pd.DataFrame()


def _mean(rows: pd.DataFrame) -> float | None:
    known = rows[["mean_seconds", "n"]].dropna()
    return None if known.empty else float(np.average(known["mean_seconds"].astype(float), weights=known["n"]))
