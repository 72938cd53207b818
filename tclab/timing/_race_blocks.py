"""Blocks of a race: their order and length, the clock around them, and the fresh processes that run them.

A block is `calls` calls of one arm between two readings of the clock (what `torch.utils.benchmark` calls
`number_per_run`). A round is a rotation of the arms followed by its reverse (ABBA or BAAB; ABCCBA, BCAACB or CABBAC),
so that a linear drift of the machine affects all arms alike within a round, and in as many rounds as there are arms
each arm takes every position.

A block's sample is a dict of JSON values: `cell`, `process`, `phase` ("floor" or "race"), `extension` (how often the
budget had been made larger: 0, 1, …), `round`, `position`, `arm`, `role` ("x" or "y" in the floor, else null), `calls`,
`seconds` (a call) and `spent_seconds` (of the budget, when its round ended).

An arm is a function that does one unit of work. It may have attributes: `settle`, called before each block, outside the
clock, since what an arm's workers did while others ran must not make its own block shorter; `period`, of which a
block's calls are a multiple; `returns_seconds`, true where a call returns its own seconds and no clock is read.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from math import ceil, log2
from random import Random
from time import perf_counter_ns
from typing import Any

from tclab._child_process import ChildProcess, ParentPipe, child_command
from tclab.errors import InputError

Clock = Callable[[], int]
Arm = Callable[[], Any]
Sample = dict[str, Any]

LEAST_BLOCK_SECONDS = 0.001
CLOCK_SHARE = 1e-3  # share of a block that reading the clock and synchronising may cost
FIRST_PROCESS = "TCLAB_RACE_FIRST_PROCESS"  # "1" in the environment of the process that makes its arms first
# On a shared machine the median of many short rounds is the most precise: most short blocks are not preempted.
_MOST_ROUNDS = 2000  # blocks are not made so short that more rounds fit, since they add no precision
_LEAST_ROUNDS = 12  # that fit into the race's seconds, where single calls allow it
_COLLECT_SECONDS = 0.1
_CALIBRATION_CHUNKS = 8


def order_of(arms: Sequence[str], i: int) -> list[str]:
    """Return the arms of round `i`'s blocks in order: a rotation, then its reverse.

    As many consecutive rounds as there are arms use each rotation once, in an order drawn for them: a periodic
    disturbance, a scheduler's above all, could keep in step with a fixed order and always affect the same arm. The draw
    depends only on the number of the round, so that a resumed race continues in the same order.
    """
    cycle, turn = divmod(i, len(arms))
    if cycle:  # the first cycle is not shuffled, so that the arms first appear in the order given
        turn = Random(cycle).sample(range(len(arms)), len(arms))[turn]
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
    """Runs the blocks of some arms in this process.

    **Arguments:**

    - `arms`: name → the function to time.
    - `clock`: as for `race`.
    - `process`: a number that tells this process from the others of the race, which every sample gets.
    """

    def __init__(self, arms: Mapping[str, Arm], *, clock: Clock = perf_counter_ns, process: int = 0) -> None:
        self.arms, self.process = dict(arms), process
        self._clock = clock
        self._collected = clock()

    def make(self) -> None:
        """Call each arm once, unmeasured, since a first call may load or compile."""
        for arm in self.arms.values():
            arm()
        self._wait()
        gc.collect()  # garbage of loading, before the rest is frozen

    def close(self) -> None:
        """Drop the arms."""
        self.arms.clear()

    def _wait(self) -> None:
        """Wait for the device, where one is in use."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def _since(self, begin: int) -> float:
        return (self._clock() - begin) / 1e9

    def _timed(self, arm: str, calls: int) -> float:
        """Return the seconds of so many calls of an arm."""
        call = self.arms[arm]
        if (settle := getattr(call, "settle", None)) is not None:
            settle()
        if getattr(call, "returns_seconds", False):
            return float(sum(call() for _ in range(calls)))
        self._wait()
        begin = self._clock()
        for _ in range(calls):
            call()
        self._wait()
        return self._since(begin)

    def plan(self, seconds: float, race_seconds: float) -> dict[str, Any]:
        """Return how long blocks are: `calls` a block of each arm, and about how many seconds, as `block_seconds`.

        They are long enough for the clock, and so long that at most 2,000 rounds fit into `race_seconds`. Where calls
        take so long that whole periods leave fewer than 12 rounds, blocks are shorter. Arms of similar speed get the
        same number of calls and faster ones more by a power of 2, so that all blocks last about as long. `seconds` is
        what finding that out may take.
        """
        blocks = 2 * len(self.arms)
        with collector_off():
            cost = min(self._clock_seconds() for _ in range(20))
            wanted = max(LEAST_BLOCK_SECONDS, cost / CLOCK_SHARE, race_seconds / (blocks * _MOST_ROUNDS))
            call_seconds = {arm: self._call_seconds(arm, seconds / len(self.arms), wanted) for arm in self.arms}
        slowest = max(call_seconds.values())
        periods = {arm: getattr(call, "period", 1) for arm, call in self.arms.items()}
        longest, fitting = max(periods.values()), int(race_seconds / (blocks * _LEAST_ROUNDS * slowest))
        if fitting < longest:  # whole periods would leave too few rounds for any verdict
            longest, periods = max(fitting, 1), dict.fromkeys(periods, 1)
        base = longest * max(1, round(wanted / (slowest * longest)))
        calls = {}
        for arm, took in call_seconds.items():
            wanted_calls = base * 2 ** int(log2(slowest / took))
            calls[arm] = ceil(wanted_calls / periods[arm]) * periods[arm]
        return {"calls": calls, "block_seconds": base * slowest}

    def _clock_seconds(self) -> float:
        begin = self._clock()
        self._wait()
        return self._since(begin)

    def _call_seconds(self, arm: str, seconds: float, wanted: float) -> float:
        """Return what a call takes, from the fastest of some chunks: preempted ones would make an arm look slow."""
        begin, period, calls = self._clock(), getattr(self.arms[arm], "period", 1), 1
        took = self._timed(arm, calls)
        if getattr(self.arms[arm], "returns_seconds", False):
            return max(self._since(begin), 1e-9)  # which may be longer than the seconds that it returns
        if 1 < period < seconds / max(took, 1e-9):  # calls of a period may differ
            calls = period
            took = self._timed(arm, calls)
        while took < wanted / 2 and self._since(begin) < seconds / 2:
            calls *= 2
            took = self._timed(arm, calls)
        chunks = [took]
        while len(chunks) < _CALIBRATION_CHUNKS and self._since(begin) + took < seconds:
            chunks.append(self._timed(arm, calls))
        return max(min(chunks), 1e-9) / calls

    def rounds(
        self, phase: str, seconds: float, calls: Mapping[str, int], *, first: int, least: int = 0
    ) -> Iterator[list[Sample]]:
        """Run whole rounds for about `seconds` and yield the samples of each.

        No round starts that would end more than half a round late, except the first `least` rounds of this process.

        **Arguments:**

        - `phase`: "race"; or "floor", in which the first arm races itself, in two roles.
        - `calls`: a block, of each arm.
        - `first`: number of the first round.
        """
        names, begin, took, i = list(self.arms), self._clock(), 0.0, first
        with collector_off():
            while (since := self._since(begin)) + took / 2 < seconds or i < least:
                order = order_of("xy" if phase == "floor" else names, i)
                samples = []
                for position, name in enumerate(order):
                    arm, role = (names[0], name) if phase == "floor" else (name, None)
                    samples.append(
                        {
                            "kind": "block",
                            "process": self.process,
                            "phase": phase,
                            "round": i,
                            "position": position,
                            "arm": arm,
                            "role": role,
                            "calls": calls[arm],
                            "seconds": self._timed(arm, calls[arm]) / calls[arm],
                        }
                    )
                yield samples
                self._collect()
                took = self._since(begin) - since
                i += 1

    def _collect(self) -> None:
        """Collect garbage between rounds, at most every 0.1 s, and freeze what remains."""
        if self._since(self._collected) > _COLLECT_SECONDS:
            gc.collect()
            gc.freeze()
            self._collected = self._clock()


