"""What `tclab.fits` says a point will hold, against the resident set of a fresh process that ran it.

    python benchmarks/memory.py [--sizes 0.2:2,0.2:8,0.5:4] [--strategies all] [--networks 9]

Each point runs in a process of its own. Both are printed whole, and beside what a process holds that ran a point of
no size. Sizes are scale:batch. `--allocator map_each` shows the accounting by itself; by default glibc's heap
keeps about a third more than what is held.
"""

from __future__ import annotations

import argparse

from tclab import Point, fits, run
from tclab.masking import get, names
from tclab.sweeps import close_workers
from tclab.sweeps.predict._fits import PROCESS_BYTES


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
    print(f"a process with a point of no size: {baseline / 1e6:.0f} MB, where fits says {PROCESS_BYTES / 1e6:.0f} MB")
    print(f"{'':<30} {'with all of the process':>28}   {'beside the process alone':>28}")
    print(f"{'strategy':<16} {'scale':>6} {'batch':>6}" + f" {'said MB':>9} {'found MB':>10} {'ratio':>7}  " * 2)
    worst = {"with all of the process": 1.0, "beside the process alone": 1.0}
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
            line = f"{strategy:<16} {scale:>6} {batch:>6}"
            pairs = (predicted.host, measured), (predicted.host - predicted.process, measured - baseline)
            for what, (said, found) in zip(worst, pairs, strict=True):
                worst[what] = max(worst[what], said / found, found / said)
                line += f" {said / 1e6:>9.1f} {found / 1e6:>10.1f} {said / found:>7.2f}  "
            print(line, flush=True)
    for what, apart in worst.items():
        print(f"farthest apart, {what}: {apart - 1:.0%}")
    close_workers()


if __name__ == "__main__":
    main()
