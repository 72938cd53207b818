"""Warm-up: where the steady part of a series of steps begins, from counters and a change-point test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tclab.errors import InputError
from tclab.timing._statistics import AUTOCORRELATION, Reals, average_ranks

STEADY, NOT_STEADY = "steady", "not steady"
MIN_STEPS = 20  # with fewer there is no verdict
SMALLEST_CHANGE = 0.01  # of the median; a smaller change is not warm-up
ALPHA = 0.05  # of the change-point test, over all change points
_MIN_BATCHES = 20  # with fewer, Pettitt's test has next to no power
_BATCH = 5  # steps a batch, as in MSER-5, where there are enough steps


@dataclass(frozen=True)
class SteadyState:
    """Whether and from where a series of steps is steady."""

    verdict: str | None  # "steady", "not steady", or `None` if there are too few steps for a verdict
    begin: int | None  # first step of the steady part; `None` if there is none
    why: str


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


def mser(values: Reals) -> int:
    """Return how many first values to leave out so that the standard error of the mean of the rest is least.

    This is the marginal standard error rule: White, An effective truncation heuristic for bias reduction in simulation
    output, Simulation 69 (1997), 323-334: minimise Σ (x − mean)² / (n − d)², d at most half of them.
    """
    n = len(values)
    reverse = values[::-1] - values.mean()
    left = np.arange(1, n + 1)
    total = np.cumsum(reverse)
    errors = ((np.cumsum(reverse**2) - total**2 / left) / left**2)[::-1]
    return int(errors[: n // 2 + 1].argmin())


def steady_state(seconds: Sequence[float]) -> SteadyState:
    """Return whether warm-up is over, and where the steady part begins.

    This leaves out the start that MSER leaves out and, while Pettitt's test finds a change of more than 1 % in the
    rest, everything before that change. The steady part must be the larger half of the steps: fewer may be a lull in a
    drift. The tests run on medians of five steps, or of more where adjacent steps are correlated, so that neither an
    outlier nor autocorrelated noise counts as a change.

    **Arguments:**

    - `seconds`: [steps] time of each step from the first one on.

    **Raises:** `InputError` for times that are not above 0.
    """
    n = len(seconds)
    if n < MIN_STEPS:
        return SteadyState(None, None, f"{n} steps, at least {MIN_STEPS} are needed for a verdict")
    times = np.asarray(seconds, dtype=np.float64)
    if not (np.isfinite(times) & (times > 0)).all():
        raise InputError("a step took 0 seconds or no finite time; expected times above 0")
    values, begin = np.log(times), 0
    size = _batch_size(values)
    batches = _batched(values, size)
    left_out = mser(_clipped(batches))
    if 0 < left_out < len(batches) // 2:  # at half, MSER found no end, and the test below judges the whole
        begin = n % size + left_out * size
    while begin <= n // 2:
        size = _batch_size(values[begin:])
        batches = _batched(values[begin:], size)
        at, p = pettitt(batches)
        before, after = np.median(batches[: at + 1]), np.median(batches[at + 1 :])
        change = np.expm1(after - before)
        if p > ALPHA or abs(change) < SMALLEST_CHANGE:
            return SteadyState(STEADY, begin, f"no change of more than {SMALLEST_CHANGE:.0%} from step {begin} on")
        begin += (n - begin) % size + (at + 1) * size
    return SteadyState(NOT_STEADY, None, f"the steps still changed by {change:+.1%} at step {begin} of {n}")


def _batched(values: Reals, size: int) -> Reals:
    """Return medians of `size` values each; the first values that fill no batch are left out."""
    whole = values[len(values) % size :]
    return np.asarray(np.median(whole.reshape(-1, size), axis=1))


def _clipped(values: Reals) -> Reals:
    """Return values clipped at 4 σ (from the quartiles) above the median, since outliers dominate MSER's squares."""
    q1, median, q3 = np.quantile(values, [0.25, 0.5, 0.75])
    return np.minimum(values, median + 4 * (q3 - q1) / 1.349) if q3 > q1 else values


def _batch_size(values: Reals) -> int:
    """Return how many steps make batches that are nearly independent, for at least twenty batches.

    The batch means of an AR(1) process with coefficient φ have a lag-1 autocorrelation near φ / (size (1 − φ²)). φ is
    estimated from the variances of differences at lags 2 and 1, whose ratio is 1 + φ: a drift or a step change, which
    is no autocorrelation, hardly affects either.
    """
    centred = np.clip(values - np.median(values), *np.quantile(values - np.median(values), [0.02, 0.95]))
    near, far = (float(np.var(centred[k:] - centred[:-k])) for k in (1, 2))
    phi = min(max(far / near - 1, 0.0), 0.95) if near > 0 else 0.0
    size = max(_BATCH, int(np.ceil(phi / (AUTOCORRELATION * (1 - phi**2)))))
    return max(1, min(size, len(values) // _MIN_BATCHES))
