"""What a process that runs points does with one of them: the equivalence check, then the clock."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache, partial
from itertools import repeat
from pkgutil import resolve_name
from time import perf_counter
from typing import Any

import torch

from tclab.masking import get as strategy_of
from tclab.sweeps.config._fields import declarations
from tclab.sweeps.config._overhead_names import APPLY_TO_MODEL, OVERHEADS
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import cell_graph_of, file_stamps, screen_of
from tclab.sweeps.execution._ranks import ALONE, RankMeasurement, Ranks, rows_of_ranks, timelines
from tclab.sweeps.execution._setup import Setup, setup
from tclab.sweeps.store._rows import columns_of
from tclab.timing import Ledger, conditions, syncs
from tclab.timing._call_costs import PeakMemory, release_memory
from tclab.training._equivalence import EquivalenceReference, EquivalenceResult, equivalence_reference
from tclab.training._loading import LoadedBatch
from tclab.training._step import WITHOUT_MODEL, Step


@lru_cache(maxsize=8)
def _reference(point: Point, stamp: object) -> EquivalenceReference:
    change = partial(resolve_name(APPLY_TO_MODEL), overheads=point.overheads) if point.overheads else None
    return equivalence_reference(
        point.kind, cell_graph_of(point).to(point.device), metabolism=point.metabolism, seed=point.seed, change=change
    )


@lru_cache(maxsize=256)
def _compared(point: Point, strategy: str, collation: str, stamp: object, **numerics: Any) -> EquivalenceResult:
    return _reference(point, stamp).compare(strategy, collation, **numerics)


def equivalence_of(point: Point) -> EquivalenceResult:
    """Return how far the point's strategy is from `subgraph`; found once for points that differ in size alone.

    It is tried in fp64 and fp32, and as the point runs it: in its dtype, compiled, in slices.
    """
    decides = {name: getattr(point, name) for name, declared in declarations(Point).items() if declared.reference}
    decides["overheads"] = tuple(name for name in point.overheads if OVERHEADS[name].models is not None)
    stamp, slices = tuple(file_stamps(point).items()), point.micro_batch is not None
    as_usual = point.dtype != "bfloat16" and not point.compile and not slices  # every check has float32 and float64
    numerics = {} if as_usual else {"dtype": point.dtype, "compile": point.compile, "slices": slices}
    return _compared(Point(**decides), point.strategy, point.collation, stamp, **numerics)


def declared_exact(point: Point) -> bool:
    """Return whether the point's strategy and overheads claim to compute what `subgraph` does."""
    return strategy_of(point.strategy).exact and all(OVERHEADS[name].exact for name in point.overheads)


def may_run(point: Point) -> bool:
    """Return whether the point computes what `subgraph` does, does not claim to, or has no model."""
    return point.mode in WITHOUT_MODEL or not declared_exact(point) or equivalence_of(point).passed


def _train_and_time(point: Point, ranks: Ranks) -> RankMeasurement:
    """Warm up, count what one step asks of the device, then time `steps` steps."""
    fixed = point.mode == "fixed_batch"
    number = 1 if fixed else point.warmup + 1 + point.steps
    # a framework's loop takes a while to start: a cycle of steps before those that count, while its workers go on
    lead = point.workers if point.loop == "lightning" and ranks is ALONE and not fixed else 0
    # twice what is timed, as it may be timed again, and all that `drain` takes at most
    more = 2 * lead + point.steps + 2 * point.workers * point.prefetch_factor
    epoch = None if fixed or not point.workers else number + more
    with setup(point, number * point.batch_size, ranks, batches=epoch) as here:
        batches = here.batches()
        try:
            begin = perf_counter()
            first = next(batches)  # one more than `warmup`: the cold start
            here.run([first], steps=1)
            if point.device == "cuda":
                torch.cuda.synchronize()
            cold = perf_counter() - begin
            demands = _demands(here.step, first)
            largest: dict[str, float | None] = {"first_step_seconds": cold, "batch_bytes": first.batch.bytes}
            largest |= {name: getattr(first.batch, name) for name in ("edge_bytes", "mask_bytes")}
            given = repeat(first) if fixed else batches
            del first  # or it would lie beside every later batch
            gc.collect()
            warm = Ledger(cuda=point.device == "cuda")
            if point.warmup:
                here.run(given, steps=point.warmup, ledger=warm)
            drain = here.loader_binds(warm, warm.batch_timings)
            ledger, largest["peak_bytes"], around = _timed(here, given, lead, drain=drain)
            if not drain and ranks is ALONE and here.loader_binds(ledger, ledger.batch_timings):
                # a busy warm-up made the loader seem to keep up
                ledger, largest["peak_bytes"], around = _timed(here, given, lead, drain=True)
        finally:
            del batches  # ends the workers
        largest["store_bytes"] = here.store_bytes
    exchanges = here.step.communication
    frame = None if exchanges is None else exchanges.frame()
    return RankMeasurement(
        timelines=timelines(ledger, lead),
        demands=demands,
        accounted=ledger.accounted,
        largest=largest,
        conditions=around,
        exchanged=None if frame is None or frame.empty else {str(name): frame[name].tolist() for name in frame},
        late=None if exchanges is None else exchanges.late[ranks.rank],
    )


