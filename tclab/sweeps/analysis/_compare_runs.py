"""Runs against runs: the points that two sets of rows share, and a verdict on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    sides = [_by_point(rows, same) for rows in steps]
    shared = [key for key in sides[0] if key in sides[1]]
    differs = {name: _sides(steps, name) for name in compared} | _environments(sides, shared)
    labels = _labels([*sides[0], *sides[1]], same)
    confounded = _confounded(differs, compared, _commits(sides, shared))
    pairs = pairs_of_runs([(labels[key], sides[0][key], sides[1][key]) for key in shared], named, margin=margin)
    for place, (key, pair) in enumerate(zip(shared, pairs, strict=True)):
        why = confounded or " and ".join(filter(None, map(_mixed, (side[key] for side in sides), named)))
        if why and pair.ratio is not None:
            pairs[place] = replace(pair, verdict=UNDECIDED, why=why)
    return Comparison(
        named,
        stage,
        tuple(pairs),
        differs,
        tuple(labels[key] for key in sides[0] if key not in sides[1]),
        tuple(labels[key] for key in sides[1] if key not in sides[0]),
        tuple(_cautions(sides, shared, differs, pairs)),
        _table(pairs, [(sides[0][key], sides[1][key]) for key in shared], named),
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
    if between is not None:
        wanted = [word.strip() for word in between.split(",")] if isinstance(between, str) else list(between)
        for name in wanted:
            if name not in SETTINGS:
                raise unknown("field of a point", name, SETTINGS)
            first, second = ({str(python_value(value)) for value in rows[name]} for rows in steps)
            if first & second and len(first | second) > 1:
                raise InputError(
                    f"between is {name!r}, but both sides have {name} {' and '.join(sorted(first & second))}: expected "
                    "other values on each side. Of one folder, take the rows of each value: rows[rows[name] == value]"
                )
        return wanted
    found = []
    for name in SETTINGS:
        first, second = (set(map(python_value, rows[name])) for rows in steps)
        if name not in _COUNTS and len(first) == len(second) == 1 and first != second:
            found.append(name)
    return found


def _by_point(rows: pd.DataFrame, same: list[str]) -> dict[tuple[Any, ...], pd.DataFrame]:
    """Return the values of some fields → the rows that have them, one for each time the point was run."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for place, key in enumerate(keys_of(rows, same)):
        found.setdefault(key, []).append(place)
    return {key: rows.iloc[places] for key, places in found.items()}


def _values(rows: pd.DataFrame, name: str) -> list[str]:
    return sorted({"none" if value is None else str(value) for value in map(python_value, rows[name])})


def _sides(steps: Sequence[pd.DataFrame], name: str) -> tuple[str, str]:
    first, second = (", ".join(_values(rows, name)) for rows in steps)
    return first, second


def _environments(sides: list[dict[Any, pd.DataFrame]], shared: list[Any]) -> dict[str, tuple[str, str]]:
    """Return what differs of machine, code and conditions in the points that are compared."""
    if not shared:
        return {}
    rows = [pd.concat([side[key] for key in shared]) for side in sides]
    rows = [own[own["status"] == "ok"] for own in rows]  # the others do not say where they died
    if any(own.empty for own in rows):
        return {}
    named = {name: _sides(rows, name) for name in (*HARDWARE, *_CODE, *_CONDITIONS)}
    return {name: ends for name, ends in named.items() if ends[0] != ends[1]}


def _confounded(differs: Mapping[str, tuple[str, str]], compared: list[str], commits: list[str]) -> str:
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
    ok = rows[rows["status"] == "ok"]
    differ = [column for column in OF_THE_PLACE if ok[column].nunique(dropna=False) > 1]
    return f"{name} has runs of several machines or versions ({', '.join(differ)}): give those of one" if differ else ""


def _commits(sides: list[dict[Any, pd.DataFrame]], shared: list[Any]) -> list[str]:
    return sorted({value for side in sides for key in shared for value in _values(side[key], "commit")})


