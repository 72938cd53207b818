"""Carry-over in a race: how much the other arms change an arm's time, against blocks of the arm alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tclab.timing._statistics import FEWEST, intervals
from tclab.timing._verdict import Sample

_NEAR = 2  # rounds before and after a control with which it is compared


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
    return _summary(list(logs.values()))


def _summary(groups: Sequence[Sequence[float]]) -> CarryOver:
    values = [np.array(group) for group in groups]
    number = sum(map(len, values))
    if number == 0:
        return CarryOver(None, None, 0)
    ratio = float(np.exp(np.median(np.concatenate(values))))
    if number < FEWEST:
        return CarryOver(ratio, None, number)
    ((low, high),) = intervals(values, [0.95])
    return CarryOver(ratio, (float(np.exp(low)), float(np.exp(high))), number)
