"""The receipt of the ledger: what timing a loop costs, from a race of the loop with a ledger and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median
from time import perf_counter_ns
from typing import Any

from tclab._display import Display, Shown
from tclab.timing._conditions import busy_notes
from tclab.timing._ledger import Ledger, NullLedger
from tclab.timing._race import Race, race
from tclab.timing._race_blocks import Clock


@dataclass(frozen=True, repr=False)
class Receipt(Shown):
    """The cost of timing a loop with a ledger.

    **Arguments:**

    - `ratio`: time of the loop with a ledger over its time without, from a race of the two.
    - `interval`: 95 % interval of `ratio`.
    - `step_seconds`: a step without a ledger; where the race has no time of it, one with it, less `cut_seconds`.
    - `cut_seconds`: the ledger's own work in one step, measured on steps that contain only the same stages.
    - `race`: the race that `ratio` comes from.
    """

    ratio: float | None
    interval: tuple[float, float] | None
    step_seconds: float | None
    cut_seconds: float
    race: Race

    @property
    def share(self) -> float | None:
        """The ledger's own work, as a share of a bare step."""
        return self.cut_seconds / self.step_seconds if self.step_seconds else None

    def _display(self) -> Display:
        return Display(notes=[self._sentence(), *busy_notes(self.race.busy_percent)])

    def _sentence(self) -> str:
        own = f"the ledger's own work is {self.cut_seconds * 1e6:.1f} µs a step"
        if self.share is not None and self.step_seconds is not None:
            own += f", {self.share:.3%} of {self.step_seconds * 1e3:.3g} ms"
        if self.ratio is None or self.interval is None:
            return f"{own}; the race had too few rounds"
        low, high = self.interval
        return f"{own}; steps with it take {self.ratio:.4f} × [{low:.4f}, {high:.4f}] the time of bare ones"


def _cut_seconds(stages: list[str]) -> float:
    """Return the median time of an empty step with these stages under a ledger, less that under a `NullLedger`."""

    def took(ledger: Ledger | NullLedger) -> float:
        outer = Ledger(cuda=False)
        for _ in outer.steps(range(20)):
            for _ in ledger.steps(range(100)):
                for name in stages:
                    with ledger.stage(name):
                        pass
        return median(outer.seconds()["other"]) / 100

    return max(0.0, took(Ledger(cuda=False)) - took(NullLedger()))


def receipt(
    loop: Callable[[Any], object],
    *,
    budget_seconds: float = 20.0,
    clock: Clock = perf_counter_ns,
    lines: bool = False,
) -> Receipt:
    """Race a loop under a ledger against the same loop without one.

    **Arguments:**

    - `loop`: takes a `Ledger` or a `NullLedger` and runs its steps under it; the same work each time.
    - `budget_seconds`: wall time for the race. A ledger costs some microseconds a step: where the time of a step varies
      by more, the interval is wide, and `cut_seconds` is the better figure.
    - `clock`: returns nanoseconds; for tests of the race.
    - `lines`: the ledger samples lines, as `Ledger(lines=True)` does, without the one step in which it counts waits.
    """

    def made() -> Ledger:
        ledger = Ledger(lines=lines)
        ledger.counts_waits = False
        return ledger

    ledger = made()
    loop(ledger)
    names = [name for name in ledger.seconds() if name not in ("data_wait", "other", "step")]
    result = race(
        {"instrumented": lambda: loop(made()), "bare": lambda: loop(NullLedger())},
        budget_seconds=budget_seconds,
        clock=clock,
    )
    pair = result.pair("instrumented", "bare")
    cut = _cut_seconds(names)
    steps = ledger.seconds().get("step")
    bare = max(0.0, fmean(steps) - cut) if steps else None
    if pair.b_seconds is not None:
        bare = pair.b_seconds / max(1, len(ledger))
    return Receipt(pair.ratio, pair.interval, bare, cut, result)
