"""What a process that runs points does with one of them: the gate, then the clock."""

from __future__ import annotations

import gc
import json
from functools import lru_cache
from itertools import repeat
from time import perf_counter
from typing import Any

import torch

from tclab.masking import get as strategy_of
from tclab.sweeps.point import Point
from tclab.sweeps.rig import rig
from tclab.sweeps.rows import columns_of
from tclab.sweeps.seen import Seen, rows_of_ranks, timelines
from tclab.sweeps.stamps import folder_stamp
from tclab.sweeps.together import Together
from tclab.timing import Demand, Ledger, PeakMemory, Syncs, conditions, syncs
from tclab.training import HABITS, GateResult, LoadedBatch, Reference, Step, gate
from tclab.training.gate import Mode
from tclab.training.habits import inexact
from tclab.training.step import WITHOUT_MODEL


@lru_cache(maxsize=8)
def _reference(point: Point, stamp: object) -> Reference:
    return gate(
        point.kind,
        point.cell_graph().to(point.device),
        metabolism=point.metabolism,
        seed=point.seed,
        habits=point.habits,
    )


@lru_cache(maxsize=256)
def _gate(point: Point, strategy: str, collation: str, mode: Mode, stamp: object) -> GateResult:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # its tensors are small: threads would wait for one another longer than they work
    try:
        return _reference(point, stamp).compare(strategy, collation, mode=mode)
    finally:
        torch.set_num_threads(threads)


def gate_of(point: Point) -> GateResult:
    """Return how far the point's strategy is from `subgraph`; found once for points that differ in size alone.

    It is tried in fp64 and fp32, and as the point runs it: in its dtype, compiled, with checkpoints, in slices.
    """
    decides = (
        "graph",
        "scale",
        "model",
        "networks",
        "variant",
        "device",
        "seed",
        "metabolism",
        "self_loops",
        "hidden",
        "layers",
    )
    habits = tuple(name for name in point.habits if not HABITS[name].of_the_loop)
    deciding = Point(**{name: getattr(point, name) for name in decides}, habits=habits)
    mode = Mode(point.dtype, point.compile, point.checkpoint, slices=point.micro_batch is not None)
    mode = Mode() if mode.plain else mode
    return _gate(deciding, point.strategy, point.collation, mode, folder_stamp(point.graph))


def _run(point: Point, together: Together | None) -> Seen:
    """Warm up, count what one step asks of the device, then time `steps` steps."""
    cuda = point.device == "cuda"
    fixed = point.mode == "fixed_batch"
    number = (1 if fixed else point.warmup + 1 + point.steps) * point.batch_size
    with rig(point, number, together) as here:
        exchanges = here.step.communication
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
            # before the warm-up: workers make batches ahead meanwhile, which the first timed steps would find ready
            before = conditions()
            gc.collect()
            if point.warmup:
                here.run(given, steps=point.warmup)
            with PeakMemory(cuda=cuda) as memory, Ledger(cuda=cuda) as ledger:
                if exchanges is not None:
                    exchanges.watch(ledger)
                if together is not None:
                    together.meet()  # else the first step waits for whoever comes last
                here.run(given, steps=point.steps, ledger=ledger)
            if exchanges is not None:
                exchanges.finish()
        finally:
            del batches  # ends the workers
    frame = None if exchanges is None else exchanges.frame()
    exchanged = None if frame is None or frame.empty else {str(name): frame[name].tolist() for name in frame}
    late = exchanges.late[together.rank] if exchanges is not None and together is not None else None
    return Seen(
        timelines=timelines(ledger, cuda, exchanged),
        exchanged=exchanged,
        late=late,
        demands=_demands(found),
        closure=ledger.closure,
        first_step_seconds=cold,
        batch_bytes=batch_bytes,
        edge_bytes=edge_bytes,
        peak_bytes=memory.bytes,
        conditions=[before, conditions()],
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


def _gated(point: Point, exact: bool) -> dict[str, Any]:
    """Return the columns of the gate."""
    found = gate_of(point)
    return {
        "gate": ("passed" if found.passed else "failed") if exact else "inexact",
        "gate_fp64_error": found.fp64_error,
        "gate_fp32_ratio": found.fp32_ratio,
        "gate_nodes": found.nodes,
        "gate_edges": found.edges,
    }


def measure(point: Point, together: Together | None = None) -> list[dict[str, Any]]:
    """Return the rows of a resolved point: its stages, or one row that says why there are none.

    **Arguments:**

    - `together`: this rank among those that run the point, all of which return the rows of all.
    """
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
        if together is None:
            every |= _gated(point, exact)
        else:  # once, not by ranks that would share the cores
            every |= json.loads(together.from_first(lambda: json.dumps(_gated(point, exact))))
        if every["gate"] == "failed":
            return [{**every, "stage": "step", "status": "wrong"}]
    if point.device == "cuda":
        torch.cuda.empty_cache()
    if point.compile:
        torch.compiler.reset()  # what earlier points compiled counts against what this one may
    seen = _run(point, together)
    if point.device == "cuda":  # this process waits for its next point, and another may need the memory meanwhile
        gc.collect()
        torch.cuda.empty_cache()
    ranks = [seen] if together is None else [Seen.read(text) for text in together.from_every(seen.text())]
    return rows_of_ranks(point, every, ranks)
