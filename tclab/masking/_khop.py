"""`khop_1`, `khop_2`, `khop_3`: of each sample only the k-hop neighbourhoods of its deleted nodes.

They do not compute what `subgraph` computes: the equivalence check reports their error next to their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from tclab.masking._subgraph import Subgraph
from tclab.perturbation import Deletions


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
