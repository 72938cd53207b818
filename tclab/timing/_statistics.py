"""Statistics of comparisons: bootstrap intervals, autocorrelation, the alpha of each budget, false discoveries.

The functions take arrays of log ratios, and use scipy where it has the method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]

ALPHA = 0.05  # probability of a false verdict in a race, over all times that it goes on
AUTOCORRELATION = 0.1  # lag-1 autocorrelation within ± this counts as independence
MIN_OBSERVATIONS = 6  # units; with fewer, not even all on one side would reach 5 % two-sided (2 / 2**5 = 0.0625)
MIN_JOINED = 12  # units; joining stops where it would leave fewer
_RESAMPLES = 2000
_SEED = 20260912  # of the bootstrap, so that the same samples give the same interval everywhere


def alpha_of(extension: int) -> float:
    """Return the share of `ALPHA` for the verdict at the end of a budget that was made larger so many times.

    The first budget has half of alpha, the first larger one half of what is left, and so on. However often a race goes
    on, and for whatever reason, the shares add up to at most alpha, and by the union bound so does the probability of a
    false verdict.
    """
    return float(ALPHA * 0.5 ** (extension + 1))


def average_ranks(values: Reals) -> Reals:
    """Return the ranks of values from 1 on; equal ones share the mean of theirs.

    As `scipy.stats.rankdata` has them, whose import takes each process that runs a point most of a second.
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place])


def lag_one(groups: Sequence[Reals]) -> float:
    """Return the pooled lag-1 autocorrelation of the ranks within groups; 0 where all values are equal.

    Ranks keep one outlier from hiding it.
    """
    above = below = 0.0
    for values in groups:
        ranks = average_ranks(values) - (len(values) + 1) / 2
        above += float((ranks[1:] * ranks[:-1]).sum())
        below += float((ranks * ranks).sum())
    return above / below if below else 0.0


def _draws(groups: Sequence[Reals], generator: Any) -> Reals:
    """Return bootstrap medians, [resamples]: processes with replacement, then units within each."""
    if len(groups) == 1:
        (values,) = groups
        return np.asarray(np.median(values[generator.integers(len(values), size=(_RESAMPLES, len(values)))], axis=1))
    longest = max(map(len, groups))
    padded = np.full((len(groups), longest), np.nan)
    lengths = np.array([len(values) for values in groups])
    for row, values in zip(padded, groups, strict=True):
        row[: len(values)] = values
    chosen = generator.integers(len(groups), size=(_RESAMPLES, len(groups)))
    at = (generator.random((_RESAMPLES, len(groups), longest)) * lengths[chosen][..., None]).astype(np.int64)
    drawn = padded[chosen[..., None], at]
    drawn[np.arange(longest) >= lengths[chosen][..., None]] = np.nan  # a short process stays short
    return np.asarray(np.nanmedian(drawn.reshape(_RESAMPLES, -1), axis=1))


def bootstrap_interval(groups: Sequence[Reals], level: float = 0.95) -> tuple[float, float]:
    """Return the percentile interval of the median by hierarchical bootstrap (process, then unit).

    A bootstrap of few processes gives intervals that are too narrow: with 3 of them the interval ends near the
    outermost process, and in one case of four all three lie on the same side of the truth. So where processes differ by
    more than their units explain, the interval is at least Student's interval of the processes' medians.
    """
    from scipy.stats import t

    tail = (1 - level) / 2
    low, high = np.quantile(_draws(groups, np.random.default_rng(_SEED)), [tail, 1 - tail]).tolist()
    medians = np.array([np.median(values) for values in groups])
    # the variance of a median of n values is about (π/2) σ²/n, with σ from the quartiles, 1.349 σ apart
    spread = [np.subtract(*np.quantile(values, [0.75, 0.25])) / 1.349 for values in groups]
    within = np.mean([np.pi / 2 * s * s / len(v) for s, v in zip(spread, groups, strict=True)])
    if len(groups) > 1 and medians.var(ddof=1) > within:
        reach = float(t.ppf(1 - tail, len(groups) - 1) * medians.std(ddof=1) / np.sqrt(len(groups)))
        low, high = min(low, medians.mean() - reach), max(high, medians.mean() + reach)
    return float(low), float(high)


def false_discovery(ps: Sequence[float]) -> list[float]:
    """Return p values adjusted over a set of comparisons (Benjamini and Hochberg 1995)."""
    from scipy.stats import false_discovery_control

    return false_discovery_control(ps).tolist() if len(ps) else []
