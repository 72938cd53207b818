"""A training step of HeteroCell by four ways of masking, raced: the table of the README and of docs/records.md.

    python benchmarks/steps.py [--scale 1.0] [--batch-size 2] [--device cpu] [--budget-seconds 600]
    python benchmarks/steps.py --way delta          # one way alone: seconds a step, for `tclab race --printed`

Each way first passes the equivalence check. A step loads its batch in the same process. glibc by default returns freed
memory to the system, so each new tensor pays page faults again, which costs the way with the largest tensors most:
`--allocator keep_pages` does not, and takes 20 GB. A line has the ratio of times to the way above it, its 95 %
interval and the verdict.
"""

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


def point_of(way: str, options: argparse.Namespace) -> tclab.Point:
    """Return the point of a way of masking, without loader workers."""
    size = {"scale": options.scale, "batch_size": options.batch_size, "steps": 5}
    return tclab.Point(**WAYS[way], **size, workers=0, allocator=options.allocator, device=options.device)


def table(options: argparse.Namespace) -> str:
    """Race all ways and return a Markdown table."""
    points = {way: point_of(way, options) for way in WAYS}
    race = race_points(points, budget_seconds=options.budget_seconds)
    seconds = race.frame().groupby("arm")["seconds"].median()
    lines = ["| way | seconds a step | samples a second | time beside the way above |", "|---|---|---|---|"]
    for way, above in zip(WAYS, [None, *WAYS], strict=False):
        against = "" if above is None else f"{race.pair(way, above).ratio_text}, {race.verdict(way, above)}"
        lines.append(f"| `{way}` | {seconds[way]:.3f} | {options.batch_size / seconds[way]:.2f} | {against} |")
    first = race.pair("subgraph", "delta").ratio_text
    return "\n".join([*lines, "", f"`subgraph` against `delta`: {first}.", *race._display().notes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--budget-seconds", type=float, default=600)
    parser.add_argument("--allocator", default="default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--way", choices=WAYS)
    options = parser.parse_args()
    if options.way is not None:
        step = tclab.run(point_of(options.way, options)).query("stage == 'step'")
        print(*step["median_seconds"].dropna())
        return
    print(f"\nallocator {options.allocator}, batch {options.batch_size}, scale {options.scale:g}, {options.device}\n")
    print(table(options))


if __name__ == "__main__":
    main()
