"""A training step of HeteroCell by four ways of masking, raced: the table of the README and of docs/records.md.

    python benchmarks/steps.py [--scale 1.0] [--batch-size 2] [--device cpu] [--budget-seconds 420]
    python benchmarks/steps.py --way delta          # one way alone: seconds a step, for `tclab race-commands --printed`

Each way first passes the equivalence check. A step loads its batch in the same process. glibc by default returns freed
memory to the system, so each new tensor pays page faults again, which costs the way with the largest tensors most:
`--allocator keep_pages` does not, and takes 20 GB. A line has the ratio of times to the way above it, the
interval that decides and the verdict.
"""

from typing import Any, Literal

import pandas as pd
from cyclopts import run

import tclab
from tclab.sweeps import race_points
from tclab.timing._verdict import ratio_text

WAYS: dict[str, dict[str, Any]] = {
    "subgraph": {"strategy": "subgraph", "collation": "pyg"},  # the original way
    "edge_mask": {"strategy": "edge_mask"},
    "node_mask": {"strategy": "node_mask"},
    "delta": {"strategy": "delta"},
}


def table(points: dict[str, tclab.Point], budget_seconds: float) -> str:
    """Race all ways and return a Markdown table."""
    race = race_points(points, budget_seconds=budget_seconds, progress=True)
    seconds = pd.DataFrame(race.samples()).groupby("arm")["seconds"].median()
    lines = ["| way | seconds a step | samples a second | time beside the way above |", "|---|---|---|---|"]
    for (way, point), above in zip(points.items(), [None, *points], strict=False):
        against = "" if above is None else f"{ratio_text(race.pair(way, above))}, {race.verdict(way, above)}"
        lines.append(f"| `{way}` | {seconds[way]:.3f} | {point.batch_size / seconds[way]:.2f} | {against} |")
    first = ratio_text(race.pair("subgraph", "delta"))
    return "\n".join([*lines, "", f"`subgraph` against `delta`: {first}.", *race._display().notes])


def main(
    *, scale: float = 1.0, batch_size: int = 2, budget_seconds: float = 420, allocator: str = "default",
    device: str = "cpu", way: Literal["subgraph", "edge_mask", "node_mask", "delta"] | None = None,
) -> None:  # fmt: skip
    common: dict[str, Any] = {"scale": scale, "batch_size": batch_size, "allocator": allocator, "device": device}
    points = {name: tclab.Point(**fields, **common, steps=5, workers=0) for name, fields in WAYS.items()}
    if way is not None:
        step = tclab.run(points[way]).query("stage == 'step'")
        print(*step["median_seconds"].dropna())
        return
    print(f"\nallocator {allocator}, batch {batch_size}, scale {scale:g}, {device}\n")
    print(table(points, budget_seconds))


if __name__ == "__main__":
    main.__doc__ = __doc__
    run(main)
