"""`race` and `race_cells`: which of several calls is faster, from interleaved blocks of calls.

    result = tclab.timing.race({"old": old_step, "new": new_step}, budget_seconds=60)
    result.verdict("new", "old"), result.pair("new", "old").ratio

`_verdict.py` decides the verdicts and `_race_blocks.py` runs the blocks. The garbage collector is frozen and off inside
blocks and collects between rounds, so its pauses are in no figure.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter_ns
from typing import Any
from uuid import uuid4

from tclab._display import Display, Shown, say, seconds_text
from tclab.errors import InputError, check_whole, shown, unknown
from tclab.timing._environment import busy_notes, conditions, contention, fingerprint
from tclab.timing._race_blocks import ArmSource, BlockRunner, Clock, RaceProcess, Sample, open_record
from tclab.timing._verdict import LOOKS, MARGIN, PARTS, UNDECIDED, Pair, over_all, pairs_display, pairs_of, verdicts_of

CALIBRATION_SHARE = 0.04  # of the budget, in which it is found out how long blocks are
INTERRUPTED = "interrupted"
EARLY = 1.3  # ratio, beyond which a race ends at half of its budget
_TURNS = 2  # of each process in half of the budget, where there are several
_SAID_APART_SECONDS = 10.0  # lines of progress
_THIS_PROCESS = 2 * (uuid4().int % 10**9)  # even: arms are made in order; a process id would come again


@dataclass(frozen=True, repr=False)
class Race(Shown):
    """The result of a race.

    **Arguments:**

    - `arms`: names of the arms, in order.
    - `pairs`: the comparisons of every two arms, in order.
    - `settings`: how it ran.
    - `machine`: where it ran.
    - `stopped`: why it ended before its budget, "interrupted" or as all is clear; `None` if it did not.
    - `making_seconds`: what it took to make the arms and to call each once, before the budget began.
    - `busy_percent`: percentage of its time in which something waited for a processor, where the machine was busy;
      `None` where not, or not known.
    """

    arms: tuple[str, ...]
    pairs: list[Pair]
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
        if a == b:
            raise InputError(f"{a!r} with itself is no comparison; an arm's difference from itself is a pair's `floor`")
        from_both_sides = [*self.pairs, *(pair.flipped() for pair in self.pairs)]
        return next(pair for pair in from_both_sides if (pair.a, pair.b) == (a, b))

    def verdict(self, a: str, b: str) -> str:
        """Return "FASTER" if `a` is faster than `b`, "SLOWER", "SAME" or "UNDECIDED"."""
        return self.pair(a, b).verdict

    @property
    def spent_seconds(self) -> float:
        """Seconds of the budget that are spent, until the end of the last round."""
        return float(self._samples[-1]["spent_seconds"]) if self._samples else 0.0

    def samples(self) -> list[dict[str, Any]]:
        """Return the samples in the order in which their blocks ran, as `tclab.timing.verdicts_of` takes them."""
        return [dict(sample) for sample in self._samples]

    def frame(self) -> Any:
        """Return one row a block as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.samples())

    def _display(self) -> Display:
        budget = self.settings["budget_seconds"]
        in_blocks = sum(sample["seconds"] * sample["calls"] for sample in self._samples)
        note = (
            f"{self.pairs[0].floor_text}; {in_blocks:.1f} of {budget:g} s in blocks, "
            f"{self.making_seconds:.1f} s before them to make the arms"
        )
        return pairs_display(self.pairs, notes=[note, *last_notes(self)])


@dataclass(frozen=True, repr=False)
class Races(Shown):
    """The result of a race of several cells.

    **Arguments:**

    - `cells`: cell → its race; without those that an interrupt has kept from running.
    - `stopped`: "interrupted", or `None`.
    """

    cells: Mapping[Hashable, Race]
    stopped: str | None

    @property
    def pairs(self) -> list[Pair]:
        """The comparisons of every two arms of every cell."""
        return [pair for race in self.cells.values() for pair in race.pairs]

    @property
    def busy_percent(self) -> float | None:
        """The largest `busy_percent` of a cell."""
        return max((race.busy_percent for race in self.cells.values() if race.busy_percent), default=None)

    def _display(self) -> Display:
        return pairs_display(self.pairs, notes=last_notes(self))


def last_notes(result: Race | Races) -> list[str]:
    """Return what a result says at its end: that the machine was busy, and why it ended early."""
    return [*busy_notes(result.busy_percent), *([f"stopped: {result.stopped}"] if result.stopped else [])]


