"""`indices`: only the deleted nodes' ids travel, for models that read no node-deleted graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from torch import Tensor

from tclab.errors import InputError
from tclab.masking._batch import Batch
from tclab.masking._strategy import Strategy
from tclab.message_passing import SharedView, View


class _WildTypeOnly(SharedView):
    """The samples' deleted nodes and the wild type; it has no rows."""

    def _refuse(self) -> NoReturn:
        raise InputError("the strategy 'indices' makes no node-deleted graph; this model needs one")

    def lift(self, x: Tensor, node_type: str | None = None) -> Tensor:
        self._refuse()

    def neighbour_sum(
        self, relation: str, x: Tensor, *, transpose: bool = False, self_weight: Tensor | None = None
    ) -> Tensor:
        self._refuse()

    def neighbour_sums(
        self, relations: Sequence[str], x: Tensor, *, self_weights: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        self._refuse()

    def with_wild_type(self) -> NoReturn:
        self._refuse()


class Indices(Strategy):
    """What DANGO needs: the whole graph once a step, and which nodes each sample deletes."""

    name = "indices"
    masks_graph = False

    def view(self, batch: Batch) -> View:
        """Return a view that has a wild type and deleted nodes alone."""
        return _WildTypeOnly(self.graph, batch.deletions)
