"""What every way of masking is: from a sample, to a batch, to a view."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from tclab.errors import InputError, unknown
from tclab.graph import CellGraph
from tclab.masking.batch import Batch
from tclab.masking.lost import lost_by
from tclab.masking.packing import Piece
from tclab.message_passing import View
from tclab.perturbation import Deletions, Perturbations, Progress


class Strategy(ABC):
    """One way of masking, told from a sample to a view.

    `encode` and `collate` run where the data are loaded, usually in a worker process, for a batch at a time;
    `view` runs on the device, inside the step. A strategy of your own overrides what differs and calls
    `tclab.masking.register`.

    **Arguments:**

    - `graph`: on the device that `view` makes views on; the CPU for the half that loads.
    - `ship_edges`: send the replicated edges with every batch although the masks are made on the device, as
      the original did; only strategies with `can_ship_edges` know it.
    - `collation`: one of the strategy's `collations`.

    **Raises:** `InputError` for a collation that the strategy has not.
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
        if collation not in self.collations:
            raise unknown(f"collation of {self.name}", collation, self.collations)
        self.graph = graph
        self.ship_edges = ship_edges
        self.collation = collation

    def prepare(  # noqa: B027 (most strategies keep nothing)
        self, perturbations: Perturbations, folder: Path, *, progress: Progress | None = None
    ) -> None:
        """Write what `encode` will read, where the strategy keeps anything on disk; see `build_store`."""

    def on(self, graph: CellGraph) -> Self:
        """Return this strategy on another graph, with the settings that it was made with, and what `tune` chose.

        It is made anew, so that nothing is in it that was looked up in this graph.
        """
        other = type(self)(graph, **self._settings)
        other.use(self.chosen())
        return other

    def tune(  # noqa: B027
        self, batch_size: int, dtype: str, device: str, *, deleted: int = 3, width: int = 64, timing: bool = True
    ) -> None:
        """Choose what is fastest for batches of a size, where the strategy has a choice; `on` hands it on.

        **Arguments:**

        - `dtype`: as `Point` has it. `device`: "cpu" or "cuda".
        - `deleted`: nodes that a sample deletes. `width`: features a row.
        - `timing`: time what is not known; without, what is known decides, or else what the strategy began with.
        """

    def chosen(self) -> Any:
        """Return what `tune` chose, as JSON can hold it; `None` for a strategy that has no choice."""
        return None

    def use(self, chosen: Any) -> None:  # noqa: B027
        """Take what another half, or another rank's, says that it has `chosen`."""

    def close(self) -> None:  # noqa: B027
        """Let go of what `prepare` opened."""

    def lost_by(self, deletions: Deletions) -> dict[str, Deletions]:
        """Return what some samples lose with the nodes that they delete, by node type."""
        return lost_by(self.graph, deletions)

    def encode(self, indices: Sequence[int], lost: dict[str, Deletions]) -> Any:
        """Return what this strategy makes of some samples in the worker; nothing unless overridden.

        **Arguments:**

        - `indices`: the samples' places in their dataset.
        - `lost`: node type → what each sample loses, on the CPU.
        """
        return None

    def collate(self, lost: dict[str, Deletions], scores: Tensor, encoded: Any) -> Batch:
        """Return the batch of some samples: what they lose, their scores, and what `pack` adds.

        **Arguments:**

        - `lost`: node type → what each sample loses, on the CPU.
        - `scores`: [B] float32
        - `encoded`: what `encode` made of them.
        """
        tensors, known = _common(lost, scores)
        more, facts = self.pack(lost, encoded)
        return Batch.packed({**tensors, **more}, len(scores), {**known, **facts})

    def shapes(
        self, indices: Sequence[int], lost: dict[str, Deletions]
    ) -> tuple[Mapping[str, Tensor | Piece], dict[str, Any]]:
        """Return what `pack` returns for some samples, for the shapes and dtypes alone: to weigh a batch.

        It is made and packed unless a strategy knows its shapes otherwise, as one that `stores` must.

        **Raises:** `InputError` for a strategy that reads what `prepare` wrote, and has no `shapes` of its own.
        """
        if self.stores:
            raise InputError(
                f"strategy {self.name!r} reads what it has stored, so what a batch holds is not known before it is "
                "run; give it a method `shapes`"
            )
        return self.pack(lost, self.encode(indices, lost))

    def look_up(self, indices: Sequence[int], lost: dict[str, Deletions]) -> None:
        """Make what samples are looked up in, as the process that encodes the first of them does."""
        if not self.stores:
            self.encode(indices, lost)

    def outline(self, indices: Sequence[int], lost: dict[str, Deletions]) -> Batch:
        """Return the batch of some samples with tensors that have a shape and no values, on the device "meta"."""
        tensors, known = _common(lost, torch.empty(len(indices)))
        more, facts = self.shapes(indices, lost)
        shaped = {
            name: torch.empty(tuple(piece.shape), dtype=piece.dtype, device="meta")
            for name, piece in {**tensors, **more}.items()
        }
        return Batch(shaped, len(indices), {**known, **facts})

    def outlined_view(self, batch: Batch) -> View:
        """Return `view` of a batch whose tensors have a shape and no values; a view that reads them differs."""
        return self.view(batch)

    def batch(self, perturbations: Perturbations, indices: Sequence[int] | None = None) -> Batch:
        """Return the batch of some samples, all of them in one: `lost_by`, `encode`, `collate`.

        **Arguments:**

        - `perturbations`: the samples.
        - `indices`: their places in the dataset that was prepared; 0, 1, 2, … unless given.
        """
        lost = self.lost_by(perturbations.deletions)
        encoded = self.encode(range(len(perturbations)) if indices is None else indices, lost)
        return self.collate(lost, perturbations.scores, encoded)

    def pack(self, lost: dict[str, Deletions], encoded: Any) -> tuple[dict[str, Tensor | Piece], dict[str, Any]]:
        """Return the tensors and facts that this strategy sends along; none unless overridden.

        A large tensor is better a `Piece`, which is written once, straight to where it travels.
        """
        return {}, {}

    @abstractmethod
    def view(self, batch: Batch) -> View:
        """Return the view of a batch whose tensors are on the graph's device."""

    def lost(self, batch: Batch) -> dict[str, Deletions]:
        """Return what each sample of a batch loses, by node type."""
        return {kind: batch.deletions(kind) for kind in self.graph.num_nodes}


def _common(lost: dict[str, Deletions], scores: Tensor) -> tuple[dict[str, Tensor | Piece], dict[str, Any]]:
    """Return what every batch carries, and the facts about it."""
    tensors: dict[str, Tensor | Piece] = {"target": scores}
    known: dict[str, Any] = {}
    for kind, deletions in lost.items():
        tensors[f"deleted/{kind}"] = deletions.nodes
        tensors[f"deleted_ptr/{kind}"] = deletions.ptr
        known[f"most/{kind}"] = deletions.most
    return tensors, known