def race(
    arms: Mapping[str, ArmSource],
    *,
    budget_seconds: float,
    margin: float = MARGIN,
    processes: int | None = None,
    record: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    progress: bool = False,
    clock: Clock = perf_counter_ns,
) -> Race:
    """Race calls against one another and return a verdict on every two, with the measurements it rests on.

    `torch.utils.benchmark.Timer` times each statement by itself; a race interleaves blocks of all arms, so that they
    share the machine's drift, and decides each pair by the interval of their ratio.

    The race runs its budget, since stopping whenever a difference appears would find differences that do not exist. At
    half of it, it ends if the intervals of all pairs lie beyond ±30 %. An interrupt (Ctrl-C) ends it early and returns
    the rounds measured so far; with `record`, the same call later continues it.

    **Arguments:**

    - `arms`: name → a function without arguments that does one unit of work (one step); at least two. Or a pair
      (loader, step): `step(batch)` is called on the loader's next batch, epoch after epoch. Before each block, outside
      the clock, the batches that its workers made while other arms ran (`num_workers * prefetch_factor`) are dropped
      and a step is run; a block has a multiple of `num_workers` steps. Any iterable of batches that can be gone through
      again is a loader. Or "module:function", a factory that returns a function or a pair, or "module:function:text",
      with the factory's argument. For what is no such pair, a function may have attributes: `settle`, called before
      each block, outside the clock, and `period`, calls that a block is a multiple of, where the budget has room.
    - `budget_seconds`: wall time for the rounds, which begins when the arms are made and each was called once.
    - `margin`: a share of the time that is no difference worth a verdict: 0.02 is 2 %.
    - `processes`: run in this many fresh processes, which take turns; arms are then factories, since a closure cannot
      be sent to another process. `None` runs in this process.
    - `record`: a file to which each round is written as it ends. The same race, interrupted, goes on from it; one of
      other arms, another machine, budget or setting is refused, and so is a second one at the same time.
    - `environment`: variables for the fresh processes in addition to this process's, such as allocator settings.
    - `progress`: print to standard error, between rounds, how many there were, how much of the budget is spent, and
      each arm's median seconds so far.
    - `clock`: returns nanoseconds; for tests of what is raced.

    **Raises:** `InputError` for fewer than two arms, a budget that is not above 0, a factory that cannot be
    imported, a loader that yields no batch, or the record of another race.
    """
    check_settings(budget_seconds, margin)
    _check_arms(arms, processes)
    machine = fingerprint(load_torch=False)
    settings = {"processes": processes, "environment": dict(environment or {}), "budget_seconds": budget_seconds}
    said = [(name, arm if isinstance(arm, str) else getattr(arm, "identity", None)) for name, arm in arms.items()]
    said_at = monotonic()
    with open_record(record, {"arms": said, **machine, **settings}) as kept, ExitStack() as opened:
        session = _Session(arms, budget_seconds, margin, processes, environment or {}, clock, kept.samples, opened)
        try:
            if progress:
                say(f"making {' and '.join(arms)}, and calling each once; then {budget_seconds:g} s of rounds")
            for samples in session.rounds():
                kept.add(samples)
                if progress and monotonic() > said_at + _SAID_APART_SECONDS:
                    said_at = monotonic()
                    say(session.how_far())
        except KeyboardInterrupt:
            session.stopped = INTERRUPTED
        busy = contention(session.began, conditions()).busy_percent if session.began else None
    not_run = [Pair(a, b, UNDECIDED, "no round ran") for a, b in combinations(arms, 2)]
    pairs = verdicts_of(session.samples, margin) or not_run
    making_seconds, settings["margin"] = session.making_seconds, margin
    return Race(tuple(arms), pairs, settings, machine, session.stopped, making_seconds, busy, tuple(session.samples))


def race_cells(
    cells: Mapping[Hashable, Mapping[str, ArmSource] | Callable[[], Mapping[str, ArmSource]]],
    *,
    budget_seconds: float,
    margin: float = MARGIN,
    **options: Any,
) -> Races:
    """Race the arms of several cells, one cell after the other. Seconds that a cell leaves go to those after it.

    The p values of all comparisons of all cells are adjusted together (Benjamini-Hochberg).

    **Arguments:**

    - `cells`: cell → its arms; or a function that makes them when the cell's turn comes, so that not all of them need
      be in memory at once.
    - `budget_seconds`: for all cells together.
    - `margin`: as for `race`.
    - `options`: the other arguments of `race`, by name, but `record`, which is of one race.

    **Raises:** `InputError`, as `race` does, and for cells of the same name; `TypeError` for another option.
    """
    check_settings(budget_seconds, margin)
    if not cells or len({str(name) for name in cells}) < len(cells):
        raise InputError(f"cells are {', '.join(map(str, cells)) or 'none'}, expected names that differ")
    races: dict[Hashable, Race] = {}
    left = budget_seconds
    for i, (name, given) in enumerate(cells.items()):
        share = max(left / (len(cells) - i), 1e-3)
        arms = given() if callable(given) else given
        races[name] = one = race(arms, budget_seconds=share, margin=margin, record=None, **options)
        left -= one.spent_seconds
        if one.stopped == INTERRUPTED:
            break
    pairs = over_all(
        replace(pair, cell=str(name))
        for name, one in races.items()
        for pair in [*pairs_of(one.samples(), margin)] or one.pairs
    )
    for name, one in races.items():
        races[name] = replace(one, pairs=[pair for pair in pairs if pair.cell == str(name)])
    return Races(races, INTERRUPTED if one.stopped == INTERRUPTED else None)


