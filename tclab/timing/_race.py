"""`race` and `race_cells`: which of several calls is faster, from interleaved blocks of calls.

    result = tclab.timing.race({"old": old_step, "new": new_step}, budget_seconds=60)
    result.verdict("new", "old"), result.ratio, result.interval

`_verdict.py` decides the verdicts and `_race_blocks.py` runs the blocks. The garbage collector is frozen and off inside
blocks and collects between rounds, so its pauses are in no figure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from sys import float_info
from time import perf_counter_ns
from typing import Any
from uuid import uuid4

from tclab._display import Display, Shown
from tclab.errors import InputError, check_whole, unknown
from tclab.timing._environment import busy_notes, busy_percent, conditions, fingerprint
from tclab.timing._race_blocks import FIRST_PROCESS, Arm, BlockRunner, Clock, RaceProcess, Sample, arm_from
from tclab.timing._race_record import Line, RaceRecord
from tclab.timing._verdict import MARGIN, UNDECIDED, Pair, pairs_display, verdicts_of

FLOOR_SHARE = 0.08  # of a cell's seconds, spent on the A/A floor
CALIBRATION_SHARE = 0.04
EARLY = 1.3  # ratio, beyond which a race ends at half of its budget
_LEAST_ROUNDS = 2  # of each process, however short the budget is
_TURNS = 2  # of each process in half of the budget, where there are several
_THIS_PROCESS = uuid4().int % 10**9  # a process id would come again


@dataclass(frozen=True, repr=False)
class Race(Shown):
    """The result of a race.

    **Arguments:**

    - `arms`: names of the arms, in order.
    - `cell`: name of the cell; `None` for a race without cells.
    - `settings`: how it ran.
    - `machine`: where it ran.
    - `stopped`: why it ended before its budget; `None` if it did not.
    - `making_seconds`: in which its arms were made and first called, before the budget began.
    - `busy_percent`: pressure on the processors at its end, where the machine was busy; `None` where not, or not known.
    """

    arms: tuple[str, ...]
    cell: str | None
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    stopped: str | None
    making_seconds: float
    busy_percent: float | None
    _samples: tuple[Mapping[str, Any], ...]
    _pairs: Mapping[tuple[str | None, str, str], Pair]

    def pair(self, a: str, b: str) -> Pair:
        """Return the comparison of two arms. **Raises:** `InputError` for an unknown arm, with the nearest name."""
        for arm in (a, b):
            if arm not in self.arms:
                raise unknown("arm", arm, self.arms)
        if a == b:
            raise InputError(f"{a!r} with itself is no comparison; the A/A floor is `.floor`")
        if (found := self._pairs.get((self.cell, a, b))) is not None:
            return found
        other = self._pairs.get((self.cell, b, a))
        return other.flipped() if other is not None else Pair(a, b, UNDECIDED, "no round ran", cell=self.cell)

    def verdict(self, a: str, b: str) -> str:
        """Return "FASTER" if `a` is faster than `b`, "SLOWER", "SAME" or "UNDECIDED"."""
        return self.pair(a, b).verdict

    @property
    def ratio(self) -> float | None:
        """Time of the first arm over time of the second; `None` if unknown."""
        return self.pairs[0].ratio

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `ratio`."""
        return self.pairs[0].interval

    @property
    def pairs(self) -> list[Pair]:
        """The comparisons of every two arms, in order."""
        return [self.pair(a, b) for i, a in enumerate(self.arms) for b in self.arms[i + 1 :]]

    @property
    def floor(self) -> float | None:
        """The A/A floor: the ratio, less 1, that an arm shows against itself; `None` if it did not run."""
        return self.pairs[0].floor

    @property
    def margin(self) -> float:
        """The margin that a difference must exceed: `margin` of the call, or the A/A floor if that is larger."""
        return self.pairs[0].margin

    @property
    def block_seconds(self) -> float:
        """Total seconds inside blocks."""
        return float(sum(s["seconds"] * s["calls"] for s in self._samples))

    def samples(self) -> list[dict[str, Any]]:
        """Return the samples in the order in which their blocks ran, as `tclab.timing.verdicts_of` takes them."""
        return [dict(sample) for sample in self._samples]

    def frame(self) -> Any:
        """Return one row a block as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.samples())

    def _display(self) -> Display:
        floor = "not measured" if self.floor is None else f"{self.floor:.2%}"
        budget = self.settings["budget_seconds"]
        notes = [
            f"A/A floor {floor}, margin {self.margin:.2%}; {self.block_seconds:.1f} of {budget:g} s in blocks, "
            f"{self.making_seconds:.1f} s before them to make the arms"
        ]
        if self.stopped is None and any(pair.needs_rounds for pair in self.pairs):
            notes.append("where the race has a record, the same with a larger budget_seconds goes on from here")
        return pairs_display(self.pairs, notes=[*notes, *_last_notes(self)])


@dataclass(frozen=True, repr=False)
class Races(Shown):
    """The result of a race of several cells.

    **Arguments:**

    - `cells`: cell → its race.
    - `stopped`: as for `Race`.
    """

    cells: Mapping[Hashable, Race]
    stopped: str | None

    @property
    def pairs(self) -> list[Pair]:
        """The comparisons of every two arms of every cell."""
        return [pair for race in self.cells.values() for pair in race.pairs]

    @property
    def busy_percent(self) -> float | None:
        """The largest of its cells'."""
        return max((race.busy_percent for race in self.cells.values() if race.busy_percent), default=None)

    def _display(self) -> Display:
        return pairs_display(self.pairs, notes=_last_notes(self))


