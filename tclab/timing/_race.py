"""`race` and `race_cells`: which of several calls is faster, from interleaved blocks of calls.

    result = tclab.timing.race({"old": old_step, "new": new_step}, budget_seconds=60)
    result.verdict("new", "old"), result.ratio, result.interval

`_verdict.py` decides the verdicts and `_race_blocks.py` runs the blocks. The garbage collector is frozen and off inside
blocks and collects between rounds, so its pauses are in no figure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from math import inf
from pathlib import Path
from time import perf_counter_ns
from typing import Any
from uuid import uuid4

from tclab._display import Display, Shown
from tclab.errors import InputError, check_whole, shown, unknown
from tclab.timing._environment import busy_notes, busy_percent, conditions, fingerprint
from tclab.timing._race_blocks import FIRST_PROCESS, Arm, BlockRunner, Clock, RaceProcess, Sample
from tclab.timing._race_record import open_record
from tclab.timing._verdict import MARGIN, UNDECIDED, Pair, pairs_display, verdicts_of

CALIBRATION_SHARE = 0.04  # of a cell's seconds, in which it is found out how long its blocks are
EARLY = 1.3  # ratio, beyond which a race ends at half of its budget
_LEAST_ROUNDS = 2  # of each process, however short the budget is
_TURNS = 2  # of each process in half of the budget, where there are several
_THIS_PROCESS = uuid4().int % 10**9  # a process id would come again


@dataclass(frozen=True, repr=False)
class Race(Shown):
    """The result of a race.

    **Arguments:**

    - `arms`: names of the arms, in order.
    - `pairs`: the comparisons of every two arms, in order.
    - `settings`: how it ran.
    - `machine`: where it ran.
    - `stopped`: why it ended before its budget; `None` if it did not.
    - `making_seconds`: in which its arms were made and first called, before the budget began.
    - `busy_percent`: pressure on the processors at its end, where the machine was busy; `None` where not, or not known.
    """

    arms: tuple[str, ...]
    pairs: tuple[Pair, ...]
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    stopped: str | None
    making_seconds: float
    busy_percent: float | None
    _samples: tuple[Sample, ...]

    def pair(self, a: str, b: str) -> Pair:
        """Return the comparison of two arms. **Raises:** `InputError` for an unknown arm, with the nearest name."""
        for arm in (a, b):
            if arm not in self.arms:
                raise unknown("arm", arm, self.arms)
        for pair in self.pairs:
            if (pair.a, pair.b) == (a, b):
                return pair
            if (pair.a, pair.b) == (b, a):
                return pair.flipped()
        raise InputError(f"{a!r} with itself is no comparison; the A/A floor is `.floor`")

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
    def floor(self) -> float | None:
        """The A/A floor: the ratio, less 1, that an arm shows against itself; `None` with too few rounds."""
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
        floor = "not known" if self.floor is None else f"{self.floor:.2%}"
        budget = self.settings["budget_seconds"]
        note = (
            f"A/A floor {floor}, margin {self.margin:.2%}; {self.block_seconds:.1f} of {budget:g} s in blocks, "
            f"{self.making_seconds:.1f} s before them to make the arms"
        )
        return pairs_display(self.pairs, notes=[note, *last_notes(self)])


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
        return pairs_display(self.pairs, notes=last_notes(self))


def last_notes(result: Race | Races) -> list[str]:
    """Return what a result says at its end: that the machine was busy, and why it ended early."""
    return [*busy_notes(result.busy_percent), *([f"stopped: {result.stopped}"] if result.stopped else [])]


def race(
    arms: Mapping[str, Arm | str],
    *,
    budget_seconds: float,
    margin: float = MARGIN,
    processes: int | None = None,
    record: str | Path | None = None,
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
    - `budget_seconds`: wall time for the rounds, which begins when the arms are made and each was called once.
    - `margin`: a share of the time that is no difference worth a verdict: 0.02 is 2 %.
    - `processes`: run in this many fresh processes, which take turns; arms are then factories, since a closure cannot
      be sent to another process. `None` runs in this process.
    - `record`: a file, or a folder, to which each round is written as it ends. A race with the same arms, machine and
      settings continues from it; a second one at the same time is refused. With a larger `budget_seconds`, a race that
      ended UNDECIDED goes on, at any time and as often as is wanted: a part of alpha is kept for it
      (`tclab.timing._statistics.alpha_of`).
    - `environment`: variables for the fresh processes in addition to this process's, such as allocator settings.
    - `clock`: returns nanoseconds; for tests of what is raced.

    **Raises:** `InputError` for fewer than two arms, a budget that is not above 0, a factory that cannot be
    imported, or the record of another race.
    """
    return _Session({None: arms}, budget_seconds, margin, processes, environment, clock).run(record).cells[None]


