"""Runs against runs: the points that two sets of rows share, and a verdict on each.

`pairs_of_runs` is the judge of steps that ran at different times: of `compare`, `advise` and findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tclab._display import Display, Shown, counted
from tclab.errors import InputError, check_known
from tclab.sweeps._fields import declarations
from tclab.sweeps._point import Point
from tclab.sweeps._row_files import Runs, rows_of
from tclab.sweeps._rows import busy_text, graph_name, graph_text, keys_of, python_value, where_measured
from tclab.timing._environment import HARDWARE, SOFTWARE
from tclab.timing._step_means import MIN_OBSERVATIONS, NOT_STEADY, Estimate, Reals, mean_step
from tclab.timing._verdict import ALPHA, BUSY, FASTER, MARGIN, ONCE, SLOWER, UNDECIDED, Pair, decide, pairs_display

_MOST_REACH = 700.0  # of a logarithm whose exponential is still finite
SETTINGS = (*(name for name, declared in declarations(Point).items() if declared.role != "amount"), "network_names")
_CODE = ("commit", "tclab", *SOFTWARE)
# rows that differ in one of these are of another machine, of other code, or of another OMP_NUM_THREADS
OF_THE_PLACE = (*HARDWARE, *_CODE, "threads")
_PLACE = (*OF_THE_PLACE, "os", "gpu_driver", "allocator_settings")
_LABEL = ("model", "strategy", "batch_size", "networks")  # a point's label has them, whether or not they differ
Sides = tuple[pd.DataFrame, pd.DataFrame]  # the rows of a point's first runs, and of its second


def undisturbed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows without the runs that other programs disturbed, of the points that also ran alone."""
    steps = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    points = pd.Series(keys_of(steps, (*SETTINGS, *OF_THE_PLACE)), index=steps.index, dtype=object)
    busy = steps["contention"].notna()
    gone = steps[busy & points.isin(set(points[~busy]))]
    return rows[~(rows.index.isin(gone.index) | rows["measured_at"].isin(gone["measured_at"].dropna()))]


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
    - `where`: each one's machine and graph: "cpu · 2 cores · Intel Xeon · synthetic, scale 0.02".
    """

    names: tuple[str, str]
    stage: str
    pairs: tuple[Pair, ...]
    differs: Mapping[str, tuple[str, str]]
    only: Mapping[str, list[str]]
    cautions: tuple[str, ...]
    where: tuple[str, ...]

    def _display(self) -> Display:
        first, second = self.names
        notes = [f"they differ in {name}: {was} → {now}" for name, (was, now) in self.differs.items()]
        notes += [f"only in {name}: {'; '.join(labels)}" for name, labels in self.only.items() if labels]
        return pairs_display(self.pairs, f"{second} against {first}, time of {self.stage}:", [*notes, *self.cautions])


def compare(
    first: Runs, second: Runs, *, stage: str = "step", names: tuple[str, str] | None = None, margin: float = MARGIN
) -> Comparison:
    """Compare runs of two commits, machines or settings, with a verdict on each point that both have.

    Two points match where they differ in nothing but what is compared: the settings that have one value throughout the
    first runs and another throughout the second. A verdict is about the second: FASTER, SLOWER, SAME or UNDECIDED.
    Runs at different times are weaker evidence than a race (`tclab.sweeps.race_points`), where both take turns: a
    machine that changed in between looks like a change of the code. Therefore the difference must exceed `margin`, and
    runs of different machines get no verdict where the code, or anything else, may differ too. A point whose runs on
    one side are of several machines, or of several versions of the code, gets none either.

    The steps of one run share what happened to it and say nothing of the next run. So each run is one measurement, and
    a verdict needs two runs or more on each side (`tclab.sweep(…, repeats=3)`) and rests on what they differ by. With
    one run on a side there is a ratio and no verdict.

    **Arguments:**

    - `first`, `second`: rows, a folder of results, or a Parquet file of rows. Of one folder, give the rows of each
      value: `rows[rows["strategy"] == "node_mask"]`.
    - `stage`: "step", or one stage of it.
    - `names`: of the two; unless given, those of the files or folders where they differ, or "first" and "second".
    - `margin`: the share that a difference must exceed (0.02 is 2 %).

    **Raises:** `InputError` for what holds no rows, an unknown stage, or a margin that is not above 0.
    """
    if not margin > 0:
        raise InputError(f"margin is {margin!r}, expected a share above 0 (0.05 is 5 %)")
    steps = [_of_stage(rows_of(runs), stage) for runs in (first, second)]
    named = names or _names(first, second)
    values = {name: [_values(rows, name) for rows in steps] for name in SETTINGS}
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
    cautions = [busy_text(pd.concat(steps).assign(stage="step")), _caution(list(sides.values()), values)]
    return Comparison(
        names=named,
        stage=stage,
        pairs=tuple(pairs),
        differs=differs,
        only={name: [one for one in own if one not in sides] for name, own in zip(named, points, strict=True)},
        cautions=tuple(text for text in cautions if text),
        where=tuple(" · ".join(filter(None, (where_measured(rows), graph_text(rows)))) for rows in steps),
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
    if len(rows):
        check_known("stage", stages, stage)
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
            return f"{name} has runs of several machines, versions or threads ({', '.join(mixed)}): give those of one"
    machine = _differing(ok, HARDWARE)
    other = list(_differing(both, compared) | _differing(ok, _CODE))
    if not other and any(value == "none" or value.endswith("+") for rows in ok for value in _values(rows, "commit")):
        other = ["commit, perhaps: it is not known"]
    if not machine or not other:
        return ""
    return f"other machines ({', '.join(machine)}), and another {', '.join(other)}: either may be the cause"


def _caution(sides: Sequence[Sides], values: Mapping[str, list[list[str]]]) -> str:
    """Return what weakens every verdict, or why there is none, given the values of each setting, side by side."""
    if not sides:
        apart = [name for name, (a, b) in values.items() if a and b and not {*a} & {*b}]
        return " ".join(["No setting is in both.", *(f"No value of {name} is." for name in apart)])
    text = (
        "The two sides ran at different times: if the machine changed in between, that looks like a difference. In a "
        "race both take turns."
    )
    if once := sum(any(len(run_means(rows)[0]) == 1 for rows in both) for both in sides):
        text += f" {once} of {len(sides)} settings ran once on a side. Run tclab.sweep(…, repeats=3) into each folder."
    return text


# ---- ratio, interval and verdict


def ratio_of_runs(first: Reals, second: Reals) -> tuple[float, tuple[float, float] | None, float | None]:
    """Return how many times as long the second runs' steps take as the first's, its 95 % interval and its p value.

    Both are the runs' mean seconds of a step, [runs].

    The interval is Student's of the logarithms of the runs' means, with the degrees of freedom of the side that has
    fewer. That bound holds for any two variances (Mickey and Brown, Annals of Mathematical Statistics 37, 1966,
    639-642); Welch's estimate of them does not for two or three runs. With one run on a side there is neither.
    """
    from scipy.special import stdtr

    logs = [np.log(first), np.log(second)]
    middle, freedom = float(logs[1].mean() - logs[0].mean()), min(map(len, logs)) - 1
    if freedom < 1:
        return exp(middle), None, None
    error = max(sqrt(sum(own.var(ddof=1) / len(own) for own in logs)), 1e-12)
    low, high = Estimate(middle, error, freedom).interval() or (middle, middle)
    p = float(2 * stdtr(freedom, -abs(middle) / error))
    return exp(middle), (exp(max(low, -_MOST_REACH)), exp(min(high, _MOST_REACH))), p


def run_means(rows: pd.DataFrame) -> tuple[Reals, int]:
    """Return the mean seconds of a step of each row that has a time, [runs], and how many steps all had together.

    Means are over whole cycles; see `tclab.timing._step_means`.
    """
    ok = rows[(rows["status"] == "ok") & rows["samples_seconds"].notna()]
    cycles: Iterable[Any] = ok["cycle_steps"].dropna() if "cycle_steps" in ok else ()
    every, cycle = map(np.asarray, ok["samples_seconds"]), max(map(int, cycles), default=1)
    kept = [own[own > 0] for own in every if (own > 0).any()]
    return np.array([mean_step(own, cycle).value for own in kept]), sum(map(len, kept))


def pairs_of_runs(
    points: Sequence[tuple[str, pd.DataFrame, pd.DataFrame]], names: Sequence[tuple[str, str]], *,
    margin: float = MARGIN,
) -> list[Pair]:  # fmt: skip
    """Return the comparison of each point, about the second runs; the false discovery rate holds over all.

    Where a side has one run, how much two runs of the same differ is not known, and nothing is decided. A side that
    shared the processors with other processes may take less time alone: it is never called the slower one, nor the same
    as the other.

    **Arguments:**

    - `points`: for each its label, the rows of the first runs and those of the second.
    - `names`: of first and second, for each point.
    - `margin`: a share that a difference must exceed.
    """
    from scipy.stats import false_discovery_control

    compared = [_pair(words, sides, named, margin) for (words, *sides), named in zip(points, names, strict=True)]
    ps = [p for _, p in compared if p is not None]
    qs = iter(false_discovery_control(ps) if ps else ())
    return [_unless_by_chance(pair, p is not None and next(qs) > ALPHA, len(ps)) for pair, p in compared]


def _unless_by_chance(pair: Pair, may_be_chance: bool, comparisons: int) -> Pair:
    if pair.verdict not in (FASTER, SLOWER) or not may_be_chance:
        return pair
    reason = f"among {counted(comparisons, 'comparison')} such a difference may be chance: more runs may decide"
    return replace(pair, verdict=UNDECIDED, reason=reason)


def _pair(
    words: str, sides: Sequence[pd.DataFrame], names: tuple[str, str], margin: float
) -> tuple[Pair, float | None]:  # fmt: skip
    """Return the comparison of a point, before the others are known, and the p value of equal times if it counts."""
    means, steps = zip(*map(run_means, sides), strict=True)
    runs = (len(means[0]), len(means[1]))
    pair = Pair(names[1], names[0], margin=margin, runs=runs, cell=words)
    for name, rows, timed in zip(names, sides, steps, strict=True):
        if not timed:
            return replace(pair, reason=f"no time in {name}: {', '.join(sorted(set(map(str, rows['status']))))}"), None
    ratio, interval, p = ratio_of_runs(*means)
    pair = replace(pair, ratio=ratio, interval=interval, kept=min(steps))
    if pair.kept < MIN_OBSERVATIONS:
        return replace(pair, reason=f"{pair.kept} steps were timed, at least {MIN_OBSERVATIONS} are needed"), None
    for name, rows in zip(names, sides, strict=True):
        if (rows["steady"] == NOT_STEADY).any():
            return replace(pair, reason=f"steps of {name} were still changing: warm up longer"), None
    shared = [name for name, rows in zip(names, sides, strict=True) if rows["contention"].notna().any()]
    verdict = decide(*(interval or (ratio, ratio)), margin)
    slower = {FASTER: [names[0]], SLOWER: [names[1]]}.get(verdict, shared)
    if verdict != UNDECIDED and any(name in shared for name in slower):
        reason = f"other programs used the CPU while {' and '.join(shared)} ran"
        return replace(pair, reason=reason, obstacle=BUSY), None
    if interval is None:
        once = "one run each" if max(runs) == 1 else f"one run of {names[runs.index(1)]}"
        reason = f"{once}; run-to-run variation is not known: repeats=3 measures it"
        return replace(pair, reason=reason, obstacle=ONCE), None
    return replace(pair, verdict=verdict), p
