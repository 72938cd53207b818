"""The strategy `subgraph`, whose workers cut each sample out of the whole graph: every exact strategy must equal it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tclab.errors import need
from tclab.masking._batch import Batch, Packed, Piece
from tclab.masking._edge_masks import edge_lists, pyg_batch
from tclab.masking._strategy import Strategy
from tclab.message_passing import View
from tclab.message_passing._edge_list_view import EdgeListView
from tclab.perturbation import Deletions


class Subgraph(Strategy):
    """PyG `subgraph()` for each network and sample in the workers; what is left of every edge list travels.

    Rows of deleted nodes do not exist.
    """

    name = "subgraph"
    collations = ("lean", "pyg")

    def encode(self, indices: Sequence[int], removed: dict[str, Deletions]) -> list[dict[str, Tensor]]:
        """Return for each sample the nodes that are left and each relation's relabelled edges."""
        samples = range(len(indices))
        return [self._cut({kind: deletions[sample] for kind, deletions in removed.items()}) for sample in samples]

    def _cut(self, removed: dict[str, Tensor]) -> dict[str, Tensor]:
        need("the strategy subgraph", "sweep", "torch_geometric")
        from torch_geometric.utils import bipartite_subgraph, subgraph

        encoded, keep = {}, {}
        for kind, nodes in self.graph.num_nodes.items():
            keep[kind] = torch.ones(nodes, dtype=torch.bool).index_fill_(0, removed[kind], False)
            encoded[f"node/{kind}"] = torch.nonzero(keep[kind]).flatten()
        for name, network in self.graph.relations.items():
            whole = (network.edge_index, network.weight)
            source, target = keep[network.source], keep[network.target]
            if network.source == network.target:
                edge_index, weight = subgraph(source, *whole, relabel_nodes=True, num_nodes=len(source))
            else:
                edge_index, weight = bipartite_subgraph(
                    (source, target), *whole, relabel_nodes=True, size=(len(source), len(target))
                )
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
            tensors[f"edge_index/{name}"] = torch.cat(
                [s[f"edge_index/{name}"] + step[:, b : b + 1] for b, s in enumerate(encoded)], dim=1
            )
            if network.weight is not None:
                tensors[f"edge_weight/{name}"] = torch.cat([sample[f"edge_weight/{name}"] for sample in encoded])
        return tensors, {}

    def view(self, batch: Batch) -> View:
        """Return the view over the rows that are left."""
        nodes = {kind: batch.tensors[f"node/{kind}"] for kind in self.graph.num_nodes}
        return EdgeListView(
            self.graph,
            batch.deletions[self.graph.deleted_type],
            edge_lists(self.graph, batch.tensors),
            keep={kind: torch.ones_like(ids, dtype=torch.bool) for kind, ids in nodes.items()},
            nodes=nodes,
            samples={kind: batch.tensors[f"sample/{kind}"] for kind in self.graph.num_nodes},
        )
