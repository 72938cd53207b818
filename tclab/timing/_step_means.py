"""Mean seconds of steps and shares of stages: totals over whole cycles, with intervals over blocks of cycles.

With W loader workers on a step that waits for them, batches arrive in bursts: one long wait, then W - 1 that are ready.
The median step is then one that waited for nothing, so a throughput or a share is never made of it. Every figure that
describes more than one step is made here:

- A cycle is the number of steps after which a loop does the same again: the least common multiple of the loader's
  workers (each has delivered one batch), the batches to one optimizer step, and the steps from gather to gather.
- Totals are over the last whole number of cycles; the first steps, which fill none, are left out. The total over W
  steps in a row is the same wherever it begins. Where there is no whole cycle they are over all steps.
- A share is the total of a part over the total of the whole. Means of the parts add up to the mean of the whole.
- Intervals are Student's, over blocks of whole cycles: steps of one cycle depend on one another, cycles hardly do.
  Blocks are joined while they are correlated. With one block there is no interval.

No step is dropped: `outliers` says where a few of them hold much of the time. `LoaderPace` says where waits contradict
what the workers can give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lcm, log, sqrt

import numpy as np

from tclab._display import counted, seconds_text
from tclab.timing._statistics import AUTOCORRELATION, MIN_JOINED, Reals, lag_one

_WAITING = 0.01  # share of the time below which nobody waits for a loader
_FAR = 3.0  # times the median cycle, from which one is an outlier
_MUCH = 0.1  # share of the time that outliers must hold, beyond a median cycle each, to be reported
_CLOSE = 0.1  # share of a step by which waiting may differ from the workers' own times: costs vary
_MIN_CYCLES = 5  # with fewer, none can be told from the others

Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
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


def whole_cycles(steps: int, cycle: int) -> slice:
    """Return the steps that totals are over: the last whole number of cycles, or all where there is no whole one."""
    whole = steps // cycle * cycle
    return slice(steps - whole if whole else 0, steps)


def mean_step(runs: Sequence[Reals], cycle: int = 1) -> Estimate:
    """Return the mean of runs' steps, in seconds.

    Of several runs each mean counts once, and the error is that of these means: what the steps of one run do not show,
    such as the luck of its process, is in what runs differ by (Kalibera and Jones, Rigorous benchmarking in reasonable
    time, ISMM 2013, 63-74).
    """
    kept = [np.asarray(run, dtype=np.float64)[whole_cycles(len(run), cycle)] for run in runs]
    if len(kept) > 1:
        means = np.array([run.mean() for run in kept])
        return Estimate(float(means.mean()), float(means.std(ddof=1)) / sqrt(len(means)), len(means) - 1)
    return Estimate(float(kept[0].mean()), *_error(kept[0], cycle))


def share_of(part: Reals, whole: Reals, cycle: int = 1) -> Estimate:
    """Return the share of all steps' time that a part of each takes: total over total."""
    part, whole = (np.asarray(x, dtype=np.float64)[whole_cycles(len(x), cycle)] for x in (part, whole))
    share = float(part.sum() / whole.sum())
    # the error of a ratio of totals is that of the mean of what each block's part differs from its share
    error, freedom = _error((part - share * whole) / whole.mean(), cycle)
    return Estimate(share, error, freedom)


def ratio_of_means(first: Estimate, second: Estimate, level: float) -> tuple[float, Interval | None, float | None]:
    """Return second over first, its interval, and the p value of no difference.

    Welch's statistic of the logarithms, with the degrees of freedom of the side that has fewer. That bound holds for
    any two variances (Mickey and Brown, Annals of Mathematical Statistics 37, 1966, 639-642); Welch's estimate of them
    does not for two or three runs.
    """
    from scipy.special import stdtr, stdtrit

    ratio = second.value / first.value
    if first.error is None or second.error is None:
        return ratio, None, None
    error = sqrt((first.error / first.value) ** 2 + (second.error / second.value) ** 2)
    if not error:
        return ratio, (ratio, ratio), float(ratio == 1)
    freedom = min(first.freedom, second.freedom)
    reach = exp(min(float(stdtrit(freedom, (1 + level) / 2)) * error, 700.0))
    return ratio, (ratio / reach, ratio * reach), float(2 * stdtr(freedom, -abs(log(ratio)) / error))


