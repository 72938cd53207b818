"""Memory estimate of a training step from tensors without data.

The step runs twice on torch's fake tensors, which have shapes only, and a dispatch mode counts every tensor from its
allocation until it is freed. So the estimate covers whatever the model, the loss, the strategy's view and autograd
keep, with checkpointing and slices; where the optimizer's step takes several batches, two of them stand for all. The
workspace that an operation allocates and frees while it runs is no tensor: the neighbour sums report theirs.

`torch.distributed._tools.mem_tracker.MemTracker` tracks tensors in a similar way, but it is private and does not count
the workspace of operations.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tclab.errors import InputError
from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.graph._network import Rows
from tclab.masking import Batch, Strategy
from tclab.perturbation import Deletions
from tclab.training._step import Step


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory of a training step, in bytes."""

    model: int  # parameters and buffers
    kept: int  # what else stays from step to step: edges that a strategy keeps, the optimizer's state
    peak: int  # the most that a step holds in addition to `model`, `kept` and its batch


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of every tensor that is allocated inside, until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._counted: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {id(leaf.untyped_storage()) for leaf in tree_leaves(args) if isinstance(leaf, Tensor)}
        result = op(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in inputs:
                self.count(leaf)
        self.peak = max(self.peak, self.now + _workspace_bytes(op, args))
        return result

    def count(self, tensor: Tensor) -> None:
        """Count a tensor's storage until it is freed."""
        storage = tensor.untyped_storage()
        if storage not in self._counted:
            self._counted.add(storage)
            self.now += storage.nbytes()
            weakref.finalize(storage, self._freed, storage.nbytes())

    def _freed(self, size: int) -> None:
        self.now -= size


def _workspace_bytes(op: Any, args: Any) -> int:
    """Return how many bytes an operation allocates and frees while it runs: one sample's sums over one relation."""
    if op not in (torch.ops.tclab.spmm.default, torch.ops.tclab.spmm_sum.default):
        return 0
    x = args[0] if isinstance(args[0], Tensor) else args[0][0]
    if x.device.type not in ("cpu", "meta"):
        return 0
    rows = max(crow.numel() - 1 for crow in args[1][::3])
    return rows * x.size(-1) * x.element_size()


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
            args, kwargs = tree_map_only(Tensor, _float32, (args, kwargs))
        return func(*args, **(kwargs or {}))


def _float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


class _MetaNetwork(Network):
    """A network whose tensors, and all that are made from them, have shapes and no data."""

    entries: int  # of its sparse matrix, in which duplicate edges are summed

    @staticmethod
    def like(network: Network, entries: int) -> _MetaNetwork:
        """Return a network with the shapes of another."""
        copy = _MetaNetwork.__new__(_MetaNetwork)
        copy.__dict__.update(network.__dict__, _cache={}, entries=entries)
        for name in ("edge_index", "weight", "edge_type"):
            tensor = getattr(network, name)
            copy.__dict__[name] = None if tensor is None else torch.empty(tensor.shape, dtype=tensor.dtype)
        return copy

    def to(self, device: torch.device | str) -> Network:
        """Return itself, since there is no data to move."""
        return self

    def csr_parts(self, *, dtype: torch.dtype, transpose: bool = False) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return crow [rows + 1], col [entries] and values [entries] without data, and the number of columns."""
        rows, columns = (self.num_sources, self.num_targets) if transpose else (self.num_targets, self.num_sources)

        def build() -> tuple[Tensor, Tensor, Tensor, int]:
            crow, col = (torch.empty(number, dtype=torch.int32) for number in (rows + 1, self.entries))
            return crow, col, torch.empty(self.entries, dtype=dtype), columns

        return self._cached(("csr", dtype, transpose), build)

    def dense(self, *, dtype: torch.dtype) -> Tensor:
        """Return the dense matrix, [targets, sources], without data."""
        shape = (self.num_targets, self.num_sources)
        return self._cached(("dense", dtype), lambda: torch.empty(shape, dtype=dtype))

    def degree(self, *, transpose: bool = False) -> Tensor:
        """Return the degrees, [targets] or [sources], without data."""
        number = self.num_sources if transpose else self.num_targets
        return self._cached(("degree", transpose), lambda: torch.empty(number))

    def incidence(self, node_type: str) -> Rows:
        """Return the incidence without data; self-loops, of which there are few, count twice."""
        number = self.num_sources if node_type == self.source else self.num_targets
        items = self.num_edges * (2 if self.source == self.target else 1)

        def build() -> Rows:
            return Rows(torch.empty(number + 1, dtype=torch.int64), torch.empty(items, dtype=torch.int64))

        return self._cached(("incidence", node_type), build)


class _MetaStrategy:
    """A strategy whose `view` is its `meta_view`."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self.view = strategy.meta_view

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)


