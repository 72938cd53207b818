"""Ratio, interval and verdict of steps that ran at different times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from tclab.timing import SAME, UNDECIDED, Pair
from tclab.timing._statistics import FEWEST, Reals, false_discovery, intervals, thicken
from tclab.timing._verdict import decide
from tclab.timing._warmup import NOT_STEADY

_ALPHA = 0.05


def ratio_of_runs(
    first: Sequence[Reals], second: Sequence[Reals], *, alpha: float = _ALPHA
) -> tuple[float, tuple[float, float] | None]:
    """Return how many times as long the second runs' steps take as the first's, and its interval.

    The ratio of the medians over steps. Each side's interval is `tclab.timing._statistics.intervals` of its log
    seconds, run by run; the two are put together as of independent estimates (Zou and Donner, Statistics in
    Medicine 27 (2008), 1693-1702): the distances to the ends add up in squares. `None` where a side has too few
    steps.

    **Arguments:**

    - `first`, `second`: for each run its steps' seconds.
    - `alpha`: the chance that the interval may miss: 95 % is for a ratio alone, of k each takes a k-th of it.
    """
    (a, ends_a), (b, ends_b) = (
        _median(tuple(tuple(map(float, run)) for run in side), alpha) for side in (first, second)
    )
    if ends_a is None or ends_b is None:
        return float(np.exp(b - a)), None
    low = b - a - np.hypot(b - ends_b[0], ends_a[1] - a)
    high = b - a + np.hypot(ends_b[1] - b, a - ends_a[0])
    return float(np.exp(b - a)), (float(np.exp(low)), float(np.exp(high)))


@lru_cache(maxsize=256)  # a live chart asks again for every strategy when one more point is through
def _median(runs: tuple[tuple[float, ...], ...], alpha: float) -> tuple[float, tuple[float, float] | None]:
    """Return the median of some runs' log seconds and its interval; `None` where there are too few steps."""
    logs = [np.log(np.asarray(run, dtype=np.float64)) for run in runs]
    units = thicken(logs)[0]
    few = sum(map(len, units)) < FEWEST
    return float(np.median(np.concatenate(logs))), None if few else intervals(units, [1 - alpha])[0]


def samples_of_runs(rows: pd.DataFrame) -> list[Reals]:
    """Return the seconds of the steps of each row that has any."""
    lists = [s for s in rows[rows["status"] == "ok"]["samples_seconds"] if s is not None and np.ndim(s)]
    found = [np.asarray(seconds, dtype=np.float64) for seconds in lists]
    return [seconds[seconds > 0] for seconds in found if (seconds > 0).any()]


def pairs_of_runs(
    points: Sequence[tuple[str, pd.DataFrame, pd.DataFrame]],
    names: tuple[str, str] | list[tuple[str, str]],
    *,
    margin: float,
) -> list[Pair]:
    """Return the comparison of each point, about the second runs; the false discovery rate holds over all.

    **Arguments:**

    - `points`: for each its label, the rows of the first runs and those of the second.
    - `names`: of first and second, one pair or a pair for each point.
    - `margin`: a share that a difference must exceed.
    """
    each = names if isinstance(names, list) else [names] * len(points)
    found = [
        _pair(words, (first, second), named, margin) for (words, first, second), named in zip(points, each, strict=True)
    ]
    judged = [place for place, (_, p) in enumerate(found) if p is not None]
    qs = dict(zip(judged, false_discovery([found[place][1] or 0.0 for place in judged]), strict=True))
    return [_settled(pair, qs[place]) if place in qs else pair for place, (pair, _) in enumerate(found)]


def _pair(
    words: str, sides: tuple[pd.DataFrame, pd.DataFrame], names: tuple[str, str], margin: float
) -> tuple[Pair, float | None]:
    """Return a comparison whose verdict is open, and the p of no difference, by ranks, where it may have one."""
    from scipy.stats import mannwhitneyu

    first, second = names
    pair = Pair(second, first, UNDECIDED, "", margin=margin, alpha=_ALPHA, cell=words)
    samples = [samples_of_runs(rows) for rows in sides]
    for name, rows, seconds in zip(names, sides, samples, strict=True):
        if not seconds:
            status = sorted({str(value) for value in rows["status"]})
            return replace(pair, why=f"no time in {name}: {', '.join(status)}"), None
    ratio, interval = ratio_of_runs(*samples)
    kept = min(sum(map(len, seconds)) for seconds in samples)
    pair = replace(pair, ratio=ratio, interval=interval, deciding=interval, kept=kept)
    if interval is None:
        return replace(pair, why=f"{kept} steps were timed, at least {FEWEST} that are independent are needed"), None
    for name, rows in zip(names, sides, strict=True):
        if (rows["steady"] == NOT_STEADY).any():
            return replace(pair, why=f"steps of {name} were still changing: warm up longer"), None
    p: Any = mannwhitneyu(np.concatenate(samples[1]), np.concatenate(samples[0])).pvalue
    return pair, float(p)


def _settled(pair: Pair, q: float) -> Pair:
    assert pair.deciding is not None
    low, high = np.log(pair.deciding)
    verdict = decide(low, high, pair.margin)
    edge = f"±{pair.margin:.0%}"
    if verdict not in (SAME, UNDECIDED) and q > pair.alpha:
        return replace(pair, q=q, why=f"beyond {edge}, and the rank test has q = {q:.2g}")
    words = {SAME: "within", UNDECIDED: "the interval reaches across"}.get(verdict, "beyond")
    return replace(pair, q=q, verdict=verdict, why=f"{words} {edge}")
