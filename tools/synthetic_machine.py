"""A simulated machine with its own clock, and disturbances, for races whose right verdict is known."""

from collections import Counter
from math import exp, pi, sin

import numpy as np
from scipy.signal import lfilter

from tclab.timing import verdicts_of

_DRAWN = 4096  # numbers drawn at once
GRID_SECONDS = 0.01  # seconds between the points of a disturbance


def pair_of(samples, *margin):
    """Return the comparison of the first two arms of some samples, for a margin where one is given."""
    return verdicts_of(samples, *margin)[0]


def slow_in_turn(samples, slower):
    """Make some rounds of a race slow for both arms alike, by a share: of four in one order the first and the last."""
    seen, slow = Counter(), {}
    for sample in samples:
        if sample["round"] not in slow:
            slow[sample["round"]] = seen[sample["arm"]] % 4 in (0, 3)
            seen[sample["arm"]] += 1
        sample["seconds"] *= 1 + slower * slow[sample["round"]]
    return samples


class SyntheticMachine:
    """A machine whose clock advances only when an arm is called; nothing sleeps.

    A call takes its arm's seconds times the machine's slowness at that moment: a drift, a slow wave, autocorrelated
    noise and occasional outliers, common to all arms, as on a shared machine.

    **Arguments:**

    - `seed`: seed of all random numbers.
    - `noise`: standard deviation of the logarithm of a call's time.
    - `memory`: lag-1 autocorrelation of the noise, an AR(1) process over calls.
    - `drift`: how much slower the machine is after 60 s, as a share.
    - `wave`, `wave_seconds`: amplitude, as a share, and period of a slow wave.
    - `outliers`: share of calls that are interrupted; these take 1 + a Pareto variate times as long.
    """

    def __init__(self, seed=0, *, noise=0.05, memory=0.5, drift=0.2, wave=0.1, wave_seconds=7.0, outliers=0.02):
        self._generator = np.random.default_rng(seed)
        self._noise, self._memory, self._outliers = noise, memory, outliers
        self._drift, self._wave, self._wave_seconds = drift, wave, wave_seconds
        self._state, self._drawn = 0.0, []
        self.seconds = 0.0
        self.calls = []

    @staticmethod
    def of_any_kind(seed):
        """Return a machine with random drift, noise, autocorrelation and outliers, from mild to severe."""
        draw = np.random.default_rng([seed, 1]).uniform
        noise = {"noise": draw(0.01, 0.1), "memory": draw(0.0, 0.95), "drift": draw(-0.3, 0.5)}
        waves = {"wave": draw(0.0, 0.2), "wave_seconds": draw(0.5, 30.0), "outliers": draw(0.0, 0.1)}
        return SyntheticMachine(seed, **noise, **waves)

    def clock(self):
        """Return the simulated time in nanoseconds."""
        return round(self.seconds * 1e9)

    def _factor(self):
        if not self._drawn:
            draws = self._generator.standard_normal(_DRAWN), self._generator.random((2, _DRAWN))
            self._drawn = list(zip(draws[0].tolist(), *draws[1].tolist(), strict=True))
        normal, chance, size = self._drawn.pop()
        self._state = self._memory * self._state + (1 - self._memory**2) ** 0.5 * normal
        slow = 1 + self._drift * self.seconds / 60 + self._wave * sin(2 * pi * self.seconds / self._wave_seconds)
        # a Pareto number of shape 1.5: its variance is infinite, as a mean would notice
        wild = 1 + (1 - size) ** (-1 / 1.5) if chance < self._outliers else 1.0
        return max(slow, 0.2) * exp(self._noise * self._state) * wild

    def arm(self, name, seconds):
        """Return a function that takes about `seconds` on a machine at rest; each call appends its name to `calls`."""

        def call():
            self.calls.append(name)
            self.seconds += seconds * self._factor()

        return call


# Disturbances: the logarithm of an arm's slowness over the simulated time, [seconds / 0.01] float64.


def _grid(seconds):
    """Return the moments of a disturbance's values, in seconds."""
    return np.arange(int(seconds / GRID_SECONDS)) * GRID_SECONDS


def memory_noise(generator, seconds, *, deviation, memory):
    """Return stationary AR(1) noise with a standard deviation and a memory, the time in which it falls to 1/e."""
    lag = exp(-GRID_SECONDS / memory)
    shocks = deviation * (1 - lag * lag) ** 0.5 * generator.standard_normal(len(_grid(seconds)))
    return lfilter([1.0], [1.0, -lag], shocks, zi=[lag * generator.normal(0, deviation)])[0]


