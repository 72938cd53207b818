"""Strategies whose workers make or read a boolean for every edge of every sample, and send it with all the edges.

`edge_mask` looks up which edges the removed nodes touch, `stored_index` and `stored_mask` read from LMDB. Collation
replicates all edges B times: `collation="pyg"` is PyG's; the lean one writes the same tensors once, into the one that
travels.

Sizes: B samples, N nodes of a type, E edges of a relation, n edges that are removed, S samples of a data set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tclab.errors import need
from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.graph._csr import entries
from tclab.masking._batch import Batch, Packed, Piece, shared_memory
from tclab.masking._strategy import Strategy
from tclab.message_passing import View
from tclab.message_passing._view import EdgeList, EdgeListView
from tclab.message_passing.kernels._row_ops import keep_mask
from tclab.perturbation import Deletions, Perturbations
from tclab.perturbation._deletions import Int64s
from tclab.perturbation._sample_store import build_store

Masks = list[dict[str, Tensor]]  # for each sample: relation → [E] bool, which edges are kept


# ---- the edges of B copies of a graph, and those that deletions remove


def _replicate(network: Network, size: int, out: Tensor) -> None:
    """Write a network's edges for `size` copies to [2, size * E] int64: copy b's rows begin at b times N."""
    edges = network.edge_index
    step = torch.tensor([[network.num_sources], [network.num_targets]], device=edges.device)
    offsets = torch.arange(size, device=edges.device) * step
    torch.add(edges.unsqueeze(1), offsets.unsqueeze(2), out=out.view(2, size, network.num_edges))


def _join(parts: list[Tensor], out: Tensor) -> None:
    torch.cat(parts, out=out)


def edge_pieces(graph: CellGraph, size: int) -> dict[str, Piece]:
    """Return every relation's edges for `size` copies, and its weights where it has any, under batch names."""
    pieces: dict[str, Piece] = {}
    for name, network in graph.relations.items():
        edges = size * network.num_edges
        pieces[f"edge_index/{name}"] = Piece((2, edges), torch.int64, partial(_replicate, network, size))
        if network.weight is not None:
            fill = partial(_join, [network.weight] * size)
            pieces[f"edge_weight/{name}"] = Piece((edges,), network.weight.dtype, fill)
    return pieces


def edge_lists(graph: CellGraph, tensors: Mapping[str, Tensor]) -> dict[str, EdgeList]:
    """Return each relation's edges, with the mask and the weights that there are, of tensors under batch names."""
    lists = {}
    for name in graph.relations:
        mask, weight = (tensors.get(f"{field}/{name}") for field in ("edge_mask", "edge_weight"))
        lists[name] = EdgeList(tensors[f"edge_index/{name}"], mask, weight)
    return lists


def removed_counts(network: Network, removed: Mapping[str, Deletions]) -> dict[str, Int64s]:
    """Return how many edges each sample's removed nodes touch, from the degrees alone: node type → [B] int64."""
    counts = {}
    for kind in dict.fromkeys((network.source, network.target)):
        degree = np.diff(network.incidence(kind).ptr.numpy())
        total = np.concatenate([[0], np.cumsum(degree[removed[kind].nodes.numpy()])])
        counts[kind] = np.diff(total[removed[kind].ptr.numpy()])
    return counts


def removed_edges(
    network: Network, removed: Mapping[str, Deletions], counts: Mapping[str, int] | None = None
) -> Tensor:
    """Return which of a network's edges in B copies are removed, [n] int64 into B * E.

    An edge is there twice if both its ends are removed.

    **Arguments:**

    - `counts`: node type → how many edges the removed nodes of it touch, in all samples, so that the device need not
      be asked; counted unless given.
    """
    parts = []
    for kind in dict.fromkeys((network.source, network.target)):
        ptr, items = network.incidence(kind)
        which, position = entries(ptr, removed[kind].nodes, None if counts is None else counts[kind])
        parts.append(items[position] + removed[kind].samples()[which] * network.num_edges)
    return torch.cat(parts)


# ---- masks made in the worker


