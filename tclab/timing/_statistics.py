"""Statistics of races: the centre of log ratios whose noise has a memory.

Rounds of a race that lie close in time share what happened to one arm alone: a cache that another process fills, a
frequency, a placement. How long such noise lasts is unknown, and a race shorter than that cannot tell it from a
difference. These guard against it:

- **Parts:** `Series.parts`. Every one of 8 consecutive parts of the race must agree. Of equal arms whose noise is
  independent from part to part, and as likely to favour one as the other, each part's centre lies above 0 with
  probability 1/2, whatever the noise's distribution. All 8 lie on one side with probability 2 · 2⁻⁸, as in a sign test.
- **An interval that pays for longer noise, if it is about normal:** `centre_of`. The model of the batches' log ratios
  is centre + noise with a memory (AR(1) in time, stationary) + independent noise. Memory and the shares of the two are
  averaged over a grid, weighted by a prior and by the restricted likelihood, which depends neither on the centre nor on
  the scale (Patterson and Thompson, Biometrika 58, 1971, 545-554). What is left is a mixture of Student's
  distributions. That memories close to the length of the series need an allowance of their own is shown by Müller
  (Journal of Business & Economic Statistics 32, 2014, 311-322).
- **With several processes, Student's interval of their medians,** which allows for the luck of each.

The prior was chosen by the attacks of `benchmarks/verdicts.py`: the weight of a component with a memory is its memory
divided by the longest one, and the weight of independent noise alone is 1000.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]

MIN_OBSERVATIONS = 6  # units; with fewer, not even all on one side would reach 5 % two-sided (2 / 2**5 = 0.0625)
_MOST_BATCHES = 48  # more cost time and add nothing: noise that is shorter than a batch is independent
_LONGEST_MEMORY_SECONDS = 600.0
_MEMORIES = 8
_WITH_MEMORY = (0.1, 1.0, 10.0, 100.0, 1000.0)  # variance of the noise with a memory over the other's
_INDEPENDENT = 1000.0  # prior weight of independent noise alone


@dataclass(frozen=True)
class Series:
    """The log ratios of a race's rounds, in time."""

    values: Reals  # [rounds], as the next two
    seconds: Reals  # when each round ended, on one clock for all processes
    process: NDArray[np.intp]  # which ran it

    @classmethod
    def of(cls, values: Reals, seconds: Reals, process: NDArray[np.intp], orders: NDArray[np.intp]) -> Series:
        """Return the series of rounds, which may be given in any sequence.

        Which arm a round begins with (`orders`, [rounds]) may have an effect, which is no noise. Where there are many
        rounds it is taken out: in each process, the rounds of each order are shifted to the same median.
        """
        values = np.array(values)
        for one in np.unique(process) if len(values) > _MOST_BATCHES else ():
            kinds = [(process == one) & (orders == order) for order in np.unique(orders[process == one])]
            medians = [float(np.median(values[kind])) for kind in kinds]
            for kind, median in zip(kinds, medians, strict=True):
                values[kind] += np.mean(medians) - median
        in_time = np.argsort(seconds, kind="stable")
        return cls(values[in_time], seconds[in_time], process[in_time])

    def parts(self, n: int) -> Reals:
        """Return the median of each of `n` consecutive parts of the race, [n]."""
        return np.array([np.median(part) for part in np.array_split(self.values, n)])

    def batches(self) -> tuple[Reals, Reals, float]:
        """Return batches of rounds: [batches] medians and times, and a batch's seconds.

        No batch reaches from one process to the next.
        """
        size = max(1.0, len(self.values) / _MOST_BATCHES)
        turns = np.split(np.arange(len(self.values)), np.flatnonzero(np.diff(self.process)) + 1)
        batches = [batch for turn in turns for batch in np.array_split(turn, max(1, round(len(turn) / size)))]
        return (
            np.array([np.median(self.values[batch]) for batch in batches]),
            np.array([self.seconds[batch].mean() for batch in batches]),
            max(float(np.median(np.diff(self.seconds))) * size, 1e-9),
        )


