"""Blocks of a race: their order and length, the clock around them, the processes that run them, and their record.

A block is `calls` calls of one arm between two readings of the clock (what `torch.utils.benchmark` calls
`number_per_run`). A round is a rotation of the arms followed by its reverse (ABBA or BAAB; ABCCBA, BCAACB or CABBAC),
so that a linear drift of the machine affects all arms alike within a round, and in as many rounds as there are arms
each arm takes every position.

A turn is what one process runs without a break, a part of the race. Every turn draws the orders of its rounds anew, so
that nothing periodic keeps in step with the arms for longer than a turn.

A block's sample is a dict of JSON values: `process`, `round` (of the race), `turn`, `position`, `arm`, `calls`,
`period` (of the arm), `seconds` (a call), and `spent_seconds` (of the budget, when its round ended).
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from math import ceil, log2
from pathlib import Path
from time import perf_counter
from typing import Any

from tclab._child_process import ChildProcess, ParentPipe
from tclab._io import held, writing
from tclab.errors import InputError
from tclab.timing._environment import on_cuda
from tclab.timing._loader_arm import DRAWN, Arm, loader_arm, wait_for_workers

Clock = Callable[[], float]
Sample = dict[str, Any]

LEAST_BLOCK_SECONDS = 0.005  # of which reading the clock and synchronising with a GPU cost next to nothing
FIRST_PROCESS = "TCLAB_RACE_FIRST_PROCESS"  # "1" in the environment of the process that makes its arms first
# On a shared machine the median of many short rounds is the most precise: most short blocks are not preempted.
_MOST_ROUNDS = 2000  # blocks are not made so short that more rounds fit, since they add no precision
# into the race's seconds, two in each of eight parts, before blocks become longer than they must be
ROUNDS_THAT_FIT = 16
_CALIBRATION_CHUNKS = 8
_LOOK_SECONDS = 0.5  # between looks whether the race is to end
VERSION = 5  # of a record; increases when a line changes its meaning
_BEGIN = b'{"version": '  # of a record


ArmSource = Arm | Callable[[], Any] | tuple[Iterable[Any], Callable[[Any], Any]] | str  # what `arm_from` takes
Arms = Mapping[str, ArmSource]  # name → candidate
Plan = tuple[Mapping[str, int], float]  # calls of each arm in a block, and about how long a round is


def orders_of(arms: Sequence[str], *, as_given: bool) -> Iterator[list[str]]:
    """Yield the arms of each round's blocks in order: a rotation, then its reverse.

    As many consecutive rounds as there are arms use each rotation once, in a random order. `as_given`: the first of
    them are not shuffled, so that the arms of a race first appear in the order in which they were given.
    """
    turns = list(range(len(arms)))
    while True:
        for turn in turns if as_given else DRAWN.sample(turns, len(arms)):
            rotation = [*arms[turn:], *arms[:turn]]
            yield rotation + rotation[::-1]
        as_given = False


class BlockRunner:
    """Runs the blocks of some arms in this process.

    **Arguments:**

    - `arms`: as for `race`.
    - `process`: a number that tells this process from the others of the race, which every sample gets. With an odd one
      the arms are made in reverse: where their objects lie in memory depends on the order in which they are made, and
      would favour the same arm in all processes.
    - `clock`: as for `race`.
    """

    def __init__(self, arms: Arms, process: int, clock: Clock = perf_counter) -> None:
        self.process, self._given, self._clock = process, arms, clock
        self._arms: dict[str, Arm] = {}
        self._first_seconds: dict[str, float] = {}  # of each arm's first call

    def make(self) -> None:
        """Make the arms, and call each once, unmeasured, since a first call may load or compile."""
        names = list(self._given)[:: -1 if self.process % 2 else 1]
        made = {name: arm_from(self._given[name]) for name in names}
        for name in names:
            begin = self._clock()
            made[name].call()
            self._first_seconds[name] = self._clock() - begin
        self._arms = {name: made[name] for name in self._given}
        on_cuda("synchronize")
        gc.collect()  # garbage of loading, before the rest is frozen
        on_cuda("empty_cache")  # the processes of a race share the device, and one alone is at work

    def _timed(self, name: str, calls: int) -> float:
        """Return the seconds of so many calls of an arm."""
        arm = self._arms[name]
        wait_for_workers()
        if arm.settle is not None:
            arm.settle(calls)
        if arm.returns_seconds:
            return float(sum(arm.call() for _ in range(calls)))
        on_cuda("synchronize")
        begin = self._clock()
        for _ in range(calls):
            arm.call()
        on_cuda("synchronize")
        return self._clock() - begin

    def plan(self, seconds: float, race_seconds: float) -> Plan:
        """Return how many calls of each arm a block has, and about how long a round is.

        Blocks are long enough for the clock, and so long that at most 2,000 rounds fit into `race_seconds`. Arms of
        similar speed get the same number of calls, and a faster one a power of 2 times as many, so that all blocks last
        about as long; beside a loader with workers all get the same. Where fewer than 16 such rounds fit, blocks are as
        short as they can be, and not of whole periods. `seconds` is what finding that out may take.
        """
        if any(arm.returns_seconds for arm in self._arms.values()):
            return dict.fromkeys(self._arms, 1), 2 * sum(self._first_seconds.values())
        blocks = 2 * len(self._arms)
        wanted = max(LEAST_BLOCK_SECONDS, race_seconds / (blocks * _MOST_ROUNDS))
        took = {name: self._call_seconds(name, seconds / len(self._arms), wanted) for name in self._arms}
        slowest = max(took.values())
        periods = {name: arm.period for name, arm in self._arms.items()}
        longest, fitting = max(periods.values()), int(race_seconds / (blocks * ROUNDS_THAT_FIT * slowest))
        if fitting < longest:  # whole periods would leave too few rounds for any verdict
            longest, periods = max(fitting, 1), dict.fromkeys(periods, 1)
        base = longest * max(1, round(wanted / (slowest * longest)))
        factors = {name: 2 ** int(log2(slowest / each)) for name, each in took.items()}
        # nor where calls may differ: a typical block of one call may hold no start of an epoch, and one of eight has it
        if blocks * base * slowest > race_seconds / ROUNDS_THAT_FIT or any(arm.settle for arm in self._arms.values()):
            factors = dict.fromkeys(factors, 1)
        calls = {name: ceil(base * factor / periods[name]) * periods[name] for name, factor in factors.items()}
        return calls, 2 * sum(calls[name] * each for name, each in took.items())

    def _call_seconds(self, name: str, seconds: float, wanted: float) -> float:
        """Return what a call takes, by the fastest of some chunks: preempted ones would make an arm look slow."""
        begin, period = self._clock(), self._arms[name].period
        singles = 1 if self._arms[name].settle is None else 2  # in one of them an epoch may begin
        call_seconds = max(min(self._timed(name, 1) for _ in range(singles)), 1e-9)
        if 1 < period < seconds / call_seconds:  # calls of a period may differ
            call_seconds = self._timed(name, period) / period
        for _ in range(_CALIBRATION_CHUNKS):
            calls = period * max(1, round(wanted / (period * call_seconds)))
            if self._clock() - begin + calls * call_seconds > seconds:
                break
            call_seconds = max(min(call_seconds, self._timed(name, calls) / calls), 1e-9)
        return call_seconds

    def rounds(
        self, seconds: float, calls: Mapping[str, int], *, turn: int, first: int, least: int, round_seconds: float
    ) -> Iterator[list[Sample]]:
        """Run whole rounds for about `seconds` and yield the samples of each.

        No round starts that would end more than half a round late, except the first `least`.

        **Arguments:**

        - `calls`: a block, of each arm.
        - `turn`: number of the turn.
        - `first`: number of the first round in the race.
        - `round_seconds`: about how long a round is.
        """
        for arm in self._arms.values() if on_cuda() else ():
            arm.call()  # allocates anew what was released
        begin, i = self._clock(), first
        orders = orders_of(list(self._arms), as_given=first == 0)
        gc.freeze()  # later collections skip what exists
        try:
            while (since := self._clock() - begin) + round_seconds / 2 < seconds or i < first + least:
                samples = []
                for position, name in enumerate(next(orders)):
                    gc.collect()  # what another arm left; a block collects its own, as any loop does
                    gc.freeze()
                    samples.append({
                        "process": self.process, "round": i, "turn": turn, "position": position, "arm": name,
                        "calls": calls[name], "period": self._arms[name].period,
                        "seconds": self._timed(name, calls[name]) / calls[name],
                    })  # fmt: skip
                yield samples
                round_seconds = self._clock() - begin - since
                i += 1
        finally:
            gc.unfreeze()
            on_cuda("empty_cache")
            wait_for_workers()  # which would take processors from the next process


class RaceProcess(ChildProcess):
    """A fresh process that makes its arms and runs them on request, as a `BlockRunner`; it is idle in between.

    The constructor returns at once, so that several processes import their modules side by side. `make` returns when
    the arms are made. Processes make them one after another, since the threads of several processes on the same cores
    wait for one another: four processes on two cores made three arms in 118 s side by side, and in 22 s one after
    another. Requests and answers are JSON lines.

    **Arguments:**

    - `specs`: name → factory, as for `race`.
    - `process`: as for `BlockRunner`; every other process makes its arms in reverse.
    - `environment`: variables in addition to this process's.
    - `is_first`: the process makes its arms before the others, and is told so by `FIRST_PROCESS`.
    - `look`: called every so often while an answer is awaited; what it raises ends the race.
    """

    def __init__(
        self, specs: Mapping[str, str], process: int, environment: Mapping[str, str], is_first: bool,
        look: Callable[[], object],
    ) -> None:  # fmt: skip
        self.process, self._look = process, look
        path = os.pathsep.join([*filter(None, sys.path), os.getcwd()])
        variables = {**os.environ, "PYTHONPATH": path, **environment, FIRST_PROCESS: str(int(is_first))}
        super().__init__([__name__], variables)
        self.send({"specs": specs, "process": process})

    def make(self) -> None:
        """Let the process make its arms, and wait for them. **Raises:** `InputError` with its error if it cannot."""
        list(self._asked("make"))

    def plan(self, *seconds: float) -> Plan:
        """Return what `BlockRunner.plan` does."""
        ((calls, round_seconds),) = self._asked("plan", *seconds)
        return calls, round_seconds

    def rounds(self, *turn: Any, **how: Any) -> Iterator[list[Sample]]:
        """Run the rounds of a turn in the process, as `BlockRunner.rounds` does."""
        return self._asked("rounds", *turn, **how)

    def _asked(self, method: str, *arguments: Any, **named: Any) -> Iterator[Any]:
        """Let the process call a method of its `BlockRunner`, and yield what comes of it."""
        self.send({"method": method, "arguments": arguments, "named": named})
        while (line := self.receive(_LOOK_SECONDS)) is not None:
            if "error" in line:
                raise InputError(line["error"])
            if "done" in line:
                return
            if "answer" in line:
                yield line["answer"]
            self._look()
        raise InputError(f"a process of the race ended with {self.wait()}: {self.last_error_line}")


Runner = BlockRunner | RaceProcess


def arm_from(given: ArmSource) -> Arm:
    """Return the arm of a function or a pair; where it is named as for `race`, what its factory makes in this process.

    **Raises:** `InputError` that says which part of the name is wrong.
    """
    if not isinstance(given, str):
        if isinstance(given, Arm):
            return given
        return loader_arm(*given) if isinstance(given, tuple) else Arm(given)
    module, _, rest = given.partition(":")
    name, *text = rest.split(":", 1)
    try:
        factory = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"arm {given!r}: {error}; expected 'module:function', a factory of the function to time, "
            "in a module that a fresh process can import"
        ) from None
    return arm_from(factory(*text))


def main() -> None:
    """Run as a process of a race: import the arms' modules, then answer requests until none follows."""
    parent = ParentPipe()
    begin = parent.receive()
    assert begin is not None
    for spec in begin["specs"].values():
        with suppress(ImportError, ValueError):  # `arm_from` says what is wrong with the name
            import_module(spec.partition(":")[0])
    runner = BlockRunner(begin["specs"], begin["process"])
    for request in iter(parent.receive, None):
        try:
            answer = getattr(runner, request["method"])(*request["arguments"], **request["named"])
            for each in answer if isinstance(answer, Iterator) else [answer]:
                parent.send(answer=each)
        except InputError as error:
            parent.send(error=str(error))
            return
        parent.send(done=True)


