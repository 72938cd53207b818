"""How much an arm's neighbours in a race change it: blocks among other arms' against blocks of the arm alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tclab.timing.statistics import FEWEST, intervals
from tclab.timing.verdict import Sample

_NEAR = 2  # rounds before a control and after it, which it is compared with


@dataclass(frozen=True)
class CarryOver:
    """The time of an arm interleaved over its time alone, in one process.

    **Arguments:**

    - `ratio`: 1.0 where the others change nothing; `interval`: 95 %, over controls; each `None` where there were
      too few of them.
    - `controls`: how often the arm was run alone.
    """

    ratio: float | None
    interval: tuple[float, float] | None
    controls: int


def carry_over(samples: Iterable[Sample], arm: str) -> CarryOver:
    """Return an arm's carry-over, each control against the rounds just before and after it.

    The first block of a control follows another arm's, so it is left out.
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
    found: dict[int, list[float]] = {}
    for (process, round_), seconds in alone.items():
        # a control stands before the round whose number it bears
        near = [t for r in range(round_ - _NEAR, round_ + _NEAR) for t in among.get((process, r), [])]
        if near:
            found.setdefault(process, []).append(float(np.log(np.median(near) / np.median(seconds))))
    return _told(list(found.values()))


def _told(groups: Sequence[Sequence[float]]) -> CarryOver:
    values = [np.array(group) for group in groups]
    number = sum(map(len, values))
    if number == 0:
        return CarryOver(None, None, 0)
    ratio = float(np.exp(np.median(np.concatenate(values))))
    if number < FEWEST:
        return CarryOver(ratio, None, number)
    ((low, high),) = intervals(values, [0.95])
    return CarryOver(ratio, (float(np.exp(low)), float(np.exp(high))), number)
