"""What every way of masking is: from a sample, to a batch, to a view."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tclab.graph import CellGraph
from tclab.masking.batch import Batch
from tclab.message_passing import View
from tclab.perturbation import Deletions, Perturbations


@dataclass(frozen=True)
class Sample:
    """One sample as it leaves a worker's `__getitem__`.

    **Arguments:**

    - `lost`: node type → the ids that are lost, closed over dependants, [n] int64.
    - `score`: its target.
    - `encoded`: what the strategy adds.
    """

    lost: dict[str, Tensor]
    score: float
    encoded: Any = None


class Strategy(ABC):
    """One way of masking, told from a sample to a view.

    `sample` and `collate` run where the data are loaded, usually in a worker process; `view` runs on the
    device, inside the step. A strategy of your own overrides what differs and calls `tclab.masking.register`.

    **Arguments:**

    - `graph`: on the device that `view` makes views on; the CPU for the half that loads.
    - `ship_edges`: send the replicated edges with every batch although the masks are made on the device, as
      the original did; only strategies with `can_ship_edges` know it.
    """

    name: ClassVar[str]
    exact: ClassVar[bool] = True  # computes the same function as `subgraph`
    masks_graph: ClassVar[bool] = True  # makes a node-deleted copy, so that a model may read one
    stores: ClassVar[bool] = False  # needs `prepare` before the first sample
    can_ship_edges: ClassVar[bool] = False

    def __init__(self, graph: CellGraph, *, ship_edges: bool = False) -> None:
        self.graph = graph
        self.ship_edges = ship_edges

    def prepare(  # noqa: B027 (most strategies keep nothing)
        self, perturbations: Perturbations, folder: Path
    ) -> None:
        """Write what `sample` will read, where the strategy keeps anything on disk."""

    def close(self) -> None:  # noqa: B027
        """Let go of what `prepare` opened."""

    def encode(self, index: int, lost: dict[str, Tensor]) -> Any:
        """Return what this strategy makes of sample `index` in the worker; nothing unless overridden.

        **Arguments:**

        - `index`: the sample's place in its dataset.
        - `lost`: node type → the ids that are lost, [n] int64.
        """
        return None

    def sample(self, index: int, deleted: Tensor, score: float) -> Sample:
        """Return sample `index`, which deletes the nodes `deleted: [k] int64`."""
        lost = self.graph.closure(deleted)
        return Sample(lost, score, self.encode(index, lost))

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Return the batch of some samples: their indices and scores, and what `pack` adds."""
        tensors: dict[str, Tensor] = {
            "target": torch.tensor([sample.score for sample in samples], dtype=torch.float32)
        }
        known: dict[str, Any] = {}
        for kind in self.graph.num_nodes:
            lost = [sample.lost[kind] for sample in samples]
            lengths = [len(ids) for ids in lost]
            tensors[f"deleted/{kind}"] = torch.cat(lost)
            tensors[f"deleted_ptr/{kind}"] = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
            known[f"most/{kind}"] = max(lengths)
        more, facts = self.pack(samples)
        return Batch({**tensors, **more}, len(samples), {**known, **facts})

    def pack(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and facts that this strategy sends along; none unless overridden."""
        return {}, {}

    @abstractmethod
    def view(self, batch: Batch) -> View:
        """Return the view of a batch whose tensors are on the graph's device."""

    def lost(self, batch: Batch) -> dict[str, Deletions]:
        """Return what each sample of a batch loses, by node type."""
        return {kind: batch.deletions(kind) for kind in self.graph.num_nodes}
