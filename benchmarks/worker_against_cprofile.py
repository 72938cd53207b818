"""Do a worker's own stages and cProfile agree on where the making of a batch goes?

    python benchmarks/worker_against_cprofile.py [--strategy edge_mask] [--store lmdb] [--scale 0.1] [--batches 50]

The same batches are made once, under cProfile, in this process. A worker's clock reads `sample`, `mask` and
`collate` as it goes; cProfile's cumulative time of the calls that these stages hold must be the same. What they
disagree on is the profiler's own work: it is paid inside the stage but, for the outermost call, not counted by
cProfile, some tenths of a microsecond for each Python call in it.
"""

import argparse
import cProfile
import pstats
import tempfile
from pathlib import Path

import pandas as pd
import torch

import tclab
from tclab.perturbation import synthetic_perturbations
from tclab.perturbation._sample_store import stored
from tclab.training._loading import Batches

CALLS = {"sample": ("read", "removed_by"), "mask": ("encode",), "collate": ("collate",)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--strategy", default="edge_mask")
    parser.add_argument("--store", default="lmdb")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--batches", type=int, default=50)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    graph = tclab.CellGraph.synthetic(chosen.scale).without_metabolism()
    size = 8
    perturbations = synthetic_perturbations(graph, size * chosen.batches)
    strategy = tclab.masking.get(chosen.strategy)(graph)
    with tempfile.TemporaryDirectory() as folder:
        strategy.prepare(perturbations, Path(folder) / "store")
        batches = Batches(strategy, stored(graph, perturbations, Path(folder) / "samples", chosen.store), size)
        batches[0]  # what a first call loads is nobody's usual time
        clock = dict.fromkeys(CALLS, 0.0)
        profiler = cProfile.Profile()
        profiler.enable()
        for number in range(chosen.batches):
            for stage, nanoseconds in batches[number].timing.stages.items():
                clock[stage] += nanoseconds / 1e9
        profiler.disable()
        strategy.close()
    profile = dict.fromkeys(CALLS, 0.0)
    # (file, line, name) → calls, own, time, cumulative, and by caller; only what the making of a batch called counts
    for (_, _, name), (*_, callers) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        for stage, calls in CALLS.items():
            if name in calls:
                profile[stage] += sum(t[3] for caller, t in callers.items() if caller[0].endswith("_loading.py"))
    table = pd.DataFrame({"clock_ms": clock, "cprofile_ms": profile}) * 1e3 / chosen.batches
    table["clock : cprofile"] = table["clock_ms"] / table["cprofile_ms"]
    table["apart, µs a batch"] = (table["clock_ms"] - table["cprofile_ms"]) * 1e3
    print(table.round(4).to_string())


if __name__ == "__main__":
    main()