def _timed(
    here: Setup, batches: Iterator[LoadedBatch], lead: int, *, drain: bool
) -> tuple[Ledger, int | None, list[dict[str, Any]]]:
    """Time the point's steps, after `lead` others, and after draining the loader where it binds.

    Returns the ledger, the peak of memory in bytes, and the machine's conditions before and after.
    """
    cuda, exchanges = here.point.device == "cuda", here.step.communication
    before = conditions()  # workers make batches ahead meanwhile
    if drain:
        here.drain(batches)
    with PeakMemory(cuda=cuda) as memory, Ledger(cuda=cuda) as ledger:
        if exchanges is not None:
            exchanges.watch(ledger)
        here.ranks.barrier()  # else the first step waits for whoever comes last
        here.run(batches, steps=lead + here.point.steps, ledger=ledger)
    if exchanges is not None:
        exchanges.finish()
    return ledger, memory.bytes, [before, conditions()]


def _demands(step: Step, loaded: LoadedBatch) -> dict[str, dict[str, int]]:
    """Run a step, and return stage → what it asks of the device; `step` is the sum. Empty where nothing is run."""
    if step.mode == "data":
        return {}
    ledger = Ledger(cuda=False)
    with syncs(ledger) as counted:
        for batch in ledger.steps([loaded.batch]):
            step(batch, stage=ledger.stage)
    waits = counted.stages
    waits.pop("optimizer", None)  # AdamW's own counters live on the host, and are no waits
    return {stage: {"host_syncs": waits[stage]} for stage in ledger.seconds()} | {"step": {"host_syncs": waits.total()}}


def _equivalence_columns(point: Point, exact: bool) -> dict[str, Any]:
    result = equivalence_of(point)
    return {
        "equivalence": ("passed" if result.passed else "failed") if exact else "inexact",
        "equivalence_fp64_error": result.fp64_error,
        "equivalence_fp32_ratio": result.fp32_ratio,
        "equivalence_nodes": result.nodes,
        "equivalence_edges": result.edges,
    }


def measure(point: Point, ranks: Ranks = ALONE) -> list[dict[str, Any]]:
    """Return the rows of a resolved point: its stages, or one row that says why there are none; on each rank all."""
    graph = cell_graph_of(point)
    exact, screen = declared_exact(point), screen_of(point)
    every: dict[str, Any] = {
        **columns_of(point),
        "networks": len(graph.networks),
        "network_names": ",".join(graph.networks),
        "edges": graph.num_edges,
        "nodes": graph.num_nodes[graph.deleted_type],
        "exact": exact,
        "samples_report": None if screen is None else str(screen.report),
    }
    if point.mode not in WITHOUT_MODEL:
        every |= ranks.broadcast(partial(_equivalence_columns, point, exact))  # ranks would share the cores
        if every["equivalence"] == "failed":
            return [{**every, "stage": "step", "status": "wrong"}]
    if point.device == "cuda":
        torch.cuda.empty_cache()
    else:
        release_memory()  # or the point's peak would hold what earlier points freed
    if point.compile:
        torch.compiler.reset()  # what earlier points compiled counts against what this one may
    measurement = _train_and_time(point, ranks)
    if point.device == "cuda":  # this process waits for its next point, and another may need the memory meanwhile
        gc.collect()
        torch.cuda.empty_cache()
    return rows_of_ranks(point, every, [RankMeasurement(**one) for one in ranks.all_gather(asdict(measurement))])
