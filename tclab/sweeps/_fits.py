"""The memory estimate of a point, made before anything of it runs."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from tclab._display import Display, Shown, bytes_text
from tclab._limits import memory_available_bytes
from tclab.errors import require
from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.masking import get as strategy_of
from tclab.masking._batch import INLINE_BYTES, shared_memory_free
from tclab.sweeps._measure import step_of
from tclab.sweeps._point import Point
from tclab.sweeps._point_inputs import cell_graph_of, resolve, samples_of
from tclab.timing._environment import gpu_free_bytes
from tclab.training._memory_estimate import MemoryEstimate, estimate_memory, meta_batch
from tclab.training._step import WITHOUT_MODEL

# What a process holds that has imported everything and run a point of no size: measured on Linux, torch 2.13,
# CPU. One that has started CUDA holds more on the host: how much has not been measured, and is in no sum here.
PROCESS_BYTES = 495 * 1024**2
# How much more than what it holds glibc's heap takes, where tensors of many sizes come and go: chosen by
# benchmarks/memory.py, so that the whole process is within 15 % of what it was. Blocks that are mapped one by one, as
# large ones are, leave no holes.
HEAP_SHARE = 0.7
_NOT_COUNTED = "not counted: what compiled code, DDP, gathering ranks, NCCL, CUDA on the host, Lightning, workers hold"
_PARTS = ("process", "graph", "model", "kept", "step", "heap")  # of what a rank needs


@dataclass(frozen=True, repr=False)
class Fits(Shown):
    """The memory that a point needs, in bytes, and the memory that is available.

    **Arguments:**

    - `batch`: what travels with a batch. `shared`: what all ranks' workers hold ready in shared memory.
    - `process`: the training process before it has a point, and without CUDA.
    - `graph`: the graph's edges, and the lookups of a process that makes its own batches.
    - `model`: the weights. `kept`: what else stays on the device from step to step, including the optimizer's
      state. `step`: the peak of one step on top of all these, including its gradients.
    - `heap`: what the host's allocator keeps on top of that, of blocks that were freed.
    - `ranks`: processes; all but `shared` is one rank's. `on_host`: the model and the steps are on the CPU.
    - `host_limit`, `shared_limit`, `device_limit`: the available memory; `None` where the system does not report it.
    """

    batch: int
    graph: int
    model: int
    kept: int
    step: int
    heap: int
    shared: int
    ranks: int
    on_host: bool
    process: int = PROCESS_BYTES
    host_limit: int | None = None
    shared_limit: int | None = None
    device_limit: int | None = None

    @property
    def _training(self) -> int:
        return self.model + self.kept + self.step

    @property
    def host(self) -> int:
        """The resident set of a training process, bytes; a batch from a worker is among it while it is read."""
        own = self.process + self.graph + self.batch + self.heap
        return own + (self._training if self.on_host else 0)

    @property
    def device(self) -> int | None:
        """What a CUDA device holds, bytes; `None` on the CPU."""
        return None if self.on_host else self._training + self.batch

    @property
    def _needs(self) -> list[tuple[str, int, int | None]]:
        """What the point needs in all: its name, bytes, and how many are available."""
        found = [
            ("shared memory", self.shared, self.shared_limit),
            ("host memory", self.host * self.ranks + self.shared, self.host_limit),
        ]
        return found if self.device is None else [*found, ("device memory", self.device, self.device_limit)]

    @property
    def refusal(self) -> str | None:
        """Why the point cannot run, with both numbers; `None` where it can."""
        for what, needed, limit in self._needs:
            if limit is not None and needed > limit:
                return f"needs {bytes_text(needed)} of {what}, and there are {bytes_text(limit)}"
        return None

    def _display(self) -> Display:
        lines = [
            (name, bytes_text(number), "" if limit is None else bytes_text(limit))
            for name, number, limit in [("a batch", self.batch, None), *self._needs]
        ]
        parts = [f"{name} {bytes_text(getattr(self, name))}" for name in _PARTS if getattr(self, name)]
        outcome = "fits" if self.refusal is None else f"does not fit: {self.refusal}"
        notes = [f"a process holds {', '.join(parts)}", _NOT_COUNTED, outcome]
        return Display(columns=("memory", "needed", "available"), lines=lines, notes=notes)


def fits(point: Point, *, memory_bytes: int | None = None) -> Fits:
    """Estimate the memory of a point, without running it.

    The batch is that of the point's own first samples: of 8 or fewer to the byte, of more extrapolated from them.
    What a step holds is counted on tensors that have shapes and no values: on a CPU that is what torch's allocator
    hands out. `benchmarks/memory.py` compares it with the resident set of processes that ran.

    Not counted: what `compile` changes, DDP's buckets (the size of the gradients) and a compression's state, the rows
    that ranks gather for a loss, NCCL's buffers, Lightning's objects, worker processes except for the batches that they
    hold ready, the host memory that CUDA uses, the masks that mode `empty` makes.

    **Arguments:**

    - `point`: not run, and not changed.
    - `memory_bytes`: limit of the training process; the memory that is free now unless given.
    """
    require("point", point, Point, "a tclab.Point")
    point = resolve(point)
    whole = cell_graph_of(point)  # and with it the lookups that this process has made
    graph = whole.with_relations({name: copy(network) for name, network in whole.relations.items()})
    kind = strategy_of(point.strategy)
    loading = kind(graph, collation=point.collation)
    samples = samples_of(point, point.batch_size, graph)
    own = _bytes_in(graph)
    batch = meta_batch(loading, samples, micro_batch=point.micro_batch)
    if not point.workers or loading.stores:  # workers look up what they encode in copies of their own
        own = _bytes_in(graph)
    held = MemoryEstimate(0, 0, 0, 0)
    if point.mode not in WITHOUT_MODEL:
        # an eager step of one process: see what is not counted
        step = step_of(replace(point, device="cpu", ranks=1, compile=False), kind(graph, collation=point.collation))
        own += _bytes_in(step.loss)
        held = estimate_memory(step, batch, device=point.device)
    on_host = point.device == "cpu"
    share = HEAP_SHARE if on_host and point.allocator != "map_each" else 0.0
    in_flight = point.ranks * point.workers * point.prefetch_factor
    return Fits(
        batch=batch.bytes,
        graph=own,
        model=held.model,
        kept=held.kept,
        step=held.peak,
        heap=int(share * held.in_heap),
        shared=0 if batch.bytes <= INLINE_BYTES else in_flight * batch.bytes,
        ranks=point.ranks,
        on_host=on_host,
        host_limit=memory_available_bytes() if memory_bytes is None else memory_bytes,
        shared_limit=shared_memory_free(),
        device_limit=None if on_host else gpu_free_bytes(),
    )


def _bytes_in(value: Any) -> int:
    """Return the bytes of the tensors that something holds, at any depth."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, (CellGraph, Network)) or type(value).__module__.startswith("tclab.models"):
        value = getattr(value, "__dict__", None)
    if isinstance(value, Mapping):
        value = list(value.values())
    return sum(map(_bytes_in, value)) if isinstance(value, (list, tuple)) else 0
