"""A race between calls: rounds of blocks in balanced order, until there is a verdict or the seconds are spent.

    result = tclab.timing.race({"old": old_step, "new": new_step}, budget_seconds=60)
    result.verdict("new", "old"), result.ratio, result.interval

How it is decided: `tclab.timing.verdict`. How blocks are run: `tclab.timing.blocks`. The garbage collector is
frozen and off inside blocks and collects between rounds, so a figure has none of its pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from tclab.timing.blocks import Clock
from tclab.timing.errors import TimingError
from tclab.timing.race_result import Race, Races
from tclab.timing.race_running import Course, Settings

Arm = Callable[[], Any] | str


def race(
    arms: Mapping[str, Arm],
    *,
    budget_seconds: float,
    processes: int | None = None,
    period: int = 1,
    looks: int = 4,
    isolated: bool = True,
    sync: Callable[[], None] | None = None,
    discard: Callable[[dict[str, Any]], bool] | None = None,
    record: str | Path | None = None,
    stop: Callable[[], bool] | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Clock = perf_counter_ns,
) -> Race:
    """Race arms against one another and return the verdicts with all that they rest on.

    It ends when every two arms have a verdict, or when the seconds are spent, and looks only at `looks` fixed
    moments: to stop when it looks good would find differences that are not there. An interrupt (Ctrl-C) ends it
    early and gives back what there is; with `record` the same call goes on later.

    **Arguments:**

    - `arms`: name → a call without arguments, which does one unit of work (a step); at least two. Or
      "module:function", a factory that returns that call, or "module:function:text", with its one argument.
    - `budget_seconds`: for everything: warming up, calibration, the A/A floor, controls and rounds.
    - `processes`: so many fresh processes, which take turns; arms are then factories, since a closure cannot cross
      into another process. `None`: in this one.
    - `period`: calls of a block are a multiple of it, such as workers × prefetch of a loader.
    - `looks`: how often it is looked at, at most.
    - `isolated`: every now and then run each arm alone too, for `carry_over`.
    - `sync`: waits for the device, at the boundaries of blocks only; by default torch's, where CUDA is in use.
    - `discard`: a rule that drops a block, given its sample, the same for all arms; more than 20 % of the rounds
      make a comparison void.
    - `record`: a file, or a folder, that keeps each block as it ends. A race goes on from one of the same arms,
      machine and settings.
    - `stop`: asked before each round; true ends the race as an interrupt does.
    - `environment`: variables that the fresh processes have besides this one's, an allocator's settings, say.
    - `clock`: nanoseconds; for tests of the race itself.

    **Raises:** `TimingError` for fewer than two arms, a budget that is not above 0, a factory that cannot be
    imported, or the record of another race.
    """
    settings = Settings(
        budget_seconds,
        processes,
        period,
        looks,
        isolated,
        sync,
        discard,
        clock,
        stop or (lambda: False),
        environment or {},
    )
    return Course({None: arms}, settings, record).run().cells[None]


def race_cells(
    cells: Mapping[Hashable, Mapping[str, Arm] | Callable[[], Mapping[str, Arm]]],
    *,
    budget_seconds: float,
    processes: int | None = None,
    period: int = 1,
    looks: int = 4,
    isolated: bool = True,
    sync: Callable[[], None] | None = None,
    discard: Callable[[dict[str, Any]], bool] | None = None,
    record: str | Path | None = None,
    stop: Callable[[], bool] | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Clock = perf_counter_ns,
) -> Races:
    """Race the arms of many cells; after each look the seconds go to the cells that are still undecided.

    False discoveries are held down over all comparisons of all cells together (Benjamini-Hochberg).

    **Arguments:**

    - `cells`: cell → its arms, or a call that makes them, which is made when the cell's turn comes, so that not
      all of them need be in memory at once. Names of cells are kept as their text.
    - The rest as for `race`; `budget_seconds` is for all cells together.

    **Raises:** `TimingError`, as `race` does.
    """
    if None in cells:
        raise TimingError("a cell is named None, expected a name")
    settings = Settings(
        budget_seconds,
        processes,
        period,
        looks,
        isolated,
        sync,
        discard,
        clock,
        stop or (lambda: False),
        environment or {},
    )
    return Course(cells, settings, record).run()