def _labels(keys: list[tuple[Any, ...]], same: list[str]) -> dict[tuple[Any, ...], str]:
    """Return point → its label: model, strategy, batch and networks, and whatever else distinguishes points."""
    vary = [name for place, name in enumerate(same) if len({key[place] for key in keys}) > 1]
    shown = [n for n in same if n in ("model", "strategy", "batch_size", "networks") or n in vary]
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
    if name == "batch_size":
        return f"batch {value}"
    return f"{name} {'none' if value is None or value == '' else value}"


def _cautions(
    sides: list[dict[Any, pd.DataFrame]],
    shared: list[Any],
    differs: Mapping[str, tuple[str, str]],
    pairs: Sequence[Pair],
) -> list[str]:
    if not shared:
        differ = [n for n in SETTINGS if n not in _COUNTS and _apart(sides, n)]
        hint = f" They differ in {', '.join(differ)}: give between={differ!r} to compare that." if differ else ""
        return [f"No point is in both.{hint}"]
    margins = dict.fromkeys(f"{100 * share:.2g}%" for share in sorted(pair.margin for pair in pairs))
    widest = " to ".join([*margins][:: max(1, len(margins) - 1)])
    cautions = [
        f"These ran at different times, not in turns as a race does: differences within ±{widest} are not "
        "claimed, and a machine that changed in between would look like a change."
    ]
    if any(value.endswith("+") for value in _commits(sides, shared)):
        cautions.append("A commit with + had changes that were not committed: which code ran is not known.")
    if moved := [name for name in _CONDITIONS if name in differs]:
        cautions.append(f"Conditions differ too: {', '.join(moved)}.")
    runs = [runs_of(side[key]) for side in sides for key in shared]
    times = [len(one.seconds) for one in runs]
    if once := sum(1 in ends for ends in zip(times[: len(shared)], times[len(shared) :], strict=True)):
        cautions.append(
            f"{once} of {len(shared)} points ran once on a side: how much two runs of the same differ is not known of "
            "them. tclab.sweep(…, repeats=3) into each folder measures it."
        )
    if uneven := sum(any(outliers(np.asarray(run), one.cycle) for run in one.seconds) for one in runs):
        text = "a few steps hold much of the time: means are of them, too."
        cautions.append(f"In {uneven} of {len(runs)} points' runs {text}")
    return cautions


def _apart(sides: list[dict[Any, pd.DataFrame]], name: str) -> bool:
    first, second = (set().union(*(_values(rows, name) for rows in side.values())) for side in sides)
    return bool(first) and bool(second) and not first & second


def _table(
    pairs: Sequence[Pair], rows: Sequence[tuple[pd.DataFrame, pd.DataFrame]], names: tuple[str, str]
) -> pd.DataFrame:
    lines = []
    for pair, sides in zip(pairs, rows, strict=True):
        line: dict[str, Any] = {"point": pair.cell}
        for name, own in zip(names, sides, strict=True):
            runs = runs_of(own)
            line |= {f"{name} s": _mean(own), f"{name} runs": len(runs.seconds), f"{name} spread": runs.spread}
        low, high = pair.interval or (None, None)
        line |= {"ratio": pair.ratio, "low": low, "high": high, "verdict": pair.verdict}
        for column in ("batch_bytes", "host_syncs", "peak_bytes"):
            for name, own in zip(names, sides, strict=True):
                known = own[column].dropna()
                line[f"{name} {column}"] = None if known.empty else int(known.iloc[-1])
        lines.append({**line, "why": pair.why})
    return pd.DataFrame(lines).set_index("point") if lines else pd.DataFrame()


def _mean(rows: pd.DataFrame) -> float | None:
    known = rows[["mean_seconds", "n"]].dropna()
    return None if known.empty else float(np.average(known["mean_seconds"].astype(float), weights=known["n"]))
