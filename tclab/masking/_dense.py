"""`dense`: as `node_mask`, with every network a dense matrix; for dense networks on a GPU with tensor cores."""

from __future__ import annotations

from tclab.masking._batch import Batch
from tclab.masking._strategy import Strategy
from tclab.message_passing import SharedView, View


class Dense(Strategy):
    """One dense matrix a network for all samples and a 0/1 for each node; see `SharedView`."""

    name = "dense"

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies by the shared dense matrices."""
        return SharedView(self.graph, batch.deletions, dense=self.graph.relations)
