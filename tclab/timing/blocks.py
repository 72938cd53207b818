"""Runs the arms of a race in blocks: the length of a block, the order, the clock, what each block leaves behind.

A block is `calls` calls of one arm between two readings of the clock. A round is a rotation of the arms and then
the same backwards (ABBA or BAAB; ABCCBA, BCAACB or CABBAC), so a drift of the machine weighs on all arms alike
within every round, and over as many rounds as there are arms each has stood in every position.

A sample, one for each block, is a dict that JSON can hold: `cell`, `process`, `phase` ("floor", "race" or
"isolated"), `look` of `looks`, `round`, `position`, `arm`, `role` (in the floor: "x" or "y"), `calls`, `seconds`
(a call), `cpu_seconds` (a call, of the process), `switches` (how often the system took the core away), `dropped`
(by the rule) and `spent_seconds` (of the budget, so far). What could not be read is null.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from time import perf_counter_ns, process_time_ns
from typing import Any

import numpy as np

from tclab.timing.statistics import AUTOCORRELATION

Clock = Callable[[], int]

LEAST_BLOCK_SECONDS = 0.001
CLOCK_SHARE = 1e-3  # reading the clock, and waiting for the device, may cost this share of a block
ROUNDS_BETWEEN_CONTROLS = 8
# On a shared machine the median of many short rounds is the surest: in a short one most blocks are not preempted.
_ENOUGH_ROUNDS = 1000  # blocks are not lengthened where fewer would fit
_MOST_ROUNDS = 4000  # blocks are not so short that more would fit: they add samples and no certainty
_COLLECT_SECONDS = 0.1
_CALIBRATION_CHUNKS = 48


def order_of(arms: Sequence[str], round_: int) -> list[str]:
    """Return the arms of a round's blocks in order: a rotation, then the same backwards.

    As many rounds as there are arms use each rotation once, in an order drawn anew each time: something periodic
    beside the race, a scheduler's turns above all, could keep step with a fixed order and hit one arm always.
    The draw depends on the number of the round alone, so a race that goes on goes on with the same order.
    """
    cycle, place = divmod(round_, len(arms))
    # the first cycle is plain, so that the arms first appear in their own order
    turn = Random(cycle).sample(range(len(arms)), len(arms))[place] if cycle else place
    forth = [*arms[turn:], *arms[:turn]]
    return forth + forth[::-1]


def device_sync() -> Callable[[], None] | None:
    """Return what waits for the device: torch's, where torch is loaded and uses CUDA; else `None`."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.synchronize
    return None


@contextmanager
def collector_off() -> Iterator[None]:
    """Freeze what is there, so that no collection looks at it, and switch the collector off, for a while."""
    was = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was:
            gc.enable()


def _switches() -> int | None:
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:  # not on Windows
        return None
    return getrusage(RUSAGE_SELF).ru_nivcsw


