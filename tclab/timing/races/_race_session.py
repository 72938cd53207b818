"""A session of a race: sharing the budget among cells and processes, testing for verdicts, stopping and resuming."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from sys import float_info
from time import perf_counter_ns
from typing import Any
from uuid import uuid4

from tclab.errors import InputError, check_whole
from tclab.timing._conditions import busy_percent, conditions
from tclab.timing._environment import fingerprint
from tclab.timing._verdict import UNDECIDED, Pair, verdicts_of
from tclab.timing.races._blocks import BlockRunner, Clock
from tclab.timing.races._race_process import RaceProcess, arm_from, run_share
from tclab.timing.races._race_record import RaceRecord
from tclab.timing.races._race_result import Race, Races

FLOOR_SHARE = 0.1  # of a cell's seconds, spent on the A/A floor
CALIBRATION_SHARE = 0.04
_THIS_PROCESS = uuid4().hex  # a process id would come again


@dataclass(frozen=True, kw_only=True)
class RaceSettings:
    """How a race runs; `race` describes each setting.

    **Raises:** `InputError` for a value that no race can run with.
    """

    budget_seconds: float
    processes: int | None = None
    period: int = 1
    looks: int = 2
    isolated: bool = True
    sync: Callable[[], None] | None = None
    discard: Callable[[dict[str, Any]], bool] | None = None
    stop: Callable[[], bool] | None = None
    environment: Mapping[str, str] | None = None
    clock: Clock = perf_counter_ns

    def __post_init__(self) -> None:
        budget = self.budget_seconds
        number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
        if not number or not 0 < budget <= float_info.max:
            raise InputError(f"budget_seconds is {budget!r}, expected a number above 0")
        for name in ("processes", "period", "looks"):
            value = getattr(self, name)
            if value is None and name == "processes":
                continue
            check_whole(f"{name} is", value, least=1)

    def recorded(self) -> dict[str, Any]:
        """Return the settings that decide which blocks run, as a record holds them."""
        names = ("budget_seconds", "processes", "period", "looks", "isolated")
        rule = self.discard and f"{self.discard.__module__}:{self.discard.__qualname__}"
        recorded = {name: getattr(self, name) for name in names} | {"discard": rule, "collector": "off inside blocks"}
        # the place of temporary files changes no measurement
        given = self.environment or {}
        environment = {name: value for name, value in given.items() if value != given.get("TMPDIR")}
        return recorded | ({"environment": environment} if environment else {})


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


class _Cell:
    """One cell: its arms, the samples of its blocks, and the runners or processes that run them."""

    def __init__(self, name: str | None, arms: Any, session: RaceSession) -> None:
        self.name, self._given, self._session = name, arms, session
        self.arms: tuple[str, ...] = ()
        self.samples: list[dict[str, Any]] = []
        self.looks: set[int] = set()
        self.calls: dict[str, int] | None = None
        self.block_seconds = 0.0
        self.conditions: dict[str, Any] | None = None  # at the last look
        self._runners: list[BlockRunner | RaceProcess] = []
        if not callable(arms):
            self._arms()

    def _arms(self) -> dict[str, Any]:
        given = self._given() if callable(self._given) else self._given
        arms = _checked_arms(given, self._session.settings.processes, self.name)
        self.arms = tuple(arms)
        return arms

    def apply_line(self, line: dict[str, Any]) -> None:
        """Apply a line of the record, old or new."""
        if line["kind"] == "plan":
            self.calls, self.block_seconds = dict(line["calls"]), line.get("block_seconds", 0.0)
            self.arms = tuple(self.calls)
        elif line["kind"] == "look":
            self.looks.add(line["look"])
            self.conditions = line.get("conditions")  # older records have none
        elif line["kind"] == "block":
            self.samples.append(line)

    def _add(self, line: dict[str, Any]) -> None:
        session = self._session
        line = {**line, "cell": self.name}
        if line["kind"] == "block":
            line["extension"] = (line["look"] - 1) // line["looks"]
            line["spent_seconds"] = session.spent()
            if session.settings.discard is not None:
                line["dropped"] = bool(session.settings.discard(line))
        self.apply_line(line)
        session.record.add(line)

    def start(self) -> None:
        """Make the arms, in each process, unless they are there already."""
        if self._runners:
            return
        settings, arms = self._session.settings, self._arms()
        if settings.processes is None:
            number = self._session.process
            runner = BlockRunner(
                {name: arm_from(arm) if isinstance(arm, str) else arm for name, arm in arms.items()},
                self._add,
                clock=settings.clock,
                sync=settings.sync,
                period=settings.period,
                calls=self.calls,
                block_seconds=self.block_seconds,
                process=number,
                rounds=self._next("race", number),
            )
            self._runners = [runner]
            return
        first = max((s["process"] for s in self.samples), default=-1) + 1
        for number in range(first, first + settings.processes):
            begin = {"arms": arms, "period": settings.period, "process": number}
            self._runners.append(RaceProcess(begin, settings.environment or {}))
        for process in self._runners:
            if isinstance(process, RaceProcess):
                process.make_arms()

    def _next(self, phase: str, process: int) -> int:
        rounds = (s["round"] for s in self.samples if s["phase"] == phase and s["process"] == process)
        return max(rounds, default=-1) + 1

    def run(self, seconds: float, look: int) -> bool:
        """Run for `seconds`, warm-up included; return false if the race was stopped."""
        session = self._session
        settings, begin = session.settings, session.spent()
        whole = settings.budget_seconds / len(session.cells)
        floors = {s["process"] for s in self.samples if s["phase"] == "floor"}
        for place, runner in enumerate(self._runners):
            end = begin + seconds * (place + 1) / len(self._runners)
            number = (settings.processes or 1) if isinstance(runner, RaceProcess) else 1
            has_floor = runner.process in floors or len(floors) >= number  # in an earlier session
            share: dict[str, Any] = {
                "look": look,
                "looks": settings.looks,
                "isolated": settings.isolated,
                "seconds": end - session.spent(),
                # every process runs some rounds, however long the others took to start
                "least_rounds": 0 if settings.processes is None else 2,
                "calibration_seconds": CALIBRATION_SHARE * whole,
                "race_seconds": (1 - FLOOR_SHARE - CALIBRATION_SHARE) * whole / number,
                "floor_seconds": None if has_floor else FLOOR_SHARE * whole / number,
                "floor_from": self._next("floor", session.process),
            }
            if isinstance(runner, RaceProcess):
                if session.stopped():
                    return False
                runner.run({**share, "calls": self.calls, "block_seconds": self.block_seconds}, self._add)
            else:
                share["left"] = lambda end=end: end - session.spent()
                if not run_share(runner, share, session.stopped, self._add):
                    return False
        return True

    def close(self) -> None:
        """End the processes of this cell and drop its arms."""
        while self._runners:
            runner = self._runners.pop()
            if isinstance(runner, RaceProcess):
                runner.close()


class RaceSession:
    """One session of a race: as many stages as looks, each for the cells that are still undecided.

    `cells` is as for `race_cells`, with one cell named `None` for a race without cells.
    """

    def __init__(self, cells: Mapping[Any, Any], settings: RaceSettings, record: str | Path | None) -> None:
        self.settings = settings
        self._keys: dict[str | None, Hashable] = {None if key is None else str(key): key for key in cells}
        if not cells or len(self._keys) != len(cells):
            raise InputError(f"cells are {', '.join(map(str, cells)) or 'none'}, expected names that differ")
        import scipy.stats  # noqa: F401 (loaded before the clock starts, since the looks need it)

        self.cells = [_Cell(name, cells[key], self) for name, key in self._keys.items()]
        self.machine = fingerprint("session", load_torch=False)
        arms = [[cell.name, _arms_text(cells[self._keys[cell.name]])] for cell in self.cells]
        header = {"cells": arms, "machine": self.machine, "settings": settings.recorded()}
        self.record = RaceRecord(record, header)
        self._before = 0  # nanoseconds spent in earlier sessions; whole, so that a stop does not change the sum
        self._sessions: list[str] = []
        self._resume()
        self._begin = settings.clock()

    def _resume(self) -> None:
        by_name = {cell.name: cell for cell in self.cells}
        for line in self.record.lines:
            if line["kind"] == "session":
                self._sessions.append(line["process"])
            else:
                by_name[line["cell"]].apply_line(line)
                self._before = max(self._before, round(line.get("spent_seconds", 0.0) * 1e9))
        if _THIS_PROCESS not in self._sessions:
            self._sessions.append(_THIS_PROCESS)
            self.record.add({"kind": "session", "process": _THIS_PROCESS})

    @property
    def process(self) -> int:
        """The number of this process among those of the race's sessions."""
        return self._sessions.index(_THIS_PROCESS)

    def spent(self) -> float:
        """Return the seconds of the budget that are spent, including earlier sessions."""
        return (self._before + self.settings.clock() - self._begin) / 1e9

    def stopped(self) -> bool:
        return self.settings.stop is not None and self.settings.stop()

    def run(self) -> Races:
        """Run until the verdicts, the end of the budget, or an interrupt."""
        stopped = None
        try:
            for look in range(1, self.settings.looks * len(self.record.budgets) + 1):
                if not self._stage(look):
                    stopped = "stop returned true"
                    break
        except KeyboardInterrupt:
            stopped = "interrupted"
        finally:
            for cell in self.cells:
                cell.close()
            self.record.close()
        pairs = verdicts_of(sample for cell in self.cells for sample in cell.samples)
        shared = (self.settings.recorded(), self.machine, stopped)
        races = {
            self._keys[cell.name]: Race(
                cell.arms, cell.name, *shared, tuple(cell.samples), pairs, busy_percent(cell.conditions)
            )
            for cell in self.cells
        }
        return Races(races, stopped)

    def _until(self, look: int) -> float:
        """Return the seconds of the budget that are spent at a look; each larger budget adds as many looks."""
        extension, place = divmod(look - 1, self.settings.looks)
        before = self.record.budgets[extension - 1] if extension else 0.0
        return float(before + (self.record.budgets[extension] - before) * (place + 1) / self.settings.looks)

    def _stage(self, look: int) -> bool:
        """Run each cell that was undecided before this look for its share of the seconds until it; false if stopped."""
        before = [s for cell in self.cells for s in cell.samples if s["look"] < look]
        early = (look - 1) % self.settings.looks > 0
        undecided = {
            pair.cell
            for pair in verdicts_of(before).values()
            if pair.verdict == UNDECIDED or (early and not _is_far(pair))
        }
        started = {sample["cell"] for sample in before if sample["phase"] == "race"}
        due = [c for c in self.cells if look not in c.looks and (c.name in undecided or c.name not in started)]
        until = self._until(look)
        for place, cell in enumerate(due):
            cell.start()
            left = until - self.spent()
            # processes that took the whole time to start still run some rounds: a race without one answers nothing
            started_late = self.settings.processes is not None and not any(c.samples for c in self.cells)
            if left <= 0 and not started_late:
                break
            if not cell.run(left / (len(due) - place), look):
                return False
            line = {"kind": "look", "cell": cell.name, "look": look, "spent_seconds": self.spent(),
                    "conditions": conditions()}  # fmt: skip
            cell.apply_line(line)
            self.record.add(line)
            if len(self.cells) > 1:
                cell.close()  # frees the memory of its arms for the next cell
        return True


def _is_far(pair: Pair) -> bool:
    """Return whether a pair needs no second half: its interval lies beyond ±30 %."""
    low, high = pair.decision_interval or (1.0, 1.0)
    return high < 1 / 1.3 or low > 1.3


def _arms_text(arms: Any) -> Any:
    if not isinstance(arms, Mapping):
        return None  # made when the cell's turn comes
    return {name: arm if isinstance(arm, str) else None for name, arm in arms.items()}