@dataclass(frozen=True)
class Centre:
    """The distribution of the centre of a series: a mixture of Student's distributions.

    With several processes there is also Student's interval of their medians, and an interval covers both.
    """

    weights: Reals  # [components], as the next two
    centres: Reals
    scales: Reals
    batches: Reals  # [batches] the log ratios that it rests on
    processes: Reals  # [processes] the median log ratio of each

    def _below(self, value: float) -> float:
        """Return the probability that the centre lies below a value, by the mixture."""
        from scipy.special import stdtr

        return float(self.weights @ stdtr(len(self.batches) - 1, (value - self.centres) / self.scales))

    def quantile(self, share: float) -> float:
        """Return the value below which the centre lies with a probability, by the mixture."""
        from scipy.optimize import brentq
        from scipy.special import stdtrit

        # no quantile of a mixture lies outside those of its components, but for rounding
        ends = self.centres + self.scales * stdtrit(len(self.batches) - 1, share)
        aside = 1e-3 * float(self.scales.max()) + 1e-9
        low, high = float(ends.min()) - aside, float(ends.max()) + aside
        return float(brentq(lambda x: self._below(x) - share, low, high, xtol=1e-12))

    def interval(self, level: float) -> tuple[float, float]:
        """Return the interval with equal tails at a level such as 0.95."""
        from scipy.special import stdtrit

        low, high = self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)
        if len(self.processes) > 1:
            middle, error, freedom = self._of_processes
            reach = float(stdtrit(freedom, (1 + level) / 2)) * error
            low, high = min(low, middle - reach), max(high, middle + reach)
        return low, high

    @property
    def p(self) -> float:
        """The two-sided p value of a centre of 0."""
        from scipy.special import stdtr

        below = self._below(0.0)
        p = min(1.0, max(0.0, 2 * min(below, 1 - below)))  # weights may add up to more than 1 by rounding
        if len(self.processes) > 1:
            middle, error, freedom = self._of_processes
            p = max(p, 2 * float(stdtr(freedom, -abs(middle) / max(error, 1e-12))))
        return p

    @property
    def _of_processes(self) -> tuple[float, float, int]:
        """Mean, standard error and degrees of freedom of the processes' medians."""
        n = len(self.processes)
        return float(self.processes.mean()), float(self.processes.std(ddof=1)) / n**0.5, n - 1

    @property
    def is_of_luck(self) -> bool:
        """Whether processes differ by more than the noise of their rounds explains, which only more of them settles."""
        of_rounds = (self.quantile(0.75) - self.quantile(0.25)) / 1.349  # the standard error by the mixture
        return len(self.processes) > 1 and self._of_processes[1] > 2 * of_rounds


def _components(at: Reals, seconds: float) -> tuple[Reals, Reals]:
    """Return the covariances of batches of variance 1, [components, batches, batches], and their prior weights."""
    apart = np.abs(np.subtract.outer(at, at))
    own = np.eye(len(at))
    longest = max(float(at.max() - at.min()) + seconds, _LONGEST_MEMORY_SECONDS)
    covariances, weights = [own], [_INDEPENDENT]
    for memory in np.geomspace(min(seconds / 3, longest), longest, _MEMORIES):
        with_memory = np.exp(-apart / memory)
        covariances += [(share * with_memory + own) / (1 + share) for share in _WITH_MEMORY]
        weights += [memory / longest] * len(_WITH_MEMORY)
    return np.array(covariances), np.array(weights)


def centre_of(series: Series) -> Centre:
    """Return the distribution of the centre of at least two log ratios."""
    kinds, of_kind = np.unique(series.process, return_inverse=True)
    processes = np.array([np.median(series.values[of_kind == kind]) for kind in range(len(kinds))])
    # what processes differ by is no noise with a memory: it is Student's part
    alike = replace(series, values=series.values - processes[of_kind] + processes.mean())
    values, at, seconds = alike.batches()
    covariances, prior = _components(at, seconds)
    inverses = np.linalg.inv(covariances)
    weighted = inverses.sum(axis=1)  # [components, batches]
    information = weighted.sum(axis=1)  # [components], as all that follows
    centres = weighted @ values / information
    apart = values - centres[:, None]
    squares = np.maximum(np.einsum("cb,cbd,cd->c", apart, inverses, apart), 1e-24)
    freedom = len(values) - 1
    fit = np.log(prior) + 0.5 * (np.linalg.slogdet(inverses)[1] - np.log(information) - freedom * np.log(squares))
    weights = np.exp(fit - fit.max())
    scales = np.sqrt(squares / information / freedom)
    return Centre(weights / weights.sum(), centres, scales, values, processes)
