"""The course of a race: who runs when, how the seconds are shared out, how it stops and goes on."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from tclab.timing.blocks import Clock, Runner
from tclab.timing.environment import _ALLOCATOR_SETTINGS, _cores, _cpu, _version
from tclab.timing.errors import TimingError
from tclab.timing.race_child import made, run_share
from tclab.timing.race_processes import Child
from tclab.timing.race_record import RaceRecord
from tclab.timing.race_result import Race, Races
from tclab.timing.verdict import UNDECIDED, verdicts_of

FLOOR_SHARE = 0.1  # of a cell's seconds, spent on the A/A floor
CALIBRATION_SHARE = 0.04
_THIS_PROCESS = uuid4().hex  # a process id would come again


@dataclass(frozen=True)
class Settings:
    """How a race is run; see `race`. **Raises:** `TimingError` for a value that no race can be run with."""

    budget_seconds: float
    processes: int | None
    period: int
    looks: int
    isolated: bool
    sync: Callable[[], None] | None
    discard: Callable[[dict[str, Any]], bool] | None
    clock: Clock
    stop: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.budget_seconds, bool) or not isinstance(self.budget_seconds, (int, float)):
            raise TimingError(f"budget_seconds is {self.budget_seconds!r}, expected a number above 0")
        if not 0 < self.budget_seconds < float("inf"):
            raise TimingError(f"budget_seconds is {self.budget_seconds!r}, expected a number above 0")
        for name in ("processes", "period", "looks"):
            value = getattr(self, name)
            if value is None and name == "processes":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise TimingError(f"{name} is {value!r}, expected a whole number of at least 1")

    def kept(self) -> dict[str, Any]:
        """Return what a record says of them: what decides which blocks are run."""
        names = ("budget_seconds", "processes", "period", "looks", "isolated")
        rule = self.discard and f"{self.discard.__module__}:{self.discard.__qualname__}"
        kept = {name: getattr(self, name) for name in names} | {"discard": rule, "collector": "off inside blocks"}
        # where temporary files go decides nothing
        environment = {name: value for name, value in self.environment.items() if name != "TMPDIR"}
        return kept | ({"environment": environment} if environment else {})


def machine() -> dict[str, Any]:
    """Return what two sessions of one race must share; loads nothing."""
    torch = sys.modules.get("torch")
    return {
        "cpu": _cpu(),
        "cores": _cores(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "gpu": torch.cuda.get_device_name() if torch is not None and torch.cuda.is_initialized() else None,
        "allocator": {name: os.environ[name] for name in _ALLOCATOR_SETTINGS if name in os.environ},
    }


def _checked(arms: Any, processes: int | None, cell: str | None) -> dict[str, Any]:
    where = "" if cell is None else f"cell {cell!r}: "
    if not isinstance(arms, Mapping) or len(arms) < 2:
        found = f"{len(arms)} ({', '.join(map(str, arms)) or 'none'})" if isinstance(arms, Mapping) else repr(arms)
        raise TimingError(f"{where}arms are {found}, expected at least two, name → call")
    for name, arm in arms.items():
        if not isinstance(name, str):
            raise TimingError(f"{where}an arm is named {name!r}, expected text")
        if processes is not None and not isinstance(arm, str):
            raise TimingError(
                f"{where}arm {name!r} is {arm!r}, which cannot cross into another process; with processes="
                f"{processes} expected 'module:function', a factory that returns the call to time"
            )
        if not isinstance(arm, str) and not callable(arm):
            raise TimingError(f"{where}arm {name!r} is {arm!r}, expected a call or 'module:function'")
    return dict(arms)


class _Cell:
    """One cell's arms, the blocks that were run, and who runs them."""

    def __init__(self, name: str | None, arms: Any, course: Course) -> None:
        self.name, self._given, self._course = name, arms, course
        self.arms: tuple[str, ...] = ()
        self.samples: list[dict[str, Any]] = []
        self.looks: set[int] = set()
        self.calls: dict[str, int] | None = None
        self._runners: list[tuple[Runner | Child, bool]] = []
        if not callable(arms):
            self._arms()

    def _arms(self) -> dict[str, Any]:
        made_ = self._given() if callable(self._given) else self._given
        arms = _checked(made_, self._course.settings.processes, self.name)
        self.arms = tuple(arms)
        return arms

    def take(self, line: dict[str, Any]) -> None:
        """Take up a line of the record, or one that has just been made."""
        if line["kind"] == "plan":
            self.calls = dict(line["calls"])
            self.arms = tuple(self.calls)
        elif line["kind"] == "look":
            self.looks.add(line["look"])
        elif line["kind"] == "block":
            self.samples.append(line)

    def _say(self, line: dict[str, Any]) -> None:
        course = self._course
        line = {**line, "cell": self.name}
        if line["kind"] == "block":
            line["spent_seconds"] = course.spent()
            if course.settings.discard is not None:
                line["dropped"] = bool(course.settings.discard(line))
        self.take(line)
        course.record.add(line)

    def start(self) -> None:
        """Make the arms, each process its own, where that has not been done."""
        if self._runners:
            return
        settings, arms = self._course.settings, self._arms()
        if settings.processes is None:
            number = self._course.process
            runner = Runner(
                {name: made(arm) if isinstance(arm, str) else arm for name, arm in arms.items()},
                self._say,
                clock=settings.clock,
                sync=settings.sync,
                period=settings.period,
                calls=self.calls,
                stamp={"process": number},
                rounds=self._next("race", number),
            )
            self._runners = [(runner, False)]
            return
        first = max((s["process"] for s in self.samples), default=-1) + 1
        for number in range(first, first + settings.processes):
            begin = {
                "arms": arms,
                "period": settings.period,
                "calls": self.calls,
                "stamp": {"process": number},
            }
            self._runners.append((Child(begin, settings.environment), False))

    def _next(self, phase: str, process: int) -> int:
        """Return the number of a process's next round."""
        rounds = (s["round"] for s in self.samples if s["phase"] == phase and s["process"] == process)
        return max(rounds, default=-1) + 1

    def run(self, seconds: float, look: int) -> bool:
        """Run for so long, warming up included, and return whether it came to the end."""
        course = self._course
        settings, begin = course.settings, course.spent()
        whole = settings.budget_seconds / len(course.cells)
        for place, (runner, warm) in enumerate(self._runners):
            end = begin + seconds * (place + 1) / len(self._runners)
            number = (settings.processes or 1) if isinstance(runner, Child) else 1
            share: dict[str, Any] = {
                "warm": not warm,
                "look": look,
                "looks": settings.looks,
                "isolated": settings.isolated,
                "seconds": end - course.spent(),
                # a process that was asked for is heard, however long the others took to begin
                "least_rounds": 0 if settings.processes is None else 2,
                "calibration_seconds": CALIBRATION_SHARE * whole,
                "race_seconds": (1 - FLOOR_SHARE - CALIBRATION_SHARE) * whole / number,
                "floor_seconds": None if self._has_floor(place) else FLOOR_SHARE * whole / number,
                "floor_from": self._next("floor", course.process),
            }
            self._runners[place] = (runner, True)
            if isinstance(runner, Child):
                if settings.stop():
                    return False
                runner.run({**share, "calls": self.calls}, self._say)
            else:
                share["left"] = lambda end=end: end - course.spent()
                if not run_share(runner, share, settings.stop, self._say):
                    return False
        return True

    def _has_floor(self, place: int) -> bool:
        """Return whether this runner's place has had its A/A floor, be it in an earlier session."""
        return len({s["process"] for s in self.samples if s["phase"] == "floor"}) > place

    def close(self) -> None:
        """End what runs this cell's arms."""
        while self._runners:
            runner, _ = self._runners.pop()
            if isinstance(runner, Child):
                runner.close()