def check_settings(budget_seconds: float, margin: float) -> None:
    """Check what every race is given. **Raises:** `InputError` for what is no number above 0, or too large a one."""
    for name, value, most in (("budget_seconds", budget_seconds, 1e9), ("margin", margin, 1.0)):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= most:
            raise InputError(f"{name} is {value!r}, expected a number above 0, at most {most:g}")


def _check_arms(arms: Any, processes: int | None) -> None:
    if not isinstance(arms, Mapping) or len(arms) < 2:
        raise InputError(f"arms are {shown(arms)}, expected at least two, name → function")
    if processes is not None:
        check_whole("processes is", processes, least=1)
    for name, arm in arms.items():
        is_pair = isinstance(arm, tuple) and len(arm) == 2 and isinstance(arm[0], Iterable) and callable(arm[1])
        if not isinstance(arm, str) and (processes is not None or not (is_pair or callable(arm))):
            may_be = "a function, a pair (loader, step) or " if processes is None else "of a race of several processes "
            raise InputError(f"arm {name!r} is {shown(arm)}, expected {may_be}'module:function', a factory of it")


@dataclass
class _Session:
    """One session of a race: the samples of its blocks, and the runners or processes that run them."""

    arms: Mapping[str, Any]
    budget_seconds: float
    margin: float
    processes: int | None
    environment: Mapping[str, str]
    clock: Clock
    samples: list[Sample]  # of earlier sessions and this one
    opened: ExitStack  # ends the processes
    workers: list[BlockRunner | RaceProcess] = field(default_factory=list)
    making_seconds: float = 0.0
    stopped: str | None = None  # why it ended before its budget
    began: Mapping[str, Any] = field(default_factory=dict)  # the machine's conditions when the arms were made

    def rounds(self) -> Iterator[list[Sample]]:
        """Run two halves of the budget, unless the race is over at the first, and yield the samples of each round."""
        for half in range(LOOKS):
            if half and self._is_over():
                self.stopped = f"at half of its budget, as all intervals lie beyond ±{100 * (EARLY - 1):.0f} %"
                return
            ends = sorted({sample["spent_seconds"] for sample in self.samples})[-2:] or [0.0]
            left = self.budget_seconds * (half + 1) / LOOKS - ends[-1]
            if left > (ends[-1] - ends[0]) / 2:  # half a round
                yield from self._rounds_of(left, half)

    def how_far(self) -> str:
        """Return how far the race is: "round 9, 34 of 120 s; median so far: new 1.21 s, old 1.07 s"."""
        seconds = {arm: [sample["seconds"] for sample in self.samples if sample["arm"] == arm] for arm in self.arms}
        medians = ", ".join(f"{arm} {seconds_text(median(took))}" for arm, took in seconds.items())
        i, spent = len(self.samples) // (2 * len(self.arms)), self.samples[-1]["spent_seconds"]
        needed = f" of {PARTS} that a verdict needs" if i < PARTS else ""
        return f"round {i}{needed}, {spent:.0f} of {self.budget_seconds:g} s; median so far: {medians}"

    def _is_over(self) -> bool:
        """Return whether every pair is decided by the first half of the budget, and far apart.

        Noise of one arm that has not shown itself by then is taken to be below 30 %.
        """
        pairs = verdicts_of((sample for sample in self.samples if sample["half"] == 0), self.margin)
        ends = [pair.interval for pair in pairs if pair.verdict != UNDECIDED]
        far = [low > EARLY or high < 1 / EARLY for low, high in filter(None, ends)]
        return 0 < len(pairs) == sum(far)

    def _rounds_of(self, seconds: float, half: int) -> Iterator[list[Sample]]:
        """Run for some seconds, workers in turns; the first finds out how long blocks are, for all."""
        self._start()
        before = self.samples[-1]["spent_seconds"] if self.samples else 0.0
        begin, n = self.clock(), len(self.workers)
        calls = {sample["arm"]: sample["calls"] for sample in self.samples}
        if not calls:
            planning = CALIBRATION_SHARE * self.budget_seconds
            calls = self.workers[0].plan(planning, (self.budget_seconds - planning) / n)
        turns = self.workers * (_TURNS if n > 1 else 1)
        for i, worker in enumerate(turns):
            left = seconds * (i + 1) / len(turns) - self._since(begin)
            first = 1 + max((s["round"] for s in self.samples if s["process"] == worker.process), default=-1)
            for samples in worker.rounds(left, calls, first):
                samples = [{**sample, "half": half, "spent_seconds": before + self._since(begin)} for sample in samples]
                self.samples += samples
                yield samples

    def _start(self) -> None:
        """Make the arms, in each process, unless they are there already."""
        if self.workers:
            return
        begin = self.clock()
        if self.processes is None:
            self.workers.append(BlockRunner(self.arms, _THIS_PROCESS, self.clock))
        first = 1 + max((sample["process"] for sample in self.samples), default=-1)
        for i in range(self.processes or 0):
            process = RaceProcess(self.arms, first + i, self.environment, i == 0)
            self.workers.append(self.opened.enter_context(closing(process)))
        for worker in self.workers:
            worker.make()
        self.making_seconds += self._since(begin)
        self.began = conditions()

    def _since(self, begin: int) -> float:
        return (self.clock() - begin) / 1e9
