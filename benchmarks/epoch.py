"""Epochs predicted and then run: loader-bound, compute-bound and balanced, by 0, 1 and 2 workers.

    OMP_NUM_THREADS=1 python benchmarks/epoch.py [--rounds 3] [--steps 60]

Each epoch is predicted from what is measured right before it; the prediction is on the disk before the epoch begins.
Rounds go through all cases, so that what disturbs the machine meets all of them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from itertools import product
from typing import Any

from tclab import Point
from tclab.sweeps import run_epoch
from tclab.sweeps.execution._run import close_workers

# Reduced so that an epoch takes seconds; the process that trains has one core, a worker the other.
HETERO: dict[str, Any] = {"model": "hetero_cell", "strategy": "subgraph"}
DANGO: dict[str, Any] = {"model": "dango", "strategy": "indices", "scale": 0.02, "store": "json"}
CASES: dict[str, dict[str, Any]] = {
    "compute, hetero_cell": {**HETERO, "scale": 0.02, "strategy": "node_mask", "batch_size": 4},
    "compute, dango": {**DANGO, "batch_size": 128, "store": "memory"},
    "loader, hetero_cell": {**HETERO, "scale": 0.1, "batch_size": 16, "mode": "data"},
    "loader, dango": {**DANGO, "batch_size": 1024, "mode": "data"},
    "balanced, hetero_cell": {**HETERO, "scale": 0.005, "batch_size": 64, "store": "json", "networks": 1},
    "balanced, dango": {**DANGO, "scale": 0.01, "batch_size": 512, "networks": 1},
}
MEASURED = 20  # steps that a prediction is made from


def main() -> None:
    """Run the cases and print a line an epoch, and how many medians of predicted over measured are near 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="of an epoch")
    options = parser.parse_args()
    found: dict[tuple[str, int], list[float]] = {}
    print("case                   workers predicted  measured  ratio  waits")
    with tempfile.TemporaryDirectory() as folder:
        for _, (case, fields), workers in product(range(options.rounds), CASES.items(), (0, 1, 2)):
            point = Point(**fields, workers=workers, steps=MEASURED, device="cpu")
            epoch = run_epoch(point, options.steps, folder)
            found.setdefault((case, workers), []).append(epoch.ratio)
            times = f"{epoch.predicted.seconds:9.2f} {epoch.measured_seconds:9.2f} {epoch.ratio:6.3f}"
            print(f"{case:22} {workers:7} {times} {epoch.costs.wait_share:6.0%}", flush=True)
    close_workers()
    within = sum(abs(statistics.median(ratios) - 1) <= 0.10 for ratios in found.values())
    print(f"medians within 10 % of the measured epochs: {within} of {len(found)}")


if __name__ == "__main__":
    main()
