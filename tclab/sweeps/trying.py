"""A change tried: a point raced against the same point with one setting changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

import pandas as pd

from tclab.sweeps.contest import race_points
from tclab.sweeps.point import Point
from tclab.sweeps.run_verdicts import pairs_of_runs
from tclab.sweeps.running import run
from tclab.timing import Pair
from tclab.timing.verdict import decide

NAMES = ("now", "changed")


def tried(now: Point, changed: Point) -> Callable[..., Pair]:
    """Return a call that takes `budget_seconds` and measures a change, told of the changed point.

    By a race, but where the two cannot share a process (another allocator, another device): then each is run in
    turn, in processes of their own. For another batch size the times are those of a sample.
    """
    apart = now.allocator != changed.allocator or now.device != changed.device
    return partial(_by_runs if apart else _by_race, now, changed)


def _by_race(
    now: Point, changed: Point, *, budget_seconds: float, processes: int | None = 1, **options: Any
) -> Pair:
    race = race_points(
        {"changed": changed, "now": now}, budget_seconds=budget_seconds, processes=processes, **options
    )
    return _a_sample(race.pair("changed", "now"), now.batch_size / changed.batch_size)


def _by_runs(now: Point, changed: Point, *, budget_seconds: float, **_: Any) -> Pair:
    """Measure in processes of their own, whatever else a race would be told."""
    begin, rounds = monotonic(), 0
    found: dict[str, list[pd.DataFrame]] = {name: [] for name in NAMES}
    while rounds < 2 or monotonic() - begin < budget_seconds * rounds / (rounds + 1):
        order = list(zip(NAMES, (now, changed), strict=True))
        for name, point in order if rounds % 2 == 0 else order[::-1]:
            rows = run(point, fresh=True)
            found[name].append(rows[rows["stage"] == "step"])
        rounds += 1
    sides = [pd.concat(found[name]) for name in NAMES]
    (pair,) = pairs_of_runs([("", sides[0], sides[1])], NAMES, margin=0.05)
    return _a_sample(replace(pair, cell=None), now.batch_size / changed.batch_size)


def _a_sample(pair: Pair, factor: float) -> Pair:
    """Return a comparison of steps as one of samples, with the verdict that its interval has then."""
    if factor == 1.0 or pair.ratio is None or pair.interval is None or pair.deciding is None:
        return pair
    import numpy as np

    interval, deciding = ((factor * low, factor * high) for low, high in (pair.interval, pair.deciding))
    verdict = decide(float(np.log(deciding[0])), float(np.log(deciding[1])), pair.margin)
    return replace(
        pair,
        ratio=factor * pair.ratio,
        interval=interval,
        deciding=deciding,
        verdict=verdict,
        q=None,
        why="a sample",
    )
