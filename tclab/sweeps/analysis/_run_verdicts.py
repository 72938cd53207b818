"""Ratio, interval and verdict of steps that ran at different times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd

from tclab.timing._statistics import MIN_OBSERVATIONS, false_discovery
from tclab.timing._step_means import Estimate, mean_step, ratio_of_means
from tclab.timing._verdict import LEAST_MARGIN, MOST_MARGIN, SAME, UNDECIDED, Pair, decide, undecided
from tclab.timing._warmup import NOT_STEADY

_ALPHA = 0.05
WITHOUT_REPEATS = 0.05  # the margin by convention, where runs do not say how much they differ


@dataclass(frozen=True)
class StepRuns:
    """The steps of runs of one point."""

    seconds: tuple[tuple[float, ...], ...]  # for each run [steps]
    cycle: int = 1  # steps after which the point's loop does the same again; see `tclab.timing._step_means`

    @property
    def steps(self) -> int:
        """Number of steps of all runs."""
        return sum(map(len, self.seconds))

    @property
    def spread(self) -> float | None:
        """Standard deviation of the runs' mean steps, as a share of their mean; `None` for one run.

        It has what lasts for a run in it, and what is left of the steps' own noise.
        """
        runs = len(self.seconds)
        mean = _mean(self) if runs > 1 else None
        return None if mean is None or mean.error is None else mean.error * sqrt(runs) / mean.value


def ratio_of_runs(
    first: StepRuns, second: StepRuns, *, alpha: float = _ALPHA
) -> tuple[float, tuple[float, float] | None, float | None]:
    """Return how many times as long the second runs' steps take as the first's, its interval and its p value.

    The ratio of the mean steps, over whole cycles; see `tclab.timing._step_means`. Interval and p value are
    Student's, and `None` where a side has fewer than 6 steps or 2 blocks of them. A run is one measurement on a side of
    several; where the other side has one run, that is taken to differ from others of its kind as much as these do.
    `alpha` is the chance that the interval may miss: 5 % for a ratio alone, a k-th of it for each of k.
    """
    means = [_mean(first), _mean(second)]
    for one, (own, other) in enumerate(((first, second), (second, first))):
        if len(own.seconds) == 1 and other.spread is not None and means[one].error is not None:
            # Student's interval of a single further run: all of its error is known from the runs of the other side
            runs = len(other.seconds)
            error = means[one].value * other.spread * sqrt(1 + 1 / runs)
            means[one] = replace(means[one], error=error, freedom=runs - 1)
            means[1 - one] = replace(means[1 - one], error=0.0)
    ratio, interval, p = ratio_of_means(means[0], means[1], 1 - alpha)
    return (ratio, interval, p) if min(first.steps, second.steps) >= MIN_OBSERVATIONS else (ratio, None, None)


@lru_cache(maxsize=256)  # a live chart asks again for every strategy when one more point is through
def _mean(runs: StepRuns) -> Estimate:
    return mean_step([np.asarray(run, dtype=np.float64) for run in runs.seconds], runs.cycle)


def runs_of(rows: pd.DataFrame) -> StepRuns:
    """Return the steps of each row that has a time; those with none at all are left out."""
    ok = rows[(rows["status"] == "ok") & rows["samples_seconds"].notna()]
    found = [np.asarray(seconds, dtype=np.float64) for seconds in ok["samples_seconds"]]
    kept = tuple(tuple(seconds[seconds > 0].tolist()) for seconds in found if (seconds > 0).any())
    cycles: Iterable[Any] = ok["cycle_steps"].dropna() if "cycle_steps" in ok else ()
    return StepRuns(kept, max(map(int, cycles), default=1))


def pairs_of_runs(
    points: Sequence[tuple[str, pd.DataFrame, pd.DataFrame]],
    names: tuple[str, str] | list[tuple[str, str]],
    *,
    margin: float | None,
) -> list[Pair]:
    """Return the comparison of each point, about the second runs; the false discovery rate holds over all.

    A verdict of sides with one run each says so: how much two runs of the same differ is not known of them.

    **Arguments:**

    - `points`: for each its label, the rows of the first runs and those of the second.
    - `names`: of first and second, one pair or a pair for each point.
    - `margin`: a share that a difference must exceed. `None`: what runs of one side differ by, at least 1 %, and 5 %
      where a side has one run.
    """
    each = names if isinstance(names, list) else [names] * len(points)
    found = [
        _pair(words, (first, second), named, margin) for (words, first, second), named in zip(points, each, strict=True)
    ]
    judged = [place for place, (_, p) in enumerate(found) if p is not None]
    qs = dict(zip(judged, false_discovery([found[place][1] or 0.0 for place in judged]), strict=True))
    widest = MOST_MARGIN if margin is None else margin
    return [_settled(pair, qs[place], widest) if place in qs else pair for place, (pair, _) in enumerate(found)]


def _pair(
    words: str, sides: tuple[pd.DataFrame, pd.DataFrame], names: tuple[str, str], margin: float | None
) -> tuple[Pair, float | None]:
    """Return a comparison whose verdict is open, and the p of no difference, where it may have one."""
    first, second = names
    samples = [runs_of(rows) for rows in sides]
    if margin is None:
        spreads = [own.spread for own in samples]
        margin = WITHOUT_REPEATS if None in spreads else max(LEAST_MARGIN, *(spread or 0.0 for spread in spreads))
    pair = Pair(second, first, UNDECIDED, "", margin=margin, alpha=_ALPHA, cell=words)
    for name, rows, own in zip(names, sides, samples, strict=True):
        if not own.steps:
            status = sorted({str(value) for value in rows["status"]})
            return replace(pair, why=f"no time in {name}: {', '.join(status)}"), None
    ratio, interval, p = ratio_of_runs(*samples)
    kept = min(own.steps for own in samples)
    pair = replace(pair, ratio=ratio, interval=interval, decision_interval=interval, kept=kept)
    if interval is None:
        return replace(pair, why=_too_few(samples)), None
    for name, rows in zip(names, sides, strict=True):
        if (rows["steady"] == NOT_STEADY).any():
            return replace(pair, why=f"steps of {name} were still changing: warm up longer"), None
    runs = [len(own.seconds) for own in samples]
    return replace(pair, why="of one run each" if max(runs) == 1 else f"of {runs[0]} and {runs[1]} runs"), p


def _too_few(samples: Sequence[StepRuns]) -> str:
    own = min(samples, key=lambda runs: runs.steps / runs.cycle)
    if own.steps < MIN_OBSERVATIONS:
        return f"{own.steps} steps were timed, at least {MIN_OBSERVATIONS} are needed"
    return f"{own.steps} steps were timed, at least two cycles of {own.cycle} are needed"


def _settled(pair: Pair, q: float, widest: float) -> Pair:
    assert pair.decision_interval is not None
    low, high = np.log(pair.decision_interval)
    verdict = decide(low, high, pair.margin, widest=widest)
    edge = f"±{100 * pair.margin:.2g}%"
    if verdict not in (SAME, UNDECIDED) and q > pair.alpha:
        return replace(pair, q=q, why=f"beyond {edge}, {pair.why}, and Welch's test has q = {q:.2g}")
    words = f"{'within' if verdict == SAME else 'beyond'} {edge}"
    if verdict == UNDECIDED:
        words = f"the interval {undecided(low, high, pair.margin, edge)}"
    return replace(pair, q=q, verdict=verdict, why=f"{words}, {pair.why}")
