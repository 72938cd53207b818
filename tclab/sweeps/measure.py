"""What a child process does with one point: the gate, then the clock."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from tclab.masking import get as strategy_of
from tclab.perturbation import synthetic_perturbations
from tclab.sweeps.point import Point
from tclab.sweeps.rows import columns_of
from tclab.timing import Ledger, PeakMemory, Syncs, syncs
from tclab.training import (
    HABITS,
    Batches,
    GateResult,
    LoadedBatch,
    Reference,
    Step,
    gate,
    loader,
    run_lightning,
    run_plain,
)
from tclab.training.habits import inexact
from tclab.training.step import WITHOUT_MODEL

HOST_STAGES = ("wait",)
EPOCH = 10  # a schedule is over by then, as it is in nearly all of a published run


@lru_cache(maxsize=8)
def _reference(point: Point) -> Reference:
    return gate(
        point.kind,
        point.cell_graph().to(point.device),
        metabolism=point.metabolism,
        seed=point.seed,
        habits=point.habits,
    )


@lru_cache(maxsize=256)
def _gate(point: Point, strategy: str) -> GateResult:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # its tensors are small: threads would wait for one another longer than they work
    try:
        return _reference(point).compare(strategy)
    finally:
        torch.set_num_threads(threads)


def gate_of(point: Point) -> GateResult:
    """Return how far the point's strategy is from `subgraph`; found once for points that differ in size alone."""
    decides = ("graph", "scale", "model", "networks", "variant", "device", "seed", "metabolism", "self_loops")
    habits = tuple(name for name in point.habits if not HABITS[name].of_the_loop)
    return _gate(Point(**{name: getattr(point, name) for name in decides}, habits=habits), point.strategy)


@dataclass
class _Timed:
    """What a run of steps gave: seconds of each stage in each step, and what stands on the whole step."""

    seconds: dict[str, list[float]]
    first_step_seconds: float
    batch_bytes: int
    edge_bytes: int
    host_syncs: int | None
    peak_bytes: int | None


def _run(point: Point, folder: Path) -> _Timed:
    """Warm up, count the host's waits in one step, then time `steps` steps."""
    cuda = point.device == "cuda"
    graph = point.cell_graph()
    fixed = point.mode == "fixed_batch"
    number = (1 if fixed else point.warmup + 1 + point.steps) * point.batch_size
    perturbations = synthetic_perturbations(graph, number, deleted=point.deleted, seed=point.seed)
    kind = strategy_of(point.strategy)
    loading = kind(graph, ship_edges=point.ship_edges)
    loading.prepare(perturbations, folder / "store")
    viewing = kind(graph.to(point.device), ship_edges=point.ship_edges)
    step = Step(
        point.kind,
        viewing,
        mode=point.mode,
        dtype=point.dtype,
        metabolism=point.metabolism,
        seed=point.seed,
        loss=point.loss,
        epoch=EPOCH,
        clip=point.clip,
        optimizer=point.optimizer,
        accumulate=point.accumulate,
        habits=point.habits,
    )
    run = run_lightning if point.loop == "lightning" else run_plain
    data = Batches(loading, perturbations, point.batch_size)
    batches = iter(loader(data, workers=point.workers, pin_memory=cuda))
    try:
        begin = perf_counter()
        first = next(batches)  # one more than `warmup`: the cold start
        run(step, [first], steps=1)
        if cuda:
            torch.cuda.synchronize()
        cold = perf_counter() - begin
        found = _audited(step, first)
        making: dict[str, list[float]] = {"sample": [], "collate": []}
        given = repeat(first) if fixed else batches
        if point.warmup:
            run(step, given, steps=point.warmup)
        gc.collect()
        with PeakMemory(cuda=cuda) as memory, Ledger(cuda=cuda) as ledger:
            run(step, given if fixed else _noted(given, making), steps=point.steps, ledger=ledger)
    finally:
        del batches  # ends the workers
        loading.close()
    host = ledger.seconds()
    seconds = {**host, **ledger.seconds("device"), **{name: host[name] for name in HOST_STAGES}} if cuda else host
    seconds |= {stage: took for stage, took in making.items() if took}
    return _Timed(
        seconds,
        cold,
        first.batch.bytes,
        first.batch.edge_bytes,
        None if found is None else found.count,
        memory.bytes,
    )


def _noted(batches: Iterable[LoadedBatch], making: dict[str, list[float]]) -> Iterator[LoadedBatch]:
    """Yield batches and note what each took to make."""
    for loaded in batches:
        making["sample"].append(loaded.sample_seconds)
        making["collate"].append(loaded.collate_seconds)
        yield loaded


def _audited(step: Step, loaded: LoadedBatch) -> Syncs | None:
    """Return where the host waits on the way to the backward, and in what habits log after it.

    AdamW's own counters live on the host, and are no waits. Missing where there is no model.
    """
    if step.mode in WITHOUT_MODEL:
        return None
    mode, step.mode = step.mode, "model"
    with syncs() as found:
        step(loaded.batch)
    step.mode = mode
    return found


def _where(stage: str, point: Point) -> str:
    if stage in ("sample", "collate"):
        return "worker" if point.workers else "host"
    return "host" if stage in HOST_STAGES or point.device == "cpu" else "device"


def measure(point: Point) -> list[dict[str, Any]]:
    """Return the rows of a resolved point: its stages, or one row that says why there are none."""
    graph = point.cell_graph()
    exact = strategy_of(point.strategy).exact and not inexact(point.habits)
    every: dict[str, Any] = {
        **columns_of(point),
        "networks": len(graph.networks),
        "network_names": ",".join(graph.networks),
        "edges": graph.num_edges,
        "nodes": graph.num_nodes[graph.deleted_type],
        "exact": exact,
    }
    if point.mode not in WITHOUT_MODEL:
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
