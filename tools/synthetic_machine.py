"""A simulated machine with its own clock, and disturbances, for races whose right verdict is known."""

from math import exp, pi, sin

import numpy as np
from scipy.signal import lfilter

from tclab.timing import verdicts_of

_DRAWN = 4096  # numbers drawn at once
GRID_SECONDS = 0.01  # seconds between the points of a disturbance


def pair_of(samples, *margin):
    """Return the comparison of the first two arms of some samples, for a margin where one is given."""
    return verdicts_of(samples, *margin)[0]


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


def redrawn(generator, seconds, *, size, every):
    """Return a level of plus or minus `size` that is drawn anew every so many seconds, from a random moment on."""
    at = (_grid(seconds) / every + generator.random()).astype(int)
    return size * generator.choice([-1.0, 1.0], at[-1] + 1)[at]


def sawtooth(generator, seconds, *, size, period):
    """Return a rise from 0 to `size` in every period, as of garbage that is collected."""
    return size * ((_grid(seconds) / period + generator.random()) % 1)


def bursts(generator, seconds, *, every, size):
    """Return slow stretches that come at random and last an exponential time of 1 s on average."""
    path = 0.0 * _grid(seconds)
    for begin in generator.integers(len(path), size=generator.poisson(seconds / every)):
        path[begin : begin + int(generator.exponential(1.0) / GRID_SECONDS)] = size
    return path


def walk(generator, seconds, *, size):
    """Return a random walk, which moves by about `size` in a second."""
    return np.cumsum(generator.normal(0, size * GRID_SECONDS**0.5, len(_grid(seconds))))


def square(generator, seconds, *, size, period):
    """Return a square wave of any phase."""
    return size * np.sign(np.sin(2 * pi * (_grid(seconds) / period + generator.random())))


# Written when the verdicts' procedure was settled.


def wild_states(generator, seconds, *, size, stay):
    """Return states of a Cauchy variate's strength, each of which stays for an exponential time."""
    path, at = _grid(seconds), 0
    while at < len(path):
        until = at + 1 + int(generator.exponential(stay) / GRID_SECONDS)
        path[at:until] = np.clip(size * generator.standard_cauchy(), -3.0, 3.0)
        at = until
    return path


def chirp(generator, seconds, *, size, longest, shortest):
    """Return a wave whose period falls from the longest to the shortest."""
    rates = np.geomspace(1 / longest, 1 / shortest, len(_grid(seconds)))
    return size * np.sin(2 * pi * (np.cumsum(rates) * GRID_SECONDS + generator.random()))


def speeds(generator, seconds, *, size, every):
    """Return a speed that is drawn anew at random moments, a uniform variate up to plus or minus `size`."""
    begins = generator.random(len(_grid(seconds))) < GRID_SECONDS / every
    at = np.cumsum(begins)
    return generator.uniform(-size, size, at[-1] + 1)[at]


def volatile(generator, seconds, *, deviation):
    """Return noise with a memory of 2 s whose own strength changes, by a factor of e, with a memory of 20 s."""
    strength = memory_noise(generator, seconds, deviation=1.0, memory=20.0)
    return memory_noise(generator, seconds, deviation=deviation, memory=2.0) * np.exp(strength)
