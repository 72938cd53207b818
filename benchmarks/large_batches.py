"""Large batches on a CPU: samples a second against DANGO, cost a sample by batch size, memory in slices.

    python benchmarks/large_batches.py [--scale 1.0] [--parts dango,cost,memory] [--rounds 5]

- dango: HeteroCell (profiling configuration, the best strategy, micro-batched) against DANGO, both at batch 64,
  whole step, samples a second; at least 0.25 is wanted.
- cost: seconds a sample of HeteroCell's whole step at batch 16 against batch 4; at most 1.
- memory: the resident set of a fresh process at batch 16 against `edge_mask` at batch 1, below 1;
  by glibc's default, whose heap before 2.38 seldom uses an aligned block again, and with each block mapped;
  also with the batch's samples run in slices of 4.

The steps of a part take turns in one process, whose allocator keeps its pages; ratios are medians over rounds. With
one thread (OMP_NUM_THREADS=1) the clock is the processor's time, which other processes disturb less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from functools import partial

from memory import peak
from neighbour_sum import race

from tclab import Point
from tclab.sweeps import close_workers
from tclab.sweeps.config._point import ALLOCATORS
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._setup import setup


def ratios(arms: dict[str, Point], rounds: int) -> dict[str, list[float]]:
    """Return the seconds a sample of each arm's step, round by round; the arms take turns."""
    with ExitStack() as stack:
        steps = {}
        for name, point in arms.items():
            here = stack.enter_context(setup(resolve(point), point.batch_size))
            steps[name] = partial(here.step, here.data[0].batch)
        seconds = race(steps, rounds)
    return {name: [each / arms[name].batch_size for each in seconds[name]] for name in arms}


def shown(title: str, seconds: dict[str, list[float]], over: str, under: str) -> None:
    """Print each arm's time a sample, and the ratio of two."""
    print(f"\n{title}")
    for name, times in seconds.items():
        print(f"  {name:<44} {1e3 * statistics.median(times):10.2f} ms a sample")
    found = [a / b for a, b in zip(seconds[over], seconds[under], strict=True)]
    low, high = statistics.quantiles(found, n=4)[::2] if len(found) > 1 else (found[0], found[0])
    print(f"  {over} / {under}: {statistics.median(found):.3f} [quartiles {low:.3f}, {high:.3f}]", flush=True)


def measure(part: str, scale: float, rounds: int, strategy: str, micro_batch: int) -> None:
    """Print one part that runs in this process."""
    hetero = Point(scale=scale, strategy=strategy, device="cpu", workers=0)
    fields = hetero.to_dict()
    if part == "dango":
        arms = {
            "dango, batch 64": Point(**{**fields, "model": "dango", "strategy": "indices", "loss": None}
                                     | {"batch_size": 64}),
            f"hetero_cell {strategy}, 64 by {micro_batch}": Point(
                **{**fields, "batch_size": 64, "micro_batch": micro_batch}
            ),
        }  # fmt: skip
        dango, ours = arms
        # samples a second of ours over DANGO's: DANGO's seconds a sample over ours
        shown("samples a second against DANGO at batch 64", ratios(arms, rounds), dango, ours)
    else:
        sizes = {
            f"batch {size}": Point(**{**fields, "batch_size": size, "micro_batch": min(size, micro_batch)})
            for size in (4, 16)
        }
        shown("cost a sample as the batch grows", ratios(sizes, rounds), "batch 16", "batch 4")


def memory(scale: float, strategy: str, allocator: str) -> None:
    """Print the peaks of three fresh processes."""
    common = {"scale": scale, "device": "cpu", "steps": 2, "warmup": 1, "allocator": allocator}
    ours = {"strategy": strategy, "batch_size": 16, **common}
    points = {
        f"{strategy}, batch 16": Point(**ours),
        f"{strategy}, batch 16, slices of 4": Point(**ours, micro_batch=4),
        "edge_mask, batch 1": Point(strategy="edge_mask", batch_size=1, **common),
    }
    print(f"\nlargest resident set of a fresh process, allocator {allocator}")
    peaks = []
    for name, point in points.items():
        peaks.append(peak(point))
        text = "no peak" if peaks[-1] is None else f"{peaks[-1] / 1e6:.0f} MB"
        print(f"  {name:<52} {text:>13}", flush=True)
    *own, theirs = peaks
    for name, held in zip(points, own, strict=False):
        if held and theirs:
            print(f"  {name} over edge_mask: {held / theirs:.3f}", flush=True)


def main() -> None:
    """Run each part, the timed ones in a process whose allocator keeps its pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--parts", default="dango,cost,memory")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strategy", default="delta")
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for part in options.parts.split(","):
        if part == "memory":
            for allocator in ("default", "map_each"):
                memory(options.scale, options.strategy, allocator)
        elif options.here:
            measure(part, options.scale, options.rounds, options.strategy, options.micro_batch)
        else:
            same = ["--scale", options.scale, "--rounds", options.rounds, "--strategy", options.strategy]
            words = [__file__, "--here", "--parts", part, *same, "--micro-batch", options.micro_batch]
            environment = {**os.environ, **ALLOCATORS["keep_pages"]}
            subprocess.run([sys.executable, *map(str, words)], check=True, env=environment)
    close_workers()


if __name__ == "__main__":
    main()
