"""Steps that wait for a loader of several workers: what rows say of them, beside a clock of this benchmark's own.

    python benchmarks/burst_arrivals.py [--sleep 0.4] [--quick]

A strategy whose workers sleep for each batch, so that they need no core and stay in phase: one long wait, then as many
batches at once as there are workers. A line has samples a second, the share of waiting, and the verdict on the data
pipeline, of 24 and of 60 steps. Beside them the truth: the same steps by a clock from outside the ledger, around whole
cycles of workers, and what workers that sleep can give at most, which batches made ahead would exceed.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from tclab import Point, case_study
from tclab.masking import get, register
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._measure import Setup, measure
from tclab.sweeps.store._rows import frame, table

# a step so short that 8 workers that sleep bind it on a busy machine, too
SMALL: dict[str, Any] = {"scale": 0.01, "networks": 1, "hidden": 8, "layers": 1, "batch_size": 4, "device": "cpu"}


def register_sleeping(seconds: float) -> str:
    """Register `node_mask` with workers that sleep, and return its name."""

    @register
    class Sleeping(get("node_mask")):  # type: ignore[misc]
        name = "sleeping"

        def encode(self, places: Any, removed: Any) -> Any:
            time.sleep(seconds)
            return super().encode(places, removed)

    return str(Sleeping.name)


def rows_and_truth(point: Point) -> tuple[pd.DataFrame, float, float]:
    """Return a point's rows, and seconds a step and the share of waiting by another clock around the same steps."""
    batches, run = Setup.batches, Setup.run
    taken: list[tuple[float, float]] = []  # when each batch was asked for and given
    ends: list[float] = []

    def watched(here: Setup) -> Iterator[Any]:
        made = batches(here)
        while True:
            asked = time.perf_counter()
            batch = next(made, None)
            if batch is None:
                return
            taken.append((asked, time.perf_counter()))
            yield batch

    def timed(here: Setup, *given: Any, **options: Any) -> Any:
        losses = run(here, *given, **options)
        ends.append(time.perf_counter())
        return losses

    with patch.object(Setup, "batches", watched), patch.object(Setup, "run", timed):
        rows = frame(table(measure(resolve(point))))
    of_cycles = point.steps - point.steps % point.workers
    asked, given = np.array(taken[-of_cycles:]).T
    wall = ends[-1] - asked[0]
    return rows, wall / of_cycles, float((given - asked).sum() / wall)


def lines(strategy: str, sleep: float, quick: bool) -> Iterator[dict[str, Any]]:
    """Return a line for each combination of workers, prefetch factor, mode and steps."""
    numbers, lengths = ((1, 4), (24,)) if quick else ((1, 2, 4, 8), (24, 60))
    for workers, prefetch, mode, steps in product(numbers, (1, 4), ("step", "data"), lengths):
        loads = {"workers": workers, "loader": {"prefetch_factor": prefetch}}
        point = Point(**SMALL, **loads, strategy=strategy, mode=mode, steps=steps)
        rows, seconds, truly = rows_and_truth(point)
        host = rows[rows["where"] == "host"].set_index("stage")
        step, wait = host.loc["step"], host.loc["data_wait", "mean_seconds"]
        line = {"workers": workers, "prefetch": prefetch, "mode": mode, "steps": steps}
        line |= {"samples/s": step["samples_per_second"], "true": point.batch_size / seconds}
        line |= {
            "at most": point.batch_size * workers / sleep,
            "median says": point.batch_size / step["median_seconds"],
        }
        line |= {"waiting": wait / step["mean_seconds"], "truly": truly}
        if mode == "step":
            line["data pipeline"] = case_study.hypotheses(rows)[0].verdict
        print(".", end="", flush=True)
        yield line


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sleep", type=float, default=0.4, help="seconds a batch")
    parser.add_argument("--quick", action="store_true", help="1 and 4 workers, 24 steps")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    found = pd.DataFrame(lines(register_sleeping(given.sleep), given.sleep, given.quick))
    print("\n" + found.to_string(index=False, float_format="{:.3g}".format))


if __name__ == "__main__":
    main()
