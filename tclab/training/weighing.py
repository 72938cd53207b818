"""What a training step holds in memory, found without running it: from tensors that have shapes and no values.

The step itself is run, twice, on torch's fake tensors, and every tensor is counted from its birth to its end. Where
a step of the optimizer takes several batches, two stand for all. So whatever a model, a loss, a strategy's view and
autograd keep is in it, checkpoints and slices too. What an operation takes while it runs, and gives back, is no
tensor: the sums over neighbours say what they take.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tclab.graph import CellGraph, Network
from tclab.graph.network import Rows
from tclab.masking import Batch, Strategy
from tclab.message_passing.delta_layer import delta_workspace_bytes
from tclab.message_passing.sums import workspace_bytes
from tclab.perturbation import Deletions
from tclab.training.step import Step


@dataclass(frozen=True)
class Weighed:
    """What a step holds, in bytes.

    **Arguments:**

    - `model`: weights. `kept`: what stays from step to step beside them: the sparse or replicated edges that a
      strategy keeps, the optimizer's state. `peak`: the most that a step holds beside these two and its batch.
    """

    model: int
    kept: int
    peak: int


class _Held(TorchDispatchMode):
    """Counts the bytes of every tensor that is made inside, from its birth to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {id(leaf.untyped_storage()) for leaf in tree_leaves(args) if isinstance(leaf, Tensor)}
        found = op(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in inputs:
                self.count(leaf)
        self.most = max(self.most, self.now + _while_it_runs(op, args))
        return found

    def count(self, tensor: Tensor) -> None:
        """Count a tensor until nothing holds it."""
        storage = tensor.untyped_storage()
        if storage not in self._known:
            self._known.add(storage)
            self.now += storage.nbytes()
            weakref.finalize(storage, self._gone, storage.nbytes())

    def _gone(self, size: int) -> None:
        self.now -= size


def _while_it_runs(op: Any, args: Any) -> int:
    """Return how many bytes an operation takes on a CPU and gives back before it ends."""
    name = op.overloadpacket
    if name is torch.ops.tclab.shared_sums:
        x, _, matrices, gone, *_, size, group = args
        return workspace_bytes(x, size, group, sparse=matrices, copies=gone.numel() > 0)
    if name is torch.ops.tclab.shared_sums_backward:
        gradients, _, _, matrices, _, gone, size, group, _ = args
        given = next(gradient for gradient in gradients if gradient is not None)
        return workspace_bytes(given, size, group, sparse=matrices, copies=any(rows.numel() for rows in gone))
    if name is torch.ops.tclab.delta_sums:
        return delta_workspace_bytes(*args, backward=False)
    if name is torch.ops.tclab.delta_sums_backward:
        return delta_workspace_bytes(*args[1:], backward=True)
    if name is torch.ops.tclab.spread:
        parts, matrices = args
        return max(workspace_bytes(part, 1, 1, sparse=matrices, copies=False) for part in parts)
    if name is torch.ops.tclab.spread_backward:
        gradient, matrices = args
        return workspace_bytes(gradient, 1, 1, sparse=matrices, copies=False)
    return 0


# What CUDA's autocast runs in float32 whatever it is given, and a CPU's does not: "CUDA Ops that can autocast to
# float32" of torch's documentation. What no model is likely to call is left out.
_FLOAT32_ON_CUDA = frozenset(
    [
        "layer_norm",
        "group_norm",
        "softmax",
        "log_softmax",
        "softplus",
        "normalize",
        "sum",
        "prod",
        "cumsum",
        "norm",
        "exp",
        "expm1",
        "log",
        "log1p",
        "pow",
        "rsqrt",
        "reciprocal",
        "cosh",
        "sinh",
    ]
)


class _AutocastOfCuda(TorchFunctionMode):
    """Casts to float32 where CUDA's autocast does, so that a step weighed under the CPU's has CUDA's sizes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_autocast_enabled("cpu") and getattr(func, "__name__", None) in _FLOAT32_ON_CUDA:
            args, kwargs = tree_map_only(Tensor, _float32, (args, kwargs))
        return func(*args, **(kwargs or {}))


def _float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


class _Shapes(Network):
    """A network whose tensors have shapes and no values, those that are made of it too.

    `entries` is how many entries its sparse matrix has, where duplicate edges are added up.
    """

    entries: int

    @staticmethod
    def like(network: Network, entries: int) -> _Shapes:
        """Return what has the shapes of a network."""
        copy = _Shapes.__new__(_Shapes)
        copy.__dict__.update(network.__dict__, _made={}, entries=entries)
        for name in ("edge_index", "weight", "edge_type"):
            tensor = getattr(network, name)
            copy.__dict__[name] = None if tensor is None else torch.empty(tensor.shape, dtype=tensor.dtype)
        return copy

    def to(self, device: torch.device | str) -> Network:
        """Return itself: shapes are everywhere."""
        return self

    def csr_parts(self, *, dtype: torch.dtype, transpose: bool = False) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return the shapes of the parts of a sparse matrix."""
        rows, columns = (self.num_sources, self.num_targets) if transpose else (self.num_targets, self.num_sources)

        def made() -> tuple[Tensor, Tensor, Tensor, int]:
            crow = torch.empty(rows + 1, dtype=torch.int32)
            return (
                crow,
                torch.empty(self.entries, dtype=torch.int32),
                torch.empty(self.entries, dtype=dtype),
                columns,
            )

        return self._once(("csr", dtype, transpose), made)

    def dense(self, *, dtype: torch.dtype) -> Tensor:
        """Return the shape of the dense matrix."""
        shape = (self.num_targets, self.num_sources)
        return self._once(("dense", dtype), lambda: torch.empty(shape, dtype=dtype))

    def degree(self, *, transpose: bool = False) -> Tensor:
        """Return the shape of the degrees."""
        number = self.num_sources if transpose else self.num_targets
        return self._once(("degree", transpose), lambda: torch.empty(number))

    def incidence(self, node_type: str) -> Rows:
        """Return the shape of the incidence; loops, of which there are few, count twice."""
        number = self.num_sources if node_type == self.source else self.num_targets
        items = self.num_edges * (2 if self.source == self.target else 1)

        def made() -> Rows:
            return Rows(torch.empty(number + 1, dtype=torch.int64), torch.empty(items, dtype=torch.int64))

        return self._once(("incidence", node_type), made)


class _Outlining:
    """A strategy whose views are outlines."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self.view = strategy.outlined_view

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)


def _entries(network: Network) -> int:
    source, target = network.edge_index
    again = (source[1:] == source[:-1]) & (target[1:] == target[:-1])  # edges are sorted
    return network.num_edges - int(again.sum())


def outlined(
    strategy: Strategy, indices: Sequence[int], deletions: Deletions, *, micro_batch: int | None = None
) -> Batch:
    """Return the shapes of a batch of some samples, in the slices that it would come in.

    **Arguments:**

    - `strategy`: its half that loads.
    - `indices`: the samples' places in their dataset. `deletions`: what they delete.
    """
    most = micro_batch or len(indices)
    parts = []
    for first in range(0, len(indices), most):
        own = range(first, min(first + most, len(indices)))
        lost = strategy.lost_by(deletions.take(own))
        parts.append(strategy.outline([indices[place] for place in own], lost))
    return parts[0] if len(parts) == 1 else Batch.sliced(parts)


@contextmanager
def _weighing(step: Step) -> Iterator[_Held]:
    """Put shapes in place of a step's graph, and count what is made until the end."""
    loading = step.strategy
    entries = {name: _entries(network) for name, network in loading.graph.relations.items()}
    with FakeTensorMode(allow_non_fake_inputs=True):
        relations = {
            name: _Shapes.like(network, entries[name]) for name, network in loading.graph.relations.items()
        }
        graph = CellGraph(loading.graph.num_nodes, relations, loading.graph.deleted_type)
        step.strategy = _Outlining(loading.on(graph))  # type: ignore[assignment]
        with _Held() as held:
            yield held


def weigh(step: Step, batch: Batch, *, device: str = "cpu") -> Weighed:
    """Return what a step on such a batch holds; the step cannot be used afterwards.

    **Arguments:**

    - `step`: on the CPU.
    - `batch`: shapes, as `outlined` gives them.
    - `device`: whose autocast decides what is kept in bfloat16, "cpu" or "cuda".
    """
    model = sum(tensor.nbytes for tensor in (*step.model.parameters(), *step.model.buffers()))
    step.accumulate = min(step.accumulate, 2)  # the second of several batches holds what every later one does
    with _weighing(step) as held, _AutocastOfCuda() if device == "cuda" else nullcontext():
        given = Batch.sliced([_on_cpu(part) for part in batch.slices]) if batch.slices else _on_cpu(batch)
        begin = held.now
        _update_of(step, given)
        kept = held.now - begin
        held.most = held.now
        _update_of(step, given)
        peak = held.most - held.now
    return Weighed(model, kept, peak)


def _update_of(step: Step, batch: Batch) -> None:
    """Run a step of the optimizer, with all the batches whose gradients it adds up."""
    for _ in range(step.accumulate):
        step(batch)


def _on_cpu(batch: Batch) -> Batch:
    tensors = {name: torch.empty(t.shape, dtype=t.dtype) for name, t in batch.tensors.items()}
    return Batch(tensors, batch.size, batch.known)