# ---- the record of a race: a line that says which race it is, and then a line of JSON for each round


@contextmanager
def open_record(
    path: str | Path | None, header: Mapping[str, Any]
) -> Iterator[tuple[list[Sample], Callable[[list[Sample]], None]]]:
    """Open the record of a race within the block, held against other processes.

    Yield the samples of its earlier sessions, and a function that writes those of a new round at once, so that a kill
    loses at most one round. If that fails, a warning says so and the race continues without a record.

    **Arguments:**

    - `path`: the file; `None` keeps nothing.
    - `header`: arms, machine and settings. An existing record is continued only if its header is the same.

    **Raises:** `InputError` for a file that is not a record of a race, is damaged, cannot be written, is being written
    by another race, or is the record of another, naming the difference.
    """
    if path is None:
        yield [], lambda line: None
        return
    file, header, failed = Path(path), json.loads(json.dumps({"version": VERSION, **header})), False

    def add(line: list[Sample] | Mapping[str, Any]) -> None:
        nonlocal failed
        if failed:
            return
        try:
            with file.open("ab") as record:
                record.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            warnings.warn(f"the race continues without its record {file}: {error.strerror}", stacklevel=4)
            failed = True

    with writing("record", path):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    with held(file.with_name(f".{file.name}.lock")) as owner:
        if owner is not None:
            raise InputError(f"record {file} is being written by {owner}")
        theirs, samples, length = _read(file)
        os.truncate(file, length)  # drops a line that a kill cut short
        if not theirs:
            add(header)
        for name, ours in header.items() if theirs else ():
            if theirs.get(name) != ours:
                raise InputError(
                    f"{file} is the record of another race: {name} was {theirs.get(name)!r} and is {ours!r}; a race "
                    "resumes only with the same candidates, machine and settings, so give another `record`"
                )
        yield samples, add


def read_samples(path: str | Path) -> list[Sample]:
    """Return the samples of a record, for `verdicts_of`; the race may have run on any machine.

    **Raises:** `InputError` for a file that is not a record of a race, or is damaged.
    """
    return _read(Path(path))[1]


def _read(file: Path) -> tuple[dict[str, Any], list[Sample], int]:
    """Return a record's header and samples, and the length in bytes of all but a last line that was cut short."""
    if not file.is_file():
        raise InputError(f"{file} is not a record of a race")
    header, samples, length = dict[str, Any](), list[Sample](), 0
    for i, line in enumerate(file.read_bytes().splitlines(keepends=True)):
        try:
            if not i and not _BEGIN.startswith(line[: len(_BEGIN)]):
                raise ValueError("a file of another kind")
            if not line.endswith(b"\n"):
                break
            content = json.loads(line)
            if i:
                samples += [sample for sample in content if sample["seconds"]]
            else:
                header = content
        except (KeyError, RecursionError, TypeError, ValueError):
            raise InputError(f"{file} is damaged, or no record of a race: line {i + 1} is {line[:60]!r}") from None
        length += len(line)
    return header, samples, length
