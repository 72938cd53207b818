"""`node_mask`: indices travel, the graph is shared: K·A·(K·X), no edge copied, no edge masked."""

from __future__ import annotations

from tclab.masking.batch import Batch
from tclab.masking.strategy import Strategy
from tclab.message_passing import SharedView, View


class NodeMask(Strategy):
    """One sparse matrix for all samples and a 0/1 for each node; see `tclab.message_passing.shared`."""

    name = "node_mask"

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies by the shared matrices."""
        return SharedView(self.graph, self.lost(batch))
