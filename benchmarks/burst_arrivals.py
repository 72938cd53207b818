"""Steps that wait for a loader of several workers: what rows, verdicts, advice, races and comparisons say of them.

    python benchmarks/burst_arrivals.py [--sleep 0.4] [--parts rows,spread,advice,races]

A strategy whose workers sleep for each batch, so that they need no core and stay in phase: one long wait, then as many
batches at once as there are workers. Of each part:

- rows: samples a second, the share of waiting, and the verdict on the data pipeline, of 24 and of 60 steps. Beside them
  the truth: the same steps by a clock from outside the ledger, around whole cycles of workers, and what workers that
  sleep can give at most, which batches made ahead would exceed.
- spread: ten repetitions of a point that waits for nobody: how far mean and median step scatter between them.
- advice: the first suggestion, its predicted gain, and the gain of the point that it suggests, by that clock too.
- races: a race of the strategy with one that sleeps half as long, and with one that does not sleep, whose own step on
  few cores scatters threefold between two loaders; beside it a loop of its own before and after, by one clock, after
  all that was made ahead is used up. And a comparison of two runs, beside what the clock from outside says of them.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

import tclab
from tclab import Point, case_study
from tclab.masking import get, register
from tclab.sweeps import race_points
from tclab.sweeps.execution._measure import measure
from tclab.sweeps.execution._setup import Setup, setup
from tclab.sweeps.store._rows import frame, table

# a step so short that 8 workers that sleep bind it on a busy machine, too
SMALL: dict[str, Any] = {
    "scale": 0.01, "networks": 1, "hidden": 8, "layers": 1, "batch_size": 4, "device": "cpu",
}  # fmt: skip
WORKERS = (1, 2, 4, 8)
CYCLES = 10  # of which the truth is made


def register_sleeping(seconds: float, called: str = "sleeping") -> str:
    """Register `node_mask` with workers that sleep, and return its name."""

    @register
    class Sleeping(get("node_mask")):  # type: ignore[misc]
        name = called

        def encode(self, places: Any, removed: Any) -> Any:
            time.sleep(seconds)
            return super().encode(places, removed)

    return str(Sleeping.name)


def rows_of(point: Point) -> pd.DataFrame:
    return frame(table(measure(point.resolved()))).assign(cores=os.cpu_count())


def truth(point: Point) -> float:
    """Return seconds a step, by one clock around whole cycles of workers."""
    point = point.resolved()
    ahead, steps = 2 * point.workers * (point.prefetch_factor or 1), CYCLES * max(point.workers, 2)
    with setup(point, 4 * point.batch_size, batches=2 * ahead + steps + 1) as here:
        batches = here.batches()
        for _ in range(ahead + 1):
            here.step(next(batches).batch)
        begin = time.perf_counter()
        for _ in range(steps):
            here.step(next(batches).batch)
        whole = time.perf_counter() - begin
        del batches
    return whole / steps


class _Clocked:
    """A loader's batches: `asked` and `given` are when each was asked for and given."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self.asked: list[float] = []
        self.given: list[float] = []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        begin = time.perf_counter()
        batch = next(self._batches)
        self.asked.append(begin)
        self.given.append(time.perf_counter())
        return batch


def rows_and_truth(point: Point) -> tuple[pd.DataFrame, float, float]:
    """Return a point's rows, and seconds a step and the share of waiting by another clock around the same steps."""
    batches, run = Setup.batches, Setup.run
    clocked: list[_Clocked] = []
    ends: list[float] = []

    def watched(here: Setup) -> Iterator[Any]:
        clocked.append(_Clocked(batches(here)))
        return clocked[-1]

    def timed(here: Setup, *given: Any, **options: Any) -> Any:
        losses = run(here, *given, **options)
        ends.append(time.perf_counter())
        return losses

    with patch.object(Setup, "batches", watched), patch.object(Setup, "run", timed):
        rows = rows_of(point)
    (loader,) = clocked
    of_cycles = point.steps - point.steps % point.workers
    asked, given = (np.array(moments[-of_cycles:]) for moments in (loader.asked, loader.given))
    wall = ends[-1] - asked[0]
    return rows, wall / of_cycles, float((given - asked).sum() / wall)


