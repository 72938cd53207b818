"""What a child process does with one point: the gate, then the clock."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from time import perf_counter
from typing import Any

import numpy as np
import torch

from tclab.masking import get as strategy_of
from tclab.sweeps.point import Point
from tclab.sweeps.rig import rig
from tclab.sweeps.rows import columns_of
from tclab.timing import Demand, Ledger, PeakMemory, Syncs, conditions, settled, syncs
from tclab.training import HABITS, GateResult, LoadedBatch, Reference, Step, gate
from tclab.training.habits import inexact
from tclab.training.step import WITHOUT_MODEL


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
def _gate(point: Point, strategy: str, collation: str) -> GateResult:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # its tensors are small: threads would wait for one another longer than they work
    try:
        return _reference(point).compare(strategy, collation)
    finally:
        torch.set_num_threads(threads)


def gate_of(point: Point) -> GateResult:
    """Return how far the point's strategy is from `subgraph`; found once for points that differ in size alone."""
    decides = ("graph", "scale", "model", "networks", "variant", "device", "seed", "metabolism", "self_loops")
    habits = tuple(name for name in point.habits if not HABITS[name].of_the_loop)
    return _gate(
        Point(**{name: getattr(point, name) for name in decides}, habits=habits), point.strategy, point.collation
    )


@dataclass
class _Timed:
    """What a run of steps gave."""

    ledger: Ledger
    first_step_seconds: float
    batch_bytes: int
    edge_bytes: int
    found: Syncs | None
    peak_bytes: int | None
    steady: str | None
    around: list[dict[str, Any]]  # conditions before and after


def _run(point: Point) -> _Timed:
    """Warm up, count what one step asks of the device, then time `steps` steps."""
    cuda = point.device == "cuda"
    fixed = point.mode == "fixed_batch"
    number = (1 if fixed else point.warmup + 1 + point.steps) * point.batch_size
    with rig(point, number) as here:
        batches = here.batches()
        try:
            begin = perf_counter()
            first = next(batches)  # one more than `warmup`: the cold start
            here.run([first], steps=1)
            if cuda:
                torch.cuda.synchronize()
            cold = perf_counter() - begin
            found = _audited(here.step, first)
            batch_bytes, edge_bytes = first.batch.bytes, first.batch.edge_bytes
            given = repeat(first) if fixed else batches
            del first  # or it would lie beside every later batch
            if point.warmup:
                here.run(given, steps=point.warmup)
            before = conditions()
            gc.collect()
            with PeakMemory(cuda=cuda) as memory, Ledger(cuda=cuda) as ledger:
                here.run(given, steps=point.steps, ledger=ledger)
        finally:
            del batches  # ends the workers
    return _Timed(
        ledger,
        cold,
        batch_bytes,
        edge_bytes,
        found,
        memory.bytes,
        settled(ledger.seconds("device" if cuda else "host")["step"]).verdict,
        [before, conditions()],
    )


def _audited(step: Step, loaded: LoadedBatch) -> Syncs | None:
    """Return what a step asks of the device, stage by stage. Missing where there is no model."""
    if step.mode in WITHOUT_MODEL:
        return None
    with Ledger(cuda=False) as ledger, syncs(ledger) as found, ledger.step():
        step(loaded.batch, stage=ledger.stage)
    return found


def _demands(found: Syncs | None) -> dict[str, dict[str, int]]:
    """Return stage → its columns; the stage `step` is all of them together."""
    if found is None:
        return {}
    total = Demand()
    made = {}
    for stage, demand in found.stages.items():
        # AdamW's own counters live on the host, and are no waits
        waits = 0 if stage == "optimizer" else demand.syncs
        made[stage] = {
            "host_syncs": waits,
            "kernels": demand.kernels,
            "allocations": demand.allocations,
            "allocated_bytes": demand.allocated_bytes,
        }
        total.syncs += waits
        total.kernels += demand.kernels
        total.allocations += demand.allocations
        total.allocated_bytes += demand.allocated_bytes
    whole = {
        "host_syncs": total.syncs,
        "kernels": total.kernels,
        "allocations": total.allocations,
        "allocated_bytes": total.allocated_bytes,
    }
    return {**made, "step": whole}


def _timelines(ledger: Ledger, cuda: bool) -> dict[tuple[str, str], list[float]]:
    """Return (where, stage) → seconds in each step that had it; the workers of a loader together."""
    found: dict[tuple[str, str], list[float]] = {}
    for timeline, _, stage, seconds in ledger.rows():
        where = "worker" if timeline.startswith("worker") else timeline
        if seconds is None or (cuda and (where, stage) == ("host", "step")):
            continue  # on CUDA the step is the device's
        found.setdefault((where, stage), []).append(seconds)
    return found


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
    cuda = point.device == "cuda"
    if cuda:
        torch.cuda.empty_cache()
    timed = _run(point)
    demands = _demands(timed.found)
    closure = timed.ledger.closure
    rows = []
    for (where, stage), samples in _timelines(timed.ledger, cuda).items():
        q1, median, q3 = np.quantile(samples, [0.25, 0.5, 0.75]).tolist()
        row = {
            **every,
            "stage": stage,
            "where": where,
            "n": len(samples),
            "median_seconds": median,
            "q1_seconds": q1,
            "q3_seconds": q3,
            "samples_seconds": samples,
            "status": "ok",
        }
        if where == ("device" if cuda else "host"):
            row |= demands.get(stage, {})
        if stage == "step":
            workers = [share for line, share in closure.items() if line.startswith("worker") and share is not None]
            row |= {
                "samples_per_second": point.batch_size / median,
                "batch_bytes": timed.batch_bytes,
                "edge_bytes": timed.edge_bytes,
                "peak_bytes": timed.peak_bytes,
                "first_step_seconds": timed.first_step_seconds,
                "host_closure": closure.get("host"),
                "device_closure": closure.get("device"),
                "worker_closure": min(workers, key=lambda share: -abs(share - 1.0)) if workers else None,
                "steady": timed.steady,
                "conditions": json.dumps(timed.around),
            }
        rows.append(row)
    return rows
