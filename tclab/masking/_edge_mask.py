"""`edge_mask`: the worker looks up which edges the deleted nodes touch; collation replicates all edges B times.

Every batch carries every edge of every sample, with one boolean each. `collation="pyg"` is PyG's; the lean one writes
the same tensors once, into the one that travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
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
        if self.collation != "pyg":
            return super().collate(removed, scores, encoded)
        kind = self.graph.deleted_type
        samples = []
        for sample, masks in enumerate(encoded):
            keep = torch.ones(self.graph.num_nodes[kind], dtype=torch.bool)
            keep[removed[kind][sample]] = False
            tensors = {f"keep/{kind}": keep}
            for name, network in self.graph.relations.items():  # the whole graph, by reference
                tensors |= {f"edge_index/{name}": network.edge_index, f"edge_mask/{name}": masks[name]}
                tensors |= {} if network.weight is None else {f"edge_weight/{name}": network.weight}
            samples.append(tensors)
        batch = pyg_batch(self.graph, removed, scores, samples)
        edges = {name: tensor for name, tensor in batch.tensors.items() if name.startswith("edge")}
        nodes = {what: batch.tensors[f"{what}/{kind}"] for what in ("keep", "sample")}
        return replace(batch, tensors={"target": batch.target, **edges, **nodes})

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


def pyg_batch(
    graph: CellGraph, removed: dict[str, Deletions], scores: Tensor, samples: Sequence[dict[str, Tensor]]
) -> Batch:
    """Return the batch of some samples, [B], by `Batch.from_data_list` over one `HeteroData` a sample.

    The case study's training ran it. The edges of each sample are offset, concatenated and, in a worker, written to
    shared memory, one tensor for each key of each edge type. (PyG's `DataLoader` drops a `collate_fn` argument without
    a warning.)

    **Arguments:**

    - `samples`: each sample's tensors by batch name: "edge_index/physical" of a relation, "node/gene" of a node type,
      of which it then has so many nodes and else all.

    **Returns:** those of all samples, and "sample/gene": of which sample each node is.

    **Raises:** `SharedMemoryError` in a worker, where the tensors do not fit into shared memory.
    """
    need("PyG's collation", "sweep", "torch_geometric")
    from torch_geometric.data import Batch as PygBatch
    from torch_geometric.data import HeteroData

    def place(name: str) -> tuple[Any, str]:
        what, _, of = name.partition("/")
        if not what.startswith("edge"):
            return of, what
        return (graph.relations[of].source, of, graph.relations[of].target), what

    each = []
    for number, sample in enumerate(samples):
        data: Any = HeteroData()
        data["score"] = scores[number : number + 1]
        for kind, nodes in graph.num_nodes.items():
            data[kind].num_nodes = len(sample[f"node/{kind}"]) if f"node/{kind}" in sample else nodes
            data[kind]["removed"] = removed[kind][number]  # PyG moves on only what has "index" in its name
        for name, tensor in sample.items():
            of, what = place(name)
            data[of][what] = tensor
        each.append(data)
    in_worker = torch.utils.data.get_worker_info() is not None
    size = sum(tensor.nbytes for sample in samples for tensor in sample.values())
    with shared_memory(size) if in_worker else nullcontext():
        made: Any = PygBatch.from_data_list(each, follow_batch=["removed"])
    tensors = {"target": made["score"]}
    for name in samples[0]:
        of, what = place(name)
        tensors[name] = made[of][what]
    tensors |= {f"sample/{kind}": made[kind]["batch"] for kind in graph.num_nodes}
    deletions = {
        kind: Deletions(made[kind]["removed"], made[kind]["removed_ptr"], one.most) for kind, one in removed.items()
    }
    return Batch(tensors, deletions, len(scores))
