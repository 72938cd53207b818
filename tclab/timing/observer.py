"""What the instrument itself costs: the same loop with a ledger and without, raced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from tclab.timing.ledger import Ledger
from tclab.timing.no_ledger import NoLedger
from tclab.timing.race_result import Race
from tclab.timing.racing import race


@dataclass(frozen=True)
class Receipt:
    """What a ledger costs a loop.

    **Arguments:**

    - `ratio`: time of the loop with it over time without, with its 95 % `interval`; from a race of the two.
    - `step_seconds`: a bare step.
    - `cut_seconds`: what the ledger's own work in one step takes, from steps that hold nothing but as many stages.
    - `race`: all that `ratio` rests on.
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

    def __str__(self) -> str:
        if self.ratio is None or self.interval is None or self.share is None or self.step_seconds is None:
            return f"the ledger's own work is {self.cut_seconds * 1e6:.1f} µs a step; the race had too few rounds"
        low, high = self.interval
        return (
            f"the ledger's own work is {self.cut_seconds * 1e6:.1f} µs a step, {self.share:.3%} of "
            f"{self.step_seconds * 1e3:.3g} ms; steps with it take {self.ratio:.4f} × [{low:.4f}, {high:.4f}] the "
            f"time of bare ones"
        )


def _own_seconds(stages: list[str], steps: int = 2000) -> float:
    """Return the median time of a step that holds nothing but stages, less that of one with none of them."""

    def took(ledger: Ledger | NoLedger) -> float:
        outer = Ledger(cuda=False)
        for _ in outer.steps(range(20)):
            for _ in ledger.steps(range(steps // 20)):
                for name in stages:
                    with ledger.stage(name):
                        pass
        return median(outer.seconds()["other"]) / (steps // 20)

    return max(0.0, took(Ledger(cuda=False)) - took(NoLedger()))


def receipt(loop: Callable[[Any], object], *, budget_seconds: float = 20.0) -> Receipt:
    """Race a loop under a ledger against the same loop without one.

    **Arguments:**

    - `loop`: takes a `Ledger`, or what stands in its place and keeps nothing, and runs its steps under it; the same
      work each time.
    - `budget_seconds`: for the race. What a ledger costs is some microseconds a step: where a step's own time
      varies by more, the interval says so, and `cut_seconds` is the better figure.
    """
    seen = Ledger()
    loop(seen)
    names = [name for name in seen.seconds() if name not in ("wait", "other", "step")]
    found = race(
        {"instrumented": lambda: loop(Ledger()), "bare": lambda: loop(NoLedger())}, budget_seconds=budget_seconds
    )
    pair = found.pair("instrumented", "bare")
    bare = None if pair.of_b is None else pair.of_b.median_seconds / max(1, len(seen))
    return Receipt(pair.ratio, pair.interval, bare, _own_seconds(names), found)
