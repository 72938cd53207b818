"""A training step of HeteroCell by four ways of masking, raced: the table of the README and of docs/records.md.

    python benchmarks/steps.py [--scale 1.0] [--batch-size 2] [--budget-seconds 600] [--allocators default]
    python benchmarks/steps.py --way delta          # one way alone: seconds a step, for `tclab race --printed`

Each way first passes the equivalence check. A step loads its batch in the same process. glibc by default returns freed
memory to the system, so each new tensor pays page faults again, which costs the way with the largest tensors most;
`--allocators default,keep_pages` shows both, and takes 20 GB. A line has the ratio of
times to the way above it, its 95 % interval and the verdict.
"""

from __future__ import annotations

import argparse
from typing import Any

import tclab
from tclab.sweeps import race_points

WAYS: dict[str, dict[str, Any]] = {
    "subgraph": {"strategy": "subgraph", "collation": "pyg"},  # the original way
    "edge_mask": {"strategy": "edge_mask"},
    "node_mask": {"strategy": "node_mask"},
    "delta": {"strategy": "delta"},
}
STEPS = 5  # of one way alone


def point_of(way: str, options: argparse.Namespace, allocator: str) -> tclab.Point:
    """Return the point of a way of masking, on a CPU and without loader workers."""
    return tclab.Point(
        scale=options.scale, batch_size=options.batch_size, workers=0, allocator=allocator, device="cpu", steps=STEPS,
        **WAYS[way],
    )  # fmt: skip


def table(options: argparse.Namespace, allocator: str) -> str:
    """Race all ways and return a Markdown table."""
    points = {way: point_of(way, options, allocator) for way in WAYS}
    race = race_points(points, budget_seconds=options.budget_seconds)
    seconds = race.frame().groupby("arm")["seconds"].median()
    lines = ["| way | seconds a step | samples a second | time beside the way above |", "|---|---|---|---|"]
    before = None
    for way in WAYS:
        against = "" if before is None else f"{race.pair(way, before).ratio_text}, {race.verdict(way, before)}"
        lines.append(f"| `{way}` | {seconds[way]:.3f} | {options.batch_size / seconds[way]:.2f} | {against} |")
        before = way
    first = race.pair("subgraph", "delta")
    return "\n".join([*lines, "", f"`subgraph` takes {first.ratio_text} as `delta` does.", *race._display().notes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--budget-seconds", type=float, default=600)
    parser.add_argument("--allocators", default="default")
    parser.add_argument("--way", choices=WAYS)
    options = parser.parse_args()
    if options.way is not None:
        step = tclab.run(point_of(options.way, options, "keep_pages")).query("stage == 'step'")
        print(*step["median_seconds"].dropna())
        return
    for allocator in options.allocators.split(","):
        print(f"\nallocator {allocator}, batch {options.batch_size}, scale {options.scale:g}, CPU\n")
        print(table(options, allocator), flush=True)


if __name__ == "__main__":
    main()
