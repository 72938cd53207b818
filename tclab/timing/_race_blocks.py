"""Blocks of a race: their order and length, the clock around them, the processes that run them, and their record.

A block is `calls` calls of one arm between two readings of the clock (what `torch.utils.benchmark` calls
`number_per_run`). A round is a rotation of the arms followed by its reverse (ABBA or BAAB; ABCCBA, BCAACB or CABBAC),
so that a linear drift of the machine affects all arms alike within a round, and in as many rounds as there are arms
each arm takes every position.

A block's sample is a dict of JSON values: `process`, `round`, `position`, `arm`, `calls`, `period` (of the arm),
`seconds` (a call), `half` of the budget (0 or 1) and `spent_seconds` (of the budget, when its round ended).

An arm is a function that does one unit of work. It may have attributes: `settle`, called before each block, outside the
clock, since what an arm's workers did while others ran must not make its own block shorter; `period`, of which a
block's calls are a multiple where the budget has room; `returns_seconds`, true where a call returns its own seconds and
no clock is read. Of a pair (loader, step) `LoaderArm` makes such a function.
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
from random import Random
from time import perf_counter_ns
from typing import Any

from tclab._child_process import ChildProcess, ParentPipe
from tclab._io import held, writing
from tclab.errors import InputError
from tclab.timing._loader_arm import LoaderArm, wait_for_workers

Clock = Callable[[], int]
Arm = Callable[[], Any]
ArmSource = Arm | tuple[Iterable[Any], Callable[[Any], Any]] | str  # what `arm_from` takes
Sample = dict[str, Any]

LEAST_BLOCK_SECONDS = 0.005  # of which reading the clock and synchronising with a GPU cost next to nothing
FIRST_PROCESS = "TCLAB_RACE_FIRST_PROCESS"  # "1" in the environment of the process that makes its arms first
# On a shared machine the median of many short rounds is the most precise: most short blocks are not preempted.
_MOST_ROUNDS = 2000  # blocks are not made so short that more rounds fit, since they add no precision
ROUNDS_THAT_FIT = 12  # into the race's seconds, where single calls allow it
_LEAST_ROUNDS = 2  # of each process, however short the budget is
_CALIBRATION_CHUNKS = 8
VERSION = 5  # of a record; increases when a line changes its meaning
_BEGIN = b'{"version": '  # of a record


def order_of(arms: Sequence[str], i: int) -> list[str]:
    """Return the arms of round `i`'s blocks in order: a rotation, then its reverse.

    As many consecutive rounds as there are arms use each rotation once, in a random order. A periodic disturbance, such
    as a scheduler's, could keep in step with a fixed order and always affect the same arm. The random order depends
    only on the number of the round, so that a resumed race continues in the same order.
    """
    cycle, turn = divmod(i, len(arms))
    if cycle:  # the first cycle is not shuffled, so that the arms first appear in the order given
        turn = Random(cycle).sample(range(len(arms)), len(arms))[turn]
    rotation = [*arms[turn:], *arms[:turn]]
    return rotation + rotation[::-1]


def _cuda() -> Any:
    """Return `torch.cuda` where this process uses it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized() else None


def _on_cuda(call: str) -> None:
    """Call a function of `torch.cuda` by its name, where this process uses it."""
    if (cuda := _cuda()) is not None:
        getattr(cuda, call)()


def _period(arm: Arm) -> int:
    return getattr(arm, "period", 1)


