"""Three projects' code over a shared graph: the races and peak memory of notebooks/ports/, at two sizes.

    python benchmarks/ports.py                     # both sizes, some ten minutes; two cores
    python benchmarks/ports.py --sizes natural     # as each project has it
    python benchmarks/ports.py --scale 0.05        # the large size with a twentieth of its nodes and edges

The natural size is one that the project itself would have, the large one 10,000 nodes, 500,000 edges and 64 samples,
with 8 features, as the originals keep a row for each edge, sample and feature. What is raced are the functions `arms`
of the notebooks. Memory is the most that torch has allocated at once in a call, beyond what was there before: it hardly
varies, so its interval is the least and the most of two calls each.
"""

import argparse
import json
from itertools import accumulate
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from tclab import timing

PORTS = Path(__file__).resolve().parents[1] / "notebooks" / "ports"
# nodes, directed edges, samples, features
NATURAL = {"pdgrapher": (10_000, 300_000, 8, 16), "dig_subgraphx": (30, 64, 256, 64), "shapiq": (10, 20, 1024, 32)}
LARGE = (10_000, 500_000, 64, 8)


def arms_of(name):
    """Return the function `arms` of a notebook."""
    cells = json.loads((PORTS / f"{name}.ipynb").read_text())["cells"]
    here = {"__name__": name}
    for cell in cells:
        if cell["id"] in ("imports", "original", "shared"):
            source = "".join(cell["source"]).replace("lab.check_parameters()\n", "")  # which asks for a notebook's
            exec(compile(source, f"{name}.ipynb: {cell['id']}", "exec"), here)
    return here["arms"]


def peak_megabytes(call):
    """Return the most that torch has allocated at once during a call, MiB."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    events = seen.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(accumulate(change for _, change in changes)) / 2**20


def _milliseconds(spread):
    return None if spread is None else spread.median_seconds * 1e3


def measure(name, size, seconds):
    """Return a row: the ratio of times with its interval and verdict, and the ratio of peaks."""
    arms = arms_of(name)(*size)
    ours = {arm: call() for arm, call in arms.items()}  # the same to 1e-4 at any size, in fp32
    for one, other in zip(ours["original"], ours["shared"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    del ours
    pair = timing.race(arms, budget_seconds=seconds, isolated=False).pair("original", "shared")
    peaks = {arm: [peak_megabytes(call) for _ in range(2)] for arm, call in arms.items()}
    low, high = (pick(peaks["original"]) / pick(peaks["shared"]) for pick in (min, max))
    return {
        "port": name,
        "nodes": size[0],
        "edges": size[1],
        "samples": size[2],
        "features": size[3],
        "time_ratio": pair.ratio,
        "time_interval": pair.interval,
        "verdict": pair.verdict,
        "original_ms": _milliseconds(pair.of_a),
        "shared_ms": _milliseconds(pair.of_b),
        "memory_ratio": max(peaks["original"]) / max(peaks["shared"]),
        "memory_interval": sorted((low, high)),
        "original_mib": max(peaks["original"]),
        "shared_mib": max(peaks["shared"]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ports", nargs="+", default=list(NATURAL), choices=list(NATURAL))
    parser.add_argument("--sizes", nargs="+", default=["natural", "large"], choices=["natural", "large"])
    parser.add_argument("--scale", type=float, default=1.0, help="of the large size's nodes and edges")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each race")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a file of JSON lines, added to as rows come")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(timing.environment())
    for name in given.ports:
        for kind in given.sizes:
            nodes, edges, samples, features = LARGE
            scaled = (max(int(nodes * given.scale), 2), max(int(edges * given.scale), 2), samples, features)
            row = {"size": kind, "threads": given.threads} | measure(
                name, NATURAL[name] if kind == "natural" else scaled, given.seconds
            )
            print(json.dumps(row), flush=True)
            if given.out is not None:
                with given.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
