"""What a child process does with one point: the gate, then the clock."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from tclab.masking import get as strategy_of
from tclab.perturbation import stored, synthetic_perturbations
from tclab.sweeps.point import Point
from tclab.sweeps.rows import columns_of
from tclab.timing import PeakMemory, StageClock, syncs
from tclab.training import Batches, GateResult, LoadedBatch, Reference, Step, double_buffered, gate, loader

HOST_STAGES = ("wait",)
STEP_STAGES = ("wait", "transfer", "mask", "forward", "loss", "backward", "optimizer")


@lru_cache(maxsize=8)
def _reference(point: Point) -> Reference:
    return gate(point.kind, point.cell_graph().to(point.device), metabolism=point.metabolism, seed=point.seed)


@lru_cache(maxsize=256)
def _gate(point: Point, strategy: str, collation: str) -> GateResult:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # its tensors are small: threads would wait for one another longer than they work
    try:
        return _reference(point).compare(strategy, collation)
    finally:
        torch.set_num_threads(threads)


def gate_of(point: Point) -> GateResult:
    """Return how far the point's strategy is from `subgraph`; found once for points that differ in size alone."""
    decides = ("graph", "scale", "model", "networks", "device", "seed", "metabolism", "self_loops")
    return _gate(Point(**{name: getattr(point, name) for name in decides}), point.strategy, point.collation)


@dataclass
class _Timed:
    """What a run of steps gave: seconds of each stage in each step, and what stands on the whole step."""

    seconds: dict[str, list[float]]
    first_step_seconds: float
    batch_bytes: int
    edge_bytes: int
    host_syncs: int | None
    peak_bytes: int | None


def _take(batches: Iterator[LoadedBatch], step: Step, clock: StageClock) -> LoadedBatch:
    def stage(name: str) -> AbstractContextManager[None]:
        return clock.stage(name, host=name in HOST_STAGES)

    with clock.step():
        with stage("wait"):
            loaded = next(batches)
        step(loaded.batch, stage=stage)
    return loaded


def _run(point: Point, folder: Path) -> _Timed:
    """Warm up, count the host's waits in one step, then time `steps` steps."""
    cuda = point.device == "cuda"
    graph = point.cell_graph()
    perturbations = synthetic_perturbations(
        graph, (point.warmup + 1 + point.steps) * point.batch_size, deleted=point.deleted, seed=point.seed
    )
    kind = strategy_of(point.strategy)
    loading = kind(graph, ship_edges=point.ship_edges, collation=point.collation)
    loading.prepare(perturbations, folder / "store")
    viewing = kind(graph.to(point.device), ship_edges=point.ship_edges)
    step = Step(
        point.kind, viewing, mode=point.mode, dtype=point.dtype, metabolism=point.metabolism, seed=point.seed
    )
    samples = stored(graph, perturbations, folder / "samples", point.store)
    loads = loader(
        Batches(loading, samples, point.batch_size),
        workers=point.workers,
        pin_memory=bool(point.pin_memory),
        prefetch_factor=point.prefetch_factor,
        start_method=point.start_method,
        persistent_workers=point.persistent_workers,
    )
    batches = double_buffered(loads, point.device) if point.double_buffer else iter(loads)
    try:
        begin = perf_counter()
        first = _take(batches, step, StageClock(cuda=cuda))  # one more than `warmup`: the cold start
        if cuda:
            torch.cuda.synchronize()
        cold = perf_counter() - begin
        with syncs() as found:
            _audited(step, first)
        for _ in range(point.warmup):
            _take(batches, step, StageClock(cuda=cuda))
        clock = StageClock(cuda=cuda)
        making: dict[str, list[float]] = {"sample": [], "collate": []}
        gc.collect()
        with PeakMemory(cuda=cuda) as memory:
            for _ in range(point.steps):
                last = _take(batches, step, clock)
                took = last.making.stages
                making["sample"].append((took["sample"] + took["mask"]) / 1e9)
                making["collate"].append(took["collate"] / 1e9)
            seconds = clock.seconds()
    finally:
        del batches  # ends the workers
        loading.close()
    seconds |= making
    stages = [seconds[name] for name in STEP_STAGES if name in seconds]
    seconds["other"] = [whole - sum(parts) for whole, *parts in zip(seconds["step"], *stages, strict=True)]
    return _Timed(
        seconds,
        cold,
        first.batch.bytes,
        first.batch.edge_bytes,
        None if point.mode == "data" else found.count,
        memory.bytes,
    )


def _audited(step: Step, loaded: LoadedBatch) -> None:
    """Take a batch as far as its backward: AdamW's own counters live on the host, and are no waits."""
    mode, step.mode = step.mode, "data" if step.mode == "data" else "model"
    step(loaded.batch)
    step.mode = mode


def _where(stage: str, point: Point) -> str:
    if stage in ("sample", "collate"):
        return "worker" if point.workers else "host"
    return "host" if stage in HOST_STAGES or point.device == "cpu" else "device"


def measure(point: Point) -> list[dict[str, Any]]:
    """Return the rows of a resolved point: its stages, or one row that says why there are none."""
    graph = point.cell_graph()
    exact = strategy_of(point.strategy).exact
    every: dict[str, Any] = {
        **columns_of(point),
        "networks": len(graph.networks),
        "network_names": ",".join(graph.networks),
        "edges": graph.num_edges,
        "nodes": graph.num_nodes[graph.deleted_type],
        "exact": exact,
    }
    if point.mode != "data":
        found = gate_of(point)
        every |= {
            "gate": ("passed" if found.passed else "failed") if exact else "inexact",
            "gate_fp64_error": found.fp64_error,
            "gate_fp32_ratio": found.fp32_ratio,
            "gate_nodes": found.nodes,
            "gate_edges": found.edges,
        }
        if exact and not found.passed:
            return [{**every, "stage": "step", "status": "wrong"}]
    if point.device == "cuda":
        torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory(prefix="tclab-") as folder:
        timed = _run(point, Path(folder))
    rows = []
    for stage, samples in timed.seconds.items():
        q1, median, q3 = np.quantile(samples, [0.25, 0.5, 0.75]).tolist()
        row = {
            **every,
            "stage": stage,
            "where": _where(stage, point),
            "n": len(samples),
            "median_seconds": median,
            "q1_seconds": q1,
            "q3_seconds": q3,
            "samples_seconds": samples,
            "status": "ok",
        }
        if stage == "step":
            row |= {
                "samples_per_second": point.batch_size / median,
                "batch_bytes": timed.batch_bytes,
                "edge_bytes": timed.edge_bytes,
                "host_syncs": timed.host_syncs,
                "peak_bytes": timed.peak_bytes,
                "first_step_seconds": timed.first_step_seconds,
            }
        rows.append(row)
    return rows
