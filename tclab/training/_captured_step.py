"""Captured steps: what a step runs on the device, recorded as CUDA graphs, one a stage, and replayed for each batch.

A replay costs the host a launch a stage, where Python launches some 1,200 kernels. A graph reads and writes the memory
that it was recorded with, so each batch is copied into a static one; and it has the shapes, numbers and branches that
Python had meanwhile. So a batch of another layout gets graphs of its own, and where `facts` change all are recorded
anew. Graphs share one pool of memory: no two run at once, and none reads what another one left there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from tclab._limits import out_of_memory
from tclab.errors import InputError
from tclab.masking import Batch, Strategy
from tclab.message_passing.kernels._tile_sums import MADE
from tclab.models._losses import Stage

EAGER = 2  # batches of each layout that run eagerly, as steps like any other: they make what is made once
EAGER_IN_A_ROW = 128  # at most; of 28 samples that delete one to three nodes each there are 57 layouts


@contextmanager
def _cuda_graph(pool: Any) -> Iterator[Any]:
    graph = torch.cuda.CUDAGraph()
    # other threads may call CUDA meanwhile: the loader's pins batches
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        yield graph


# type of device → records, in a pool of memory, what is run inside, and gives what has `replay` and `pool`
GRAPHS: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {"cuda": _cuda_graph}

# argument of `Step` or field of a point → with which values a step can be captured, the usual one first
_CAPTURED_WITH: dict[str, tuple[Any, ...]] = {
    "mode": ("step", "model", "fixed_batch"),
    "compile": (False,),  # what Inductor makes was never replayed in a test
    "accumulate": (1,),
    "metabolism": ("off",),  # deletions remove ever other numbers of reactions
    "ranks": (1,),
    "micro_batch": (None,),
    "loop": ("plain",),
    "overheads": ((),),
}


def refusals(strategy: type[Strategy], device: str, chosen: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a step cannot be captured, given its arguments or the fields of its point."""
    if device not in GRAPHS:
        yield _device_refused(device)
    if not strategy.static_shapes:
        yield f"the shapes of {strategy.name} depend on which nodes are deleted, so no captured step serves two batches"
    for name, values in _CAPTURED_WITH.items():
        if chosen.get(name, values[0]) not in values:
            yield f"{name} is {chosen[name]!r}; a captured step has {' or '.join(map(repr, values))}"


def _device_refused(device: str) -> str:
    return f"a step is captured on {' or '.join(GRAPHS)}, not on {device}"


# of a layout: the static batch that its graphs read; each stage's name and graph, in order; the loss that they write,
# []; what else they read and a cache may let go of
_Recorded = tuple[Batch, list[tuple[str, Any]], Tensor, object]


class Captured:
    """Runs a step on batches: the first two of each layout eagerly, all others by graphs recorded of the third.

    >>> step = Captured(run)  # run(batch, stage) trains on a batch: all that it runs on the device, inside stages
    >>> for batch in loader:
    ...     loss = step(batch.to("cuda"), stage=ledger.stage)

    The optimizer must be made with `capturable=True`. What changes with every batch, as a learning rate may, must be a
    tensor that is written in place. In a replay no Python runs: no hook is called, nothing is printed.

    **Arguments:**

    - `run`: batch on the device, stage → loss, []. Each kernel that it launches lies inside a `with stage(name)`, no
      stage inside another; it waits for nothing.
    - `facts`: returns what else of the host the step depends on, such as a learning rate or an epoch.

    **Raises:** `InputError` for a batch on the CPU, for layouts or facts that change too often, and for a stage that
    cannot be captured.
    """

    def __init__(self, run: Callable[[Batch, Stage], Tensor], facts: Callable[[], Any] = lambda: None) -> None:
        self._run = run
        self._facts = facts
        self._of_facts: Any = None
        self._eager_in_a_row = 0
        self.forget()

    def forget(self) -> None:
        """Let go of all graphs, after a tensor that they read or write was replaced by another."""
        self._pool = None
        self._eager: dict[Hashable, int] = {}  # layout → batches that ran eagerly
        self._recorded: dict[Hashable, _Recorded] = {}

    def __call__(self, batch: Batch, *, stage: Stage = nullcontext) -> Tensor:
        """Run the step on a batch and return the loss, []; copying a batch is part of the stage `transfer`."""
        if (device := batch.target.device.type) not in GRAPHS:
            raise InputError(_device_refused(device))
        if (facts := self._facts()) != self._of_facts:
            self._of_facts = facts
            self.forget()
        layout = _layout(batch)
        is_eager = self._eager.get(layout, 0) < EAGER
        self._eager_in_a_row = self._eager_in_a_row + 1 if is_eager else 0
        if self._eager_in_a_row > EAGER_IN_A_ROW:
            raise InputError(
                f"no graph served {EAGER_IN_A_ROW} batches in a row, so often did layouts or facts change; expected as "
                "many samples that delete as many nodes, and a tensor for a number that changes with every batch, such "
                f"as an optimizer's `lr`; this batch has {layout}"
            )
        if is_eager:
            self._eager[layout] = self._eager.get(layout, 0) + 1
            return self._run(batch, stage)
        if layout not in self._recorded:
            self._recorded[layout] = self._record(batch)
        recorded, stages, loss, _ = self._recorded[layout]
        with stage("transfer"):
            for static, given in zip(_held(recorded), _held(batch), strict=True):
                static.copy_(given, non_blocking=True)
        for name, graph in stages:
            with stage(name):
                graph.replay()
        return loss.clone()

    def _record(self, batch: Batch) -> _Recorded:
        static, stages = batch.moved(torch.clone), []

        @contextmanager
        def recording(name: str) -> Iterator[None]:
            try:
                with GRAPHS[batch.target.device.type](self._pool) as graph:
                    yield
            except RuntimeError as error:
                if out_of_memory(error):
                    raise
                raise InputError(
                    f"the stage {name} cannot be captured: {error}; expected no wait for the device, such as `item()`, "
                    "`print` or a GradScaler's, no stage inside another, and an optimizer with capturable=True"
                ) from error
            self._pool = graph.pool()
            stages.append((name, graph))

        return static, stages, self._run(static, recording), dict(MADE)


def _layout(batch: Batch) -> Hashable:
    tensors = tuple((name, tuple(x.shape), x.dtype, x.stride()) for name, x in batch.tensors.items())
    return tensors, tuple(batch.most.items()), str(batch.host_values)


def _held(batch: Batch) -> list[Tensor]:
    """Return the tensors that hold a batch's numbers."""
    return [*batch.tensors.values()] if batch.buffer is None else [batch.buffer]
