"""`edge_mask`: the worker looks up which edges the deleted nodes touch; collation replicates all edges B times.

Every batch carries every edge of every sample, with one boolean each. `collation="pyg"` is PyG's; the lean one writes
the same tensors once, into the one that travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tclab.masking._batch import Batch
from tclab.masking._packing import Piece
from tclab.masking._pyg_collation import pyg_batch
from tclab.masking._replicated_edges import (
    edge_lists,
    edge_pieces,
    edge_view,
    kept_rows,
    moved_edges,
    removed_edges,
)
from tclab.masking._strategy import Strategy
from tclab.message_passing import View
from tclab.perturbation import Deletions

Masks = list[dict[str, Tensor]]  # for each sample: relation → [E] bool, which edges are kept


class EdgeMask(Strategy):
    """A boolean edge mask for each network from an incidence lookup in the worker; all edges travel."""

    name = "edge_mask"
    collations = ("lean", "pyg")

    def encode(self, indices: Sequence[int], removed: dict[str, Deletions]) -> Masks:
        """Return for each sample: relation → [E] bool, which edges are kept."""
        return [self.masks(removed, sample) for sample in range(len(indices))]

    def masks(self, removed: dict[str, Deletions], sample: int) -> dict[str, Tensor]:
        """Return one sample's masks, relation → [E] bool, by an incidence lookup."""
        return {
            name: torch.ones(network.num_edges, dtype=torch.bool).index_fill_(
                0, removed_edges(network, removed, sample), False
            )
            for name, network in self.graph.relations.items()
        }

    def collate(self, removed: dict[str, Deletions], scores: Tensor, encoded: Masks) -> Batch:
        """Return the batch, collated by PyG for `collation="pyg"`."""
        if self.collation == "pyg":
            return pyg_batch(self.graph, removed, scores, encoded)
        return super().collate(removed, scores, encoded)

    def pack(self, removed: dict[str, Deletions], encoded: Masks) -> tuple[dict[str, Tensor | Piece], dict[str, Any]]:
        """Return the replicated edges with their masks, and the node side: PyG's `batch` and the kept rows."""
        kind, size = self.graph.deleted_type, len(encoded)
        nodes = self.graph.num_nodes[kind]
        tensors: dict[str, Tensor | Piece] = {
            **edge_pieces(self.graph, size),
            "keep": kept_rows(self.graph, removed)[kind],
            "sample": torch.arange(size).repeat_interleave(nodes),
        }
        for name, network in self.graph.relations.items():
            masks = [sample[name] for sample in encoded]
            tensors[f"edge_mask/{name}"] = Piece((size * network.num_edges,), torch.bool, partial(_joined, masks))
        return tensors, {}

    def shapes(
        self, indices: Sequence[int], removed: dict[str, Deletions]
    ) -> tuple[Mapping[str, Tensor | Piece], dict[str, Any]]:
        """Return what `pack` returns; no mask is made for it, as all of a relation have one shape."""
        return self.pack(removed, [dict.fromkeys(self.graph.relations, torch.empty(0))] * len(indices))

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies every message by its mask."""
        masks = {name: batch.tensors[f"edge_mask/{name}"] for name in self.graph.relations}
        return edge_view(self.graph, batch, edge_lists(self.graph, moved_edges(batch), masks))


def _joined(masks: list[Tensor], out: Tensor) -> None:
    torch.cat(masks, out=out)
