"""The strategy `node_mask`: ship node ids, share one sparse matrix: K·A·(K·X), without copying or masking edges."""

from __future__ import annotations

from tclab.masking._batch import Batch
from tclab.masking._strategy import Strategy
from tclab.message_passing import SharedView, View


class NodeMask(Strategy):
    """One sparse matrix for all samples, and a 0/1 for each node and sample."""

    name = "node_mask"

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies by the shared matrices."""
        return SharedView(self.graph, batch.deletions)
