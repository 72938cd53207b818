"""`fastest`: each network by the kernel that a short calibration found fastest here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from torch import Tensor

from tclab.graph import CellGraph
from tclab.masking.batch import Batch
from tclab.masking.calibration import DELETED, WIDTH, Choice, calibrated, kept_choice
from tclab.masking.delta import Delta
from tclab.masking.packing import Piece
from tclab.message_passing import DeltaView, View
from tclab.perturbation import Deletions, Perturbations


class Fastest(Delta):
    """The shared product, sparse or dense for each network, and `delta`'s differences where they are faster.

    `tune` decides, for a batch size, dtype and device: by what is kept of an earlier calibration on this machine,
    or by a new one; see `tclab.masking.calibration`. What was not tuned goes every way, so that the gate sees all
    of them: networks are dense and sparse in turn, and differences are carried.

    **Arguments:**

    - `choice`: instead of what calibration would find.
    """

    name = "fastest"

    def __init__(self, graph: CellGraph, *, choice: Choice | None = None, **options: Any) -> None:
        super().__init__(graph, **options)
        self.choice = choice or Choice(tuple(graph.networks)[1::2], delta=True, by_hand=True)
        self._given = choice is not None

    def on(self, graph: CellGraph) -> Self:
        """Return this strategy on another graph, with the kernels that were chosen for this one."""
        return type(self)(graph, choice=self.choice, ship_edges=self.ship_edges, collation=self.collation)

    def tune(
        self,
        batch_size: int,
        dtype: str,
        device: str,
        *,
        deleted: int = DELETED,
        width: int = WIDTH,
        timing: bool = True,
    ) -> None:
        """Choose the kernels; they are timed where nothing is kept for this machine, unless `timing` is off."""
        if self._given:
            return
        asked = (self.graph.to("cpu"), batch_size, dtype, device)
        if timing:
            self.choice = calibrated(*asked, self._differences(device), deleted=deleted, width=width)
        else:
            self.choice = kept_choice(*asked, deleted=deleted, width=width) or self.choice

    def _differences(self, device: str) -> Any:
        def view(deletions: Deletions) -> View:
            here = Delta(self.graph.to("cpu"))
            batch = here.batch(Perturbations(deletions, Tensor(len(deletions)).zero_()))
            return Delta(self.graph.to(device)).view(batch.to(device))

        return view

    def encode(self, indices: Sequence[int], lost: dict[str, Deletions]) -> Any:
        """Return what `delta` does, where differences are carried."""
        return super().encode(indices, lost) if self.choice.delta else None

    def shapes(
        self, indices: Sequence[int], lost: dict[str, Deletions]
    ) -> tuple[Mapping[str, Tensor | Piece], dict[str, Any]]:
        """Return what `delta` does, where differences are carried."""
        return super().shapes(indices, lost) if self.choice.delta else ({}, {"layers": 0})

    def pack(self, lost: dict[str, Deletions], encoded: Any) -> tuple[dict[str, Tensor | Piece], dict[str, Any]]:
        """Return what `delta` does, where differences are carried."""
        return ({}, {"layers": 0}) if encoded is None else super().pack(lost, encoded)

    def view(self, batch: Batch) -> View:
        """Return the view that sums by the kernels that were chosen."""
        return DeltaView(self.graph, self.lost(batch), self.steps(batch), dense=self.choice.dense)
