"""`indices`: only the deleted nodes' ids travel, for models that read no node-deleted graph."""

from __future__ import annotations

from typing import Any, NoReturn

from tclab.errors import InputError
from tclab.masking._batch import Batch
from tclab.masking._strategy import Strategy
from tclab.message_passing import SharedView, View


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
