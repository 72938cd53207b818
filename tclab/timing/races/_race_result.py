"""The result of a race: `Race` and `Races`, with verdicts and the samples that they come from."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from tclab._display import Display, Shown
from tclab.errors import InputError, unknown
from tclab.timing._conditions import busy_notes
from tclab.timing._statistics import MIN_OBSERVATIONS, Series, centre_of
from tclab.timing._verdict import MARGIN, UNDECIDED, Pair, Sample, floor_of, pairs_display

_SLOW = 1.1  # times an arm's median block, which every block of a slow stretch exceeds
_LONG = 0.02  # share of a process's rounds that a slow stretch has at least
_NEAR = 2  # rounds before and after a control with which it is compared
_Pairs = Mapping[tuple[str | None, str, str], Pair]


@dataclass(frozen=True)
class CarryOver:
    """An arm's time among the other arms over its time alone.

    **Arguments:**

    - `ratio`: 1.0 if the other arms change nothing; `None` without controls.
    - `interval`: 95 % interval over controls; `None` if there are too few.
    - `controls`: number of times that the arm ran alone.
    """

    ratio: float | None
    interval: tuple[float, float] | None
    controls: int


def carry_over(samples: Iterable[Sample], arm: str) -> CarryOver:
    """Return an arm's carry-over, comparing each control with the rounds just before and after it.

    The first block of a control, which follows another arm's, is left out.
    """
    alone: dict[tuple[int, int], list[float]] = {}
    among: dict[tuple[int, int], list[float]] = {}
    for sample in samples:
        if sample["arm"] != arm or sample["dropped"]:
            continue
        key = (sample["process"], sample["round"])
        if sample["phase"] == "isolated" and sample["position"] > 0:
            alone.setdefault(key, []).append(sample["seconds"])
        elif sample["phase"] == "race":
            among.setdefault(key, []).append(sample["seconds"])
    logs: dict[int, list[float]] = {}
    for (process, round_), seconds in alone.items():
        # a control runs before the round with its number
        near = [t for r in range(round_ - _NEAR, round_ + _NEAR) for t in among.get((process, r), [])]
        if near:
            logs.setdefault(process, []).append(float(np.log(np.median(near) / np.median(seconds))))
    if not logs:
        return CarryOver(None, None, 0)
    groups = [np.array(ratios) for ratios in logs.values()]
    every = np.concatenate(groups)
    interval = None
    if len(every) >= MIN_OBSERVATIONS:
        rounds = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        series = Series(every, np.arange(float(len(every))), rounds)
        low, high = np.exp(centre_of(series).interval(0.95)).tolist()
        interval = (low, high)
    return CarryOver(float(np.exp(np.median(every))), interval, len(every))


def _computing(samples: Iterable[Sample]) -> float | None:
    """Return the share of its time that the process was on a processor, the median of some blocks; `None` of none."""
    shares = [s["cpu_seconds"] / s["seconds"] for s in samples if s["cpu_seconds"] is not None]
    return float(np.median(shares)) if shares else None


def slow_stretches(samples: Iterable[Sample]) -> list[str]:
    """Return the stretches of a race in which every block of every arm took more than 10 % longer than usual, in words.

    Rounds are compared within themselves, so that what slows all arms alike decides nothing; it is worth knowing. What
    the process computed in that time tells a processor that others had from one that was slower.
    """
    blocks: dict[int, dict[int, list[Sample]]] = {}
    usual: dict[str, list[float]] = {}
    for sample in samples:
        if sample["phase"] == "race":
            blocks.setdefault(sample["process"], {}).setdefault(sample["round"], []).append(sample)
            usual.setdefault(sample["arm"], []).append(sample["seconds"])
    medians = {arm: float(np.median(seconds)) for arm, seconds in usual.items()}
    found = []
    for process, rounds in blocks.items():
        slow = {n: min(s["seconds"] / medians[s["arm"]] for s in of) > _SLOW for n, of in rounds.items()}
        calm = _computing([s for n, of in rounds.items() if not slow[n] for s in of])
        for is_slow, group in groupby(sorted(rounds), key=slow.__getitem__):
            stretch = list(group)
            if not is_slow or len(stretch) < max(MIN_OBSERVATIONS, _LONG * len(rounds)):
                continue
            own = [sample for number in stretch for sample in rounds[number]]
            longer = float(np.median([s["seconds"] / medians[s["arm"]] for s in own])) - 1
            computing, why = _computing(own), ""
            if computing is not None and calm is not None:
                waited = computing < calm / _SLOW
                why = ": it waited for a processor" if waited else ": a lower clock, or contended memory"
            where = f"rounds {stretch[0] + 1} to {stretch[-1] + 1} of process {process + 1}"
            found.append(f"{where} took {longer:.0%} longer, whichever the arm{why}")
    return found


@dataclass(frozen=True, repr=False)
class Race(Shown):
    """The result of a race.

    **Arguments:**

    - `arms`: names of the arms, in order.
    - `cell`: name of the cell; `None` for a race without cells.
    - `settings`: how it ran.
    - `machine`: where it ran.
    - `stopped`: why it ended before its verdicts and its budget; `None` if it did not.
    - `busy_percent`: pressure on the processors at its last look, where the machine was busy; `None` where not, or not
      known.
    """

    arms: tuple[str, ...]
    cell: str | None
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    stopped: str | None
    _samples: tuple[Mapping[str, Any], ...]
    _pairs: _Pairs
    busy_percent: float | None = None

    def pair(self, a: str, b: str) -> Pair:
        """Return the comparison of two arms. **Raises:** `InputError` for an unknown arm, with the nearest name."""
        for arm in (a, b):
            if arm not in self.arms:
                raise unknown("arm", arm, self.arms)
        if a == b:
            raise InputError(f"{a!r} with itself is no comparison; the A/A floor is `.floor`")
        if (found := self._pairs.get((self.cell, a, b))) is not None:
            return found
        other = self._pairs.get((self.cell, b, a))
        return other.flipped() if other is not None else Pair(a, b, UNDECIDED, "no round ran", cell=self.cell)

    def verdict(self, a: str, b: str) -> str:
        """Return "FASTER" if `a` is faster than `b`, "SLOWER", "SAME" or "UNDECIDED"."""
        return self.pair(a, b).verdict

    @property
    def ratio(self) -> float | None:
        """Time of the first arm over time of the second; `None` if unknown."""
        return self.pair(*self.arms[:2]).ratio

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `ratio`."""
        return self.pair(*self.arms[:2]).interval

    @property
    def pairs(self) -> list[Pair]:
        """The comparisons of every two arms, in order."""
        return [self.pair(a, b) for i, a in enumerate(self.arms) for b in self.arms[i + 1 :]]

    @cached_property
    def floor(self) -> float | None:
        """The A/A floor: the ratio, less 1, that an arm shows against itself; `None` if it did not run."""
        return floor_of(self._samples)

    @property
    def margin(self) -> float:
        """The margin that a difference must exceed: the larger of 2 % and the A/A floor."""
        return max(MARGIN, self.floor or 0.0)

    @property
    def block_seconds(self) -> float:
        """Total seconds inside blocks."""
        return float(sum(s["seconds"] * s["calls"] for s in self._samples))

    @cached_property
    def carry_over(self) -> dict[str, CarryOver]:
        """Arm → its time among the other arms over its time alone."""
        return {arm: carry_over(self._samples, arm) for arm in self.arms}

    def samples(self) -> list[dict[str, Any]]:
        """Return the samples in the order in which their blocks ran, as `tclab.timing.verdicts_of` takes them."""
        return [dict(sample) for sample in self._samples]

    def frame(self) -> Any:
        """Return one row a block as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.samples())

    def _display(self) -> Display:
        floor = "not measured" if self.floor is None else f"{self.floor:.2%}"
        notes = [f"A/A floor {floor}, margin {self.margin:.2%}; {self.block_seconds:.1f} s in blocks; collector off"]
        for arm, effect in self.carry_over.items():
            if effect.ratio is not None:
                ends = " [{:.4g}, {:.4g}]".format(*effect.interval) if effect.interval else ""
                notes.append(f"{arm}: {effect.ratio:.4g} × the time it takes alone{ends}")
        if self.stopped is None and any(pair.needs_rounds for pair in self.pairs):
            more = 5 * self.settings["budget_seconds"]
            notes.append(
                f"more rounds may decide: budget_seconds={more:g} (--budget-seconds {more:g}), which goes on from here "
                "where the race has a record"
            )
        notes += [*slow_stretches(self._samples), *busy_notes(self.busy_percent)]
        return pairs_display(self.pairs, notes=[*notes, *([f"stopped: {self.stopped}"] if self.stopped else [])])


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

    def samples(self) -> list[dict[str, Any]]:
        """Return the samples of all cells."""
        return [sample for race in self.cells.values() for sample in race.samples()]

    def frame(self) -> Any:
        """Return one row a comparison as a pandas DataFrame, with a column for each field of `Pair`."""
        import pandas as pd

        return pd.DataFrame([vars(pair) for pair in self.pairs])

    def _display(self) -> Display:
        notes = [*busy_notes(self.busy_percent), *([f"stopped: {self.stopped}"] if self.stopped else [])]
        return pairs_display(self.pairs, notes=notes)