def race_cells(
    cells: Mapping[Hashable, Mapping[str, Arm | str] | Callable[[], Mapping[str, Arm | str]]],
    *,
    budget_seconds: float,
    record: str | Path | None = None,
    **options: Any,
) -> Races:
    """Race the arms of several cells; what a cell that ends at half of its seconds leaves goes to the others.

    The p values of all comparisons of all cells are adjusted together (Benjamini-Hochberg).

    **Arguments:**

    - `cells`: cell → its arms; or a function that makes them when the cell's turn comes, so that not all of them need
      be in memory at once. Cells are recorded by the text of their names.
    - `budget_seconds`: for all cells together.
    - `record`: as for `race`.
    - `options`: the other arguments of `race`, by name.

    **Raises:** `InputError`, as `race` does, and for cells of the same name; `TypeError` for another option.
    """
    if not cells or None in cells or len({str(name) for name in cells}) < len(cells):
        raise InputError(f"cells are {', '.join(map(str, cells)) or 'none'}, expected names that differ")
    return _Session(cells, budget_seconds, **options).run(record)


def check_settings(budget_seconds: float, margin: float) -> None:
    """Check what every race is given. **Raises:** `InputError` for what is no number above 0, or too large a one."""
    for name, value, most in (("budget_seconds", budget_seconds, 1e9), ("margin", margin, 1.0)):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= most:
            raise InputError(f"{name} is {value!r}, expected a number above 0, at most {most:g}")


def _checked_names(arms: Any, processes: int | None, cell: str | None) -> tuple[str, ...]:
    """Return the names of a cell's arms. **Raises:** `InputError` unless they are at least two that can run."""
    where = "" if cell is None else f"cell {cell!r}: "
    if not isinstance(arms, Mapping) or len(arms) < 2:
        raise InputError(f"{where}arms are {shown(arms)}, expected at least two, name → function")
    for name, arm in arms.items():
        if not isinstance(arm, str) and (processes is not None or not callable(arm)):
            may_be = "a function or " if processes is None else "of a race of several processes "
            raise InputError(f"{where}arm {name!r} is {arm!r}, expected {may_be}'module:function', a factory of it")
    return tuple(arms)


@dataclass
class _Cell:
    """One cell: its arms, the samples of its blocks, and the runners or processes that run them."""

    name: str | None
    given: Any  # its arms, or a function that makes them
    arms: tuple[str, ...] = ()
    samples: list[Sample] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)  # of each arm in a block; empty until they are planned
    making_seconds: float = 0.0
    workers: list[BlockRunner | RaceProcess] = field(default_factory=list)

    def identity(self) -> Any:
        """Return what a record holds of the arms: their factories, and what a function says of itself."""
        arms = {} if callable(self.given) else self.given  # made when the cell's turn comes
        said = {name: arm if isinstance(arm, str) else getattr(arm, "identity", None) for name, arm in arms.items()}
        return [self.name, said]

    def go_on(self, samples: list[Sample]) -> None:
        """Take the samples of earlier sessions."""
        self.samples = samples
        self.calls = {sample["arm"]: sample["calls"] for sample in samples}
        self.arms = tuple(self.calls) or self.arms

    def round_seconds(self) -> float:
        """Return about how long a round takes, by the last two; 0 before there are two."""
        ends = {sample["spent_seconds"] for sample in self.samples[-4 * len(self.arms) :]}
        return max(ends) - min(ends)

    def next_round(self, process: int) -> int:
        return 1 + max((s["round"] for s in self.samples if s["process"] == process), default=-1)

    def close(self) -> None:
        """End the processes of this cell and drop its arms."""
        while self.workers:
            self.workers.pop().close()


