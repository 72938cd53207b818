"""A point measured against the same point with one setting changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

import pandas as pd

from tclab.sweeps.analysis._race_points import race_points
from tclab.sweeps.analysis._run_verdicts import pairs_of_runs
from tclab.sweeps.config._point import Point
from tclab.sweeps.execution._run import run
from tclab.timing import Pair
from tclab.timing._verdict import decide

NAMES = ("now", "changed")


def change_trial(now: Point, changed: Point) -> Callable[..., Pair]:
    """Return a function that takes `budget_seconds` and compares a changed point with the present one.

    The two are raced, unless they cannot share a process (another allocator, another device): then they are run in
    turn, each in a fresh process. Where the batch size differs the times are those of a sample.

    **Arguments:**

    - `now`, `changed`: the points; the verdict is about the second.
    """
    apart = now.allocator != changed.allocator or now.device != changed.device
    return partial(_by_runs if apart else _by_race, now, changed)


def _by_race(now: Point, changed: Point, *, budget_seconds: float, processes: int | None = 1, **options: Any) -> Pair:
    race = race_points({"changed": changed, "now": now}, budget_seconds=budget_seconds, processes=processes, **options)
    return per_sample(race.pair("changed", "now"), now.batch_size / changed.batch_size)


def _by_runs(now: Point, changed: Point, *, budget_seconds: float, **_: Any) -> Pair:
    """Run both in turn in fresh processes; other options of a race are ignored."""
    begin, rounds = monotonic(), 0
    steps: dict[str, list[pd.DataFrame]] = {name: [] for name in NAMES}
    while rounds < 2 or monotonic() - begin < budget_seconds * rounds / (rounds + 1):
        order = list(zip(NAMES, (now, changed), strict=True))
        for name, point in order if rounds % 2 == 0 else order[::-1]:
            rows = run(point, fresh=True)
            steps[name].append(rows[rows["stage"] == "step"])
        rounds += 1
    sides = [pd.concat(steps[name]) for name in NAMES]
    (pair,) = pairs_of_runs([("", sides[0], sides[1])], NAMES, margin=0.05)
    return per_sample(replace(pair, cell=None), now.batch_size / changed.batch_size)


def per_sample(pair: Pair, factor: float) -> Pair:
    """Return a comparison of steps as one of samples, with the verdict of the scaled interval."""
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
