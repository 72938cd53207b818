"""Whether warm-up is over: counters flat, then a change-point test on the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tclab.timing.errors import TimingError
from tclab.timing.statistics import AUTOCORRELATION, Reals

STEADY, NOT_STEADY = "steady", "not steady"
FEWEST_STEPS = 20  # to say anything
SMALLEST_CHANGE = 0.01  # of the median: a smaller one may be real and is no warm-up
ALPHA = 0.05  # of the change-point test, over all the places that it tries
_FEWEST_BATCHES = 20  # of fewer, Pettitt's test sees next to nothing
_BATCH = 5  # steps, as in MSER-5, where there are enough


@dataclass(frozen=True)
class Settled:
    """Whether the steps so far have become steady.

    **Arguments:**

    - `verdict`: "steady", "not steady", or `None` where there are too few steps to say.
    - `begin`: the first step of the steady part; `None` where there is none.
    - `why`: in words.
    """

    verdict: str | None
    begin: int | None
    why: str


def pettitt(values: Reals) -> tuple[int, float]:
    """Return where a series most likely changes (the last value before it), and the p of no change.

    Pettitt, A non-parametric approach to the change-point problem, Applied Statistics 28 (1979), 126-135:
    K = max |U|, U[t] = 2 Σ ranks up to t − t (n + 1), p ≈ 2 exp(−6 K² / (n³ + n²)).
    """
    from scipy.stats import rankdata

    n = len(values)
    t = np.arange(1, n)
    u = 2 * np.cumsum(rankdata(values))[:-1] - t * (n + 1)
    at = int(np.abs(u).argmax())
    return at, float(min(1.0, 2 * np.exp(-6 * float(u[at]) ** 2 / (n**3 + n**2))))


def mser(values: Reals) -> int:
    """Return how many of the first values to leave out for the mean of the rest to be known best.

    The marginal standard error rule: White, An effective truncation heuristic for bias reduction in simulation
    output, Simulation 69 (1997), 323-334: least Σ (x − mean)² / (n − d)², d at most half of them.
    """
    n = len(values)
    reverse = values[::-1] - values.mean()
    left = np.arange(1, n + 1)
    total = np.cumsum(reverse)
    errors = ((np.cumsum(reverse**2) - total**2 / left) / left**2)[::-1]
    return int(errors[: n // 2 + 1].argmin())


def settled(
    seconds: Sequence[float],
    *,
    segments: Sequence[int] | None = None,
    compiles: Sequence[int] | None = None,
    primed: int = 0,
) -> Settled:
    """Return whether the steps so far say that warm-up is over, and where the steady part begins.

    First what must be flat: counters that still move are warm-up, whatever the clock says. Then the steps: the
    start that MSER leaves out, and, while Pettitt's test finds a change of more than 1 % in what is left, all
    before that change. The steady part must be the larger half of the steps, else they are too few to tell a
    steady part from a lull in a drift. Steps are taken by medians of fives, or more where steps depend on their
    neighbours, so that a wild step is no change and noise with a memory is none either.

    **Arguments:**

    - `seconds`: of each step so far, in order, the first one included.
    - `segments`: how many the allocator held after each step. `compiles`: how often something had been compiled.
    - `primed`: steps until the loader's workers had all given a batch and filled their queues (workers × prefetch).

    **Raises:** `TimingError` for counters of another length than `seconds`.
    """
    n = len(seconds)
    begin, what = primed, "the loader was primed"
    for name, counter in (("allocator segments", segments), ("compiles", compiles)):
        if counter is not None:
            if len(counter) != n:
                raise TimingError(f"{name}: {len(counter)} counts for {n} steps, expected one after each step")
            flat = _flat_from(counter)
            if flat > begin:
                begin, what = flat, f"{name} last changed"
    if n < FEWEST_STEPS:
        return Settled(None, None, f"{n} steps, at least {FEWEST_STEPS} are needed to say")
    if begin > n // 2:
        return Settled(NOT_STEADY, None, f"{what} only at step {begin} of {n}")
    plain = np.asarray(seconds, dtype=np.float64)
    if not (np.isfinite(plain) & (plain > 0)).all():
        raise TimingError("a step took 0 seconds, or no number of them; expected times above 0")
    values = np.log(plain)
    size = _batch_size(values[begin:])
    batches = _batched(values[begin:], size)
    left_out = mser(_clipped(batches))
    if 0 < left_out < len(batches) // 2:  # at half it found no end, so the test below must judge the whole
        begin += (n - begin) % size + left_out * size
    while begin <= n // 2:
        size = _batch_size(values[begin:])
        batches = _batched(values[begin:], size)
        at, p = pettitt(batches)
        before, after = np.median(batches[: at + 1]), np.median(batches[at + 1 :])
        change = np.expm1(after - before)
        if p > ALPHA or abs(change) < SMALLEST_CHANGE:
            return Settled(STEADY, begin, f"no change of more than {SMALLEST_CHANGE:.0%} from step {begin} on")
        begin += (n - begin) % size + (at + 1) * size
    return Settled(NOT_STEADY, None, f"the steps still changed by {change:+.1%} at step {begin} of {n}")


def _flat_from(counter: Sequence[int]) -> int:
    """Return the first step from which on a counter stays the same."""
    moved = [i for i, (a, b) in enumerate(pairwise(counter), start=1) if a != b]
    return moved[-1] if moved else 0


def _batched(values: Reals, size: int) -> Reals:
    """Return medians of so many values each; what does not fill a batch is left out at the front."""
    whole = values[len(values) % size :]
    return np.asarray(np.median(whole.reshape(-1, size), axis=1))


def _clipped(values: Reals) -> Reals:
    """Return values with wild ones drawn in, for MSER is of squares: at most 4 σ (from the quartiles) above."""
    q1, median, q3 = np.quantile(values, [0.25, 0.5, 0.75])
    return np.minimum(values, median + 4 * (q3 - q1) / 1.349) if q3 > q1 else values


def _batch_size(values: Reals) -> int:
    """Return how many steps make batches that hardly depend on one another, at least twenty batches.

    An AR(1) process of coefficient φ has batch means of lag-1 autocorrelation near φ / (size (1 − φ²)). φ comes
    from differences two apart against those one apart, whose variances are as 1 + φ to 1, since a drift or a
    step, which must not be taken for a memory, hardly changes either.
    """
    centred = np.clip(values - np.median(values), *np.quantile(values - np.median(values), [0.02, 0.95]))
    near, far = (float(np.var(centred[k:] - centred[:-k])) for k in (1, 2))
    phi = min(max(far / near - 1, 0.0), 0.95) if near > 0 else 0.0
    size = max(_BATCH, int(np.ceil(phi / (AUTOCORRELATION * (1 - phi**2)))))
    return max(1, min(size, len(values) // _FEWEST_BATCHES))
