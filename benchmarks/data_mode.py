"""Loading alone, at the real size: what bounds `edge_mask`, how fast `node_mask` is, what encodings cost.

    python benchmarks/data_mode.py [--scale 1.0] [--parts bytes,workers,stores,collations] [--rounds 5]

Load, collate and hand over, on the CPU; no model. Of each part:

- bytes: seconds of an `edge_mask` batch against its bytes over batch sizes, a straight line through them, and the
  machine's own copy beside it (numbers that are moved on and written to pages that were not there before).
- workers: samples a second of `node_mask` at batch 28, read from LMDB, with 0, 1 and 2 workers.
- stores: the same samples as JSON records, as integers in LMDB and in memory.
- collations: PyG's `Batch.from_data_list` against one packed tensor, in this process and in a worker.

Rounds alternate between what is compared; figures are medians over rounds, in brackets the smallest and largest.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from scipy.stats import linregress

import tclab
from tclab import CellGraph, masking
from tclab.perturbation import Deletions, Perturbations, synthetic_perturbations
from tclab.perturbation._dataset import Samples
from tclab.perturbation._sample_store import stored
from tclab.training._loading import Batches, LoadedBatch, Loader

BATCH = 28  # the case study's


def in_brackets(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} [{min(values):{form}}, {max(values):{form}}]"


def batches_of(graph: CellGraph, samples: Samples, strategy: str, size: int, collation: str = "lean") -> Batches:
    return Batches(masking.get(strategy)(graph, collation=collation), samples, size)


def seconds_of_next(batches: Iterator[LoadedBatch]) -> float:
    begin = perf_counter()
    next(batches).batch.to("cpu")
    return perf_counter() - begin


def rounds_of(arms: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return what each arm gives in each round, one round before them left out, in alternating order."""
    found: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name in list(arms)[:: 1 if number % 2 else -1]:
            value = arms[name]()
            if number:
                found[name].append(value)
    return found


