"""Strategies whose workers cut a smaller graph out of the whole one for each sample.

`subgraph` is the reference: rows of deleted nodes do not exist, and every other exact strategy must give what it gives.
`khop_1`, `khop_2`, `khop_3` and `sampled_edges` leave more out, so they do not compute what `subgraph` computes: the
equivalence check reports their error next to their time.

Sizes: B samples, N nodes of a type, E edges of a relation, n what is left of them in a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tclab.errors import need
from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch, Packed, Piece
from tclab.masking._edge_masks import edge_lists, pyg_batch
from tclab.masking._strategy import Strategy
from tclab.message_passing import View
from tclab.message_passing._view import EdgeListView
from tclab.message_passing.kernels._row_ops import keep_mask
from tclab.perturbation import Deletions


class Subgraph(Strategy):
    """PyG `subgraph()` for each network and sample in the workers; what is left of every edge list travels."""

    name = "subgraph"
    collations = ("lean", "pyg")

    def encode(self, indices: Sequence[int], removed: dict[str, Deletions]) -> list[dict[str, Tensor]]:
        """Return for each sample the nodes that are left and each relation's relabelled edges."""
        samples = range(len(indices))
        return [self._cut({kind: deletions[sample] for kind, deletions in removed.items()}) for sample in samples]

    def _cut(self, removed: dict[str, Tensor]) -> dict[str, Tensor]:
        need("the strategy subgraph", "sweep", "torch_geometric")
        from torch_geometric.utils import bipartite_subgraph, subgraph

        keep = {kind: keep_mask(removed[kind], nodes) for kind, nodes in self.graph.num_nodes.items()}
        encoded = {f"node/{kind}": torch.nonzero(kept).flatten() for kind, kept in keep.items()}
        for name, network in self.graph.relations.items():
            edges = network.edge_index, network.weight
            source, target = keep[network.source], keep[network.target]
            if network.source == network.target:
                edge_index, weight = subgraph(source, *edges, relabel_nodes=True)
            else:
                edge_index, weight = bipartite_subgraph((source, target), *edges, relabel_nodes=True)
            encoded[f"edge_index/{name}"] = edge_index
            if weight is not None:
                encoded[f"edge_weight/{name}"] = weight
        return encoded

    def collate(self, removed: dict[str, Deletions], scores: Tensor, encoded: list[dict[str, Tensor]]) -> Batch:
        """Return the batch, collated by PyG for `collation="pyg"`."""
        if self.collation == "pyg":
            return pyg_batch(self.graph, removed, scores, encoded)
        return super().collate(removed, scores, encoded)

    def pack(self, removed: dict[str, Deletions], encoded: list[dict[str, Tensor]]) -> Packed:
        """Return the nodes and edges of all samples, edges moved on to their sample's rows."""
        tensors: dict[str, Tensor | Piece] = {}
        first: dict[str, Tensor] = {}
        for kind in self.graph.num_nodes:
            nodes = [sample[f"node/{kind}"] for sample in encoded]
            lengths = torch.tensor([len(ids) for ids in nodes])
            first[kind] = lengths.cumsum(0) - lengths
            tensors[f"node/{kind}"] = torch.cat(nodes)
            tensors[f"sample/{kind}"] = torch.arange(len(encoded)).repeat_interleave(lengths)
        for name, network in self.graph.relations.items():
            step = torch.stack([first[network.source], first[network.target]])  # [2, B]
            moved = [sample[f"edge_index/{name}"] + step[:, b : b + 1] for b, sample in enumerate(encoded)]
            tensors[f"edge_index/{name}"] = torch.cat(moved, dim=1)
            if network.weight is not None:
                tensors[f"edge_weight/{name}"] = torch.cat([sample[f"edge_weight/{name}"] for sample in encoded])
        return tensors, {}

    def view(self, batch: Batch) -> View:
        """Return the view over the rows that are left."""
        kinds, tensors = self.graph.num_nodes, batch.tensors
        rows = {kind: (tensors[f"sample/{kind}"], tensors[f"node/{kind}"]) for kind in kinds}
        return EdgeListView(self.graph, batch.deletions, edge_lists(self.graph, tensors), rows=rows)


class _Hops(Subgraph):
    """Of each sample only the nodes within some hops of a deleted one, along or against any network's edges."""

    exact = False
    hops: ClassVar[int]

    def encode(self, indices: Sequence[int], removed: dict[str, Deletions]) -> list[dict[str, Tensor]]:
        """Return what `subgraph` returns where all that is farther away is removed too."""
        kind = self.graph.deleted_type
        beyond = [self._beyond(removed[kind][sample]) for sample in range(len(indices))]
        far = Deletions.of(beyond, num_nodes=self.graph.num_nodes[kind])
        return super().encode(indices, {**removed, kind: far})

    def _beyond(self, deleted: Tensor) -> Tensor:
        """Return the nodes that are deleted or too far from those that are, [n] int64.

        A sample that deletes nothing is near nothing: it is left whole.
        """
        if not len(deleted):
            return deleted
        near = torch.zeros(self.graph.num_nodes[self.graph.deleted_type], dtype=torch.bool)
        near[deleted] = True
        for _ in range(self.hops):
            reached = near.clone()
            for network in self.graph.networks.values():
                source, target = network.edge_index
                reached[target[near[source]]] = True
                reached[source[near[target]]] = True
            near = reached
        near[deleted] = False
        return torch.nonzero(~near).flatten()


class OneHop(_Hops):
    """What lies within one hop of a deleted node."""

    name = "khop_1"
    hops = 1


class TwoHops(_Hops):
    """What lies within two hops of a deleted node."""

    name = "khop_2"
    hops = 2


class ThreeHops(_Hops):
    """What lies within three hops of a deleted node."""

    name = "khop_3"
    hops = 3


class SampledEdges(Subgraph):
    """A share of each sample's edges, drawn anew for each sample, each counting for as many as were left out.

    Edges within the deleted type alone are drawn. A sample's draw is the same each time it is read.

    **Arguments:**

    - `share`: how many of the edges are kept, 0 … 1.
    """

    name = "sampled_edges"
    exact = False

    def __init__(self, graph: CellGraph, *, share: float = 0.25, **options: Any) -> None:
        super().__init__(graph, **options)
        self.share = share

    def encode(self, indices: Sequence[int], removed: dict[str, Deletions]) -> list[dict[str, Tensor]]:
        """Return what `subgraph` returns, with a share of the edges."""
        encoded = super().encode(indices, removed)
        for index, sample in zip(indices, encoded, strict=True):
            generator = torch.Generator().manual_seed(index)
            for name in self.graph.networks:
                edges = sample[f"edge_index/{name}"].size(1)
                drawn = torch.rand(edges, generator=generator) < self.share
                for key in (f"edge_index/{name}", f"edge_weight/{name}"):
                    if key in sample:
                        sample[key] = sample[key][..., drawn]
        return encoded

    def view(self, batch: Batch) -> View:
        """Return the view in which each drawn edge counts for 1 / `share` edges."""
        weighted = dict(batch.tensors)
        for name in self.graph.networks:
            ones = torch.ones_like(batch.tensors[f"edge_index/{name}"][0], dtype=torch.float64)
            weighted[f"edge_weight/{name}"] = batch.tensors.get(f"edge_weight/{name}", ones) / self.share
        return super().view(replace(batch, tensors=weighted))
