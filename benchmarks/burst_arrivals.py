"""Steps that wait for a loader of several workers: what rows, verdicts, advice, races and comparisons say of them.

    python benchmarks/burst_arrivals.py [--sleep 0.4] [--parts rows,spread,advice,races]

A strategy whose workers sleep for each batch, so that they need no core and stay in phase: one long wait, then as many
batches at once as there are workers. The truth beside each figure is a loop of its own, timed by one clock from
outside: samples over wall time, after all that was made ahead is used up. Of each part:

- rows: samples a second, the share of waiting, and the verdict on the data pipeline, of 24 and of 60 steps.
- spread: ten repetitions of a point that waits for nobody: how far mean and median step scatter between them.
- advice: the first suggestion, its predicted gain, and the gain of the point that it suggests.
- races: a race and a comparison of the strategy with one that sleeps half as long, and with one that does not sleep,
  whose own step on few cores scatters threefold between two loaders.
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

import numpy as np
import pandas as pd

import tclab
from tclab import Point, case_study
from tclab.masking import get, register
from tclab.sweeps import race_points
from tclab.sweeps.execution._measure import measure
from tclab.sweeps.execution._setup import setup
from tclab.sweeps.store._rows import frame, table

SMALL: dict[str, Any] = {"scale": 0.02, "networks": 2, "batch_size": 4, "device": "cpu"}
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


def rows_part(strategy: str) -> Iterator[dict[str, Any]]:
    for workers, prefetch, mode in product(WORKERS, (1, 4), ("step", "data")):
        point = Point(**SMALL, strategy=strategy, workers=workers, prefetch_factor=prefetch, mode=mode)
        seconds = truth(point)
        for steps in (24, 60):
            rows = rows_of(replace(point, steps=steps))
            host = rows[rows["where"] == "host"].set_index("stage")
            step, wait = host.loc["step"], host.loc["data_wait", "mean_seconds"]
            # what else is in a step depends on how busy the machine is, so it is of the same steps
            truly = max(0.0, 1 - (step["mean_seconds"] - wait) / seconds)
            line = {
                "workers": workers,
                "prefetch": prefetch,
                "mode": mode,
                "steps": steps,
                "samples/s": step["samples_per_second"],
                "true": point.batch_size / seconds,
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
        rows = rows_of(point)
        advice = tclab.advise(rows)
        if not advice.suggestions:
            yield {"workers": workers, "first advice": "; ".join(("none", *advice.missing))}
            continue
        first = advice.suggestions[0]
        line = {"workers": workers, "first advice": first.change, "predicted": first.ratio}
        if set(first.setting) == {"workers"}:
            changed = replace(point, **first.setting, steps=60)
            line["came true"] = truth(changed) / truth(point)
            measured = rows_of(changed)
            of_both = [one[one["stage"] == "step"]["mean_seconds"].iloc[0] for one in (measured, rows)]
            line["rows say"] = of_both[0] / of_both[1]
        yield line


def races_part(strategy: str, half: str) -> Iterator[dict[str, Any]]:
    for workers, other in product(WORKERS, (half, "node_mask")):
        now, fast = (Point(**SMALL, strategy=name, workers=workers, steps=60) for name in (strategy, other))
        true = truth(now) / truth(fast)
        race = race_points({strategy: now, "fast": fast}, budget_seconds=40, processes=None, isolated=False)
        (compared,) = tclab.compare(rows_of(fast), rows_of(now), between="strategy").pairs
        again = truth(now) / truth(fast)
        yield {
            "workers": workers,
            "against": other,
            "true": true,
            "again": again,
            "race": race.ratio,
            "of the race": race.verdict(strategy, "fast"),
            "rounds": race.pair(strategy, "fast").kept,
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
        "rows": lambda: rows_part(strategy),
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
