"""`sampled_edges`: a share of each sample's edges, each counting for as many as were left out.

It does not compute what `subgraph` computes: the equivalence check reports its error next to its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch
from tclab.masking._subgraph import Subgraph
from tclab.message_passing import View
from tclab.perturbation import Deletions


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
