"""`fastest`: each network by the kernel that a short calibration found fastest here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from tclab.graph._cell_graph import CellGraph
from tclab.masking._batch import Batch
from tclab.masking._delta import Delta
from tclab.masking._packing import Piece
from tclab.masking.calibration import DELETED, WIDTH, Choice, keep_choice, kept_choice, timed
from tclab.message_passing import View
from tclab.message_passing._delta_view import DeltaView
from tclab.perturbation import Deletions, Perturbations


class Fastest(Delta):
    """The shared product, sparse or dense for each network, and `delta`'s differences where they are faster.

    `tune` decides, for a batch size, dtype and device: by what is kept of an earlier calibration on this machine,
    or by a new one; see `tclab.masking.calibration`. Before `tune` it uses every kernel, so that the equivalence
    check covers all of them: networks are dense and sparse in turn, and differences are carried.

    **Arguments:**

    - `choice`: instead of what calibration would find.
    """

    name = "fastest"

    def __init__(self, graph: CellGraph, *, choice: Choice | None = None, **options: Any) -> None:
        super().__init__(graph, **options)
        self.choice = choice or Choice(tuple(graph.networks)[1::2], delta=True)
        self._given = choice is not None

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
        found = kept_choice(*asked, deleted=deleted, width=width)
        if found is None and timing:
            here = self.graph.to(device)
            found = timed(here, batch_size, getattr(torch, dtype), self._differences, deleted=deleted, width=width)
            keep_choice(*asked, found, deleted=deleted, width=width)
        self.choice = found or self.choice

    def chosen(self) -> dict[str, Any]:
        """Return the choice, as JSON can hold it."""
        return asdict(self.choice)

    def use(self, chosen: dict[str, Any]) -> None:
        """Take the choice that another half, or another rank's, made."""
        self.choice = Choice.from_dict(chosen)

    def _differences(self, graph: CellGraph, deletions: Deletions, dense: Sequence[str]) -> View:
        """Return the view that would run if differences were carried, on a graph where it is timed."""
        choice = Choice(tuple(dense), delta=True)
        here = type(self)(self.graph.to("cpu"), **{**self._settings, "choice": choice})
        batch = here.batch(Perturbations(deletions, torch.zeros(len(deletions))))
        return here.on(graph).view(batch.to(graph.device))

    def encode(self, indices: Sequence[int], removed: dict[str, Deletions]) -> Any:
        """Return what `delta` does, where differences are carried."""
        return super().encode(indices, removed) if self.choice.delta else None

    def shapes(
        self, indices: Sequence[int], removed: dict[str, Deletions]
    ) -> tuple[Mapping[str, Tensor | Piece], dict[str, Any]]:
        """Return what `delta` does, where differences are carried."""
        return super().shapes(indices, removed) if self.choice.delta else ({}, {"layers": 0})

    def pack(self, removed: dict[str, Deletions], encoded: Any) -> tuple[dict[str, Tensor | Piece], dict[str, Any]]:
        """Return what `delta` does, where differences are carried."""
        return ({}, {"layers": 0}) if encoded is None else super().pack(removed, encoded)

    def view(self, batch: Batch) -> View:
        """Return the view that sums by the kernels that were chosen."""
        return DeltaView(self.graph, batch.deletions, self.layers(batch), dense=self.choice.dense)