class RaceProcess:
    """A fresh process that makes its arms and runs them on request, as a `BlockRunner`; it is idle in between.

    It returns at once, so that several processes import their modules side by side; `make` ends when the arms are
    made, which processes do one after another: the threads of several on the same cores wait for one another. Four
    processes on two cores made three arms in 118 s side by side; one after another, they do in 22 s. They exchange JSON
    lines.

    **Arguments:**

    - `specs`: name → factory, as for `race`.
    - `process`: as for `BlockRunner`.
    - `environment`: variables in addition to this process's.
    """

    def __init__(self, specs: Mapping[str, str], process: int, environment: Mapping[str, str]) -> None:
        self.process = process
        self._process = ChildProcess(child_command(__name__), {**os.environ, **environment})
        path = [folder for folder in sys.path if folder] + [os.getcwd()]
        self._process.send({"specs": specs, "process": process, "path": path})

    def make(self) -> None:
        """Let the process make its arms, and wait for them. **Raises:** `InputError` with its error if it cannot."""
        list(self._asked(do="make"))

    def plan(self, seconds: float, race_seconds: float) -> dict[str, Any]:
        """Return how long blocks are, as a `BlockRunner` does."""
        (plan,) = self._asked(do="plan", seconds=seconds, race_seconds=race_seconds)
        return dict(plan)

    def rounds(
        self, phase: str, seconds: float, calls: Mapping[str, int], *, first: int, least: int = 0
    ) -> Iterator[list[Sample]]:
        """Run rounds in the process, and yield the samples of each as it ends."""
        return self._asked(do="rounds", phase=phase, seconds=seconds, calls=calls, first=first, least=least)

    def _asked(self, **request: Any) -> Iterator[Any]:
        self._process.send(request)
        while (line := self._process.receive()) is not None:
            if "error" in line:
                raise InputError(line["error"])
            if "done" in line:
                return
            yield line["answer"]
        code = self._process.wait()
        raise InputError(f"a process of the race ended with {code}: {self._process.last_error_line}")

    def close(self) -> None:
        """End the process and whatever it started."""
        self._process.close()


