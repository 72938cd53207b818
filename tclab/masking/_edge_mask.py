"""`edge_mask`: the worker looks up which edges the deleted nodes touch; collation replicates all edges B times.

Every batch carries every edge of every sample, with one boolean each. `collation="pyg"` is PyG's; the lean one writes
the same tensors once, into the one that travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tclab._extras import need
from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch
from tclab.masking._packing import Piece, shared_memory
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
            return _pyg_batch(self.graph, removed, scores, encoded)
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


def _pyg_batch(graph: CellGraph, removed: dict[str, Deletions], scores: Tensor, masks: Masks) -> Batch:
    """Return the batch of some samples, [B], by `Batch.from_data_list` over one `HeteroData` a sample.

    The case study's training ran it. Every sample brings all edges, and each copy is offset, concatenated and, in a
    worker, written to shared memory, one tensor for each key of each edge type. (PyG's `DataLoader` drops a
    `collate_fn` argument without a warning.)

    **Raises:** `SharedMemoryError` in a worker, where the edges do not fit into shared memory.
    """
    need("a batch of replicated edges", "sweep", "torch_geometric")
    from torch_geometric.data import Batch as PygBatch

    samples = [_data(graph, removed, scores, masks, b) for b in range(len(scores))]
    edges = sum(network.edge_index.nbytes + network.num_edges for network in graph.relations.values())
    in_worker = torch.utils.data.get_worker_info() is not None
    with shared_memory(len(scores) * edges) if in_worker else nullcontext():
        made: Any = PygBatch.from_data_list(samples, follow_batch=["removed"])
    tensors = {"target": made["score"]}
    for name, network in graph.relations.items():
        store = made[network.source, name, network.target]
        tensors[f"edge_index/{name}"] = store["edge_index"]
        tensors[f"edge_mask/{name}"] = store["mask"]
        if network.weight is not None:
            tensors[f"edge_weight/{name}"] = store["edge_weight"]
    tensors["keep"] = made[graph.deleted_type]["keep"]
    tensors["sample"] = made[graph.deleted_type]["batch"]
    deletions = {
        kind: Deletions(made[kind]["removed"], made[kind]["removed_ptr"], one.most) for kind, one in removed.items()
    }
    return Batch(tensors, deletions, len(scores))


def _data(graph: CellGraph, removed: dict[str, Deletions], scores: Tensor, masks: Masks, sample: int) -> Any:
    """Return one sample: the whole graph by reference, and its masks."""
    from torch_geometric.data import HeteroData

    data: Any = HeteroData()
    data["score"] = scores[sample : sample + 1]
    for kind, number in graph.num_nodes.items():
        data[kind].num_nodes = number
        data[kind]["removed"] = removed[kind][sample]  # PyG moves on only what has "index" in its name
    keep = torch.ones(graph.num_nodes[graph.deleted_type], dtype=torch.bool)
    keep[removed[graph.deleted_type][sample]] = False
    data[graph.deleted_type]["keep"] = keep
    for name, network in graph.relations.items():
        store = data[network.source, name, network.target]
        store["edge_index"] = network.edge_index
        store["mask"] = masks[sample][name]
        if network.weight is not None:
            store["edge_weight"] = network.weight
    return data
