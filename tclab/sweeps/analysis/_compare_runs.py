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
from tclab.sweeps.store._machine_label import busy_text, graph_name, where_measured
from tclab.sweeps.store._row_files import Runs, rows_of
from tclab.sweeps.store._rows import keys_of, python_value
from tclab.timing._environment import HARDWARE, SOFTWARE
from tclab.timing._verdict import MARGIN, UNDECIDED, Pair, pairs_display

SETTINGS = (*declarations(Point), "network_names")
_COUNTS = tuple(name for name, declared in declarations(Point).items() if declared.role == "amount")
_CODE = ("commit", "tclab", *SOFTWARE)
OF_THE_PLACE = (*HARDWARE, *_CODE)  # rows that differ in one of these are of another machine, or of other code
_PLACE = (*OF_THE_PLACE, "os", "gpu_driver", "threads", "allocator_settings")
_LABEL = ("model", "strategy", "batch_size", "networks")  # a point's label has them, whether or not they differ
Sides = tuple[pd.DataFrame, pd.DataFrame]  # the rows of a point's first runs, and of its second


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Two sets of runs, point by point; `print` shows the verdicts.

    **Arguments:**

    - `names`: of the first and the second runs.
    - `stage`: whose seconds are compared.
    - `pairs`: a comparison for each point that is in both, about the second: FASTER means that the second is.
      `Pair.cell` is the label of the point.
    - `differs`: a field of the point or of the machine that differs → its values, first and second.
    - `only`: name of each → labels of the points that it alone has.
    - `cautions`: what weakens the comparison, a sentence each.
    - `table`: a line a point: both mean steps, of how many runs, and the share that these spread by (a standard
      deviation), the ratio with its interval, the verdict, bytes and host syncs.
    - `where`: the machine that measured each.
    """

    names: tuple[str, str]
    stage: str
    pairs: tuple[Pair, ...]
    differs: Mapping[str, tuple[str, str]]
    only: Mapping[str, list[str]]
    cautions: tuple[str, ...]
    table: pd.DataFrame
    where: tuple[str, str]

    def _display(self) -> Display:
        first, second = self.names
        notes = [f"they differ in {name}: {was} → {now}" for name, (was, now) in self.differs.items()]
        notes += [f"only in {name}: {'; '.join(labels)}" for name, labels in self.only.items() if labels]
        return pairs_display(self.pairs, f"{second} against {first}, {self.stage}:", [*notes, *self.cautions])


def compare(
    first: Runs,
    second: Runs,
    *,
    stage: str = "step",
    names: tuple[str, str] | None = None,
    margin: float = MARGIN,
) -> Comparison:
    """Compare runs of two commits, machines or settings, with a verdict on each point that both have.

    Two points match where they differ in nothing but what is compared: the settings that have one value throughout the
    first runs and another throughout the second. A verdict is about the second: FASTER, SLOWER, SAME or UNDECIDED.
    Runs at different times are weaker evidence than a race (`tclab.sweeps.race_points`), where both take turns: a
    machine that changed in between looks like a change of the code. Therefore the difference must exceed `margin`, and
    runs of different machines get no verdict where the code, or anything else, may differ too. A point whose runs on
    one side are of several machines, or of several versions of the code, gets none either.

    The steps of one run share what happened to it and say nothing of the next run. So where a point has several runs
    (`tclab.sweep(…, repeats=3)`), each is one measurement, and the interval is of what they differ by. Where it has
    one, how much two runs of the same differ is not known, and the verdict says "of one run each".

    **Arguments:**

    - `first`, `second`: rows, a folder of results, or a Parquet file of rows. Of one folder, give the rows of each
      value: `rows[rows["strategy"] == "node_mask"]`.
    - `stage`: "step", or one stage of it.
    - `names`: of the two; unless given, those of the files or folders where they differ, or "first" and "second".
    - `margin`: the share that a difference must exceed (0.02 is 2 %); what the runs of a side spread by if that is
      more, and at least 5 %, a convention, where a side has one run. A spread of more than 10 % calls nothing SAME.

    **Raises:** `InputError` for what holds no rows, an unknown stage, or a margin that is not above 0.
    """
    if not margin > 0:
        raise InputError(f"margin is {margin!r}, expected a share above 0 (0.05 is 5 %)")
    steps = [_of_stage(rows_of(runs), stage) for runs in (first, second)]
    named = names or _names(first, second)
    values = {name: [_values(rows, name) for rows in steps] for name in SETTINGS if name not in _COUNTS}
    compared = [name for name, (a, b) in values.items() if len(a) == len(b) == 1 and a != b]
    points = _by_point(steps, [name for name in values if name not in compared])
    sides = {label: (points[0][label], points[1][label]) for label in points[0] if label in points[1]}
    pairs = pairs_of_runs([(label, *both) for label, both in sides.items()], [named] * len(sides), margin=margin)
    for i, both in enumerate(sides.values()):
        why = _confounded(both, named, compared)
        if why and pairs[i].ratio is not None:
            pairs[i] = replace(pairs[i], verdict=UNDECIDED, reason=why)
    differs = _differing(steps, compared)
    if sides:  # rows of what died do not say where
        differs |= _differing([_ok(pd.concat(rows)) for rows in zip(*sides.values(), strict=True)], _PLACE)
    table = _table(sides, pairs, named)
    cautions = [busy_text(pd.concat(steps).assign(stage="step")), _caution(table.filter(regex=" runs$"), values)]
    return Comparison(
        names=named,
        stage=stage,
        pairs=tuple(pairs),
        differs=differs,
        only={name: [one for one in own if one not in sides] for name, own in zip(named, points, strict=True)},
        cautions=tuple(text for text in cautions if text),
        table=table,
        where=(where_measured(steps[0]), where_measured(steps[1])),
    )


def _names(first: Runs, second: Runs) -> tuple[str, str]:
    one, other = ("first" if isinstance(runs, pd.DataFrame) else Path(runs).stem for runs in (first, second))
    return (one, other) if one != other else ("first", "second")


def _of_stage(rows: pd.DataFrame, stage: str) -> pd.DataFrame:
    """Return the rows of one stage, of points that were tried, by the clock that the step is timed on.

    On CUDA that is the device's: a stage has a row of the host's, too. A worker's stages are not the step's. A stage
    has `contention` of its run's step.
    """
    rows = rows[~rows["status"].str.startswith(("skipped", "not run"))]
    of_the_run = rows.groupby("measured_at")["contention"].transform("first")
    rows = rows.assign(contention=rows["contention"].fillna(of_the_run))
    stages = [str(name) for name in rows["stage"].dropna().unique()]
    if len(rows) and stage not in stages:
        raise unknown("stage", stage, stages)
    own = rows[rows["stage"] == stage]
    clock = np.where(own["device"] == "cuda", "device", "host")
    return own[own["where"].isna() | (own["where"] == clock)]


def _by_point(steps: list[pd.DataFrame], same: list[str]) -> list[dict[str, pd.DataFrame]]:
    """Return for each side label → the rows of a point, one for each time it was run.

    A label has model, strategy, batch size, networks, and whatever else tells points apart that are alike in these.
    """
    main = [name for name in _LABEL if name in same]
    alike = pd.concat(steps).groupby(main, dropna=False)
    # what could not be run may know only how many its networks are
    vary = [name for name in same if alike[name].nunique(dropna=name == "network_names").max() > 1]
    shown = [*main, *(name for name in vary if name not in main)]
    found: list[dict[str, pd.DataFrame]] = []
    for rows in steps:
        labels = [", ".join(map(_setting_text, shown, key)) for key in keys_of(rows, shown)]
        found.append({str(label): own for label, own in rows.groupby(np.array(labels, dtype=object), sort=False)})
    return found


def _setting_text(name: str, value: Any) -> str:
    if name in ("model", "strategy"):
        return str(value)
    if name == "networks":  # None: of all networks that its model reads, which died before it knew how many
        return "all networks" if value is None else counted(value, "network")
    return f"{name.removesuffix('_size')} {'none' if value in (None, '') else value}"


def _values(rows: pd.DataFrame, name: str) -> list[str]:
    return sorted({"none" if value is None else graph_name(str(value)) for value in map(python_value, rows[name])})


def _differing(both: Sequence[pd.DataFrame], names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the columns whose values differ, with those of each side; none where a side has no rows."""
    named = {name: (", ".join(_values(both[0], name)), ", ".join(_values(both[1], name))) for name in names}
    return {name: ends for name, ends in named.items() if ends[0] != ends[1] and all(map(len, both))}


