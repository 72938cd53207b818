"""What travels from the loader to the device: tensors by name, and the few numbers the host should know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tclab.perturbation import Deletions


@dataclass(frozen=True, eq=False)
class Batch:
    """The raw batch of a strategy; only this crosses a worker's pipe, Lightning and DDP.

    **Arguments:**

    - `tensors`: all that travels, by name (`edge_index/physical`, `edge_mask/physical`, `deleted/gene`, …).
    - `size`: how many samples, B.
    - `known`: what the host knows where the batch is made, so that no device need be asked for it.
    """

    tensors: Mapping[str, Tensor]
    size: int
    known: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """How many bytes travel."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def edge_bytes(self) -> int:
        """How many of them are edges and edge masks."""
        return sum(tensor.nbytes for name, tensor in self.tensors.items() if name.startswith("edge"))

    @property
    def target(self) -> Tensor:
        """The samples' scores, [B] float32."""
        return self.tensors["target"]

    def deletions(self, node_type: str) -> Deletions:
        """Return which nodes of a type each sample loses."""
        return Deletions(
            self.tensors[f"deleted/{node_type}"],
            self.tensors[f"deleted_ptr/{node_type}"],
            self.known[f"most/{node_type}"],
        )

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Return this batch with its tensors on `device`."""
        moved = {name: t.to(device, non_blocking=non_blocking) for name, t in self.tensors.items()}
        return replace(self, tensors=moved)

    def pin_memory(self) -> Batch:
        """Return this batch in page-locked memory; `DataLoader` calls it."""
        return replace(self, tensors={name: t.pin_memory() for name, t in self.tensors.items()})
