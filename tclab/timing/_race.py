"""`race` and `race_cells`: which of several calls is faster, from interleaved blocks of calls.

    result = tclab.timing.race({"old": old_step, "new": new_step}, budget_seconds=60)
    result.verdict("new", "old"), result.pair("new", "old").ratio

`_verdict.py` decides the verdicts and `_race_blocks.py` runs the blocks. Garbage is collected before
each block and, as in any loop, within it: an arm pays for its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import comb
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter_ns
from typing import Any
from uuid import uuid4

from tclab._display import Display, Shown, counted, say, seconds_text
from tclab.errors import InputError, check_known, check_whole, shown
from tclab.timing._environment import busy_notes, conditions, contention, fingerprint
from tclab.timing._loader_arm import Arm
from tclab.timing._race_blocks import Arms, BlockRunner, Clock, RaceProcess, Runner, Sample, open_record
from tclab.timing._verdict import MARGIN, Pair, about, pairs_display, parts_for, verdicts_of

CALIBRATION_SHARE = 0.04  # of the budget, in which it is found out how long blocks are
_SPARE = 1.5  # rounds may take longer than the plan says, so half as much again is offered
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
    - `stopped`: "interrupted", or `None`.
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
        check_known("arm", self.arms, a, b)
        if a == b:
            raise InputError(f"cannot compare {a!r} with itself; expected two of {', '.join(self.arms)}")
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

    def _display(self) -> Display:
        in_blocks = sum(sample["seconds"] * sample["calls"] for sample in self._samples)
        note = (
            f"the timed blocks took {in_blocks:.1f} of {self.settings['budget_seconds']:g} s; before these, making the "
            f"candidates took {self.making_seconds:.1f} s"
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
    arms: Arms, *, budget_seconds: float, margin: float = MARGIN, processes: int | None = None,
    record: str | Path | None = None, environment: Mapping[str, str] | None = None, progress: bool = False,
    clock: Callable[[], int] = perf_counter_ns,
) -> Race:  # fmt: skip
    """Race calls against one another and return a verdict on every two, with the measurements it rests on.

    `torch.utils.benchmark.Timer` times each statement by itself; a race interleaves blocks of all arms, so that they
    share the machine's drift, and decides each pair by the interval of their ratio.

    The race runs its whole budget, since stopping whenever a difference appears would find differences that do not
    exist. It has eight turns, each of one process, which are the parts that a verdict rests on. An interrupt (Ctrl-C)
    ends it early and returns the rounds measured so far; with `record`, the same call later continues it. A budget that
    has no room for the rounds that a verdict needs is warned of before the first, with one that has.

    **Arguments:**

    - `arms`: name → a function without arguments that does one unit of work (one step); at least two. Or a pair
      (loader, step): `step(batch)` is called on the loader's next batch, epoch after epoch. Before each block, outside
      the clock, the batches that its workers made while other arms ran (`num_workers * prefetch_factor`) are dropped
      and a step is run; a block has a multiple of `num_workers` steps. Any iterable of batches that can be gone through
      again is a loader. Or an `Arm` (`tclab.timing._loader_arm`), which has a period or settles before each block. Or
      "module:function", a factory that returns one of these, or "module:function:text", with the factory's argument.
    - `budget_seconds`: wall time for the rounds, which begins when the arms are made and each was called once.
    - `margin`: a share of the time that is no difference worth a verdict: 0.02 is 2 %.
    - `processes`: run in this many fresh processes, which take turns; arms are then factories, since a closure cannot
      be sent to another process. `None` runs in this process.
    - `record`: a file to which each round is written as it ends. The same race, interrupted, goes on from it; one of
      other arms, another machine, budget or setting is refused, and so is a second one at the same time.
    - `environment`: variables for the fresh processes in addition to this process's, such as allocator settings.
    - `progress`: print to standard error how many rounds the budget has room for, and between rounds how many there
      were, how much of the budget is spent, and each arm's median seconds so far.
    - `clock`: returns nanoseconds; for tests of what is raced.

    **Raises:** `InputError` for fewer than two arms, a budget that is not above 0, a factory that cannot be
    imported, a loader that yields no batch, or the record of another race.
    """
    check_settings(budget_seconds, margin)
    _check_arms(arms, processes)
    machine = fingerprint(load_torch=False)
    settings = {"processes": processes, "environment": dict(environment or {}), "budget_seconds": budget_seconds}
    said = [(name, arm.identity if isinstance(arm, Arm) else arm if isinstance(arm, str) else None)
            for name, arm in arms.items()]  # fmt: skip
    least = parts_for(comb(len(arms), 2))
    said_at = monotonic()
    with open_record(record, {"arms": said, **machine, **settings}) as (earlier, keep), ExitStack() as opened:
        now: Clock = lambda: clock() / 1e9  # noqa: E731
        session = _Session(arms, budget_seconds, processes, environment or {}, now, earlier, opened, least, progress)
        stopped = None
        try:
            if progress:
                say(f"making {' and '.join(arms)}, and calling each once; then {budget_seconds:g} s of rounds")
            for samples in session.rounds():
                keep(samples)
                if progress and monotonic() > said_at + _SAID_APART_SECONDS:
                    said_at = monotonic()
                    say(session.how_far())
        except KeyboardInterrupt:
            stopped = "interrupted"
        busy = contention(session.began, conditions()).busy_percent
    not_run = [Pair(a, b, margin=margin, reason="no round ran") for a, b in combinations(arms, 2)]
    pairs = verdicts_of(session.samples, margin) or not_run
    making_seconds, settings["margin"] = session.making_seconds, margin
    return Race(tuple(arms), pairs, settings, machine, stopped, making_seconds, busy, tuple(session.samples))


def race_cells(
    cells: Mapping[Hashable, Arms | Callable[[], Arms]], *, budget_seconds: float, margin: float = MARGIN,
    **options: Any,
) -> Races:  # fmt: skip
    """Race the arms of several cells, one cell after the other. Seconds that a cell leaves go to those after it.

    Verdicts allow for the comparisons of all cells: more than five take more than eight parts of each race.

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
        if one.stopped:
            break
    comparisons = sum(len(one.pairs) for one in races.values())
    for name, one in races.items():
        pairs = verdicts_of(one.samples(), margin, comparisons=comparisons) or one.pairs
        races[name] = replace(one, pairs=[replace(pair, cell=str(name)) for pair in pairs])
    return Races(races, one.stopped)


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
        is_here = processes is None and (is_pair or callable(arm) or isinstance(arm, Arm))
        if not (is_here or isinstance(arm, str)):
            may_be = "a function, a pair (loader, step) or " if processes is None else "of a race of several processes "
            raise InputError(f"arm {name!r} is {shown(arm)}, expected {may_be}'module:function', a factory of it")


