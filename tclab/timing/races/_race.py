"""`race` and `race_cells`: which of several calls is faster, from interleaved blocks of calls.

    result = tclab.timing.race({"old": old_step, "new": new_step}, budget_seconds=60)
    result.verdict("new", "old"), result.ratio, result.interval

`_verdict.py` decides the verdicts and `_blocks.py` runs the blocks. The garbage collector is frozen and off inside
blocks and collects between rounds, so its pauses are in no figure.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from tclab.errors import InputError
from tclab.timing.races._blocks import Clock
from tclab.timing.races._race_result import Race, Races
from tclab.timing.races._race_session import RaceSession, RaceSettings

Arm = Callable[[], Any] | str


def race(
    arms: Mapping[str, Arm],
    *,
    budget_seconds: float,
    processes: int | None = None,
    period: int = 1,
    looks: int = 2,
    isolated: bool = True,
    sync: Callable[[], None] | None = None,
    discard: Callable[[dict[str, Any]], bool] | None = None,
    record: str | Path | None = None,
    stop: Callable[[], bool] | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Clock = perf_counter_ns,
) -> Race:
    """Race calls against one another and return a verdict on every two, with the measurements it rests on.

    `torch.utils.benchmark.Timer` times each statement by itself; a race interleaves blocks of all arms, so that they
    share the machine's drift, and decides each pair by the interval of their ratio.

    The race ends when every two arms have a verdict or the budget is spent. It tests for verdicts only at `looks` fixed
    moments, since stopping whenever a difference appears would find differences that do not exist. An interrupt
    (Ctrl-C) ends it early and returns the blocks measured so far; with `record`, the same call later continues it.

    **Arguments:**

    - `arms`: name → a function without arguments that does one unit of work (one step); at least two. Or
      "module:function", a factory that returns this function, or "module:function:text", with the factory's argument.
      Where it has attributes `settle` (called before each block, outside the clock) and `period` (calls that a block is
      a multiple of), they are used: a loader's workers must not have filled up while another arm ran.
    - `budget_seconds`: wall time for everything: warm-up, calibration, the A/A floor, controls and rounds.
    - `processes`: run in this many fresh processes, which take turns; arms are then factories, since a closure cannot
      be sent to another process. `None` runs in this process.
    - `period`: the number of calls a block is a multiple of it; for a loader, workers × prefetch_factor.
    - `looks`: how often, at most, the race tests for verdicts.
    - `isolated`: at intervals, also run each arm alone, for `Race.carry_over`.
    - `sync`: waits for the device, at the boundaries of blocks only; by default `torch.cuda.synchronize` where CUDA is
      in use.
    - `discard`: takes a block's sample and returns true to drop it, by the same rule for all arms. A comparison with
      more than 20 % of its rounds dropped is void.
    - `record`: a file, or a folder, to which each block is written as it ends. A race with the same arms, machine and
      settings continues from it. With a larger `budget_seconds`, a race that ended UNDECIDED goes on, at any time and
      as often as is wanted: a part of alpha is kept for it (`tclab.timing._statistics.alpha_of`).
    - `stop`: called before each round; true ends the race like an interrupt.
    - `environment`: variables for the fresh processes in addition to this process's, such as allocator settings.
    - `clock`: returns nanoseconds; for tests of the race itself.

    **Raises:** `InputError` for fewer than two arms, a budget that is not above 0, a factory that cannot be
    imported, or the record of another race.
    """
    settings = RaceSettings(
        budget_seconds=budget_seconds,
        processes=processes,
        period=period,
        looks=looks,
        isolated=isolated,
        sync=sync,
        discard=discard,
        stop=stop,
        environment=environment,
        clock=clock,
    )
    return RaceSession({None: arms}, settings, record).run().cells[None]


def race_cells(
    cells: Mapping[Hashable, Mapping[str, Arm] | Callable[[], Mapping[str, Arm]]],
    *,
    budget_seconds: float,
    record: str | Path | None = None,
    **settings: Any,
) -> Races:
    """Race the arms of several cells; after each look the remaining seconds go to the cells that are undecided.

    The p values of all comparisons of all cells are adjusted together (Benjamini-Hochberg).

    **Arguments:**

    - `cells`: cell → its arms; or a function that makes them when the cell's turn comes, so that not all of them need
      be in memory at once. Cells are recorded by the text of their names.
    - `budget_seconds`: wall time for all cells together.
    - `record`: as for `race`.
    - `settings`: the other settings of `race`, by name.

    **Raises:** `InputError`, as `race` does; `TypeError` for a setting that `race` does not have.
    """
    if None in cells:
        raise InputError("a cell is named None, expected a name")
    return RaceSession(cells, RaceSettings(budget_seconds=budget_seconds, **settings), record).run()
