"""What a point will hold in memory, before anything of it runs."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from torch import Tensor

from tclab.graph import CellGraph, Network
from tclab.masking import get as strategy_of
from tclab.masking.calibration import cache_stamp
from tclab.masking.packing import INLINE_BYTES, shared_memory_free
from tclab.perturbation import synthetic_perturbations
from tclab.sweeps.own_code import files_of
from tclab.sweeps.point import Point
from tclab.sweeps.rig import tune
from tclab.timing.conditions import conditions, memory_available_bytes
from tclab.timing.units import bytes_text
from tclab.training import Step
from tclab.training.step import WITHOUT_MODEL
from tclab.training.weighing import Weighed, outlined, weigh

# What a process holds that has imported everything and run a point of no size: measured on Linux, torch 2.13,
# CPU. One that has started CUDA holds more on the host: how much has not been measured, and is in no sum here.
PROCESS_BYTES = 505 * 1024**2
# How much more than what is held glibc's heap takes, where tensors of many sizes come and go: chosen by
# benchmarks/memory.py, with all strategies, both models and batches of 2 to 8, so that the whole process is within
# 15 % of what it was. Where the number of edges differs from batch to batch, blocks fit the next batch less well;
# where the graph is not masked (DANGO), most are of a size that every step has, and none is kept beside them.
# Blocks that are mapped one by one leave no holes.
HEAP_SHARE = {"default": 1 / 3, "keep_pages": 1 / 3, "map_each": 0.0}
VARYING_SHARE = 0.8


@dataclass(frozen=True)
class Fits:
    """What a point will hold, in bytes, beside what is there.

    **Arguments:**

    - `batch`: what travels with a batch. `on_device`: batches there at a time, 2 with `double_buffer`.
    - `shared`: what all ranks' workers hold ready in shared memory.
    - `process`: the training process before it has a point, and without CUDA.
    - `graph`: the graph's edges, and what is looked up in them by a process that makes its own batches.
    - `model`: the weights. `kept`: what stays on the device from step to step beside them, the optimizer's state
      among it. `step`: the most that one step holds beside all these, its gradients among it.
    - `heap`: what the host's allocator keeps beside them, of blocks that came and went.
    - `ranks`: processes; all but `shared` is one rank's.
    - `on_host`: the model and the steps are on the CPU.
    - `host_limit`, `shared_limit`, `device_limit`: what there is; `None` where the system does not tell.
    """

    batch: int
    shared: int
    process: int
    graph: int
    model: int
    kept: int
    step: int
    heap: int
    ranks: int
    on_host: bool
    host_limit: int | None
    shared_limit: int | None
    device_limit: int | None
    on_device: int = 1

    @property
    def host(self) -> int:
        """The resident set of a training process, bytes; a batch from a worker is among it while it is read."""
        own = self.process + self.graph + self.batch + self.heap
        return own + (self.model + self.kept + self.step if self.on_host else 0)

    @property
    def device(self) -> int | None:
        """What a CUDA device holds, bytes; `None` on the CPU."""
        return None if self.on_host else self.model + self.kept + self.step + self.on_device * self.batch

    @property
    def refusal(self) -> str | None:
        """Why the point cannot run, with both numbers; `None` where it can."""
        for what, needed, there in (
            ("shared memory", self.shared, self.shared_limit),
            ("host memory", self.host * self.ranks + self.shared, self.host_limit),
            ("device memory", self.device, self.device_limit),
        ):
            if needed is not None and there is not None and needed > there:
                return f"needs {bytes_text(needed)} of {what}, and there are {bytes_text(there)}"
        return None

    def __str__(self) -> str:
        lines = [
            f"{'a batch':<16}{bytes_text(self.batch):>12}",
            f"{'shared memory':<16}{bytes_text(self.shared):>12}{_of(self.shared_limit)}",
            f"{'host':<16}{bytes_text(self.host):>12}{_of(self.host_limit)}",
        ]
        if self.device is not None:
            lines.append(f"{'device':<16}{bytes_text(self.device):>12}{_of(self.device_limit)}")
        parts = ("process", "graph", "model", "kept", "step", "heap")
        lines.append(f"{'of which':<16}" + ", ".join(f"{name} {bytes_text(getattr(self, name))}" for name in parts))
        return "\n".join([*lines, "fits" if self.refusal is None else f"does not fit: {self.refusal}"])


def _of(limit: int | None) -> str:
    return "" if limit is None else f"  of {bytes_text(limit)}"


def fits(point: Point, *, memory_bytes: int | None = None) -> Fits:
    """Return what a point will hold in memory, before anything of it runs.

    The batch is that of the point's own first samples, to the byte. What a step holds is counted on tensors that
    have shapes and no values (see `tclab.training.weighing`): on a CPU that is what torch's allocator hands out.
    `benchmarks/memory.py` compares it with the resident set of processes that ran. Nothing is timed: `fastest` is
    weighed with the kernels that are kept for this machine, or else with those that an untuned one has.

    Workers are counted with the batches that they hold ready, not with processes of their own, of which a forked
    one shares its parent's pages; nor is what CUDA takes of the host.

    **Arguments:**

    - `point`: not run, and not changed.
    - `memory_bytes`: what the training process may grow to; the memory that is free now unless given.
    """
    point = point.resolved()
    found = _weighed(_sized(point), point.device, (*files_of(point).items(), cache_stamp()))
    on_host = point.device == "cpu"
    share = HEAP_SHARE[point.allocator]
    strategy = strategy_of(point.strategy)
    if not strategy.masks_graph:
        share = 0.0
    elif share and strategy.edges_vary:
        share = VARYING_SHARE
    in_flight = point.ranks * point.workers * (point.prefetch_factor or 0)
    return Fits(
        batch=found.batch,
        shared=0 if found.batch <= INLINE_BYTES else in_flight * found.batch,
        process=PROCESS_BYTES,
        graph=found.graph,
        model=found.step.model,
        kept=found.step.kept,
        step=found.step.peak,
        heap=int(share * (found.step.kept + found.step.peak)) if on_host else 0,
        ranks=point.ranks,
        on_host=on_host,
        host_limit=memory_available_bytes() if memory_bytes is None else memory_bytes,
        shared_limit=shared_memory_free(),
        device_limit=None if on_host else _device_bytes(),
        on_device=2 if point.double_buffer else 1,
    )


@dataclass(frozen=True)
class _Found:
    batch: int
    graph: int
    step: Weighed


def _sized(point: Point) -> Point:
    """Return a point with what does not change its size put aside, so that it is weighed once."""
    return replace(
        point, steps=1, warmup=0, device="cpu", ranks=1, allocator="default", pin_memory=None, double_buffer=False
    )


@lru_cache(maxsize=256)
def _weighed(
    point: Point, device: str, files: object
) -> _Found:  # files: the same point, and other code or another graph
    graph = _without_lookups(point.cell_graph())
    loading = strategy_of(point.strategy)(graph, ship_edges=point.ship_edges, collation=point.collation)
    tune(loading, point, device, timing=False)
    deletions = synthetic_perturbations(graph, point.batch_size, deleted=point.deleted, seed=point.seed).deletions
    if not point.workers or loading.stores:  # workers look up what they encode in copies of their own
        loading.look_up([0], loading.lost_by(deletions.take([0])))
    own = _bytes_in(graph)
    batch = outlined(loading, range(point.batch_size), deletions, micro_batch=point.micro_batch)
    found = Weighed(0, 0, 0)
    if point.mode not in WITHOUT_MODEL:
        step = Step(
            point.kind,
            loading.on(graph),
            mode=point.mode,
            dtype=point.dtype,
            metabolism=point.metabolism,
            loss=point.loss,
            clip=point.clip,
            optimizer=point.optimizer,
            accumulate=point.accumulate,
            habits=point.habits,
            checkpoint=point.checkpoint,
        )
        own += _bytes_in(step.loss)
        found = weigh(step, batch, device=device)
    return _Found(batch.bytes, own, found)


def _without_lookups(graph: CellGraph) -> CellGraph:
    """Return the same graph without what this process has made of it."""
    return graph.with_relations({name: copy(network) for name, network in graph.relations.items()})


def _bytes_in(value: Any) -> int:
    """Return the bytes of the tensors that something holds, at any depth."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_bytes_in, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes_in, value))
    if isinstance(value, (CellGraph, Network)) or type(value).__module__.startswith("tclab.models"):
        return _bytes_in(getattr(value, "__dict__", None))
    return 0


def _device_bytes() -> int | None:
    """Return what the first GPU has left, by its driver: torch would start CUDA in this process to say it."""
    now = conditions()
    total, used = now["gpu_memory_total_bytes"], now["gpu_memory_used_bytes"]
    return int(total) - int(used) if total is not None and used is not None else None
