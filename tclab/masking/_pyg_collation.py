"""PyG's collation, `Batch.from_data_list` over one `HeteroData` a sample, which the case study's training ran.

Every sample brings all edges, and each copy is offset, concatenated and, in a worker, written to shared memory, one
tensor for each key of each edge type. (PyG's `DataLoader` drops a `collate_fn` argument without a warning.)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from tclab._extras import need
from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch
from tclab.masking._packing import shared_memory
from tclab.perturbation import Deletions


def pyg_batch(
    graph: CellGraph, removed: dict[str, Deletions], scores: Tensor, masks: Sequence[dict[str, Tensor]]
) -> Batch:
    """Return the batch of some samples, collated by PyG; the same tensors as the lean collation's.

    **Arguments:**

    - `removed`: node type → what each sample removes, on the CPU.
    - `scores`: [B] float32
    - `masks`: for each sample: relation → [E] bool, which edges are kept.

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
        if network.weight is not None:
            tensors[f"edge_weight/{name}"] = store["edge_weight"]
    for name, network in graph.relations.items():
        tensors[f"edge_mask/{name}"] = made[network.source, name, network.target]["mask"]
    tensors["keep"] = made[graph.deleted_type]["keep"]
    tensors["sample"] = made[graph.deleted_type]["batch"]
    deletions = {
        kind: Deletions(made[kind]["removed"], made[kind]["removed_ptr"], one.most) for kind, one in removed.items()
    }
    return Batch(tensors, deletions, len(scores))


def _data(
    graph: CellGraph,
    removed: dict[str, Deletions],
    scores: Tensor,
    masks: Sequence[dict[str, Tensor]],
    sample: int,
) -> Any:
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
