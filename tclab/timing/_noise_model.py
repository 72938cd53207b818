"""The centre of a series of log ratios whose noise has a memory of unknown length, with intervals that pay for it.

Rounds of a race that lie close in time share what happened to one arm alone: a cache that another process fills, a
frequency, a placement. How long such noise lasts is unknown, and a race shorter than that cannot tell it from a
difference. So no one value is estimated for it: the interval averages over all that the series allows.

The model of the batches' log ratios: centre + noise with a memory (AR(1) in time, stationary) + independent noise, and
with several processes + the luck of each. Memory and the shares of the three are averaged over a grid, weighted by a
prior and by the restricted likelihood, which depends neither on the centre nor on the scale (Patterson and Thompson,
Biometrika 58, 1971, 545-554). What is left is a mixture of Student's distributions. That memories close to the length
of the series need an allowance of their own is shown by Müller (Journal of Business & Economic Statistics 32, 2014,
311-322).

The prior was chosen so that the attacks of `benchmarks/race_verdicts.py` hold: of the grid's components, those with a
memory have the weight √memory, 1 for the longest, and independent noise alone has 300.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tclab.timing._statistics import Reals

LONGEST_MEMORY_SECONDS = 240.0  # that every race allows for; one that takes longer allows for its own length
MIN_INDEPENDENT = 6  # with fewer independent batches, the memory is named as the reason of UNDECIDED
_MOST_BATCHES = 48  # more cost time and add nothing: noise that is shorter than a batch is independent
_MEMORIES = 16
_WITH_MEMORY = (0.05, 0.2, 1.0, 5.0, 50.0, 500.0, 5000.0)  # variance of the noise with a memory over the other's
_INDEPENDENT = 300.0  # prior weight of independent noise alone
_LUCK = (0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)  # variance of the processes' luck over that of a batch
_PAUSE = 10.0  # times a round's seconds, from which other processes had their turn
_LEAST_WEIGHT = 1e-9


@dataclass(frozen=True)
class Series:
    """The rounds of one process."""

    values: Reals  # [rounds] log ratios
    seconds: Reals  # [rounds] when each ended, on one clock for all processes
    orders: Sequence[int]  # [rounds] which order of the arms each had


@dataclass(frozen=True)
class Centre:
    """The distribution of the centre of a series: a mixture of Student's distributions."""

    weights: Reals  # [components], as the next two
    centres: Reals
    scales: Reals
    freedom: int  # degrees of freedom of each
    batches: Reals  # [batches] the log ratios that it rests on

    def below(self, value: float) -> float:
        """Return the probability that the centre lies below a value."""
        from scipy.special import stdtr

        return float(np.clip(self.weights @ stdtr(self.freedom, (value - self.centres) / self.scales), 0.0, 1.0))

    def quantile(self, share: float) -> float:
        """Return the value below which the centre lies with a probability."""
        from scipy.optimize import brentq
        from scipy.special import stdtrit

        # no quantile of a mixture lies outside those of its components, but for rounding
        ends = self.centres + self.scales * stdtrit(self.freedom, share)
        aside = 1e-3 * float(self.scales.max()) + 1e-9
        low, high = float(ends.min()) - aside, float(ends.max()) + aside
        return float(brentq(lambda x: self.below(x) - share, low, high, xtol=1e-12))

    def interval(self, level: float) -> tuple[float, float]:
        """Return the interval with equal tails at a level such as 0.95."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    @property
    def p(self) -> float:
        """The two-sided p value of a centre of 0."""
        below = self.below(0.0)
        return min(1.0, 2 * min(below, 1 - below))

    @property
    def independent(self) -> float:
        """The number of independent batches that would leave the centre as uncertain as it is."""
        low, high = self.interval(0.5)
        spread = (high - low) / 1.349
        return min(float(len(self.batches)), float(self.batches.var(ddof=1)) / spread**2) if spread else 0.0


def _without_orders(values: Reals, orders: Sequence[int]) -> Reals:
    """Return values whose median is the same in each order of the arms: an effect of the place in it is no noise."""
    kinds = np.asarray(orders)
    medians = {kind: float(np.median(values[kinds == kind])) for kind in set(orders)}
    middle = float(np.mean(list(medians.values())))
    return np.asarray(values - np.array([medians[kind] for kind in orders]) + middle)


def batches_of(series: Sequence[Series]) -> tuple[Reals, Reals, NDArray[np.intp], float]:
    """Return batches of rounds of several processes: [batches] medians, times and process, and a batch's seconds.

    No batch reaches across a pause, in which other processes have their turns.
    """
    size = sum(len(one.values) for one in series) / _MOST_BATCHES
    a_round = float(np.median(np.concatenate([np.diff(one.seconds) for one in series])))
    values, at, process = [], [], []
    for number, one in enumerate(series):
        logs = _without_orders(one.values, one.orders) if size > 1 else one.values
        turns = np.flatnonzero(np.diff(one.seconds) > _PAUSE * a_round) + 1
        for rounds in np.split(np.arange(len(logs)), turns):
            for batch in np.array_split(rounds, max(1, round(len(rounds) / max(size, 1.0)))):
                values.append(float(np.median(logs[batch])))
                at.append(float(one.seconds[batch].mean()))
                process.append(number)
    return np.array(values), np.array(at), np.array(process), max(a_round * max(size, 1.0), 1e-9)


def _components(at: Reals, seconds: float) -> tuple[Reals, Reals]:
    """Return the covariances of batches of variance 1, [components, batches, batches], and their prior weights."""
    apart = np.abs(np.subtract.outer(at, at))
    own = np.eye(len(at))
    longest = max(float(at.max() - at.min()) + seconds, LONGEST_MEMORY_SECONDS)
    covariances, weights = [own], [_INDEPENDENT]
    for memory in np.geomspace(min(seconds / 3, longest), longest, _MEMORIES):
        with_memory = np.exp(-apart / memory)
        covariances += [(share * with_memory + own) / (1 + share) for share in _WITH_MEMORY]
        weights += [float(np.sqrt(memory / longest))] * len(_WITH_MEMORY)
    return np.array(covariances), np.array(weights)


def centre_of(series: Sequence[Series]) -> Centre:
    """Return the distribution of the centre of the log ratios of some processes, each of at least one round."""
    values, at, process, seconds = batches_of(series)
    covariances, prior = _components(at, seconds)
    inverses = np.linalg.inv(covariances)
    logs = np.linalg.slogdet(covariances)[1]
    of_process = (process[:, None] == np.unique(process)).astype(np.float64)
    # [component, columns, columns]: of the ones of each process and of the values, weighted by the inverse
    columns = np.column_stack([of_process, values])
    products = columns.T @ inverses @ columns
    processes = of_process.shape[1]
    parts = []
    for luck in _LUCK if processes > 1 else (0.0,):
        # the inverse with the processes' luck, by Woodbury's identity
        inner = np.eye(processes) + luck * products[:, :-1, :-1]
        weighted = products - luck * products[:, :, :-1] @ np.linalg.solve(inner, products[:, :-1, :])
        information = weighted[:, :-1, :-1].sum(axis=(1, 2))
        centres = weighted[:, :-1, -1].sum(axis=1) / information
        squares = np.maximum(weighted[:, -1, -1] - centres**2 * information, 1e-24)
        parts.append((np.log(prior) - 0.5 * (logs + np.linalg.slogdet(inner)[1]), information, centres, squares))
    fit, information, centres, squares = (np.concatenate(part) for part in zip(*parts, strict=True))
    freedom = len(values) - 1
    fit = fit - 0.5 * (np.log(information) + freedom * np.log(squares))
    weights = np.exp(fit - fit.max())
    kept = weights > _LEAST_WEIGHT * weights.sum()
    scales = np.sqrt(squares / information / freedom)
    return Centre(weights[kept] / weights[kept].sum(), centres[kept], scales[kept], freedom, values)
