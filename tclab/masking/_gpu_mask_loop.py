"""`gpu_mask_loop`: masks on the device by Python loops, one `.item()` for each sample, node and network.

At batch 28 with three deletions and nine networks the host waits 756 times.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch
from tclab.masking._gpu_mask import GpuMask
from tclab.masking._packing import Piece
from tclab.masking._replicated_edges import edge_lists, edge_view
from tclab.message_passing import View
from tclab.perturbation import Deletions


class GpuMaskLoop(GpuMask):
    """Masks on the device, a Python loop over networks, samples and deleted nodes."""

    name = "gpu_mask_loop"

    def __init__(self, graph: CellGraph, **options: Any) -> None:
        super().__init__(graph, **options)
        self._lists: dict[tuple[str, str], tuple[Tensor, ...]] = {}

    def pack(self, removed: dict[str, Deletions], encoded: Any) -> tuple[dict[str, Tensor | Piece], dict[str, Any]]:
        """Return what `gpu_mask` sends, and how many nodes each sample removes."""
        tensors, host_values = super().pack(removed, encoded)
        for kind in self.graph.num_nodes:
            host_values[f"lengths/{kind}"] = removed[kind].ptr.diff().tolist()
        return tensors, host_values

    def masks(self, batch: Batch) -> dict[str, Tensor]:
        """Return relation → [B * E] bool; the host waits for each node id."""
        masks = {}
        for name, network in self.graph.relations.items():
            mask = torch.ones(batch.size * network.num_edges, dtype=torch.bool, device=batch.target.device)
            for kind in dict.fromkeys((network.source, network.target)):
                touching = self._touching(name, kind)
                place = 0
                for sample, length in enumerate(batch.host_values[f"lengths/{kind}"]):
                    for _ in range(length):
                        node = int(batch.deletions[kind].nodes[place].item())
                        mask[touching[node] + sample * network.num_edges] = False
                        place += 1
            masks[name] = mask
        return masks

    def meta_view(self, batch: Batch) -> View:
        """Return the view of `gpu_mask`, whose masks have the same shapes."""
        masks = {
            name: torch.empty(batch.size * network.num_edges, dtype=torch.bool, device=batch.target.device)
            for name, network in self.graph.relations.items()
        }
        return edge_view(self.graph, batch, edge_lists(self.graph, self._edges(batch), masks))

    def _touching(self, name: str, kind: str) -> tuple[Tensor, ...]:
        """Return for each node the ids of its edges, a small tensor a node."""
        if (name, kind) not in self._lists:
            ptr, items = self.graph.relations[name].incidence(kind)
            self._lists[name, kind] = items.split(ptr.diff().tolist())
        return self._lists[name, kind]
