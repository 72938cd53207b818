"""`edge_mask`: the worker looks up which edges the deleted nodes touch; collation replicates all edges B times.

The original's "lazy" way. Every batch carries every edge of every sample, with one boolean each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tclab.masking.batch import Batch
from tclab.masking.replicas import (
    edge_lists,
    kept_rows,
    moved_edges,
    removed_edges,
    replicated_edges,
    sample_of_row,
)
from tclab.masking.strategy import Sample, Strategy
from tclab.message_passing import EdgeListView, View


class EdgeMask(Strategy):
    """A boolean edge mask for each network from an incidence lookup in the worker; all edges travel."""

    name = "edge_mask"

    def encode(self, index: int, lost: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return relation → [E] bool, which edges are kept."""
        return {
            name: torch.ones(network.num_edges, dtype=torch.bool).index_fill_(
                0, removed_edges(network, lost), False
            )
            for name, network in self.graph.relations.items()
        }

    def pack(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the replicated edges with their masks, and the node side: PyG's `batch` and the kept rows."""
        kind = self.graph.deleted_type
        keep = torch.ones(len(samples), self.graph.num_nodes[kind], dtype=torch.bool)
        for row, sample in zip(keep, samples, strict=True):
            row[sample.lost[kind]] = False
        tensors = {
            **replicated_edges(self.graph, len(samples)),
            "keep": keep.flatten(),
            "sample": sample_of_row(self.graph, len(samples)),
        }
        for name in self.graph.relations:
            tensors[f"edge_mask/{name}"] = torch.cat([sample.encoded[name] for sample in samples])
        return tensors, {}

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies every message by its mask."""
        masks = {name: batch.tensors[f"edge_mask/{name}"] for name in self.graph.relations}
        keep = kept_rows(self.graph, self.lost(batch))
        keep[self.graph.deleted_type] = batch.tensors["keep"]
        return EdgeListView(
            self.graph,
            batch.deletions(self.graph.deleted_type),
            edge_lists(self.graph, moved_edges(batch), masks),
            keep=keep,
        )
