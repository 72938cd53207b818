"""Strategies that send the deleted nodes' ids alone, and whose samples share the graph: no edge is copied or masked.

`node_mask` sums over neighbours by one sparse matrix a network for all samples, K·A·(K·X), `dense` by one dense matrix;
see `SharedView`. `indices` serves models that read which nodes are deleted and no copy of the graph.
"""

from __future__ import annotations

from typing import Any, NoReturn

from tclab.errors import InputError
from tclab.masking._batch import Batch
from tclab.masking._strategy import Strategy
from tclab.message_passing import SharedView, View


class NodeMask(Strategy):
    """One sparse matrix a network for all samples; the view makes a 0/1 for each node and sample of the removed ids."""

    name = "node_mask"

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies by the shared matrices."""
        return SharedView(self.graph, batch.deletions)


class Dense(Strategy):
    """One dense matrix a network for all samples and a 0/1 for each node.

    On a CPU it is faster than `node_mask` where about half of all possible edges are there, or more.
    """

    name = "dense"

    def view(self, batch: Batch) -> View:
        """Return the view that multiplies by the shared dense matrices."""
        return SharedView(self.graph, batch.deletions, dense=True)


class _WildTypeOnly(SharedView):
    """The samples' deleted nodes and the wild type; it has no rows."""

    def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        raise InputError("the strategy 'indices' makes no node-deleted graph; this model needs one")

    lift = neighbour_sum = neighbour_sums = with_wild_type = _refuse


class Indices(Strategy):
    """What DANGO needs: the whole graph once a step, and which nodes each sample deletes."""

    name = "indices"
    masks_graph = False

    def view(self, batch: Batch) -> View:
        """Return a view that has a wild type and deleted nodes alone."""
        return _WildTypeOnly(self.graph, batch.deletions)
