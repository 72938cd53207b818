"""Epochs predicted and then run: loader-bound, compute-bound and balanced, by 0, 1 and 2 workers.

    OMP_NUM_THREADS=1 python benchmarks/epoch.py [--rounds 3] [--steps 60] [--cases compute,loader,balanced]

Each epoch is predicted from what is measured right before it; the prediction is on the disk, with its time, before
the epoch begins. Rounds go through all cases, so that what disturbs the machine meets all of them. Of each epoch:
predicted and measured seconds, predicted over measured, what binds by the prediction, the drift (a step of a short
epoch after it over one before the prediction: how much the machine changed meanwhile) and the machine's load. In the end, of each case the median of predicted over measured, and the largest error: for all epochs; for
those during which the machine changed by less than 5 %; and for all with the prediction times the drift, what it
would have been at the speed that the machine had after the epoch. Beside them what no prediction could do better
than: how far an epoch is from the same case's epoch a round before.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from tclab import Point
from tclab.sweeps import close_workers, run_epoch
from tclab.sweeps.predict._epoch import Epoch

# Reduced so that an epoch takes seconds; the process that trains has one core, a worker the other.
CASES: dict[str, dict[str, Any]] = {
    "compute, hetero_cell": {"scale": 0.02, "strategy": "node_mask", "batch_size": 4},
    "compute, dango": {"model": "dango", "strategy": "indices", "scale": 0.02, "batch_size": 128},
    "loader, hetero_cell": {"scale": 0.1, "strategy": "subgraph", "batch_size": 16, "mode": "data"},
    "loader, dango": {
        "model": "dango",
        "strategy": "indices",
        "scale": 0.02,
        "batch_size": 1024,
        "store": "json",
        "mode": "data",
    },
    "balanced, hetero_cell": {
        "scale": 0.005,
        "strategy": "subgraph",
        "batch_size": 64,
        "store": "json",
        "networks": 1,
    },
    "balanced, dango": {
        "model": "dango",
        "strategy": "indices",
        "scale": 0.01,
        "batch_size": 512,
        "store": "json",
        "networks": 1,
    },
}
WORKERS = (0, 1, 2)
STEADY = 0.05


def line(case: str, epoch: Epoch) -> str:
    """Return one epoch as a line of the table."""
    predicted = epoch.predicted
    load = "?" if epoch.load is None else f"{epoch.load:.1f}"
    return (
        f"{case:22} {predicted.workers:7} {predicted.seconds:9.2f} [{predicted.low:6.2f}, {predicted.high:6.2f}] "
        f"{epoch.measured_seconds:9.2f} {epoch.ratio:6.3f}  {predicted.binds:8} {epoch.drift:5.2f} {load:>5}"
    )


def summary(found: dict[tuple[str, int], list[float]], words: str) -> None:
    """Print the median ratio of each case, and the largest error."""
    medians = {key: statistics.median(ratios) for key, ratios in found.items() if ratios}
    if not medians:
        print(f"{words}: none")
        return
    every = [abs(ratio - 1) for ratios in found.values() for ratio in ratios]
    worst = max(medians, key=lambda key: abs(medians[key] - 1))
    print(f"\n{words}: {len(every)} epochs, predicted over measured, median of each case")
    for case in dict.fromkeys(case for case, _ in medians):
        print(
            f"  {case:22} " + "  ".join(f"{w} workers {medians[case, w]:.3f}" for w in WORKERS if (case, w) in medians)
        )
    print(
        f"  largest error of a median {abs(medians[worst] - 1):.1%} ({worst[0]}, {worst[1]} workers); of one epoch "
        f"{max(every):.1%}; within 10 %: {sum(e <= 0.10 for e in every)} of {len(every)}"
    )


def repeats(found: dict[tuple[str, int], list[Epoch]]) -> None:
    """Print how far an epoch is from the same epoch, run a round before."""
    apart = [
        abs(after.measured_seconds / before.measured_seconds - 1)
        for epochs in found.values()
        for before, after in itertools.pairwise(epochs)
    ]
    if apart:
        print(
            f"\nan epoch against the same epoch a round before: median {statistics.median(apart):.1%} apart, "
            f"largest {max(apart):.1%}; within 10 %: {sum(e <= 0.10 for e in apart)} of {len(apart)}"
        )


def main() -> None:
    """Run the cases asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="of an epoch")
    parser.add_argument("--measured", type=int, default=20, help="steps that a prediction is made from")
    parser.add_argument("--cases", default="compute,loader,balanced")
    parser.add_argument("--record", help="a folder to keep the records in")
    options = parser.parse_args()
    cases = {name: fields for name, fields in CASES.items() if name.split(",")[0] in options.cases.split(",")}
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, 1 thread, load {os.getloadavg()[0]:.1f}")
    print(
        f"{'case':22} workers predicted [5 % to 95 %]     measured  ratio  binds    drift  load   "
        f"({options.steps} steps)"
    )
    found: dict[tuple[str, int], list[Epoch]] = {}
    with tempfile.TemporaryDirectory() as folder:
        record = Path(options.record or folder)
        for _ in range(options.rounds):
            for case, fields in cases.items():
                for workers in WORKERS:
                    point = Point(**fields, workers=workers, steps=options.measured, device="cpu")
                    epoch = run_epoch(point, options.steps, record, threads=1)
                    found.setdefault((case, workers), []).append(epoch)
                    print(line(case, epoch), flush=True)
    close_workers()
    summary({key: [e.ratio for e in epochs] for key, epochs in found.items()}, "all")
    steady = {key: [e.ratio for e in epochs if abs(e.drift - 1) < STEADY] for key, epochs in found.items()}
    summary(steady, f"where the machine changed by less than {STEADY:.0%}")
    at_its_speed = {key: [e.ratio * e.drift for e in epochs] for key, epochs in found.items()}
    summary(at_its_speed, "all, at the speed that the machine had after the epoch")
    repeats(found)


if __name__ == "__main__":
    main()
