"""Mean seconds of steps and shares of stages: totals over whole cycles, with intervals; and whether steps are steady.

With W loader workers on a step that waits for them, batches arrive in bursts: one long wait, then W - 1 that are ready.
The median step is then one that waited for nothing, so a throughput or a share is never made of it. Every figure that
describes more than one step is made here:

- A cycle is the number of steps after which a loop does the same again: the least common multiple of the loader's
  workers (each has delivered one batch), the batches to one optimizer step, and the steps from gather to gather.
- Totals are over the last whole number of cycles; the first steps, which fill none, are left out. The total over W
  steps in a row is the same wherever it begins. Where there is no whole cycle they are over all steps.
- A share is the total of a part over the total of the whole. Means of the parts add up to the mean of the whole.
- Intervals are Student's, over blocks of whole cycles: steps of one cycle depend on one another, cycles hardly do.
  Blocks are joined while they are correlated. With one block there is no interval. No step is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lcm, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tclab._display import counted, seconds_text
from tclab.errors import InputError

Reals = NDArray[np.float64]

MIN_OBSERVATIONS = 6  # steps; with fewer, not even all on one side would reach 5 % two-sided (2 / 2**5 = 0.0625)
_WAITING = 0.01  # share of the time below which nobody waits for a loader
_CLOSE = 0.1  # share by which steps may be shorter than their workers' own times: costs vary
_AUTOCORRELATION = 0.1  # lag-1 autocorrelation within ± this counts as independence
_MIN_JOINED = 12  # blocks; joining stops where it would leave fewer

STEADY, NOT_STEADY = "steady", "not steady"
_MIN_STEPS = 20  # with fewer there is no verdict on whether they are steady
_SMALLEST_CHANGE = 0.01  # of the median; a smaller change is not warm-up
_ALPHA = 0.05  # of the change-point test, over all change points
_BATCH = 5  # steps a batch, where there are enough steps

Interval = tuple[float, float]


class Estimate(NamedTuple):
    """An estimate and its standard error, with the error's degrees of freedom."""

    value: float  # a mean, or the share of a whole
    error: float | None  # `None` for one block
    freedom: float

    def interval(self, level: float = 0.95) -> Interval | None:
        """Return Student's interval; that of a share may end below 0 or above 1. `None` for one block."""
        from scipy.special import stdtrit

        if self.error is None:
            return None
        reach = float(stdtrit(self.freedom, (1 + level) / 2)) * self.error
        return self.value - reach, self.value + reach

    def interval_of_ratio(self) -> Interval | None:
        """Return the 95 % interval of a value above 0, symmetric in its logarithm. `None` for one block."""
        ends = self.interval()
        if ends is None:
            return None
        factor = exp(min(ends[1] / self.value - 1, 700.0))
        return self.value / factor, self.value * factor


def cycle_of(*periods: int | None) -> int:
    """Return the number of steps after which a loop does the same again; one that it does not have is 0."""
    return lcm(*(period for period in periods if period))


def steps_wait(waits: Reals, whole: Reals) -> bool:
    """Return whether steps wait for their loader: for 1 % of the time or more. Else its workers make no cycle."""
    return bool(waits.sum() > _WAITING * whole.sum())


def made_ahead(workers: int, batch_seconds: float, step_seconds: float) -> str:
    """Return why steps cannot go on so fast, as batches are not made so fast; empty where they can.

    **Arguments:**

    - `workers`: of the loader, at least 1.
    - `batch_seconds`: mean time in which one of them makes a batch.
    - `step_seconds`: the mean step.
    """
    every = batch_seconds / workers
    if step_seconds >= (1 - _CLOSE) * every:
        return ""
    return (
        f"{counted(workers, 'worker')} cannot give a batch more often than every {seconds_text(every)}: "
        f"steps of {seconds_text(step_seconds)} used batches that were made before them"
    )


def whole_cycles(run: Sequence[float] | Reals, cycle: int) -> Reals:
    """Return the steps that totals are over: the last whole number of cycles, or all where there is no whole one."""
    times = np.asarray(run, dtype=np.float64)
    return times[len(times) % cycle :] if len(times) >= cycle else times


def mean_step(run: Sequence[float] | Reals, cycle: int = 1) -> Estimate:
    """Return the mean of a run's steps, in seconds."""
    kept = whole_cycles(run, cycle)
    return Estimate(float(kept.mean()), *_error(kept, cycle))


def share_of(part: Reals, whole: Reals, cycle: int = 1) -> Estimate:
    """Return the share of all steps' time that a part of each takes: total over total."""
    part, whole = whole_cycles(part, cycle), whole_cycles(whole, cycle)
    share = float(part.sum() / whole.sum())
    # the error of a ratio of totals is that of the mean of what each block's part differs from its share
    error, freedom = _error((part - share * whole) / whole.mean(), cycle)
    return Estimate(share, error, freedom)


