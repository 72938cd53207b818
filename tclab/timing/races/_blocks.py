"""Blocks of a race: their length and order, the clock around them, and the sample that each yields.

A block is `calls` calls of one arm between two readings of the clock (what `torch.utils.benchmark` calls
`number_per_run`). A round is a rotation of the arms followed by its reverse (ABBA or BAAB; ABCCBA, BCAACB or CABBAC),
so that a linear drift of the machine affects all arms alike within a round, and in as many rounds as there are arms
each arm takes every position.

A block's sample is a dict of JSON values: `cell`, `process`, `phase` ("floor", "race" or "isolated"), `look` and
`looks`, `round`, `position`, `arm`, `role` ("x" or "y", in the floor), `calls`, `seconds` (a call), `cpu_seconds`
(a call, of the process), `switches` (involuntary context switches), `dropped` (by `discard`) and `spent_seconds` (of
the budget so far). What could not be read is null.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil, lcm
from random import Random
from resource import RUSAGE_SELF, getrusage
from time import perf_counter_ns, process_time_ns
from typing import Any

import numpy as np

from tclab.timing._statistics import AUTOCORRELATION

Clock = Callable[[], int]

LEAST_BLOCK_SECONDS = 0.001
CLOCK_SHARE = 1e-3  # share of a block that reading the clock and synchronising may cost
ROUNDS_BETWEEN_CONTROLS = 8
# On a shared machine the median of many short rounds is the most precise: most short blocks are not preempted.
_ENOUGH_ROUNDS = 1000  # blocks are not made so long that fewer rounds fit
_MOST_ROUNDS = 4000  # blocks are not made so short that more rounds fit, since they add no precision
_COLLECT_SECONDS = 0.1
_LEAST_ROUNDS = 12  # that fit into the race's seconds, where single calls allow it
_CALIBRATION_CHUNKS = 48


def order_of(arms: Sequence[str], round_: int) -> list[str]:
    """Return the arms of a round's blocks in order: a rotation, then its reverse.

    As many consecutive rounds as there are arms use each rotation once, in an order drawn for them: a periodic
    disturbance, a scheduler's above all, could keep in step with a fixed order and always affect the same arm. The draw
    depends only on the number of the round, so that a resumed race continues in the same order.
    """
    cycle, place = divmod(round_, len(arms))
    # the first cycle is not shuffled, so that the arms first appear in the order given
    turn = Random(cycle).sample(range(len(arms)), len(arms))[place] if cycle else place
    rotation = [*arms[turn:], *arms[:turn]]
    return rotation + rotation[::-1]


def construction_order(arms: Sequence[str], process: int) -> list[str]:
    """Return the arms in the order in which a process makes them and calls them first: reversed in every other process.

    Where their objects lie in memory depends on that order, and would favour the same arm in all processes.
    """
    return list(arms)[:: -1 if process % 2 else 1]


@contextmanager
def collector_off() -> Iterator[None]:
    """Switch the garbage collector off inside, and freeze existing objects, so that later collections skip them."""
    was = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was:
            gc.enable()


class BlockRunner:
    """Runs the blocks of one cell's arms in this process.

    **Arguments:**

    - `arms`: name → the function to time. One with an attribute `settle` has it called before each block, outside the
      clock: what an arm did while others ran must not make its own block shorter. One with an attribute `period` runs
      blocks of a multiple of so many calls.
    - `emit`: takes each sample when its block ends.
    - `clock`, `sync`, `period`: as for `race`.
    - `calls`: name → calls a block, if known; otherwise `calibrate` decides.
    - `block_seconds`: what such a block takes, approximately; 0 if unknown.
    - `process`: the number of this process among those of the race, which every sample gets.
    - `rounds`: rounds that an earlier session of this process ran.
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
        block_seconds: float = 0.0,
        process: int = 0,
        rounds: int = 0,
    ) -> None:
        self.arms = dict(arms)
        self.calls = dict(calls) if calls else {}
        self.block_seconds = block_seconds
        self.warmed = False
        self._emit, self._clock, self._period = emit, clock, period
        self._sync = sync
        self.process = process
        self._round = rounds
        self._look = (1, 1)
        self._real = clock is perf_counter_ns
        self._collected = clock()

    def warm(self) -> None:
        """Call each arm once, unmeasured, since a first call may load or compile."""
        self.warmed = True
        for arm in construction_order(list(self.arms), self.process):
            self.arms[arm]()
        self._wait()
        gc.collect()  # garbage of loading, before the rest is frozen

    def _wait(self) -> None:
        """Wait for the device, where one is in use."""
        torch = sys.modules.get("torch") if self._real else None
        if self._sync is not None:
            self._sync()
        elif torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def _timed(self, arm: str, calls: int) -> float:
        call = self.arms[arm]
        settle = getattr(call, "settle", None)
        if settle is not None:
            settle()
        self._wait()
        begin = self._clock()
        for _ in range(calls):
            call()
        self._wait()
        return (self._clock() - begin) / 1e9

    def _block(self, arm: str, phase: str, position: int, role: str | None = None) -> None:
        calls = self.calls[arm]
        cpu_before, switches_before = process_time_ns(), getrusage(RUSAGE_SELF).ru_nivcsw
        seconds = self._timed(arm, calls) / calls
        cpu, switches = process_time_ns() - cpu_before, getrusage(RUSAGE_SELF).ru_nivcsw - switches_before
        self._emit(
            {
                "kind": "block",
                "process": self.process,
                "phase": phase,
                "look": self._look[0],
                "looks": self._look[1],
                "round": self._round,
                "position": position,
                "arm": arm,
                "role": role,
                "calls": calls,
                "seconds": seconds,
                "cpu_seconds": cpu / 1e9 / calls if self._real else None,
                "switches": switches if self._real else None,
                "dropped": False,
            }
        )

    def calibrate(self, seconds: float, race_seconds: float) -> None:
        """Choose the number of calls a block for each arm.

        Blocks are long enough for the clock and, as far as a thousand rounds still fit into `race_seconds`, for
        adjacent blocks to be independent (lag-1 autocorrelation within ±0.1); the verdict allows for what dependence
        remains. Where calls take so long that whole periods leave fewer than 12 rounds, blocks are shorter. Arms of
        similar speed get the same number and slower ones fewer by a power of 2, so that all blocks last about as long.
        """
        with collector_off():
            share = seconds / len(self.arms)
            cost = min(self._cost() for _ in range(20))
            blocks = 2 * len(self.arms)
            least = max(LEAST_BLOCK_SECONDS, cost / CLOCK_SHARE, race_seconds / (blocks * _MOST_ROUNDS))
            series = {arm: self._series(arm, share, least) for arm in self.arms}
        # the fastest chunk, since of a few chunks preempted ones would make an arm look slow
        call_seconds = {arm: min(chunks) / calls for arm, (chunks, calls) in series.items()}
        dependent = max(_chunks_until_independent(chunks) for chunks, _ in series.values())
        most = race_seconds / (blocks * _ENOUGH_ROUNDS)
        slowest = max(call_seconds.values()) or 1e-9
        wanted = min(max(least, slowest) * dependent, max(most, slowest))
        periods = {arm: self._period_of(arm) for arm in self.arms}
        longest = max(periods.values())
        fitting = int(race_seconds / (blocks * _LEAST_ROUNDS) / slowest)
        if fitting < longest:  # whole periods would leave too few rounds for any verdict
            longest, periods = max(fitting, 1), dict.fromkeys(periods, 1)
        base = max(1, round(wanted / slowest / longest))
        self.block_seconds = base * longest * slowest
        for arm, took in call_seconds.items():
            faster = 2 ** int(np.log2(max(slowest / max(took, 1e-9), 1)))
            self.calls[arm] = ceil(longest * base * faster / periods[arm]) * periods[arm]

    def _period_of(self, arm: str) -> int:
        return lcm(self._period, getattr(self.arms[arm], "period", 1))

    def _cost(self) -> float:
        begin = self._clock()
        self._wait()
        return (self._clock() - begin) / 1e9

    def _series(self, arm: str, seconds: float, least: float) -> tuple[list[float], int]:
        """Return the seconds of consecutive chunks of an arm's calls, and the number of calls in one."""
        calls = self._period_of(arm)
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
        """Race the first arm against itself, in rounds of two roles, unless two such rounds take longer than that.

        `look` has the number of the look, and of looks; `first` is the number of the first round.
        """
        arm = next(iter(self.arms))
        self._look = look
        begin = self._clock()
        race_round, number, took = self._round, 0, 8 * self.block_seconds
        with collector_off():
            while (since := (self._clock() - begin) / 1e9) + took < seconds:
                for _ in range(2):  # the second round reverses the order
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
        """Run whole rounds for about `seconds`; return false if `stop` ended them.

        No round starts that would end more than half a round late, except the first `least` rounds of this process.
        `isolated` also runs each arm alone, at intervals.
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
                    self._run_isolated(names)

    def _run_isolated(self, names: Sequence[str]) -> None:
        """Run each arm alone: one block after another arm's, then two after the same arm's."""
        for arm in order_of(names, self._round // ROUNDS_BETWEEN_CONTROLS)[: len(names)]:
            for position in range(3):
                self._block(arm, "isolated", position)
            self._collect()

    def _collect(self) -> None:
        """Collect garbage between rounds, at most every 0.1 s, and freeze what remains."""
        if self._clock() - self._collected > _COLLECT_SECONDS * 1e9:
            gc.collect()
            gc.freeze()
            self._collected = self._clock()


def _chunks_until_independent(chunks: Sequence[float]) -> int:
    """Return how many chunks make blocks with a lag-1 autocorrelation within ±0.1, as far as measurable."""
    values = np.asarray(chunks, dtype=np.float64)
    size = 1
    while len(values) >= 16:
        centred = values - values.mean()
        below = float(centred @ centred)
        # the standard error of the autocorrelation of n values is about 1/√n
        if below == 0 or centred[1:] @ centred[:-1] / below <= AUTOCORRELATION + 1 / np.sqrt(len(values)):
            break
        values = values[: len(values) // 2 * 2].reshape(-1, 2).mean(axis=1)
        size *= 2
    return size