class BlockRunner:
    """Runs the blocks of some arms in this process.

    **Arguments:**

    - `arms`: name → the function to time, a pair (loader, step), or "module:function", a factory of either.
    - `process`: a number that tells this process from the others of the race, which every sample gets. With an odd one
      the arms are made in reverse: where their objects lie in memory depends on the order in which they are made, and
      would favour the same arm in all processes.
    - `clock`: as for `race`.
    """

    def __init__(self, arms: Mapping[str, ArmSource], process: int, clock: Clock = perf_counter_ns) -> None:
        self.process, self._given, self._clock = process, arms, clock
        self._arms: dict[str, Arm] = {}
        self._round_seconds = 0.0  # of the last one

    def make(self) -> None:
        """Make the arms, and call each once, unmeasured, since a first call may load or compile."""
        names = list(self._given)[:: -1 if self.process % 2 else 1]
        made = {name: arm_from(self._given[name]) for name in names}
        for name in names:
            made[name]()
        self._arms = {name: made[name] for name in self._given}
        _on_cuda("synchronize")
        gc.collect()  # garbage of loading, before the rest is frozen
        _on_cuda("empty_cache")  # the processes of a race share the device, and one alone is at work

    def _since(self, begin: int) -> float:
        return (self._clock() - begin) / 1e9

    def _timed(self, arm: str, calls: int) -> float:
        """Return the seconds of so many calls of an arm."""
        call = self._arms[arm]
        wait_for_workers()
        getattr(call, "settle", lambda: None)()
        if getattr(call, "returns_seconds", False):
            return float(sum(call() for _ in range(calls)))
        _on_cuda("synchronize")
        begin = self._clock()
        for _ in range(calls):
            call()
        _on_cuda("synchronize")
        return self._since(begin)

    def plan(self, seconds: float, race_seconds: float) -> dict[str, int]:
        """Return how many calls of each arm a block has.

        Blocks are long enough for the clock, and so long that at most 2,000 rounds fit into `race_seconds`. Where calls
        take so long that whole periods leave fewer than 12 rounds, blocks are shorter. Arms of similar speed get the
        same number of calls. A faster one gets a power of 2 times as many, so that all blocks last about as long.
        `seconds` is what finding that out may take.
        """
        if any(getattr(arm, "returns_seconds", False) for arm in self._arms.values()):
            return dict.fromkeys(self._arms, 1)
        blocks = 2 * len(self._arms)
        wanted = max(LEAST_BLOCK_SECONDS, race_seconds / (blocks * _MOST_ROUNDS))
        call_seconds = {arm: self._call_seconds(arm, seconds / len(self._arms), wanted) for arm in self._arms}
        slowest = max(call_seconds.values())
        periods = {arm: _period(call) for arm, call in self._arms.items()}
        longest, fitting = max(periods.values()), int(race_seconds / (blocks * ROUNDS_THAT_FIT * slowest))
        if fitting < longest:  # whole periods would leave too few rounds for any verdict
            longest, periods = max(fitting, 1), dict.fromkeys(periods, 1)
        base = longest * max(1, round(wanted / (slowest * longest)))
        as_long = {arm: base * 2 ** int(log2(slowest / took)) for arm, took in call_seconds.items()}
        return {arm: ceil(calls / periods[arm]) * periods[arm] for arm, calls in as_long.items()}

    def _call_seconds(self, arm: str, seconds: float, wanted: float) -> float:
        """Return what a call takes, by the fastest of some chunks: preempted ones would make an arm look slow."""
        begin, period = self._clock(), _period(self._arms[arm])
        call_seconds = max(self._timed(arm, 1), 1e-9)
        if 1 < period < seconds / call_seconds:  # calls of a period may differ
            call_seconds = self._timed(arm, period) / period
        for _ in range(_CALIBRATION_CHUNKS):
            calls = period * max(1, round(wanted / (period * call_seconds)))
            if self._since(begin) + calls * call_seconds > seconds:
                break
            call_seconds = max(min(call_seconds, self._timed(arm, calls) / calls), 1e-9)
        return call_seconds

    def rounds(self, seconds: float, calls: Mapping[str, int], first: int) -> Iterator[list[Sample]]:
        """Run whole rounds for about `seconds` and yield the samples of each.

        No round starts that would end more than half a round late, except the first two of this process.

        **Arguments:**

        - `calls`: a block, of each arm.
        - `first`: number of the first round.
        """
        for call in self._arms.values() if _cuda() is not None else ():
            call()  # allocates anew what was released
        begin, i, collects = self._clock(), first, gc.isenabled()
        gc.freeze()  # later collections skip what exists
        gc.disable()
        try:
            while (since := self._since(begin)) + self._round_seconds / 2 < seconds or i < _LEAST_ROUNDS:
                yield [
                    {"process": self.process, "round": i, "position": position, "arm": arm, "calls": calls[arm],
                     "period": _period(self._arms[arm]), "seconds": self._timed(arm, calls[arm]) / calls[arm]}
                    for position, arm in enumerate(order_of(list(self._arms), i))
                ]  # fmt: skip
                gc.collect()  # of what this round left alone
                gc.freeze()
                self._round_seconds = self._since(begin) - since
                i += 1
        finally:
            gc.unfreeze()
            if collects:
                gc.enable()
            _on_cuda("empty_cache")


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
    """

    def __init__(self, specs: Mapping[str, str], process: int, environment: Mapping[str, str], is_first: bool) -> None:
        self.process = process
        path = os.pathsep.join([*filter(None, sys.path), os.getcwd()])
        variables = {**os.environ, "PYTHONPATH": path, **environment, FIRST_PROCESS: str(int(is_first))}
        super().__init__([__name__], variables)
        self.send({"specs": specs, "process": process})

    def make(self) -> None:
        """Let the process make its arms, and wait for them. **Raises:** `InputError` with its error if it cannot."""
        list(self._asked("make"))

    def plan(self, seconds: float, race_seconds: float) -> dict[str, int]:
        """Return how many calls a block has, as a `BlockRunner` does."""
        (calls,) = self._asked("plan", seconds=seconds, race_seconds=race_seconds)
        return dict(calls)

    def rounds(self, seconds: float, calls: Mapping[str, int], first: int) -> Iterator[list[Sample]]:
        """Run rounds in the process, and yield the samples of each as it ends."""
        return self._asked("rounds", seconds=seconds, calls=calls, first=first)

    def _asked(self, method: str, **arguments: Any) -> Iterator[Any]:
        """Let the process call a method of its `BlockRunner`, and yield what comes of it."""
        self.send({"method": method, "arguments": arguments})
        while (line := self.receive()) is not None:
            if "error" in line:
                raise InputError(line["error"])
            if "done" in line:
                return
            yield line["answer"]
        raise InputError(f"a process of the race ended with {self.wait()}: {self.last_error_line}")


def arm_from(given: ArmSource) -> Arm:
    """Return an arm: of a pair its function; where it is named as for `race`, what its factory makes in this process.

    **Raises:** `InputError` that says which part of the name is wrong.
    """
    if not isinstance(given, str):
        return LoaderArm(*given) if isinstance(given, tuple) else given
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
            found = getattr(runner, request["method"])(**request["arguments"])
            for answer in found if request["method"] == "rounds" else [found]:
                parent.send(answer=answer)
        except InputError as error:
            parent.send(error=str(error))
            return
        parent.send(done=True)


# ---- the record of a race: a line that says which race it is, and then a line of JSON for each round


class RaceRecord:
    """The rounds of a race's earlier sessions; `add` writes each new one at once, so a kill loses at most one.

    **Arguments:**

    - `path`: the file; `None` for none.
    - `samples`: of the rounds that are in it.
    """

    def __init__(self, path: Path | None, samples: list[Sample]) -> None:
        self.samples = samples
        self._path = path

    def add(self, line: list[Sample] | Mapping[str, Any]) -> None:
        """Write a line. Where that fails a warning says so, and the race goes on without a record."""
        if self._path is None:
            return
        try:
            with self._path.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            warnings.warn(f"the race goes on without its record {self._path}: {error.strerror}", stacklevel=4)
            self._path = None


@contextmanager
def open_record(path: str | Path | None, header: Mapping[str, Any]) -> Iterator[RaceRecord]:
    """Open the record of a race within the block, held against other processes.

    **Arguments:**

    - `path`: the file; `None` keeps nothing.
    - `header`: arms, machine and settings. An existing record is continued only if its header is the same.

    **Raises:** `InputError` for a file that is no record of a race, is damaged, cannot be written, is being written by
    another race, or is the record of another, naming the difference.
    """
    if path is None:
        yield RaceRecord(None, [])
        return
    file, header = Path(path), json.loads(json.dumps({"version": VERSION, **header}))
    with writing("record", path):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    with held(file.with_name(f".{file.name}.lock")) as owner:
        if owner is not None:
            raise InputError(f"record {file} is being written by {owner}")
        theirs, samples, length = _read(file)
        os.truncate(file, length)  # drops a line that a kill cut short
        record = RaceRecord(file, samples)
        if not theirs:
            record.add(header)
        for name, ours in header.items() if theirs else ():
            if theirs.get(name) != ours:
                raise InputError(
                    f"{file} is the record of another race: {name} was {theirs.get(name)!r} and is {ours!r}; a race "
                    "goes on only with the same arms, machine and settings, so give another `record`"
                )
        yield record


def read_samples(path: str | Path) -> list[Sample]:
    """Return the samples of a record, for `verdicts_of`; the race may have run on any machine.

    **Raises:** `InputError` for a file that is no record of a race, or is damaged.
    """
    return _read(Path(path))[1]


def _read(file: Path) -> tuple[dict[str, Any], list[Sample], int]:
    """Return a record's header and samples, and the length in bytes of all but a last line that was cut short."""
    if not file.is_file():
        raise InputError(f"{file} is no record of a race")
    data, found = file.read_bytes(), []
    *lines, rest = data.split(b"\n")
    if not _BEGIN.startswith(data[: len(_BEGIN)]):  # a file of another kind, of one line without an end, say, is kept
        raise InputError(f"{file} is damaged, or no record of a race: line 1 is {[*lines, rest][0][:60]!r}")
    for i, line in enumerate(lines):
        try:
            found.append(json.loads(line))
            _ = [sample["seconds"] for sample in found[-1]] if i else None
        except (KeyError, RecursionError, TypeError, ValueError):
            raise InputError(f"{file} is damaged, or no record of a race: line {i + 1} is {line[:60]!r}") from None
    header, *rounds = found or [{}]
    return header, [sample for one in rounds for sample in one], len(data) - len(rest)