def _error(run: Reals, cycle: int) -> tuple[float | None, float]:
    """Return the standard error of the mean of a run's steps, and its degrees of freedom.

    It is that of blocks of cycles, joined in pairs while they are correlated and enough would be left.
    """
    blocks = cycle_means(run, cycle)
    while len(blocks) // 2 >= MIN_JOINED and lag_one(blocks) > AUTOCORRELATION:
        cycle *= 2
        blocks = cycle_means(run, cycle)
    n = len(blocks)
    return (float(blocks.std(ddof=1)) / sqrt(n) if n > 1 else None), n - 1


def cycle_means(run: Reals, size: int) -> Reals:
    """Return the mean of each cycle, or block of cycles, of a run; the first steps, which fill none, are left out."""
    whole = run[len(run) % size :] if len(run) >= size else run
    return np.asarray(whole.reshape(-1, min(size, max(len(whole), 1))).mean(axis=1))


def outliers(seconds: Reals, cycle: int = 1) -> str:
    """Return how much of the time a few of a run's cycles hold, in words; empty where none stands out."""
    run = np.asarray(seconds, dtype=np.float64)
    whole = cycle_means(run[whole_cycles(len(run), cycle)], cycle)
    usual = float(np.median(whole))
    far = whole[whole > _FAR * usual]
    held = float((far - usual).sum() / whole.sum())
    if len(whole) < _MIN_CYCLES or not len(far) or held < _MUCH or len(far) > len(whole) / 4:
        return ""
    of = "steps" if cycle == 1 else f"cycles of {cycle} steps"
    return (
        f"{len(far)} of {len(whole)} {of} took more than {_FAR:.0f} × the median; what they took beyond it is "
        f"{held:.0%} of the whole time, and the mean includes it"
    )


@dataclass(frozen=True)
class LoaderPace:
    """What the workers of a loader can give, and what the rest of a step takes."""

    workers: int  # at least 1
    batch_seconds: float  # mean time in which one of them makes a batch
    step_seconds: float  # the mean step
    waiting: float  # share of it in which it waits for a batch

    @property
    def every_seconds(self) -> float:
        """The time in which all workers together make one batch."""
        return self.batch_seconds / self.workers

    @property
    def rest_seconds(self) -> float:
        """The mean step without its wait."""
        return self.step_seconds * (1 - self.waiting)

    def impossible(self) -> str:
        """Return why steps cannot go on so, as batches are not made so fast; empty where they can."""
        if self.step_seconds >= (1 - _CLOSE) * self.every_seconds:
            return ""
        return (
            f"{counted(self.workers, 'worker')} cannot give a batch more often than every "
            f"{seconds_text(self.every_seconds)}: steps of {seconds_text(self.step_seconds)} used batches that were "
            "made before them"
        )

    def refusal(self, beside: float = 0.0, most: float = 0.5) -> str:
        """Return why a verdict on whether waiting takes most of a step is refused; empty where it is not.

        `beside` is the share of a step that counts with the waiting: the transfer.
        """
        if text := self.impossible():
            return text
        # what steps wait that take each batch at once, of workers that make them without pause
        waiting = max(0.0, 1 - self.rest_seconds / self.every_seconds) if self.every_seconds else 0.0
        expected, seen = waiting + beside, self.waiting + beside
        if (expected > most) == (seen > most) or abs(expected - seen) <= _CLOSE:
            return ""
        return (
            f"{counted(self.workers, 'worker')} at {seconds_text(self.batch_seconds)} a batch can give one every "
            f"{seconds_text(self.every_seconds)}, and the rest of a step takes {seconds_text(self.rest_seconds)}: "
            f"waiting would be {waiting:.0%} of a step, and it is {self.waiting:.0%}"
        )