def _last_notes(result: Race | Races) -> list[str]:
    return [*busy_notes(result.busy_percent), *([f"stopped: {result.stopped}"] if result.stopped else [])]


def race(
    arms: Mapping[str, Arm | str],
    *,
    budget_seconds: float,
    margin: float = MARGIN,
    processes: int | None = None,
    record: str | Path | None = None,
    stop: Callable[[], bool] | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Clock = perf_counter_ns,
) -> Race:
    """Race calls against one another and return a verdict on every two, with the measurements it rests on.

    `torch.utils.benchmark.Timer` times each statement by itself; a race interleaves blocks of all arms, so that they
    share the machine's drift, and decides each pair by the interval of their ratio.

    The race runs its budget, since stopping whenever a difference appears would find differences that do not exist. At
    half of it, it ends if the intervals of all pairs lie beyond ±30 %. An interrupt (Ctrl-C) ends it early and returns
    the rounds measured so far; with `record`, the same call later continues it.

    **Arguments:**

    - `arms`: name → a function without arguments that does one unit of work (one step); at least two. Or
      "module:function", a factory that returns this function, or "module:function:text", with the factory's argument.
      Where it has attributes `settle` (called before each block, outside the clock) and `period` (calls that a block is
      a multiple of), they are used: a loader's workers must not have filled up while another arm ran.
    - `budget_seconds`: wall time for the A/A floor and the rounds, which begins when the arms are made and each was
      called once.
    - `margin`: a share of the time that is no difference worth a verdict: 0.02 is 2 %.
    - `processes`: run in this many fresh processes, which take turns; arms are then factories, since a closure cannot
      be sent to another process. `None` runs in this process.
    - `record`: a file, or a folder, to which each round is written as it ends. A race with the same arms, machine and
      settings continues from it. With a larger `budget_seconds`, a race that ended UNDECIDED goes on, at any time and
      as often as is wanted: a part of alpha is kept for it (`tclab.timing._statistics.alpha_of`).
    - `stop`: called before each round; true ends the race like an interrupt.
    - `environment`: variables for the fresh processes in addition to this process's, such as allocator settings.
    - `clock`: returns nanoseconds; for tests of what is raced.

    **Raises:** `InputError` for fewer than two arms, a budget that is not above 0, a factory that cannot be
    imported, or the record of another race.
    """
    settings = _Settings(budget_seconds, margin, processes, stop, environment, clock)
    return _Session({None: arms}, settings, record).run().cells[None]