class EdgeMask(Strategy):
    """A boolean edge mask for each relation from an incidence lookup in the worker; all edges travel."""

    name = "edge_mask"
    static_shapes = True
    collations = ("lean", "pyg")

    def encode(self, indices: Sequence[int], removed: dict[str, Deletions]) -> Masks:
        """Return for each sample: relation → [E] bool, which edges are kept."""
        size, masks = len(indices), {}
        for name, network in self.graph.relations.items():
            mask = keep_mask(removed_edges(network, removed), size * network.num_edges)
            masks[name] = mask.view(size, network.num_edges)
        return [{name: mask[b] for name, mask in masks.items()} for b in range(size)]

    def collate(self, removed: dict[str, Deletions], scores: Tensor, encoded: Masks) -> Batch:
        """Return the batch, collated by PyG for `collation="pyg"`."""
        if self.collation != "pyg":
            return super().collate(removed, scores, encoded)
        relations = self.graph.relations.items()  # of the whole graph, by reference
        whole = {f"edge_index/{name}": network.edge_index for name, network in relations}
        whole |= {f"edge_weight/{name}": network.weight for name, network in relations if network.weight is not None}
        samples = [{**whole, **{f"edge_mask/{name}": mask for name, mask in masks.items()}} for masks in encoded]
        return pyg_batch(self.graph, removed, scores, samples)

    def pack(self, removed: dict[str, Deletions], encoded: Masks) -> Packed:
        """Return the replicated edges with their masks."""
        tensors: dict[str, Tensor | Piece] = {**edge_pieces(self.graph, len(encoded))}
        for name, network in self.graph.relations.items():
            fill = partial(_join, [masks[name] for masks in encoded])
            tensors[f"edge_mask/{name}"] = Piece((len(encoded) * network.num_edges,), torch.bool, fill)
        return tensors, {}

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies every message by its mask."""
        return EdgeListView(self.graph, batch.deletions, edge_lists(self.graph, batch.tensors))


# ---- masks read from disk


class StoredMask(EdgeMask):
    """Whole masks on disk, one byte an edge: 2.4 MB a sample on the real graph, 805 GB for the real dataset."""

    name = "stored_mask"
    stores = True

    def prepare(self, perturbations: Perturbations, path: Path) -> None:
        """Write the encodings of every sample into a file; see `build_store`."""
        deletions = perturbations.deletions

        def value(sample: int) -> bytes:
            return self.encode_sample(self.removed_by(deletions.take([sample])))

        self._store = build_store(path, value, self.encoded_bytes(deletions))

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def encode(self, indices: Sequence[int], removed: dict[str, Deletions]) -> Masks:
        """Return for each sample: relation → [E] bool, from what lies on disk."""
        return self._store.read(indices, self.decode_sample)

    def encoded_bytes(self, deletions: Deletions) -> Int64s:
        """Return how many bytes each sample's encoding has, [S] int64."""
        return np.full(len(deletions), sum(n.num_edges for n in self.graph.relations.values()), dtype=np.int64)

    def encode_sample(self, removed: dict[str, Deletions]) -> bytes:
        """Return the encoding of one sample's masks: relation after relation."""
        (masks,) = super().encode([0], removed)
        return b"".join(mask.numpy().tobytes() for mask in masks.values())

    def decode_sample(self, value: memoryview) -> dict[str, Tensor]:
        """Return relation → [E] bool from an encoding, which must be copied: it lies on disk."""
        values = torch.from_numpy(np.frombuffer(value, dtype=np.bool_).copy())
        sizes = [network.num_edges for network in self.graph.relations.values()]
        return dict(zip(self.graph.relations, values.split(sizes), strict=True))


class StoredIndex(StoredMask):
    """Removed-edge indices on disk, int32: for each relation in order their number, then the indices."""

    name = "stored_index"

    def encoded_bytes(self, deletions: Deletions) -> Int64s:
        """Return how many bytes each sample's indices have, [S] int64."""
        removed = self.removed_by(deletions)
        words = np.full(len(deletions), len(self.graph.relations), dtype=np.int64)
        for network in self.graph.relations.values():
            words += sum(removed_counts(network, removed).values())
        return 4 * words

    def encode_sample(self, removed: dict[str, Deletions]) -> bytes:
        """Return a sample's removed edges."""
        each = [removed_edges(network, removed).numpy() for network in self.graph.relations.values()]
        return b"".join(np.concatenate([[len(edges)], edges]).astype("<i4").tobytes() for edges in each)

    def decode_sample(self, value: memoryview) -> dict[str, Tensor]:
        """Return relation → [E] bool from the indices."""
        words = np.frombuffer(value, dtype="<i4")
        masks = {}
        for name, network in self.graph.relations.items():
            edges, words = words[1 : 1 + words[0]], words[1 + words[0] :]
            masks[name] = keep_mask(torch.from_numpy(edges.astype(np.int64)), network.num_edges)
        return masks


# ---- PyG's collation


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

    def slot(name: str) -> tuple[Any, str]:
        """Return the node or edge type that a batch name is of, and the field."""
        field, _, owner = name.partition("/")
        if not field.startswith("edge"):
            return owner, field
        return (graph.relations[owner].source, owner, graph.relations[owner].target), field

    each = []
    for i, sample in enumerate(samples):
        data: Any = HeteroData()
        data["score"] = scores[i : i + 1]
        for kind, nodes in graph.num_nodes.items():
            data[kind].num_nodes = len(sample[f"node/{kind}"]) if f"node/{kind}" in sample else nodes
            data[kind]["removed"] = removed[kind][i]  # PyG moves on only what has "index" in its name
        for name, tensor in sample.items():
            kind, field = slot(name)
            data[kind][field] = tensor
        each.append(data)
    with shared_memory(sum(tensor.nbytes for sample in samples for tensor in sample.values())):
        made: Any = PygBatch.from_data_list(each, follow_batch=["removed"])
    tensors = {"target": made["score"]}
    for name in samples[0]:
        kind, field = slot(name)
        tensors[name] = made[kind][field]
    for kind in graph.num_nodes:
        tensors |= {f"sample/{kind}": made[kind]["batch"], f"removed/{kind}": made[kind]["removed"]}
        tensors[f"removed_ptr/{kind}"] = made[kind]["removed_ptr"]
    return Batch(tensors, {kind: deletions.most for kind, deletions in removed.items()}, len(scores))