@dataclass
class _Session:
    """One session of a race: the samples of its blocks, and which turns are left."""

    arms: Mapping[str, Any]
    budget_seconds: float
    processes: int | None
    environment: Mapping[str, str]
    clock: Clock
    samples: list[Sample]  # of earlier sessions and this one
    opened: ExitStack  # ends the processes
    least: int  # rounds that a verdict needs, one in each part
    progress: bool
    making_seconds: float = 0.0
    began: Mapping[str, Any] = field(default_factory=dict)  # the machine's conditions when the arms were made

    def rounds(self) -> Iterator[list[Sample]]:
        """Run the turns that earlier sessions left, and yield the samples of each round."""
        last = self.samples[-1] if self.samples else {}
        before, spent = sorted([0.0, 0.0, *{sample["spent_seconds"] for sample in self.samples}])[-2:]
        round_seconds = spent - before
        if self.budget_seconds - spent <= round_seconds / 2:
            return
        runners = self._start()
        begin, planned = self.clock() - spent, 0.0
        # the first process finds out for all how long blocks are, unless earlier sessions did
        calls: Mapping[str, int] = {sample["arm"]: sample["calls"] for sample in self.samples}
        if not last:
            planning = CALIBRATION_SHARE * self.budget_seconds
            calls, round_seconds = runners[0].plan(planning, self.budget_seconds - planning)
            spent = planned = self.clock() - begin
        seconds, turns = self.budget_seconds - planned, max(self.least, len(runners))
        enough = bool(last) or self._has_room(seconds, round_seconds)
        begun, i = last.get("turn", 0), 1 + last.get("round", -1)
        for turn in range(begun, turns):
            left = begin + planned + seconds * (turn + 1) / turns - self.clock()
            least = int(i == 0 or (enough and turn > begun and left > 0))
            how = {"turn": turn, "first": i, "least": least, "round_seconds": round_seconds}
            for samples in runners[turn % len(runners)].rounds(left, calls, **how):
                before, spent, i = spent, self.clock() - begin, i + 1
                round_seconds = spent - before
                self.samples += [{**sample, "spent_seconds": spent} for sample in samples]
                yield self.samples[-len(samples) :]

    def how_far(self) -> str:
        """Return how far the race is: "round 9, 34 of 120 s; median so far: new 1.21 s, old 1.07 s"."""
        seconds = {arm: [sample["seconds"] for sample in self.samples if sample["arm"] == arm] for arm in self.arms}
        medians = ", ".join(f"{arm} {seconds_text(median(took))}" for arm, took in seconds.items())
        i = len(self.samples) // (2 * len(self.arms))
        needed = f" of {self.least} that a verdict needs" if i < self.least else ""
        spent = self.samples[-1]["spent_seconds"]
        return f"round {i}{needed}, {spent:.0f} of {self.budget_seconds:g} s; median so far: {medians}"

    def _has_room(self, seconds: float, round_seconds: float) -> bool:
        """Return whether there is room for the rounds that a verdict needs; if there is not, warn before the first."""
        fits = int(seconds / max(round_seconds, 1e-9))
        text = f"{self.budget_seconds:g} s have room for about {counted(fits, 'round')} of "
        text += f"{seconds_text(round_seconds)}, and a verdict needs {self.least}"
        if fits < self.least:
            needs = about(_SPARE * (self.least * round_seconds + self.budget_seconds - seconds))
            text += f", so it will decide nothing. A race of about {needs} s may"
        if self.progress:
            say(text)
        elif fits < self.least:
            warnings.warn(text, stacklevel=5)
        return fits >= self.least

    def _start(self) -> list[Runner]:
        """Make the arms in each process, and return what runs their blocks."""
        begin, runners = self.clock(), list[Runner]()
        if self.processes is None:
            runners.append(BlockRunner(self.arms, _THIS_PROCESS, self.clock))
        first = 1 + max((sample["process"] for sample in self.samples), default=-1)
        for i in range(self.processes or 0):
            process = RaceProcess(self.arms, first + i, self.environment, i == 0, self.clock)
            runners.append(self.opened.enter_context(closing(process)))
        for runner in runners:
            runner.make()
        self.making_seconds = self.clock() - begin
        self.began = conditions()
        return runners
