"""The base class of all strategies, from samples to a batch and from the batch to a view; their registry; `view`."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from tclab.errors import InputError, check_known, check_whole, require, unknown
from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch, Packed
from tclab.message_passing import View
from tclab.perturbation import Deletions, Perturbations
from tclab.perturbation._deletions import removed_by

DeletedNodes = Iterable[Sequence[int] | Tensor]  # for each sample the ids of the nodes that it deletes


class Strategy(ABC):
    """One way of masking, from a sample to a view.

    `encode` and `collate` make a batch where data are loaded, usually in a worker process. `view` runs inside the step,
    on the device; there a second object of the class makes the views. A user's strategy overrides what differs and
    calls `tclab.masking.register`.

    **Arguments:**

    - `graph`: on the CPU for the object that loads, on the device for the one that makes views.
    - `collation`: one of the strategy's `collations`.

    **Raises:** `InputError` for a collation that the strategy does not know, and for a graph of no nodes.
    """

    name: ClassVar[str]
    exact: ClassVar[bool] = True  # computes the same function as `subgraph`
    # batches of as many samples that delete as many nodes have views of the same shapes, made without waiting for the
    # device: a step can be captured
    static_shapes: ClassVar[bool] = False
    masks_graph: ClassVar[bool] = True  # makes a node-deleted copy, so that a model may read one
    stores: ClassVar[bool] = False  # needs `prepare` before the first sample
    # "lean": all tensors in one, each written once; "pyg": by PyG; "edges": lean, with all edges
    collations: ClassVar[tuple[str, ...]] = ("lean",)

    def __init__(self, graph: CellGraph, *, collation: str = "lean") -> None:
        if not graph.num_nodes[graph.deleted_type]:
            raise InputError(f"the graph has no {graph.deleted_type} nodes, expected one or more to delete and to pool")
        check_known(f"collation of {self.name}", self.collations, collation)
        self.graph = graph
        self.collation = collation

    def prepare(self, perturbations: Perturbations, path: Path) -> None:  # noqa: B027 (most strategies keep nothing)
        """Write into a file what `encode` will read, where the strategy keeps anything on disk; see `build_store`."""

    def close(self) -> None:  # noqa: B027
        """Close what `prepare` opened."""

    def removed_by(self, deletions: Deletions) -> dict[str, Deletions]:
        """Return what some samples remove: the nodes they delete and their dependants, by node type."""
        return removed_by(self.graph, deletions)

    def encode(self, indices: Sequence[int], removed: dict[str, Deletions]) -> Any:
        """Return what the worker makes of some samples; `None` unless overridden.

        **Arguments:**

        - `indices`: the samples' positions in their dataset.
        - `removed`: node type → what each sample removes, on the CPU.
        """
        return None

    def collate(self, removed: dict[str, Deletions], scores: Tensor, encoded: Any) -> Batch:
        """Return the batch of some samples: what they remove, their scores, and what `pack` adds.

        **Arguments:**

        - `removed`: node type → what each sample removes, on the CPU.
        - `scores`: [B] float32
        - `encoded`: what `encode` made of them.
        """
        packed = self.pack(removed, encoded)
        require(f"what `pack` of strategy {self.name!r} returns", packed, tuple, "two dicts: tensors, facts")
        tensors, host_values = packed
        return Batch.packed({"target": scores, **tensors}, removed, len(scores), host_values)

    def pack(self, removed: dict[str, Deletions], encoded: Any) -> Packed:
        """Return the tensors and facts that this strategy sends along; none unless overridden.

        Give a large tensor as a `Piece`, which is written only once, straight into the batch's buffer.

        **Arguments:**

        - `removed`: node type → what each sample removes, on the CPU.
        - `encoded`: what `encode` made of them.

        **Returns:** tensors by name, which `view` finds in `batch.tensors`, and facts of the host by name, which it
        finds in `batch.host_values`.
        """
        return {}, {}

    def batch(
        self, perturbations: Perturbations, indices: Sequence[int] | None = None, *,
        ends: Callable[[str], object] = lambda stage: None
    ) -> Batch:  # fmt: skip
        """Return one batch of all given samples: call `removed_by`, `encode` and `collate`.

        **Arguments:**

        - `perturbations`: the samples.
        - `indices`: their positions in the dataset that `prepare` was given. Unless given, these samples are the whole
          dataset, and `prepare` writes into a temporary folder.
        - `ends`: called at the end of each stage of making the batch: "sample", "mask", "collate".

        **Raises:** `InputError` for no sample at all.
        """
        if len(perturbations) == 0:
            raise InputError("deletions is empty, expected at least one sample ([[]] deletes nothing)")
        if indices is None and type(self).prepare is not Strategy.prepare:
            with tempfile.TemporaryDirectory() as folder:
                self.prepare(perturbations, Path(folder) / "store")
                with closing(self):
                    return self.batch(perturbations, range(len(perturbations)), ends=ends)
        removed = self.removed_by(perturbations.deletions)
        ends("sample")
        encoded = self.encode(range(len(perturbations)) if indices is None else indices, removed)
        ends("mask")
        batch = self.collate(removed, perturbations.scores, encoded)
        ends("collate")
        return batch

    @abstractmethod
    def view(self, batch: Batch) -> View:
        """Return the view of a batch whose tensors are on the graph's device.

        **Arguments:**

        - `batch`: of B samples. `batch.deletions[kind]` is a `Deletions` of each node type: `.nodes`, [M] int64, all
          removed nodes, sample after sample; `.ptr`, [B + 1] int64, where each sample begins. `batch.tensors` has what
          `pack` returned.
        """


S = TypeVar("S", bound=type[Strategy])
_STRATEGIES: dict[str, type[Strategy]] = {}

# strategies that copy every edge for every sample, as most training code does; the most common first
BASELINES = ("edge_mask", "stored_index", "stored_mask", "subgraph")


def register(strategy: S) -> S:
    """Register a strategy by its `name`; a decorator for a user's class.

    Registering the same class again, as a notebook cell that is run twice does, replaces it.

    **Raises:** `InputError` where it is no strategy, or another class has that name.
    """
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise InputError(f"{strategy!r} is not a subclass of tclab.masking.Strategy")
    name = getattr(strategy, "name", None)
    if not isinstance(name, str) or not name:
        raise InputError(f"{strategy.__name__} has no name; give the class one: name = 'my_strategy'")
    taken = _STRATEGIES.get(name, strategy)
    if (taken.__module__, taken.__qualname__) != (strategy.__module__, strategy.__qualname__):
        raise InputError(f"{name!r} is already a strategy: {taken.__module__}.{taken.__qualname__}")
    _STRATEGIES[name] = strategy
    return strategy


def names() -> list[str]:
    """Return the names of all strategies, a user's last."""
    return list(_STRATEGIES)


