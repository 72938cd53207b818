"""What `tclab.fits` says a point will hold, against the resident set of a fresh process that ran it.

    python benchmarks/memory.py [--sizes 0.2:2,0.2:8,0.5:4] [--strategies all] [--networks 9]

Each point runs in a process of its own; a process that ran a point of no size is the baseline, and is taken off
both figures. Sizes are scale:batch. `--allocator map_each` shows the accounting by itself; by default glibc's heap
keeps about a third more than what is held.
"""

from __future__ import annotations

import argparse

from tclab.masking import get, names
from tclab.sweeps import Point, close_children, fits, run
from tclab.sweeps.fitting import PROCESS_BYTES


def peak(point: Point) -> int | None:
    """Return the largest resident set of a fresh process that runs a point, in bytes."""
    rows = run(point, fresh=True)
    step = rows[rows["stage"] == "step"].iloc[0]
    if step["status"] != "ok":
        print(f"  {point.strategy}: {step['status']}")
        return None
    return int(step["peak_bytes"])


def main() -> None:
    """Weigh, run, and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="0.2:2,0.2:8,0.5:4")
    parser.add_argument("--strategies", default="all")
    parser.add_argument("--networks", type=int, default=9)
    parser.add_argument("--allocator", default="default")
    options = parser.parse_args()
    chosen = names() if options.strategies == "all" else options.strategies.split(",")
    common = {"steps": 3, "warmup": 1, "device": "cpu", "allocator": options.allocator}
    baseline = peak(Point(scale=0.005, batch_size=1, networks=1, **common))
    assert baseline is not None
    print(
        f"a process with a point of no size: {baseline / 1e6:.0f} MB, where fits says {PROCESS_BYTES / 1e6:.0f} MB"
    )
    print(f"{'strategy':<16} {'scale':>6} {'batch':>6} {'predicted MB':>13} {'measured MB':>12} {'ratio':>6}")
    worst = 1.0
    for strategy in chosen:
        model = {} if get(strategy).masks_graph else {"model": "dango"}
        networks = options.networks if get(strategy).masks_graph else None
        for size in options.sizes.split(","):
            scale, batch = size.split(":")
            more = {"scale": float(scale), "batch_size": int(batch), "networks": networks, "strategy": strategy}
            point = Point(**more, **model, **common)
            predicted = fits(point)
            measured = peak(point)
            if measured is None:
                continue
            ours, theirs = predicted.host - predicted.process, measured - baseline
            worst = max(worst, ours / theirs, theirs / ours)
            figures = f"{ours / 1e6:>13.1f} {theirs / 1e6:>12.1f} {ours / theirs:>6.2f}"
            print(f"{strategy:<16} {scale:>6} {batch:>6} {figures}", flush=True)
    print(f"farthest apart: {worst - 1:.0%}")
    close_children()


if __name__ == "__main__":
    main()
