"""What a race gives back: its verdicts, and the raw blocks that they can be made from again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tclab.timing.carry_over import CarryOver, carry_over
from tclab.timing.verdict import LEAST_MARGIN, Pair, floor_of, pick
from tclab.timing.warmup import Settled, settled

_Pairs = Mapping[tuple[str | None, str, str], Pair]


@dataclass(frozen=True)
class Race:
    """The race of one cell's arms.

    **Arguments:**

    - `arms`: their names, in order. `cell`: its name, `None` where there is but one.
    - `settings`, `machine`: how and where it was run.
    - `stopped`: why it ended before its verdicts and its budget; `None` where it did not.
    """

    arms: tuple[str, ...]
    cell: str | None
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    stopped: str | None
    _samples: tuple[Mapping[str, Any], ...]
    _pairs: _Pairs

    def pair(self, a: str, b: str) -> Pair:
        """Return the comparison of two arms. **Raises:** `TimingError` for an arm that does not run."""
        return pick(self._pairs, self.arms, self.cell, a, b)

    def verdict(self, a: str, b: str) -> str:
        """Return whether `a` is FASTER or SLOWER than `b`, the SAME, or UNDECIDED."""
        return self.pair(a, b).verdict

    @property
    def ratio(self) -> float | None:
        """Time of the first arm over time of the second."""
        return self.pair(*self.arms[:2]).ratio

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `ratio`."""
        return self.pair(*self.arms[:2]).interval

    @property
    def pairs(self) -> list[Pair]:
        """Every two arms, in order."""
        return [self.pair(a, b) for i, a in enumerate(self.arms) for b in self.arms[i + 1 :]]

    @cached_property
    def floor(self) -> float | None:
        """The A/A floor: the ratio, less 1, that an arm shows against itself; `None` if it was not run."""
        return floor_of(self._samples)

    @property
    def margin(self) -> float:
        """What a difference must exceed: the larger of 1 % and the floor."""
        return max(LEAST_MARGIN, self.floor or 0.0)

    @property
    def block_seconds(self) -> float:
        """The time inside all blocks together."""
        return float(sum(s["seconds"] * s["calls"] for s in self._samples))

    @cached_property
    def carry_over(self) -> dict[str, CarryOver]:
        """Arm → its time among the others over its time alone."""
        return {arm: carry_over(self._samples, arm) for arm in self.arms}

    @cached_property
    def settled(self) -> dict[str, Settled]:
        """Arm → whether its blocks in the race were steady from the first one on, in the last process."""
        rounds = [s for s in self._samples if s["phase"] == "race"]
        last = max((s["process"] for s in rounds), default=0)
        return {
            arm: settled([s["seconds"] for s in rounds if s["arm"] == arm and s["process"] == last])
            for arm in self.arms
        }

    def samples(self) -> list[dict[str, Any]]:
        """Return the raw blocks, in the order that they were run; `verdict_of` makes the verdicts of them."""
        return [dict(sample) for sample in self._samples]

    def frame(self) -> Any:
        """Return the raw blocks as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.samples())

    def __str__(self) -> str:
        lines = [str(pair) for pair in self.pairs]
        floor = "not measured" if self.floor is None else f"{self.floor:.2%}"
        lines.append(
            f"A/A floor {floor}, margin {self.margin:.2%}; {self.block_seconds:.1f} s in blocks; collector off"
        )
        for arm, found in self.carry_over.items():
            if found.ratio is not None:
                ends = " [{:.4g}, {:.4g}]".format(*found.interval) if found.interval else ""
                lines.append(f"{arm}: {found.ratio:.4g} × the time it takes alone{ends}")
        return "\n".join([*lines, *([f"stopped: {self.stopped}"] if self.stopped else [])])


@dataclass(frozen=True)
class Races:
    """The races of many cells. `cells`: cell → its race. `stopped`: as for one race."""

    cells: Mapping[Hashable, Race]
    stopped: str | None

    @property
    def pairs(self) -> list[Pair]:
        """Every two arms of every cell."""
        return [pair for race in self.cells.values() for pair in race.pairs]

    def samples(self) -> list[dict[str, Any]]:
        """Return the raw blocks of all cells."""
        return [sample for race in self.cells.values() for sample in race.samples()]

    def frame(self) -> Any:
        """Return the comparisons as a pandas DataFrame, one row each, a column for each field of `Pair`."""
        import pandas as pd

        return pd.DataFrame([vars(pair) for pair in self.pairs])

    def __str__(self) -> str:
        return "\n".join(f"{pair.cell}: {pair}" for pair in self.pairs)