def bound_by_bytes(graph: CellGraph, samples: Perturbations, rounds: int) -> None:
    """Fit time against bytes over batch sizes, and copy as many bytes."""
    sizes = (2, 4, 8, 12, 16, 20, BATCH)
    batches = {size: batches_of(graph, samples, "edge_mask", size) for size in sizes}
    bytes_of: dict[int, int] = {}
    parts: dict[int, list[float]] = {size: [] for size in sizes}

    def load(size: int) -> float:
        begin = perf_counter()
        loaded = batches[size][0]
        seconds = perf_counter() - begin
        bytes_of[size] = loaded.batch.bytes
        parts[size].append(loaded.timing.stages["collate"] / 1e9)
        return seconds

    def copy(size: int) -> float:
        """Move numbers on and write them to fresh pages, as collation does at its best."""
        source = torch.arange(bytes_of[size] // 8 // size)
        begin = perf_counter()
        out = torch.empty(size, len(source), dtype=torch.int64)
        torch.add(source, 1, out=out[0])
        for row in range(1, size):
            torch.add(source, row, out=out[row])
        return perf_counter() - begin

    arms = {f"{call.__name__} {size}": partial(call, size) for call in (load, copy) for size in sizes}
    for size in sizes:
        load(size)
    found = rounds_of(arms, rounds)
    gigabytes = np.array([bytes_of[size] / 1e9 for size in sizes])
    print("edge_mask, time against bytes, workers=0")
    for name in ("load", "copy"):
        medians = np.array([statistics.median(found[f"{name} {size}"]) for size in sizes])
        fit = linregress(gigabytes, medians)
        if name == "load":
            for size, x, y in zip(sizes, gigabytes, medians, strict=True):
                off = y - (fit.intercept + fit.slope * x)
                share = statistics.median(parts[size]) / y
                print(
                    f"  batch {size:3}: {x:7.4f} GB  {y:7.4f} s  residual {off:+8.4f} s ({off / y:+6.1%})"
                    f"  collate {share:4.0%}"
                )
        print(
            f"  {name}: {fit.slope:.3f} s/GB ({1 / fit.slope:.2f} GB/s), at no bytes {fit.intercept:+.4f} s, "
            f"R² {fit.rvalue**2:.4f}"
        )
    ratios = [found[f"load {BATCH}"][r] / found[f"copy {BATCH}"][r] for r in range(rounds)]
    print(f"  a batch of {BATCH} against the machine's own copy of its bytes: {in_brackets(ratios, '.2f')} ×")


def by_workers(graph: CellGraph, samples: Samples, rounds: int, start_method: str, prefetch: int) -> None:
    """Print samples a second of `node_mask` from LMDB."""
    batches = batches_of(graph, samples, "node_mask", BATCH)
    print(f"node_mask from LMDB, batch {BATCH}, {len(batches)} batches a round; {start_method}, {prefetch} ahead")
    for workers in (0, 1, 2):
        options = {"multiprocessing_context": start_method, "prefetch_factor": prefetch, "persistent_workers": True}
        loads = Loader(batches, workers=workers, **(options if workers else {}))
        rates, busy = [], []
        for number in range(rounds + 1):
            epoch = iter(loads)
            next(epoch)  # the workers are there
            making = 0
            begin = perf_counter()
            for loaded in epoch:
                making += loaded.timing.end_ns - loaded.timing.begin_ns
            seconds = perf_counter() - begin
            if number:
                rates.append((len(batches) - 1) * BATCH / seconds / max(workers, 1))
                busy.append((len(batches) - 1) * BATCH / making * 1e9)
        del loads
        print(
            f"  workers {workers}: {in_brackets(rates, ',.0f')} samples/s per worker end to end, "
            f"{in_brackets(busy, ',.0f')} while it makes a batch"
        )


def by_store(graph: CellGraph, perturbations: Perturbations, folder: Path, rounds: int) -> None:
    """Print what reading and decoding a sample costs."""
    arms: dict[str, Callable[[], float]] = {}
    for store in ("memory", "lmdb", "json"):
        batches = batches_of(graph, stored(graph, perturbations, folder / store, store), "node_mask", BATCH)

        def read(batches: Batches = batches) -> float:
            total = 0
            for number in range(len(batches)):
                total += batches[number].timing.stages["sample"]
            return total / len(batches) / BATCH / 1e3

        arms[store] = read
    found = rounds_of(arms, rounds)
    print(f"node_mask, reading and decoding, microseconds a sample, batch {BATCH}, workers=0")
    for store, values in found.items():
        ratios = [value / ints for value, ints in zip(values, found["lmdb"], strict=True)]
        print(f"  {store:6} {in_brackets(values, '.2f')}   against LMDB's integers {in_brackets(ratios, '.2f')} ×")


def by_collation(graph: CellGraph, samples: Perturbations, rounds: int) -> None:
    """Print what PyG's collation costs, against the lean one."""
    print("edge_mask, PyG's collation against one packed tensor, seconds a batch")

    def load(name: str, size: int, workers: int) -> float:
        batches = batches_of(graph, samples, "edge_mask", size, name)
        one = iter(Loader(batches, workers=workers, multiprocessing_context="fork", prefetch_factor=1))
        first = seconds_of_next(one)
        return seconds_of_next(one) if workers else first  # with a worker, its start and look-up tables come first

    for size, workers in ((8, 0), (8, 1), (BATCH, 0), (BATCH, 1)):
        found = rounds_of({name: partial(load, name, size, workers) for name in ("pyg", "lean")}, rounds)
        ratios = [a / b for a, b in zip(found["pyg"], found["lean"], strict=True)]
        print(
            f"  batch {size:2}, workers {workers}: pyg {in_brackets(found['pyg'], '.3f')}, "
            f"lean {in_brackets(found['lean'], '.3f')}, pyg : lean {in_brackets(ratios, '.2f')} ×"
        )


def main() -> None:
    """Print the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--parts", default="bytes,workers,stores,collations")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=28_000, help="in the stores")
    parser.add_argument("--start-method", default="fork")
    parser.add_argument("--prefetch", type=int, default=8)
    options = parser.parse_args()
    parts = options.parts.split(",")
    graph = tclab.CellGraph.synthetic(options.scale, metabolism=False)
    for network in graph.networks.values():
        network.incidence(graph.deleted_type)  # made once, before any clock
    few = synthetic_perturbations(graph, 3 * BATCH)
    print(f"{graph}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name in ("stored_index", "stored_mask"):
        whole = Deletions.nothing(332_313) if name == "stored_mask" else few.deletions
        print(f"{name}: {masking.get(name)(graph).store_size(whole)}")
    if "bytes" in parts:
        bound_by_bytes(graph, few, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        if {"workers", "stores"} & set(parts):
            many = synthetic_perturbations(graph, options.samples)
        if "workers" in parts:
            samples = stored(graph, many, Path(folder) / "samples", "lmdb")
            by_workers(graph, samples, options.rounds, options.start_method, options.prefetch)
        if "stores" in parts:
            by_store(graph, many, Path(folder), options.rounds)
    if "collations" in parts:
        by_collation(graph, few, options.rounds)


if __name__ == "__main__":
    main()