def race_cells(
    cells: Mapping[Hashable, Mapping[str, Arm | str] | Callable[[], Mapping[str, Arm | str]]],
    *,
    budget_seconds: float,
    record: str | Path | None = None,
    **settings: Any,
) -> Races:
    """Race the arms of several cells; what a cell that ends at half of its seconds leaves goes to the others.

    The p values of all comparisons of all cells are adjusted together (Benjamini-Hochberg).

    **Arguments:**

    - `cells`: cell → its arms; or a function that makes them when the cell's turn comes, so that not all of them need
      be in memory at once. Cells are recorded by the text of their names.
    - `budget_seconds`: for all cells together.
    - `record`: as for `race`.
    - `settings`: the other settings of `race`, by name.

    **Raises:** `InputError`, as `race` does; `TypeError` for a setting that `race` does not have.
    """
    if None in cells:
        raise InputError("a cell is named None, expected a name")
    return _Session(cells, _Settings(budget_seconds, **settings), record).run()


@dataclass(frozen=True)
class _Settings:
    """How a race runs; `race` describes each setting. **Raises:** `InputError` for a value that no race can have."""

    budget_seconds: float
    margin: float = MARGIN
    processes: int | None = None
    stop: Callable[[], bool] | None = None
    environment: Mapping[str, str] | None = None
    clock: Clock = perf_counter_ns

    def __post_init__(self) -> None:
        for name, most in (("budget_seconds", float_info.max), ("margin", 1.0)):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0 < value <= most:
                raise InputError(f"{name} is {value!r}, expected a number above 0" + (" up to 1" if most == 1 else ""))
        if self.processes is not None:
            check_whole("processes is", self.processes, least=1)

    def recorded(self) -> dict[str, Any]:
        """Return the settings that decide which blocks run, as a record holds them."""
        # the folder of temporary files changes no measurement
        environment = {name: value for name, value in (self.environment or {}).items() if name != "TMPDIR"}
        return {"budget_seconds": self.budget_seconds, "processes": self.processes, "environment": environment}


def _checked_arms(arms: Any, processes: int | None, cell: str | None) -> dict[str, Any]:
    """Return the arms of a cell. **Raises:** `InputError` unless they are at least two that can run."""
    where = "" if cell is None else f"cell {cell!r}: "
    if not isinstance(arms, Mapping) or len(arms) < 2:
        given = f"{len(arms)} ({', '.join(map(str, arms)) or 'none'})" if isinstance(arms, Mapping) else repr(arms)
        raise InputError(f"{where}arms are {given}, expected at least two, name → function")
    for name, arm in arms.items():
        if not isinstance(name, str):
            raise InputError(f"{where}an arm is named {name!r}, expected text")
        if processes is not None and not isinstance(arm, str):
            raise InputError(
                f"{where}arm {name!r} is {arm!r}, which cannot be sent to another process; with processes="
                f"{processes} expected 'module:function', a factory that returns the function to time"
            )
        if not isinstance(arm, str) and not callable(arm):
            raise InputError(f"{where}arm {name!r} is {arm!r}, expected a function or 'module:function'")
    return dict(arms)


@dataclass
class _Cell:
    """One cell: its arms, the samples of its blocks, and the runners or processes that run them."""

    name: str | None
    given: Any  # its arms, or a function that makes them
    arms: tuple[str, ...] = ()
    samples: list[Sample] = field(default_factory=list)
    calls: dict[str, int] | None = None
    block_seconds: float = 0.0
    stages: set[tuple[int, int]] = field(default_factory=set)  # extension and half, of those that ended
    judged: int = 0  # samples until the last of them
    busy_percent: float | None = None  # at its end
    making_seconds: float = 0.0
    workers: list[BlockRunner | RaceProcess] = field(default_factory=list)

    def apply(self, line: Line) -> None:
        """Apply a line of the record, old or new."""
        if line["kind"] == "plan":
            self.calls, self.block_seconds = dict(line["calls"]), line["block_seconds"]
            self.arms = tuple(self.calls)
        elif line["kind"] == "stage":
            self.stages.add((line["extension"], line["half"]))
            self.judged, self.busy_percent = len(self.samples), line["busy_percent"]
        elif line["kind"] == "block":
            self.samples.append(line)

    def next_round(self, phase: str, process: int) -> int:
        rounds = (s["round"] for s in self.samples if s["phase"] == phase and s["process"] == process)
        return max(rounds, default=-1) + 1

    def close(self) -> None:
        """End the processes of this cell and drop its arms."""
        while self.workers:
            self.workers.pop().close()


