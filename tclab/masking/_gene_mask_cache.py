"""`gene_mask_cache`: the worker keeps each deleted node's edge masks, one bit an edge, and combines them by AND."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tclab.graph._cell_graph import CellGraph
from tclab.masking._edge_mask import EdgeMask
from tclab.perturbation import Deletions

MOST = 1024  # nodes whose masks are kept: 0.3 MB each on the real graph


class GeneMaskCache(EdgeMask):
    """As `edge_mask`, from masks that are made when a node is first deleted; a worker keeps the last `most` nodes'."""

    name = "gene_mask_cache"

    def __init__(self, graph: CellGraph, *, most: int = MOST, **options: Any) -> None:
        super().__init__(graph, **options)
        self.most = most
        self._packed: OrderedDict[int, dict[str, np.ndarray]] = OrderedDict()

    def _packed_masks(self, node: int) -> dict[str, np.ndarray]:
        """Return relation → [E / 8] uint8, the edges that are left when one node is deleted, a bit each."""
        if node not in self._packed:
            alone = Deletions.of([[node]], num_nodes=self.graph.num_nodes[self.graph.deleted_type])
            masks = super().masks(self.removed_by(alone), 0)
            self._packed[node] = {name: np.packbits(mask.numpy()) for name, mask in masks.items()}
            if len(self._packed) > self.most:
                self._packed.popitem(last=False)
        self._packed.move_to_end(node)
        return self._packed[node]

    def masks(self, removed: dict[str, Deletions], sample: int) -> dict[str, Tensor]:
        """Return one sample's masks, relation → [E] bool: the edges that every deleted node leaves."""
        nodes = [self._packed_masks(node) for node in removed[self.graph.deleted_type][sample].tolist()]
        masks = {}
        for name, network in self.graph.relations.items():
            if not nodes:
                masks[name] = torch.ones(network.num_edges, dtype=torch.bool)
                continue
            packed = np.bitwise_and.reduce([node[name] for node in nodes])
            masks[name] = torch.from_numpy(np.unpackbits(packed, count=network.num_edges).view(np.bool_))
        return masks
