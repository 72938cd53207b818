"""Memory estimate of a training step from tensors without data.

A batch's shapes are extrapolated in the number of samples from two small batches that are packed for real. Then the
step runs twice on torch's fake tensors, which have shapes only, and a dispatch mode counts every tensor from its
allocation until it is freed. So the estimate covers whatever the model, the loss, the strategy's view and autograd
keep, with slices; where the optimizer's step takes several batches, two of them stand for all. The
workspace that an operation allocates and frees while it runs is no tensor, and not counted: a neighbour sum's lies far
below the peak, which is in the backward.

`torch.distributed._tools.mem_tracker.MemTracker` tracks tensors in a similar way, but it is private.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tclab.errors import InputError
from tclab.graph._cell_graph import CellGraph
from tclab.masking import Batch, Strategy
from tclab.message_passing.kernels._row_ops import in_float32
from tclab.perturbation import Perturbations
from tclab.training._step import Step

_STEP = 4  # samples by which the larger of the two packed batches is larger
# glibc maps larger blocks one by one, and unmaps them when they are freed: M_MMAP_THRESHOLD's largest value by itself,
# mallopt(3). Smaller ones leave holes in its heap.
_HEAP_BLOCK = 32 * 1024**2


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory of a training step, in bytes."""

    model: int  # parameters and buffers
    kept: int  # what else stays from step to step: edges that a strategy keeps, the optimizer's state
    peak: int  # the most that a step holds in addition to `model`, `kept` and its batch
    in_heap: int  # the most that tensors of less than 32 MiB hold at once, of `kept` and `peak`


def meta_batch(strategy: Strategy, samples: Perturbations, *, micro_batch: int | None = None) -> Batch:
    """Return the batch of some samples on the meta device, in slices as the loader makes them.

    What is small is packed, and has the sizes of the real batch. Of more than 8 samples, or of more than two slices,
    sizes are extrapolated: they are exact where each sample adds the same, and else as the first samples have them.
    """
    size = micro_batch or len(samples)
    whole, rest = divmod(len(samples), size)
    parts = []
    if whole:
        parts = [_extrapolated(strategy, samples.read(range(size)))] * whole
    if rest:
        parts.append(_extrapolated(strategy, samples.read(range(whole * size, len(samples)))))
    return parts[0] if len(parts) == 1 else Batch.sliced(parts)