class _Session:
    """One session of a race: two halves of each budget, each for the cells that are still open.

    `cells` is as for `race_cells`, with one cell named `None` for a race without cells.
    """

    def __init__(self, cells: Mapping[Any, Any], settings: _Settings, record: str | Path | None) -> None:
        self._settings = settings
        self._keys: dict[str | None, Hashable] = {None if key is None else str(key): key for key in cells}
        if not cells or len(self._keys) != len(cells):
            raise InputError(f"cells are {', '.join(map(str, cells)) or 'none'}, expected names that differ")
        self._cells = [_Cell(name, cells[key]) for name, key in self._keys.items()]
        for cell in self._cells:
            if not callable(cell.given):
                cell.arms = tuple(_checked_arms(cell.given, settings.processes, cell.name))
        self._machine = fingerprint("machine", load_torch=False)
        arms = [[cell.name, _identity(cell.given)] for cell in self._cells]
        self._record = RaceRecord(record, {"cells": arms, "machine": self._machine, "settings": settings.recorded()})
        self._spent_ns = 0  # of the budget; whole, so that a stop does not change the sum
        self._begin: int | None = None  # when the budget's clock was started; `None` while it stands still
        by_name = {cell.name: cell for cell in self._cells}
        for line in self._record.lines:
            by_name[line["cell"]].apply(line)
            self._spent_ns = max(self._spent_ns, round(line.get("spent_seconds", 0.0) * 1e9))

    @contextmanager
    def _budget_clock(self) -> Iterator[None]:
        """Let the budget be spent inside."""
        self._begin = self._settings.clock()
        try:
            yield
        finally:
            self._spent_ns, self._begin = round(self._spent() * 1e9), None

    def _spent(self) -> float:
        """Return the seconds of the budget that are spent, including earlier sessions."""
        since = 0 if self._begin is None else self._settings.clock() - self._begin
        return (self._spent_ns + since) / 1e9

    def _stopped(self) -> bool:
        return self._settings.stop is not None and self._settings.stop()

    def run(self) -> Races:
        """Run until the end of the budget, or an interrupt."""
        stopped = None
        try:
            if not all(self._run_stage(stage, until) for stage, until in self._stages()):
                stopped = "stop returned true"
        except KeyboardInterrupt:
            stopped = "interrupted"
        finally:
            for cell in self._cells:
                cell.close()
            self._record.close()
        pairs = self._verdicts([cell.samples for cell in self._cells])
        settings = {**self._settings.recorded(), "margin": self._settings.margin}
        races = {
            self._keys[cell.name]: Race(
                cell.arms, cell.name, settings, self._machine, stopped, cell.making_seconds, cell.busy_percent,
                tuple(cell.samples), pairs,
            )
            for cell in self._cells
        }  # fmt: skip
        return Races(races, stopped)

    def _stages(self) -> Iterator[tuple[tuple[int, int], float]]:
        """Yield (extension, half) and the seconds of the budget that are spent at its end."""
        for extension, (before, budget) in enumerate(pairwise([0.0, *self._record.budgets])):
            yield (extension, 0), (before + budget) / 2
            yield (extension, 1), budget

    def _verdicts(self, samples: list[list[Sample]]) -> dict[tuple[str | None, str, str], Pair]:
        every = (sample for of_cell in samples for sample in of_cell)
        return verdicts_of(every, margin=self._settings.margin)

    def _due(self, extension: int, half: int) -> list[_Cell]:
        """Return the cells that run: the undecided ones, and in the second half those that are not far apart."""
        pairs = self._verdicts([cell.samples[: cell.judged] for cell in self._cells])
        is_over = _is_far if half else _is_decided
        going = {pair.cell for pair in pairs.values() if not is_over(pair)}
        raced = {pair.cell for pair in pairs.values()}
        return [
            cell
            for cell in self._cells
            if (cell.name in going or cell.name not in raced)
            and (extension, half) not in cell.stages
            and (half == 0 or (extension, 0) in cell.stages)
        ]

    def _run_stage(self, stage: tuple[int, int], until: float) -> bool:
        """Run each open cell for its share of the seconds until then; return false if the race was stopped."""
        due = self._due(*stage)
        for i, cell in enumerate(due):
            if self._stopped():
                return False
            left = (until - self._spent()) / (len(due) - i)
            if (left > 0 or not cell.samples) and not self._run_cell(cell, left, stage[0]):
                return False
            line = {"kind": "stage", "cell": cell.name, "extension": stage[0], "half": stage[1],
                    "busy_percent": busy_percent(conditions()), "spent_seconds": self._spent()}  # fmt: skip
            self._add(cell, line)
            if len(self._cells) > 1:
                cell.close()  # frees the memory of its arms for the next cell
        return True

    def _run_cell(self, cell: _Cell, seconds: float, extension: int) -> bool:
        """Run a cell for some seconds; return false if the race was stopped."""
        self._start(cell)
        with self._budget_clock(), closing(self._rounds(cell, seconds)) as rounds:
            for samples in rounds:
                more = {"cell": cell.name, "extension": extension, "spent_seconds": self._spent()}
                self._add(cell, *({**sample, **more} for sample in samples))
                if self._stopped():
                    return False
        return True

    def _add(self, cell: _Cell, *lines: Line) -> None:
        for line in lines:
            cell.apply(line)
        self._record.add(*lines)

    def _start(self, cell: _Cell) -> None:
        """Make the arms, in each process, unless they are there already."""
        if cell.workers:
            return
        settings, begin = self._settings, self._settings.clock()
        given = cell.given() if callable(cell.given) else cell.given
        arms = _checked_arms(given, settings.processes, cell.name)
        cell.arms = tuple(arms)
        if settings.processes is None:
            made = {name: arm_from(arm) if isinstance(arm, str) else arm for name, arm in arms.items()}
            cell.workers.append(BlockRunner(made, clock=settings.clock, process=_THIS_PROCESS))
        else:
            first = max((s["process"] for s in cell.samples), default=-1) + 1
            for i in range(settings.processes):
                environment = {**(settings.environment or {}), FIRST_PROCESS: str(int(i == 0))}
                cell.workers.append(RaceProcess(arms, first + i, environment))
        for worker in cell.workers:
            worker.make()
        cell.making_seconds += (settings.clock() - begin) / 1e9

    def _rounds(self, cell: _Cell, seconds: float) -> Generator[list[Sample]]:
        """Run a cell for `seconds`, its workers in turns, and yield the samples of each round.

        The first worker finds out how long blocks are, for all; each runs the floor before its first round.
        """
        n = len(cell.workers)
        whole = self._settings.budget_seconds / len(self._cells)
        if cell.calls is None:
            race_seconds = (1 - FLOOR_SHARE - CALIBRATION_SHARE) * whole / n
            plan = cell.workers[0].plan(CALIBRATION_SHARE * whole, race_seconds)
            line = {"kind": "plan", "cell": cell.name, **plan}
            self._add(cell, line)
        assert cell.calls is not None
        begin, floor_seconds = self._spent(), FLOOR_SHARE * whole / n
        turns = cell.workers * (_TURNS if n > 1 else 1)
        for i, worker in enumerate(turns):
            floors = {s["process"] for s in cell.samples if s["phase"] == "floor"}
            # a round of the floor and its reverse fit
            if worker.process not in floors and len(floors) < n and 8 * cell.block_seconds <= floor_seconds:
                yield from worker.rounds("floor", floor_seconds, cell.calls, first=0)
            left = begin + seconds * (i + 1) / len(turns) - self._spent()
            if left < len(cell.arms) * cell.block_seconds:  # a round would end more than half a round late
                left = 0.0
            first = cell.next_round("race", worker.process)
            yield from worker.rounds("race", left, cell.calls, first=first, least=_LEAST_ROUNDS)


def _is_decided(pair: Pair) -> bool:
    return pair.verdict != UNDECIDED


def _is_far(pair: Pair) -> bool:
    """Return whether a pair needs no second half: noise of one arm that has not shown itself yet is below 30 %."""
    if pair.verdict == UNDECIDED or pair.decision_interval is None:
        return False
    low, high = pair.decision_interval
    return high < 1 / EARLY or low > EARLY


def _identity(arms: Any) -> Any:
    """Return what a record holds of a cell's arms: its factories, and what a function says of itself."""
    if not isinstance(arms, Mapping):
        return None  # made when the cell's turn comes
    return {name: arm if isinstance(arm, str) else getattr(arm, "identity", None) for name, arm in arms.items()}
