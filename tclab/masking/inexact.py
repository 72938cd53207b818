"""What does not compute what `subgraph` computes: k-hop neighbourhoods of the deleted nodes, and sampled edges.

They are here to be seen: the gate reports their error beside their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from tclab.graph import CellGraph
from tclab.masking.batch import Batch
from tclab.masking.subgraph import Subgraph
from tclab.message_passing import View
from tclab.perturbation import Deletions


class _Hops(Subgraph):
    """Of each sample only the nodes within some hops of a deleted one, along or against any network's edges."""

    exact = False
    hops: ClassVar[int]

    def encode(self, indices: Sequence[int], lost: dict[str, Deletions]) -> list[dict[str, Tensor]]:
        """Return what `subgraph` returns where all that is farther away is lost too."""
        kind = self.graph.deleted_type
        beyond = [self._beyond(lost[kind][sample]) for sample in range(len(indices))]
        far = Deletions.of(beyond, num_nodes=self.graph.num_nodes[kind])
        return super().encode(indices, {**lost, kind: far})

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

    Edges within the deleted type alone are drawn. The draw is the sample's own: the same each time it is read.

    **Arguments:**

    - `share`: how many of the edges are kept, 0 … 1.
    """

    name = "sampled_edges"
    exact = False

    def __init__(
        self, graph: CellGraph, *, ship_edges: bool = False, collation: str = "lean", share: float = 0.25
    ) -> None:
        super().__init__(graph, ship_edges=ship_edges, collation=collation)
        self.share = share

    def encode(self, indices: Sequence[int], lost: dict[str, Deletions]) -> list[dict[str, Tensor]]:
        """Return what `subgraph` returns, with a share of the edges."""
        encoded = super().encode(indices, lost)
        for index, sample in zip(indices, encoded, strict=True):
            generator = torch.Generator().manual_seed(index)
            for name in self.graph.networks:
                edge_index = sample[f"edge_index/{name}"]
                drawn = torch.rand(edge_index.size(1), generator=generator) < self.share
                sample[f"edge_index/{name}"] = edge_index[:, drawn]
                if f"edge_weight/{name}" in sample:
                    sample[f"edge_weight/{name}"] = sample[f"edge_weight/{name}"][drawn]
        return encoded

    def view(self, batch: Batch) -> View:
        """Return the view in which each drawn edge counts for 1 / `share` edges."""
        weighted = dict(batch.tensors)
        for name in self.graph.networks:
            edge_index = batch.tensors[f"edge_index/{name}"]
            one = torch.ones(edge_index.size(1), dtype=torch.float64, device=edge_index.device)
            weighted[f"edge_weight/{name}"] = batch.tensors.get(f"edge_weight/{name}", one) / self.share
        return super().view(replace(batch, tensors=weighted))