def _extrapolated(strategy: Strategy, samples: Perturbations) -> Batch:
    """Return the batch of some samples on the meta device.

    The larger batch lacks a multiple of `_STEP` samples, so that sizes are whole numbers, and one that is the sum of
    others stays their sum.
    """
    size = len(samples)
    if size > 2 * _STEP:
        fewer = size % _STEP + _STEP
        more = strategy.batch(samples.read(range(fewer + _STEP))).to("meta")
        for first in range(_STEP + 1):  # `delta` goes as deep as the worst sample: both batches must have that one
            few = strategy.batch(samples.read(range(first, first + fewer))).to("meta")
            if few.tensors.keys() == more.tensors.keys():
                return _line(few, more, (size - more.size) // _STEP)
    return strategy.batch(samples).to("meta")


def _line(few: Batch, more: Batch, steps: int) -> Batch:
    """Return the batch as much larger than `more`, `steps` times over, as that is larger than `few`."""

    def extended(fewer: int, larger: int) -> int:
        return larger + steps * (larger - fewer)

    tensors = {}
    for name, tensor in more.tensors.items():
        shape = [max(0, extended(*sides)) for sides in zip(few.tensors[name].shape, tensor.shape, strict=True)]
        tensors[name] = tensor.new_empty(shape)
    values = {k: extended(few.host_values[k], v) if isinstance(v, int) else v for k, v in more.host_values.items()}
    return Batch(tensors, more.most, extended(few.size, more.size), values)


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of every tensor that is allocated inside, until it is freed.

    Where the size of a result depends on values, it is the largest that it can be: a filter keeps all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.in_heap = 0
        self._heap = 0
        self._counted: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {id(leaf.untyped_storage()) for leaf in tree_leaves(args) if isinstance(leaf, Tensor)}
        result = _LARGEST.get(op, op)(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in inputs:
                self.count(leaf)
        self.peak, self.in_heap = max(self.peak, self.now), max(self.in_heap, self._heap)
        return result

    def count(self, tensor: Tensor) -> None:
        """Count a tensor's storage until it is freed."""
        storage = tensor.untyped_storage()
        if storage not in self._counted:
            self._counted.add(storage)
            self._add(storage.nbytes())
            weakref.finalize(storage, self._add, -storage.nbytes())

    def _add(self, size: int) -> None:
        self.now += size
        if abs(size) < _HEAP_BLOCK:
            self._heap += size


def _index(x: Tensor, indices: list[Tensor | None]) -> Tensor:
    every = [i.to(torch.int64) if i is not None and i.dtype == torch.bool and i.dim() == 1 else i for i in indices]
    return torch.ops.aten.index.Tensor(x, every)  # a mask is taken for as many indices as it has places


def _unique(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.numel()), torch.empty_like(x, dtype=torch.int64), x.new_empty(x.numel(), dtype=torch.int64)


# Operations whose result's size depends on values, or which read one → what has its largest size instead
_aten = torch.ops.aten
_LARGEST: dict[Any, Callable[..., Any]] = {
    _aten._local_scalar_dense.default: lambda x: 0.0 if x.is_floating_point() else 0,
    _aten._unique2.default: _unique,
    _aten.bincount.default: lambda x, weights=None, minlength=0: x.new_empty(minlength),
    _aten.index.Tensor: _index,
    _aten.nonzero.default: lambda x: x.new_empty((x.numel(), x.dim()), dtype=torch.int64),
    # a CSR matrix is made to be written out as a dense one, which this stands for
    _aten.sparse_compressed_tensor.comp_plain_value_size: lambda crow, col, values, size, **_: values.new_empty(size),
}

# Operations that CUDA's autocast runs in float32 and the CPU's does not: "CUDA Ops that can autocast to float32" in
# torch's documentation, less those that no model is likely to call.
_FLOAT32_ON_CUDA = frozenset([
    "layer_norm", "group_norm", "softmax", "log_softmax", "softplus", "normalize", "sum", "prod", "cumsum", "norm",
    "exp", "expm1", "log", "log1p", "pow", "rsqrt", "reciprocal", "cosh", "sinh",
])  # fmt: skip


class _CudaAutocast(TorchFunctionMode):
    """Casts to float32 where CUDA's autocast does, so that a step under the CPU's autocast has CUDA's sizes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_autocast_enabled("cpu") and getattr(func, "__name__", None) in _FLOAT32_ON_CUDA:
            args, kwargs = tree_map_only(Tensor, in_float32, (args, kwargs))
        return func(*args, **(kwargs or {}))


def _without_data(graph: CellGraph, mode: FakeTensorMode) -> CellGraph:
    """Return a graph whose networks have the edges' shapes, and none of the lookups that were made of them."""
    relations = {name: copy(network) for name, network in graph.relations.items()}
    for network in relations.values():
        vars(network).update({k: mode.from_tensor(t) for k, t in vars(network).items() if isinstance(t, Tensor)})
    return graph.with_relations(relations)


def estimate_memory(step: Step, batch: Batch, *, device: str = "cpu") -> MemoryEstimate:
    """Estimate the memory of a step on a batch of given shapes; the step cannot be used afterwards.

    A compiled step is estimated as an eager one, and DDP's buckets are not covered.

    **Arguments:**

    - `step`: a step on the CPU that has not run.
    - `batch`: a batch without data, from `meta_batch`.
    - `device`: "cpu" or "cuda", whose autocast decides which activations are bfloat16.

    **Raises:** `InputError` for a model the sizes of whose tensors depend on values.
    """
    model = sum(tensor.nbytes for tensor in (*step.model.parameters(), *step.model.buffers()))
    step.accumulate = min(step.accumulate, 2)  # later batches hold no more than the second
    autocast = _CudaAutocast() if device == "cuda" else nullcontext()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, _LiveBytes() as live, autocast:
        step.strategy.graph = _without_data(step.strategy.graph, mode)
        fake = batch.moved(lambda tensor: torch.empty_like(tensor, device="cpu"))
        before = live.now
        try:
            _optimizer_step(step, fake)
            kept = live.now - before
            live.peak = live.now
            _optimizer_step(step, fake)
        except (DynamicOutputShapeException, DataDependentOutputException, InputError) as error:
            # a model that reads a size from a tensor, as PyG's pooling does, meets a wrong one
            why = f"the sizes of its tensors depend on values ({error})"
            raise InputError(f"the memory of {step.kind.name} cannot be estimated: {why}") from None
        peak = live.peak - live.now
    return MemoryEstimate(model, kept, peak, live.in_heap)


def _optimizer_step(step: Step, batch: Batch) -> None:
    for _ in range(step.accumulate):
        step(batch)
