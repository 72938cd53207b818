"""`gpu_mask_cached`: one all-true mask stays on the device, flipped for a batch, restored when its view closes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch
from tclab.masking._gpu_mask import GpuMask
from tclab.masking._replicated_edges import edge_lists, edge_view
from tclab.message_passing import View


class GpuMaskCached(GpuMask):
    """As `gpu_mask`, without making a mask for each batch; it owns one buffer, so one view lives at a time."""

    name = "gpu_mask_cached"
    one_view = True

    def __init__(self, graph: CellGraph, **options: Any) -> None:
        super().__init__(graph, **options)
        self._lent = False
        self._buffers: tuple[int, dict[str, Tensor]] | None = None

    def view(self, batch: Batch) -> View:
        """Return the view over the one buffer; close it after the backward.

        **Raises:** `RuntimeError` while an earlier view of this strategy is still open.
        """
        if self._lent:
            raise RuntimeError(f"{self.name} owns one buffer, and an earlier view of it is still open: close that")
        if self._buffers is None or self._buffers[0] != batch.size:
            self._buffers = (
                batch.size,
                {
                    name: torch.ones(batch.size * network.num_edges, dtype=torch.bool, device=batch.target.device)
                    for name, network in self.graph.relations.items()
                },
            )
        masks = self._buffers[1]
        removed = {name: self.removed_edge_ids(network, batch) for name, network in self.graph.relations.items()}
        for name, ids in removed.items():
            masks[name].index_fill_(0, ids, False)
        self._lent = True

        def restore() -> None:
            for name, ids in removed.items():
                masks[name].index_fill_(0, ids, True)
            self._lent = False

        return edge_view(self.graph, batch, edge_lists(self.graph, self._edges(batch), masks), on_close=restore)