def regimes(generator, seconds, *, share, size, stretches=1):
    """Return stretches of a share of the time, in all, in which the arm is slower or faster by `size`."""
    path = 0.0 * _grid(seconds)
    length = int(len(path) * share / stretches)
    for begin in generator.integers(len(path) - length, size=stretches):
        path[begin : begin + length] += size * generator.choice([-1, 1])
    return path


def drift(generator, seconds, *, size):
    """Return a straight line from 0 to a normal variate with a standard deviation of `size`."""
    return np.linspace(0, generator.normal(0, size), len(_grid(seconds)))


def interference(generator, seconds, *, period, share, size):
    """Return pulses of `size` that come every `period` seconds and last a share of it, from a random phase on."""
    return np.where((_grid(seconds) / period + generator.random()) % 1 < share, size, 0.0)


def slow_tail(generator, seconds, *, share, size):
    """Return moments, a share of all, that are slower by `size` times a Pareto variate of shape 1.5."""
    tail = size * (1 + generator.pareto(1.5, len(_grid(seconds))))
    return np.where(generator.random(len(tail)) < share, np.minimum(tail, 3.0), 0.0)


def switching(generator, seconds, *, levels, stay):
    """Return a Markov chain of levels, each of which stays for an exponential time of `stay` seconds on average."""
    path, at, level = _grid(seconds), 0, int(generator.integers(len(levels)))
    while at < len(path):
        until = at + 1 + int(generator.exponential(stay) / GRID_SECONDS)
        path[at:until] = levels[level]
        at, level = until, (level + int(generator.integers(1, len(levels)))) % len(levels)
    return path


def wave(generator, seconds, *, size, period):
    """Return a sine of any phase."""
    return size * np.sin(2 * pi * (_grid(seconds) / period + generator.random()))


def pink(generator, seconds, *, deviation):
    """Return noise whose power falls as 1/f, down to one wave in twice the time, with about a standard deviation."""
    waves = np.arange(1, len(_grid(seconds)) + 1)
    spectrum = generator.normal(size=(2, len(waves))).T @ [1, 1j] / np.sqrt(waves)
    path = np.fft.irfft(np.concatenate([[0], spectrum]))[: len(waves)]
    return deviation * path * len(waves) / np.sqrt((1 / waves).sum())


# Written when the verdicts' prior and parts were settled, and never tuned on.


def bursts(generator, seconds, *, every, size):
    """Return slow stretches that come at random; their length (shape 1.2, from 0.5 s) and size have heavy tails."""
    path = 0.0 * _grid(seconds)
    for begin in generator.integers(len(path), size=generator.poisson(seconds / every)):
        length = int(0.5 * (1 + generator.pareto(1.2)) / GRID_SECONDS)
        path[begin : begin + length] += size * (1 + generator.pareto(1.5))
    return np.minimum(path, 3.0)


def ramps(generator, seconds, *, size, every):
    """Return straight lines between normal variates at random moments, `every` seconds on average."""
    moments = np.cumsum(generator.exponential(every, int(4 * seconds / every) + 20)) - every
    return np.interp(_grid(seconds), moments, generator.normal(0, size, len(moments)))


def volatile(generator, seconds, *, deviation):
    """Return noise with a memory of 2 s whose own strength changes, by a factor of e, with a memory of 20 s."""
    strength = memory_noise(generator, seconds, deviation=1.0, memory=20.0)
    return memory_noise(generator, seconds, deviation=deviation, memory=2.0) * np.exp(strength)


def throttled(generator, seconds, *, every, size):
    """Return an arm that at random becomes slower at once by an exponential variate, and recovers within some 5 s."""
    falls = 0.0 * _grid(seconds)
    moments = generator.integers(len(falls), size=generator.poisson(seconds / every))
    np.add.at(falls, moments, generator.exponential(size, len(moments)))
    return lfilter([1.0], [1.0, -exp(-GRID_SECONDS / 5.0)], falls)


def growing(generator, seconds, *, deviation):
    """Return noise with a memory of 3 s that grows from nothing to `deviation` at the end."""
    noise = memory_noise(generator, seconds, deviation=deviation, memory=3.0)
    return noise * np.linspace(0, 1, len(noise))


def wandering_pulses(generator, seconds, *, period, size):
    """Return pulses for a third of each period, whose phase wanders by about a period in ten."""
    at = _grid(seconds)
    steps = generator.normal(0, (GRID_SECONDS / (10 * period)) ** 0.5, len(at))
    phase = at / period + generator.random() + np.cumsum(steps)
    return np.where(phase % 1 < 1 / 3, size, 0.0)