def _entries(network: Network) -> int:
    """Return the number of distinct edges."""
    source, target = network.edge_index
    duplicate = (source[1:] == source[:-1]) & (target[1:] == target[:-1])  # edges are sorted
    return network.num_edges - int(duplicate.sum())


def meta_batch(
    strategy: Strategy, indices: Sequence[int], deletions: Deletions, *, micro_batch: int | None = None
) -> Batch:
    """Return a batch of some samples, at their places in a dataset, on the meta device, in slices as the loader's."""
    slice_size = micro_batch or len(indices)
    parts = []
    for first in range(0, len(indices), slice_size):
        rows = range(first, min(first + slice_size, len(indices)))
        removed = strategy.removed_by(deletions.take(rows))
        parts.append(strategy.meta_batch([indices[row] for row in rows], removed))
    return parts[0] if len(parts) == 1 else Batch.sliced(parts)


@contextmanager
def _on_meta_graph(step: Step) -> Iterator[_LiveBytes]:
    """Replace a step's graph by one without data, and count the tensors that are allocated inside."""
    strategy = step.strategy
    entries = {name: _entries(network) for name, network in strategy.graph.relations.items()}
    with FakeTensorMode(allow_non_fake_inputs=True):
        relations = {name: _MetaNetwork.like(strategy.graph.relations[name], entries[name]) for name in entries}
        graph = CellGraph(strategy.graph.num_nodes, relations, strategy.graph.deleted_type)
        step.strategy = _MetaStrategy(strategy.on(graph))  # type: ignore[assignment]
        with _LiveBytes() as live:
            yield live


def estimate_memory(step: Step, batch: Batch, *, device: str = "cpu") -> MemoryEstimate:
    """Estimate the memory of a step on a batch of given shapes; the step cannot be used afterwards.

    A compiled step is estimated as an eager one, and DDP's buckets are not covered.

    **Arguments:**

    - `step`: a step on the CPU.
    - `batch`: a batch without data, from `meta_batch`.
    - `device`: "cpu" or "cuda", whose autocast decides which activations are bfloat16.

    **Raises:** `InputError` for a model the sizes of whose tensors depend on values.
    """
    model = sum(tensor.nbytes for tensor in (*step.model.parameters(), *step.model.buffers()))
    step.accumulate = min(step.accumulate, 2)  # later batches hold no more than the second
    with _on_meta_graph(step) as live, _CudaAutocast() if device == "cuda" else nullcontext():
        fake = batch.moved(lambda tensor: torch.empty_like(tensor, device="cpu"))
        before = live.now
        try:
            _optimizer_step(step, fake)
            kept = live.now - before
            live.peak = live.now
            _optimizer_step(step, fake)
        except (DynamicOutputShapeException, DataDependentOutputException) as error:
            raise InputError(
                f"the memory of {step.kind.name} cannot be estimated: the sizes of its tensors depend on values "
                f"({error})"
            ) from None
        peak = live.peak - live.now
    return MemoryEstimate(model, kept, peak)


def _optimizer_step(step: Step, batch: Batch) -> None:
    for _ in range(step.accumulate):
        step(batch)
