"""Ratio, interval and verdict of steps that ran at different times: the judge of `compare`, `advise` and findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd

from tclab.timing._statistics import MIN_OBSERVATIONS, Reals
from tclab.timing._step_means import NOT_STEADY, Estimate, mean_step, ratio_of_means
from tclab.timing._verdict import FASTER, MARGIN, MOST_MARGIN, SLOWER, UNDECIDED, Pair, decide, over_all

_ALPHA = 0.05
WITHOUT_REPEATS = 0.05  # the margin by convention, where runs do not say how much they differ


@dataclass(frozen=True)
class StepRuns:
    """The steps of runs of one point."""

    seconds: Sequence[Reals]  # for each run [steps]
    cycle: int = 1  # steps after which the point's loop does the same again; see `tclab.timing._step_means`

    @property
    def steps(self) -> int:
        """Number of steps of all runs."""
        return sum(map(len, self.seconds))

    @cached_property
    def mean(self) -> Estimate:
        """Mean seconds of a step, over whole cycles; there must be a step."""
        return mean_step(self.seconds, self.cycle)

    @property
    def spread(self) -> float | None:
        """Standard deviation of the runs' mean steps, as a share of their mean; `None` for one run.

        It includes what lasts for a whole run, and the rest of the steps' own noise.
        """
        runs = len(self.seconds)
        return None if runs < 2 or self.mean.error is None else self.mean.error * sqrt(runs) / self.mean.value


def ratio_of_runs(first: StepRuns, second: StepRuns) -> tuple[float, tuple[float, float] | None, float | None]:
    """Return how many times as long the second runs' steps take as the first's, its 95 % interval and its p value.

    The ratio is that of the mean steps, over whole cycles; see `tclab.timing._step_means`. Interval and p value are
    Student's, and `None` where a side has fewer than 6 steps or 2 blocks of them. On a side of several runs each run is
    one measurement. Where the other side has one run, its runs are taken to differ as much as these do.
    """
    means = [first.mean, second.mean]
    for one, (own, other) in enumerate(((first, second), (second, first))):
        if len(own.seconds) == 1 and other.spread is not None and own.mean.error is not None:
            # Student's interval of a single further run: all of its error is known from the runs of the other side
            runs = len(other.seconds)
            error = own.mean.value * other.spread * sqrt(1 + 1 / runs)
            means[one] = replace(own.mean, error=error, freedom=runs - 1)
            means[1 - one] = replace(other.mean, error=0.0)
    ratio, interval, p = ratio_of_means(means[0], means[1], 1 - _ALPHA)
    return (ratio, interval, p) if min(first.steps, second.steps) >= MIN_OBSERVATIONS else (ratio, None, None)


def runs_of(rows: pd.DataFrame) -> StepRuns:
    """Return the steps of each row that has a time; those with none at all are left out."""
    ok = rows[(rows["status"] == "ok") & rows["samples_seconds"].notna()]
    found = [np.asarray(seconds, dtype=np.float64) for seconds in ok["samples_seconds"]]
    kept = [seconds[seconds > 0] for seconds in found if (seconds > 0).any()]
    cycles: Iterable[Any] = ok["cycle_steps"].dropna() if "cycle_steps" in ok else ()
    return StepRuns(kept, max(map(int, cycles), default=1))


def pairs_of_runs(
    points: Sequence[tuple[str, pd.DataFrame, pd.DataFrame]],
    names: Sequence[tuple[str, str]],
    *,
    margin: float = MARGIN,
) -> list[Pair]:
    """Return the comparison of each point, about the second runs; the false discovery rate holds over all.

    A verdict of sides with one run each says so: how much two runs of the same differ is not known of them. A side that
    shared the processors with other processes may take less time alone: it is never called the slower one, nor the same
    as the other.

    **Arguments:**

    - `points`: for each its label, the rows of the first runs and those of the second.
    - `names`: of first and second, for each point.
    - `margin`: a share that a difference must exceed; what runs of one side spread by if that is more, and at least
      5 % where a side has one run.
    """
    return over_all(_pair(words, sides, named, margin) for (words, *sides), named in zip(points, names, strict=True))


def _pair(words: str, sides: Sequence[pd.DataFrame], names: tuple[str, str], margin: float) -> Pair:
    """Return the comparison of a point, before the others are known; without a p value where it has no verdict."""
    samples = [runs_of(rows) for rows in sides]
    spreads = [WITHOUT_REPEATS if own.spread is None else own.spread for own in samples]
    pair = Pair(names[1], names[0], UNDECIDED, margin=max(margin, *spreads), alpha=_ALPHA, cell=words)
    for name, rows, own in zip(names, sides, samples, strict=True):
        if not own.steps:
            return replace(pair, reason=f"no time in {name}: {', '.join(sorted(set(map(str, rows['status']))))}")
    ratio, interval, p = ratio_of_runs(*samples)
    pair = replace(pair, ratio=ratio, interval=interval, kept=min(own.steps for own in samples))
    if interval is None:
        few = min(samples, key=lambda own: own.steps / own.cycle)
        needed = max(MIN_OBSERVATIONS, 2 * few.cycle)
        return replace(pair, reason=f"{few.steps} steps were timed, at least {needed} are needed")
    for name, rows in zip(names, sides, strict=True):
        if (rows["steady"] == NOT_STEADY).any():
            return replace(pair, reason=f"steps of {name} were still changing: warm up longer")
    verdict = decide(*interval, pair.margin, widest=max(MOST_MARGIN, margin))
    shared = [name for name, rows in zip(names, sides, strict=True) if rows["contention"].notna().any()]
    slower = {FASTER: [names[0]], SLOWER: [names[1]]}.get(verdict, shared)
    if verdict != UNDECIDED and any(name in shared for name in slower):
        return replace(pair, reason=f"{' and '.join(shared)} shared the processors with other processes")
    runs = [len(own.seconds) for own in samples]
    of_runs = "of one run each" if max(runs) == 1 else f"of {runs[0]} and {runs[1]} runs"
    return replace(pair, verdict=verdict, basis=f"the 95% interval {of_runs}", p=p)