class Runner:
    """Runs the blocks of one cell's arms in this process.

    **Arguments:**

    - `arms`: name → a call of it. `clock`: nanoseconds. `sync`: called at the boundaries of blocks alone.
    - `period`: calls of a block are a multiple of it (workers × prefetch, where some steps wait for a batch).
    - `emit`: takes each sample as its block ends.
    - `calls`: name → calls of a block, where that is known already; else `calibrate` finds it.
    - `stamp`: what every sample carries besides.
    - `rounds`: how many were run already, in an earlier session of this process.
    """

    def __init__(
        self,
        arms: Mapping[str, Callable[[], Any]],
        emit: Callable[[dict[str, Any]], None],
        *,
        clock: Clock = perf_counter_ns,
        sync: Callable[[], None] | None = None,
        period: int = 1,
        calls: Mapping[str, int] | None = None,
        stamp: Mapping[str, Any] | None = None,
        rounds: int = 0,
    ) -> None:
        self.arms = dict(arms)
        self.calls = dict(calls) if calls else {}
        self._emit, self._clock, self._period = emit, clock, period
        self._sync = sync
        self._stamp = dict(stamp or {})
        self._round = rounds
        self._look = (1, 1)
        self._real = clock is perf_counter_ns
        self._collected = clock()
        self._guess = 0.0  # seconds of a block

    def warm(self) -> None:
        """Call each arm once, unmeasured: what a first call loads or compiles is no arm's usual time."""
        for call in self.arms.values():
            call()
        self._wait()
        gc.collect()  # what loading left behind, before the rest is frozen

    def _wait(self) -> None:
        sync = self._sync or (device_sync() if self._real else None)
        if sync is not None:
            sync()

    def _timed(self, arm: str, calls: int) -> float:
        """Return the seconds of some calls together."""
        call = self.arms[arm]
        self._wait()
        begin = self._clock()
        for _ in range(calls):
            call()
        self._wait()
        return (self._clock() - begin) / 1e9

    def _block(self, arm: str, phase: str, position: int, role: str | None = None) -> None:
        calls = self.calls[arm]
        before = (process_time_ns(), _switches()) if self._real else None
        seconds = self._timed(arm, calls) / calls
        cpu = switches = None
        if before is not None:
            cpu = (process_time_ns() - before[0]) / 1e9 / calls
            now = _switches()
            switches = None if now is None or before[1] is None else now - before[1]
        self._emit(
            {
                "kind": "block",
                **self._stamp,
                "phase": phase,
                "look": self._look[0],
                "looks": self._look[1],
                "round": self._round,
                "position": position,
                "arm": arm,
                "role": role,
                "calls": calls,
                "seconds": seconds,
                "cpu_seconds": cpu,
                "switches": switches,
                "dropped": False,
            }
        )

    def calibrate(self, seconds: float, race_seconds: float) -> None:
        """Choose the calls of a block for each arm.

        Long enough for the clock, and for blocks that follow one another to be independent (lag-1 autocorrelation
        within ±0.1) as far as a thousand rounds still fit into `race_seconds`: what dependence is left, the
        verdict allows for. Arms of like speed get the same number, a slow one fewer by a power of 2, so that
        blocks are about as long. Takes about `seconds`.
        """
        with collector_off():
            share = seconds / len(self.arms)
            cost = min(self._cost() for _ in range(20))
            blocks = 2 * len(self.arms)
            least = max(LEAST_BLOCK_SECONDS, cost / CLOCK_SHARE, race_seconds / (blocks * _MOST_ROUNDS))
            series = {arm: self._series(arm, share, least) for arm in self.arms}
        # the least of the chunks: of a few, one that was preempted must not pass for a slow arm
        a_call = {arm: min(chunks) / calls for arm, (chunks, calls) in series.items()}
        alike = max(_until_independent(chunks) for chunks, _ in series.values())
        most = race_seconds / (blocks * _ENOUGH_ROUNDS)
        slowest = max(a_call.values()) or 1e-9
        wanted = min(max(least, slowest) * alike, max(most, slowest))
        base = max(1, round(wanted / slowest / self._period))
        self._guess = base * self._period * slowest
        for arm, took in a_call.items():
            faster = 2 ** int(np.log2(max(slowest / max(took, 1e-9), 1)))
            self.calls[arm] = self._period * base * faster

    def _cost(self) -> float:
        begin = self._clock()
        self._wait()
        return (self._clock() - begin) / 1e9

    def _series(self, arm: str, seconds: float, least: float) -> tuple[list[float], int]:
        """Return the seconds of chunk after chunk of an arm, each of so many calls."""
        calls = self._period
        begin = self._clock()
        took = self._timed(arm, calls)
        while took < least / 2 and (self._clock() - begin) / 1e9 < seconds / 2:
            calls *= 2
            took = self._timed(arm, calls)
        chunks = [took]
        while len(chunks) < _CALIBRATION_CHUNKS and (self._clock() - begin) / 1e9 + took < seconds:
            chunks.append(self._timed(arm, calls))
        return chunks, calls

    def floor(self, seconds: float, look: tuple[int, int], first: int = 0) -> None:
        """Race the first arm against itself for so long, in rounds of two roles, numbered from `first`."""
        arm = next(iter(self.arms))
        self._look = look
        begin = self._clock()
        race_round, number, took = self._round, 0, 8 * self._guess
        with collector_off():
            while (since := (self._clock() - begin) / 1e9) + took / 2 < seconds:
                for _ in range(2):  # the second one turns the order about
                    self._round = first + number
                    for position, role in enumerate(order_of("xy", number)):
                        self._block(arm, "floor", position, role)
                    number += 1
                self._collect()
                took = (self._clock() - begin) / 1e9 - since
        self._round = race_round

    def race(
        self, seconds: float, look: tuple[int, int], *, isolated: bool, stop: Callable[[], bool], least: int = 0
    ) -> bool:
        """Run rounds for about `seconds`, never a part of one; return whether it ran to the end.

        No round is begun that would end more than half a round late, but for the first `least` rounds of all.
        """
        self._look = look
        begin = self._clock()
        names = list(self.arms)
        took = 0.0
        with collector_off():
            while True:
                since = (self._clock() - begin) / 1e9
                if since + took / 2 >= seconds and self._round >= least:
                    return True
                if stop():
                    return False
                for position, arm in enumerate(order_of(names, self._round)):
                    self._block(arm, "race", position)
                self._collect()
                took = (self._clock() - begin) / 1e9 - since
                self._round += 1
                if isolated and self._round % ROUNDS_BETWEEN_CONTROLS == 0:
                    self._alone(names)

    def _alone(self, names: Sequence[str]) -> None:
        """Run each arm alone: a block that still follows another arm's, then two that follow their own."""
        for arm in order_of(names, self._round // ROUNDS_BETWEEN_CONTROLS)[: len(names)]:
            for position in range(3):
                self._block(arm, "isolated", position)
            self._collect()

    def _collect(self) -> None:
        """Collect garbage between rounds, so that cycles do not pile up, and freeze what is left."""
        if self._clock() - self._collected > _COLLECT_SECONDS * 1e9:
            gc.collect()
            gc.freeze()
            self._collected = self._clock()


def _until_independent(chunks: Sequence[float]) -> int:
    """Return how many chunks make blocks whose lag-1 autocorrelation is within ±0.1, or as many as can be told."""
    values = np.asarray(chunks, dtype=np.float64)
    size = 1
    while len(values) >= 16:
        apart = values - values.mean()
        below = float(apart @ apart)
        # of n values it is known to about 1/√n, so that much is allowed for: it may be 0.1 or less
        if below == 0 or apart[1:] @ apart[:-1] / below <= AUTOCORRELATION + 1 / np.sqrt(len(values)):
            break
        values = values[: len(values) // 2 * 2].reshape(-1, 2).mean(axis=1)
        size *= 2
    return size