def get(name: str) -> type[Strategy]:
    """Return the strategy of a name.

    **Raises:** `InputError` with the nearest name where there is none.
    """
    if not isinstance(name, str):  # a point names its strategy: it crosses to another process as text
        raise InputError(f"strategy is {name!r}, expected a name; @tclab.masking.register makes that of a class known")
    if name not in _STRATEGIES:
        yours = "to use your own, import its file first (--import FILE)"
        raise InputError(f"{unknown('strategy', name, _STRATEGIES)}; {yours}")
    return _STRATEGIES[name]


def is_users(name: str) -> bool:
    """Return whether a strategy is a user's own, not one of tclab's."""
    return not get(name).__module__.startswith("tclab.")


def view(
    graph: CellGraph, deletions: DeletedNodes, strategy: str = "node_mask", *, device: torch.device | str = "cpu",
    depth: int | None = None
) -> View:  # fmt: skip
    """Return the view of some node-deleted copies, made by a strategy, from samples to the device.

    **Arguments:**

    - `graph`: the whole one, on the CPU.
    - `deletions`: for each sample the ids of the nodes it deletes; an empty one deletes nothing.
    - `strategy`: one of `names()`.
    - `device`: where the model is.
    - `depth`: for how many layers `delta` computes only the rows that differ, if that pays; by default up to 3.

    **Raises:** `InputError` for an unknown strategy, a node out of range, no sample at all, or a depth below 0 or for
    another strategy.
    """
    options = {} if depth is None else {"depth": depth}
    if depth is not None:
        check_whole("depth is", depth)
        check_known("strategy with a depth", ("delta",), strategy)
    return next(views(graph, [deletions], strategy, device=device, collation="lean", **options))


def views(
    graph: CellGraph, batches: Iterable[DeletedNodes], strategy: str, *, device: torch.device | str, collation: str,
    **options: int
) -> Iterator[View]:  # fmt: skip
    """Yield the view of each batch of deletions, all made by the same two objects of a strategy; see `view`."""
    kind = get(strategy)
    require("graph", graph, CellGraph, "a tclab.CellGraph")
    loads, steps = (kind(of, collation=collation, **options) for of in (graph, graph.to(device)))
    for deletions in batches:
        wanted = Deletions.of(deletions, num_nodes=graph.num_nodes[graph.deleted_type])
        batch = loads.batch(Perturbations(wanted, torch.zeros(len(wanted))))
        copies = steps.view(batch.to(device))
        require(f"what the view of strategy {kind.name!r} returns", copies, View, "a View")
        yield copies