def _ok(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["status"] == "ok"]


def _confounded(both: Sides, names: tuple[str, str], compared: list[str]) -> str:
    """Return why a point cannot have a verdict, runs of several machines or versions on a side or between the sides."""
    ok = [_ok(rows) for rows in both]
    for name, rows in zip(names, ok, strict=True):
        if mixed := [column for column in OF_THE_PLACE if rows[column].nunique(dropna=False) > 1]:
            return f"{name} has runs of several machines or versions ({', '.join(mixed)}): give those of one"
    machine = _differing(ok, HARDWARE)
    other = list(_differing(both, compared) | _differing(ok, _CODE))
    if not other and any(value == "none" or value.endswith("+") for rows in ok for value in _values(rows, "commit")):
        other = ["commit, perhaps: it is not known"]
    if not machine or not other:
        return ""
    return f"other machines ({', '.join(machine)}), and another {', '.join(other)}: which of them it is cannot be told"


def _caution(runs: pd.DataFrame, values: Mapping[str, list[list[str]]]) -> str:
    """Return what weakens every verdict, or why there is none.

    **Arguments:**

    - `runs`: of how many each side of each point has. `values`: those of each setting, side by side.
    """
    if runs.empty:
        apart = [name for name, (a, b) in values.items() if a and b and not {*a} & {*b}]
        return " ".join(["No point is in both.", *(f"No value of {name} is." for name in apart)])
    text = (
        "The two sides ran at different times, not in turns as in a race: a machine that changed in between looks like "
        "a difference."
    )
    if once := int((runs == 1).any(axis=1).sum()):
        text += (
            f" {once} of {len(runs)} points ran once on a side, so how much two runs of them differ is not known: "
            "tclab.sweep(…, repeats=3) into each folder measures it."
        )
    return text


def _table(sides: Mapping[str, Sides], pairs: Sequence[Pair], names: tuple[str, str]) -> pd.DataFrame:
    lines = []
    for (label, both), pair in zip(sides.items(), pairs, strict=True):
        low, high = pair.interval or (None, None)
        line = {"point": label, "ratio": pair.ratio, "low": low, "high": high, "verdict": pair.verdict, "why": pair.why}
        for name, rows in zip(names, both, strict=True):
            runs = runs_of(rows)
            seconds = runs.mean.value if runs.steps else None
            line |= {f"{name} s": seconds, f"{name} runs": len(runs.seconds), f"{name} spread": runs.spread}
            line |= {f"{name} {column}": rows[column].max() for column in ("batch_bytes", "host_syncs", "peak_bytes")}
        lines.append(line)
    return pd.DataFrame(lines).set_index("point") if lines else pd.DataFrame()