def _error(run: Reals, cycle: int) -> tuple[float | None, float]:
    """Return the standard error of the mean of a run's steps, and its degrees of freedom.

    It is that of blocks of cycles, joined in pairs while they are correlated and enough would be left.
    """
    blocks = cycle_means(run, cycle)
    while len(blocks) // 2 >= _MIN_JOINED and lag_one(blocks) > _AUTOCORRELATION:
        cycle *= 2
        blocks = cycle_means(run, cycle)
    n = len(blocks)
    return (float(blocks.std(ddof=1)) / sqrt(n) if n > 1 else None), n - 1


def cycle_means(run: Reals, size: int) -> Reals:
    """Return the mean of each cycle, or block of cycles, of a run; the first steps, which fill none, are left out."""
    whole = whole_cycles(run, size)
    return np.asarray(whole.reshape(-1, min(size, max(len(whole), 1))).mean(axis=1))


def average_ranks(values: Reals) -> Reals:
    """Return the ranks of values from 1 on; equal ones share the mean of theirs.

    As `scipy.stats.rankdata` has them, whose import takes each process that runs a point most of a second.
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place])


def lag_one(values: Reals) -> float:
    """Return the lag-1 autocorrelation of the ranks of values, among which one outlier cannot hide it; 0 if all tie."""
    ranks = average_ranks(values) - (len(values) + 1) / 2
    below = float(ranks @ ranks)
    return float(ranks[1:] @ ranks[:-1]) / below if below else 0.0


# ---- warm-up


class SteadyState(NamedTuple):
    """Whether a series of steps is steady: warm-up was over before it, or within its first half."""

    verdict: str | None  # "steady", "not steady", or `None` if there are too few steps for a verdict
    why: str = ""  # they are not


def steady_state(seconds: Sequence[float], cycle: int = 1) -> SteadyState:
    """Return whether a series of steps is steady: without a change of more than 1 % in its larger half.

    While Pettitt's test finds such a change, everything before it is left out, down to half of the steps: fewer may be
    a lull in a drift. The test runs on medians of five steps, or of more where adjacent steps are correlated, so that
    neither an outlier nor autocorrelated noise counts as a change.

    **Arguments:**

    - `seconds`: [steps] time of each step from the first one on.
    - `cycle`: steps after which the loop does the same again; what follows is then of the means of cycles.

    **Raises:** `InputError` for times that are not above 0.
    """
    times = cycle_means(np.asarray(seconds, dtype=np.float64), cycle)
    n = len(times)
    if n < _MIN_STEPS:
        return SteadyState(None)
    if not (np.isfinite(times) & (times > 0)).all():
        raise InputError("a step took 0 seconds or no finite time; expected times above 0")
    values = np.log(times)
    while len(values) >= n / 2:
        size = _batch_size(values)
        batches = np.median(values[len(values) % size :].reshape(-1, size), axis=1)
        at, p = pettitt(batches)
        before, after = (float(np.exp(np.median(part))) for part in (batches[: at + 1], batches[at + 1 :]))
        change = after / before - 1
        if p > _ALPHA or abs(change) < _SMALLEST_CHANGE:
            return SteadyState(STEADY)
        values = values[len(values) % size + (at + 1) * size :]
    went = f"from {seconds_text(before)} to {seconds_text(after)}"
    return SteadyState(NOT_STEADY, f"{went}, which the last {len(values) * cycle} of {len(seconds)} steps took")


def pettitt(values: Reals) -> tuple[int, float]:
    """Return the last place before a series' most likely change point, and the p value of no change.

    Pettitt, A non-parametric approach to the change-point problem, Applied Statistics 28 (1979), 126-135:
    K = max |U|, U[t] = 2 Σ ranks up to t − t (n + 1), p ≈ 2 exp(−6 K² / (n³ + n²)).
    """
    n = len(values)
    t = np.arange(1, n)
    u = 2 * np.cumsum(average_ranks(values))[:-1] - t * (n + 1)
    at = int(np.abs(u).argmax())
    return at, float(min(1.0, 2 * np.exp(-6 * float(u[at]) ** 2 / (n**3 + n**2))))


def _batch_size(values: Reals) -> int:
    """Return how many steps make batches that are nearly independent, for at least twenty batches.

    The batch means of an AR(1) process with coefficient φ have a lag-1 autocorrelation near φ / (size (1 − φ²)). φ is
    estimated from the variances of differences at lags 2 and 1, whose ratio is 1 + φ: a drift or a step change, which
    is no autocorrelation, hardly affects either.
    """
    centred = np.clip(values - np.median(values), *np.quantile(values - np.median(values), [0.02, 0.95]))
    near, far = (float(np.var(centred[k:] - centred[:-k])) for k in (1, 2))
    phi = min(max(far / near - 1, 0.0), 0.95) if near > 0 else 0.0
    size = max(_BATCH, int(np.ceil(phi / (_AUTOCORRELATION * (1 - phi**2)))))
    return max(1, min(size, len(values) // _MIN_STEPS))
