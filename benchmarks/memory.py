"""What `tclab.fits` says a point will hold, against the resident set of a fresh process that ran it.

    python benchmarks/memory.py [--sizes 0.2:2,0.2:8,0.5:4]

Each point runs in a process of its own. Both are printed whole, and beside what a process holds that ran a point of
no size. Sizes are scale:batch. glibc's heap keeps about a third more than what is held.
"""

from itertools import product

from cyclopts import run as run_command

from tclab import Point, fits, run
from tclab.masking import get, names
from tclab.sweeps.predict import PROCESS_BYTES


def peak(point: Point) -> int:
    """Return the largest resident set of a fresh process that runs a point, in bytes."""
    rows = run(point, fresh=True)
    step = rows[rows["stage"] == "step"].iloc[0]
    if step["status"] != "ok":
        raise SystemExit(f"{point}: {step['status']}")
    return int(step["peak_bytes"])


def main(*, sizes: str = "0.2:2,0.2:8,0.5:4") -> None:
    common = {"steps": 3, "warmup": 1, "device": "cpu"}
    baseline = peak(Point(scale=0.005, batch_size=1, networks=1, **common))
    print(f"a process with a point of no size: {baseline / 1e6:.0f} MB, where fits says {PROCESS_BYTES / 1e6:.0f} MB")
    print(f"{'strategy':<16} {'scale':>6} {'batch':>6} {'said MB':>9} {'found MB':>9} {'ratio':>6} {'beside':>7}")
    ratios = []
    for strategy, size in product(names(), sizes.split(",")):
        model = "hetero_cell" if get(strategy).masks_graph else "dango"
        scale, batch = size.split(":")
        point = Point(scale=float(scale), batch_size=int(batch), strategy=strategy, model=model, **common)
        said, found = fits(point), peak(point)
        ratios.append(said.host / found)
        beside = (said.host - said.process) / (found - baseline)
        line = f"{said.host / 1e6:>9.1f} {found / 1e6:>9.1f} {ratios[-1]:>6.2f} {beside:>7.2f}"
        print(f"{strategy:<16} {scale:>6} {batch:>6} {line}", flush=True)
    within = sum(abs(ratio - 1) <= 0.15 for ratio in ratios)
    print(f"within 15 %: {within} of {len(ratios)}; said over found {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main.__doc__ = __doc__
    run_command(main)