def rows_part(strategy: str, sleep: float) -> Iterator[dict[str, Any]]:
    for workers, prefetch, mode, steps in product(WORKERS, (1, 4), ("step", "data"), (24, 60)):
        point = Point(**SMALL, strategy=strategy, workers=workers, prefetch_factor=prefetch, mode=mode, steps=steps)
        rows, seconds, truly = rows_and_truth(point)
        host = rows[rows["where"] == "host"].set_index("stage")
        step, wait = host.loc["step"], host.loc["data_wait", "mean_seconds"]
        line = {
            "workers": workers,
            "prefetch": prefetch,
            "mode": mode,
            "steps": steps,
            "samples/s": step["samples_per_second"],
            "true": point.batch_size / seconds,
            "at most": point.batch_size * workers / sleep,
            "median says": point.batch_size / step["median_seconds"],
            "waiting": wait / step["mean_seconds"],
            "truly": truly,
        }
        if mode == "step":
            line["data pipeline"] = case_study.hypotheses(rows)[0].verdict
        yield line


def spread_part() -> Iterator[dict[str, Any]]:
    for workers in (1, 4):
        point = Point(**SMALL, strategy="node_mask", workers=workers, steps=24)
        means, medians = [], []
        for _ in range(10):
            rows = rows_of(point)
            step = rows[(rows["stage"] == "step")].iloc[0]
            means.append(step["mean_seconds"])
            medians.append(step["median_seconds"])
        yield {
            "workers": workers,
            "mean ms": 1e3 * np.mean(means),
            "scatter of means": np.std(means, ddof=1) / np.mean(means),
            "scatter of medians": np.std(medians, ddof=1) / np.mean(medians),
        }


def advice_part(strategy: str) -> Iterator[dict[str, Any]]:
    for workers in WORKERS:
        point = Point(**SMALL, strategy=strategy, workers=workers, steps=24)
        rows, now, _ = rows_and_truth(point)
        advice = tclab.advise(rows)
        if not advice.suggestions:
            yield {"workers": workers, "first advice": "; ".join(("none", *advice.missing))}
            continue
        first = advice.suggestions[0]
        line = {"workers": workers, "first advice": first.change, "predicted": first.ratio}
        if set(first.setting) == {"workers"}:
            changed, then, _ = rows_and_truth(replace(point, **first.setting, steps=60))
            line["came true"] = then / now
            of_both = [one[one["stage"] == "step"]["mean_seconds"].iloc[0] for one in (changed, rows)]
            line["rows say"] = of_both[0] / of_both[1]
        yield line


def races_part(strategy: str, half: str) -> Iterator[dict[str, Any]]:
    for workers, other in product(WORKERS, (half, "node_mask")):
        now, fast = (Point(**SMALL, strategy=name, workers=workers, steps=60) for name in (strategy, other))
        true = truth(now) / truth(fast)
        race = race_points({strategy: now, "fast": fast}, budget_seconds=40, processes=None)
        again = truth(now) / truth(fast)
        (of_fast, fast_seconds, _), (of_now, now_seconds, _) = rows_and_truth(fast), rows_and_truth(now)
        (compared,) = tclab.compare(of_fast, of_now, between="strategy").pairs
        yield {
            "workers": workers,
            "against": other,
            "true": true,
            "again": again,
            "race": race.ratio,
            "of the race": race.verdict(strategy, "fast"),
            "rounds": race.pair(strategy, "fast").kept,
            "of the runs": now_seconds / fast_seconds,
            "compare": compared.ratio,
            "of compare": compared.verdict,
        }


def main() -> None:
    """Print a table for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sleep", type=float, default=0.4, help="seconds a batch")
    parser.add_argument("--parts", default="rows,spread,advice,races")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    strategy, half = register_sleeping(given.sleep), register_sleeping(given.sleep / 2, "half_asleep")
    parts = {
        "rows": lambda: rows_part(strategy, given.sleep),
        "spread": spread_part,
        "advice": lambda: advice_part(strategy),
        "races": lambda: races_part(strategy, half),
    }
    for name in given.parts.split(","):
        lines = []
        for line in parts[name]():
            lines.append(line)
            print(".", end="", flush=True)
        print(f"\n{name}\n{pd.DataFrame(lines).to_string(index=False, float_format='{:.3g}'.format)}", flush=True)


if __name__ == "__main__":
    main()