# ---- in the process


def arm_from(spec: str) -> Arm:
    """Return the arm that a factory makes in this process; it is named as for `race`.

    **Raises:** `InputError` that says which part of the name is wrong.
    """
    module, _, rest = spec.partition(":")
    name, *text = rest.split(":", 1)
    if not module or not name:
        raise InputError(f"arm {spec!r}, expected 'module:function', a factory that returns the function to time")
    try:
        factory = getattr(import_module(module), name)
    except ImportError as error:
        raise InputError(f"arm {spec!r}: {error}; its module must be one that a fresh process can import") from None
    except AttributeError:
        raise InputError(f"arm {spec!r}: module {module!r} has no {name!r}") from None
    arm: Arm = factory(*text)
    if not callable(arm):
        raise InputError(f"arm {spec!r} made {arm!r}, expected a factory that returns the function to time")
    return arm


def main() -> None:
    """Import the arms' modules, make the arms when asked to, then answer requests until none follows."""
    parent = ParentPipe()
    begin = parent.receive()
    assert begin is not None
    sys.path[:] = [*sys.path, *(folder for folder in begin["path"] if folder not in sys.path)]
    specs, process = begin["specs"], begin["process"]
    for spec in specs.values():
        with suppress(ImportError, ValueError):  # `arm_from` says what is wrong with the name
            import_module(spec.partition(":")[0])
    runner = BlockRunner({}, process=process)
    for request in parent.requests():
        do = request.pop("do")
        try:
            if do == "make":
                runner.arms = {name: arm_from(specs[name]) for name in construction_order(list(specs), process)}
                runner.make()
                runner.arms = {name: runner.arms[name] for name in specs}
            elif do == "plan":
                parent.send(answer=runner.plan(**request))
            else:
                for samples in runner.rounds(**request):
                    parent.send(answer=samples)
        except InputError as error:
            parent.send(error=str(error))
            return
        parent.send(done=True)
