"""The base class of all strategies: from samples to a batch, and from the batch to a view."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from tclab.errors import InputError, unknown
from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch
from tclab.masking._packing import Piece
from tclab.message_passing import View
from tclab.perturbation import Deletions, Perturbations
from tclab.perturbation._deletions import removed_by


class Strategy(ABC):
    """One way of masking, from a sample to a view.

    `encode` and `collate` run where the data are loaded, usually in a worker process, for a batch at a time;
    `view` runs on the device, inside the step. A user's strategy overrides what differs and calls
    `tclab.masking.register`.

    **Arguments:**

    - `graph`: on the device that `view` makes views on; the CPU for the half that loads.
    - `ship_edges`: send the replicated edges with every batch although the device makes the masks; only for
      strategies with `can_ship_edges`.
    - `collation`: one of the strategy's `collations`.

    **Raises:** `InputError` for a collation that the strategy does not know, and for a graph of no nodes.
    """

    name: ClassVar[str]
    exact: ClassVar[bool] = True  # computes the same function as `subgraph`
    masks_graph: ClassVar[bool] = True  # makes a node-deleted copy, so that a model may read one
    stores: ClassVar[bool] = False  # needs `prepare` before the first sample
    can_ship_edges: ClassVar[bool] = False
    edges_vary: ClassVar[bool] = False  # how many edges a view holds differs from batch to batch
    one_view: ClassVar[bool] = False  # an earlier view must be closed before the next is made
    collations: ClassVar[tuple[str, ...]] = ("lean",)  # "lean": all tensors in one, each written once

    _settings: dict[str, Any]

    def __new__(cls, *given: Any, **settings: Any) -> Self:
        """Remember the settings that a strategy is made with, for `on`."""
        made = super().__new__(cls)
        made._settings = {name: value for name, value in settings.items() if name != "graph"}
        return made

    def __init__(self, graph: CellGraph, *, ship_edges: bool = False, collation: str = "lean") -> None:
        if not graph.num_nodes[graph.deleted_type]:
            raise InputError(f"the graph has no {graph.deleted_type} nodes, expected one or more to delete and to pool")
        if collation not in self.collations:
            raise unknown(f"collation of {self.name}", collation, self.collations)
        self.graph = graph
        self.ship_edges = ship_edges
        self.collation = collation

    def prepare(self, perturbations: Perturbations, path: Path) -> None:  # noqa: B027 (most strategies keep nothing)
        """Write into a file what `encode` will read, where the strategy keeps anything on disk; see `build_store`."""

    def on(self, graph: CellGraph) -> Self:
        """Return this strategy on another graph, with the same settings and what `tune` chose.

        It is a new object: nothing that was looked up in this graph is in it.
        """
        other = type(self)(graph, **self._settings)
        other.use(self.chosen())
        return other

    def tune(  # noqa: B027
        self, batch_size: int, dtype: str, device: str, *, deleted: int = 3, width: int = 64, timing: bool = True
    ) -> None:
        """Choose what is fastest for batches of a size, where the strategy has a choice; `on` hands it on.

        **Arguments:**

        - `batch_size`: samples in a batch.
        - `dtype`: by name, as in `Point`.
        - `device`: "cpu" or "cuda".
        - `deleted`: nodes that a sample deletes.
        - `width`: features a row.
        - `timing`: time what no earlier calibration has; without it the strategy keeps its first choice then.
        """

    def chosen(self) -> Any:
        """Return what `tune` chose, as JSON can hold it; `None` for a strategy that has no choice."""
        return None

    def use(self, chosen: Any) -> None:  # noqa: B027
        """Take over what the same strategy has `chosen` in another process or on another rank."""

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
        tensors, host_values = self.pack(removed, encoded)
        return Batch.packed({"target": scores, **tensors}, removed, len(scores), host_values)

    def shapes(
        self, indices: Sequence[int], removed: dict[str, Deletions]
    ) -> tuple[Mapping[str, Tensor | Piece], dict[str, Any]]:
        """Return what `pack` returns for some samples, for the shapes and dtypes alone: to estimate a batch's memory.

        The base class encodes and packs them; a strategy that `stores` must override it.

        **Raises:** `InputError` for a strategy that reads what `prepare` wrote, and does not override `shapes`.
        """
        if self.stores:
            raise InputError(
                f"strategy {self.name!r} reads what it has stored, so what a batch holds is not known before it is "
                "run; give it a method `shapes`"
            )
        return self.pack(removed, self.encode(indices, removed))

    def build_lookups(self, indices: Sequence[int], removed: dict[str, Deletions]) -> None:
        """Make the tables that `encode` looks samples up in, which a process makes with its first sample."""
        if not self.stores:
            self.encode(indices, removed)

    def meta_batch(self, indices: Sequence[int], removed: dict[str, Deletions]) -> Batch:
        """Return the batch of some samples with meta tensors: they have a shape and no values."""
        tensors, host_values = self.shapes(indices, removed)
        shapes = {"target": torch.empty(len(indices)), **tensors}
        return Batch(
            {name: torch.empty(tuple(t.shape), dtype=t.dtype, device="meta") for name, t in shapes.items()},
            {kind: deletions.to("meta") for kind, deletions in removed.items()},
            len(indices),
            host_values,
        )

    def meta_view(self, batch: Batch) -> View:
        """Return the `view` of a meta batch; a strategy whose `view` reads values overrides it."""
        return self.view(batch)

    def batch(self, perturbations: Perturbations, indices: Sequence[int] | None = None) -> Batch:
        """Return the batch of some samples, all of them in one: `removed_by`, `encode`, `collate`.

        **Arguments:**

        - `perturbations`: the samples.
        - `indices`: their places in the dataset that was prepared; 0, 1, 2, … unless given.
        """
        removed = self.removed_by(perturbations.deletions)
        encoded = self.encode(range(len(perturbations)) if indices is None else indices, removed)
        return self.collate(removed, perturbations.scores, encoded)

    def pack(self, removed: dict[str, Deletions], encoded: Any) -> tuple[dict[str, Tensor | Piece], dict[str, Any]]:
        """Return the tensors and facts that this strategy sends along; none unless overridden.

        A large tensor is better a `Piece`, which is written once, straight to where it travels.

        **Arguments:**

        - `removed`: node type → what each sample removes, on the CPU.
        - `encoded`: what `encode` made of them.

        **Returns:** tensors by name, which `view` finds in `batch.tensors`, and facts of the host by name, which it
        finds in `batch.host_values`.
        """
        return {}, {}

    @abstractmethod
    def view(self, batch: Batch) -> View:
        """Return the view of a batch whose tensors are on the graph's device.

        **Arguments:**

        - `batch`: of B samples. `batch.deletions[kind]` is a `Deletions` of each node type: `.nodes`, [M] int64, all
          removed nodes, sample after sample; `.ptr`, [B + 1] int64, where each sample begins. `batch.tensors` has what
          `pack` returned.
        """