@dataclass
class _Session:
    """One session of a race: two halves of each budget, each for the cells that are still open.

    `given` is as for `race_cells`, with one cell named `None` for a race without cells.
    """

    given: Mapping[Any, Any]
    budget_seconds: float
    margin: float = MARGIN
    processes: int | None = None
    environment: Mapping[str, str] | None = None
    clock: Clock = perf_counter_ns
    spent: float = field(default=0.0, init=False)  # seconds of the budget, including earlier sessions

    def __post_init__(self) -> None:
        check_settings(self.budget_seconds, self.margin)
        if self.processes is not None:
            check_whole("processes is", self.processes, least=1)
        self.cells = {key: _Cell(None if key is None else str(key), given) for key, given in self.given.items()}
        for cell in self.cells.values():
            if not callable(cell.given):
                cell.arms = _checked_names(cell.given, self.processes, cell.name)

    def run(self, record: str | Path | None) -> Races:
        """Run until the end of the budget, or an interrupt."""
        machine = fingerprint("machine", load_torch=False)
        # the folder of temporary files changes no measurement
        environment = {name: value for name, value in (self.environment or {}).items() if name != "TMPDIR"}
        settings: dict[str, Any] = {"processes": self.processes, "environment": environment}
        cells, busy, stopped = self.cells.values(), None, None
        with open_record(record, {"cells": [cell.identity() for cell in cells], **machine, **settings}) as kept:
            budgets = kept.go_on(self.budget_seconds)
            self.spent = max((sample["spent_seconds"] for sample in kept.samples), default=0.0)
            for cell in cells:
                cell.go_on([sample for sample in kept.samples if sample["cell"] == cell.name])
            try:
                with closing(self._rounds(budgets)) as rounds:
                    for samples in rounds:
                        kept.add(*samples)
            except KeyboardInterrupt:
                stopped = "interrupted"
            finally:
                for cell in cells:
                    cell.close()
            if any(cell.making_seconds for cell in cells):
                busy = busy_percent(conditions())
        pairs = self._verdicts()
        settings |= {"budget_seconds": self.budget_seconds, "margin": self.margin}
        races = {}
        for key, cell in self.cells.items():
            own = tuple(
                pairs.get((cell.name, a, b)) or Pair(a, b, UNDECIDED, "no round ran", cell=cell.name)
                for a, b in combinations(cell.arms, 2)
            )
            of_cell = tuple(cell.samples)
            races[key] = Race(cell.arms, own, settings, machine, stopped, cell.making_seconds, busy, of_cell)
        return Races(races, stopped)

    def _verdicts(self, before: tuple[float, int] = (inf, 0)) -> dict[tuple[str | None, str, str], Pair]:
        """Return the comparisons of all cells, by the samples of before an extension and half."""
        every = (sample for cell in self.cells.values() for sample in cell.samples)
        return verdicts_of((s for s in every if (s["extension"], s["half"]) < before), self.margin)

    def _due(self, cells: list[_Cell], extension: int, half: int) -> list[_Cell]:
        """Return those of some cells that go on: not decided, or in a second half not decided and far apart."""
        pairs = self._verdicts((extension, half)).values()
        going = {pair.cell for pair in pairs if not _is_over(pair, half)}
        raced = {pair.cell for pair in pairs}
        return [cell for cell in cells if cell.name in going or cell.name not in raced]

    def _rounds(self, budgets: list[float]) -> Generator[list[Sample]]:
        """Run each open cell for its share of each half of each budget, and yield the samples of each round."""
        for extension, (before, budget) in enumerate(pairwise([0.0, *budgets])):
            due = list(self.cells.values())
            for half, until in enumerate(((before + budget) / 2, budget)):
                due = self._due(due, extension, half)
                for i, cell in enumerate(due):
                    seconds = (until - self.spent) / (len(due) - i)
                    if not cell.samples or seconds > cell.round_seconds() / 2:
                        yield from self._rounds_of(cell, seconds, extension, half)
                    if len(self.cells) > 1:
                        cell.close()  # frees the memory of its arms for the next cell

    def _rounds_of(self, cell: _Cell, seconds: float, extension: int, half: int) -> Iterator[list[Sample]]:
        """Run a cell for some seconds, its workers in turns; the first finds out how long blocks are, for all."""
        self._start(cell)
        begin, before, n = self.clock(), self.spent, len(cell.workers)
        if not cell.calls:
            whole = self.budget_seconds / len(self.cells)
            cell.calls = cell.workers[0].plan(CALIBRATION_SHARE * whole, (1 - CALIBRATION_SHARE) * whole / n)
        turns = cell.workers * (_TURNS if n > 1 else 1)
        for i, worker in enumerate(turns):
            left = seconds * (i + 1) / len(turns) - self._since(begin)
            for samples in worker.rounds(left, cell.calls, cell.next_round(worker.process), _LEAST_ROUNDS):
                self.spent = before + self._since(begin)
                more = {"cell": cell.name, "extension": extension, "half": half, "spent_seconds": self.spent}
                cell.samples += (samples := [{**sample, **more} for sample in samples])
                yield samples

    def _start(self, cell: _Cell) -> None:
        """Make the arms, in each process, unless they are there already."""
        if cell.workers:
            return
        begin = self.clock()
        arms = cell.given() if callable(cell.given) else cell.given
        cell.arms = _checked_names(arms, self.processes, cell.name)
        if self.processes is None:
            cell.workers.append(BlockRunner(arms, _THIS_PROCESS, clock=self.clock))
        first = 1 + max((s["process"] for s in cell.samples), default=-1)
        for i in range(self.processes or 0):
            environment = {**(self.environment or {}), FIRST_PROCESS: str(int(i == 0))}
            cell.workers.append(RaceProcess(arms, first + i, environment))
        for worker in cell.workers:
            worker.make()
        cell.making_seconds += self._since(begin)

    def _since(self, begin: int) -> float:
        return (self.clock() - begin) / 1e9


def _is_over(pair: Pair, half: int) -> bool:
    """Return whether a pair needs no more rounds, for a second half whether it is far apart, too.

    Noise of one arm that has not shown itself by the first half is taken to be below 30 %.
    """
    if pair.verdict == UNDECIDED or pair.decision_interval is None:
        return False
    low, high = pair.decision_interval
    return half == 0 or high < 1 / EARLY or low > EARLY