class Course:
    """Races in as many stages as there are looks; a stage's seconds go to the cells that are undecided by then."""

    def __init__(self, cells: Mapping[Any, Any], settings: Settings, record: str | Path | None) -> None:
        self.settings = settings
        self._keys: dict[str | None, Hashable] = {None if key is None else str(key): key for key in cells}
        if not cells or len(self._keys) != len(cells):
            raise TimingError(f"cells are {', '.join(map(str, cells)) or 'none'}, expected names that differ")
        import scipy.stats  # noqa: F401 (the looks need it: loaded before the clock starts, not in the budget)

        self.cells = [_Cell(name, cells[key], self) for name, key in self._keys.items()]
        self.machine = machine()
        described = [[cell.name, _described(cells[self._keys[cell.name]])] for cell in self.cells]
        header = {"cells": described, "machine": self.machine, "settings": settings.kept()}
        self.record = RaceRecord(record, header)
        self._before = 0  # nanoseconds, so that what was spent is the same figure after a stop
        self._sessions: list[str] = []
        self._take_up()
        self._begin = settings.clock()

    def _take_up(self) -> None:
        by_name = {cell.name: cell for cell in self.cells}
        for line in self.record.lines:
            if line["kind"] == "session":
                self._sessions.append(line["process"])
            else:
                by_name[line["cell"]].take(line)
                self._before = max(self._before, round(line.get("spent_seconds", 0.0) * 1e9))
        if _THIS_PROCESS not in self._sessions:
            self._sessions.append(_THIS_PROCESS)
            self.record.add({"kind": "session", "process": _THIS_PROCESS})

    @property
    def process(self) -> int:
        """The number of this process among those that the race was run in."""
        return self._sessions.index(_THIS_PROCESS)

    def spent(self) -> float:
        """Return the seconds of the budget that are spent, those of earlier sessions included."""
        return (self._before + self.settings.clock() - self._begin) / 1e9

    def run(self) -> Races:
        """Run to the verdicts, the end of the budget, or an interrupt."""
        stopped = None
        try:
            for look in range(1, self.settings.looks + 1):
                if not self._stage(look):
                    stopped = "asked to"
                    break
        except KeyboardInterrupt:
            stopped = "interrupted"
        finally:
            for cell in self.cells:
                cell.close()
            self.record.close()
        pairs = verdicts_of(sample for cell in self.cells for sample in cell.samples)
        races = {
            self._keys[cell.name]: Race(
                cell.arms,
                cell.name,
                self.settings.kept(),
                self.machine,
                stopped,
                tuple(cell.samples),
                pairs,
            )
            for cell in self.cells
        }
        return Races(races, stopped)

    def _stage(self, look: int) -> bool:
        """Give each cell that was undecided before this look its share of the seconds until it."""
        before = [s for cell in self.cells for s in cell.samples if s["look"] < look]
        undecided = {pair.cell for pair in verdicts_of(before).values() if pair.verdict == UNDECIDED}
        seen = {sample["cell"] for sample in before if sample["phase"] == "race"}
        due = [c for c in self.cells if look not in c.looks and (c.name in undecided or c.name not in seen)]
        until = self.settings.budget_seconds * look / self.settings.looks
        for place, cell in enumerate(due):
            cell.start()
            left = until - self.spent()
            if left <= 0:
                break
            if not cell.run(left / (len(due) - place), look):
                return False
            line = {"kind": "look", "cell": cell.name, "look": look, "spent_seconds": self.spent()}
            cell.take(line)
            self.record.add(line)
            if len(self.cells) > 1:
                cell.close()  # its arms' memory is the next cell's
        return True


def _described(arms: Any) -> Any:
    if not isinstance(arms, Mapping):
        return None  # made when its turn comes
    return {name: arm if isinstance(arm, str) else None for name, arm in arms.items()}
