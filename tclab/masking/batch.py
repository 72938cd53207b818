"""What travels from the loader to the device: tensors by name, and the few numbers the host should know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tclab.masking.packing import INLINE_BYTES, Layout, Piece, packed, unpacked
from tclab.perturbation import Deletions


@dataclass(frozen=True, eq=False)
class Batch:
    """The raw batch of a strategy; only this crosses a worker's pipe, Lightning and DDP.

    **Arguments:**

    - `tensors`: all that travels, by name (`edge_index/physical`, `edge_mask/physical`, `deleted/gene`, …).
    - `size`: how many samples, B.
    - `known`: what the host knows where the batch is made, so that no device need be asked for it.
    - `buffer`: the one tensor, [bytes] uint8, that `tensors` are views of, with its `layout`; `None` where each
      is a tensor of its own.
    """

    tensors: Mapping[str, Tensor]
    size: int
    known: Mapping[str, Any] = field(default_factory=dict)
    buffer: Tensor | None = None
    layout: Layout | None = None

    @staticmethod
    def packed(pieces: Mapping[str, Tensor | Piece], size: int, known: Mapping[str, Any]) -> Batch:
        """Return the batch of some tensors, all in one buffer."""
        buffer, layout, tensors = packed(pieces)
        return Batch(tensors, size, known, buffer, layout)

    @property
    def bytes(self) -> int:
        """How many bytes travel; a buffer's padding, under 64 a tensor, is not counted."""
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
        """Return this batch with its tensors on `device`: one copy, where they lie in one buffer."""
        if self.buffer is not None and self.layout is not None:
            return self._over(self.buffer.to(device, non_blocking=non_blocking))
        moved = {name: t.to(device, non_blocking=non_blocking) for name, t in self.tensors.items()}
        return replace(self, tensors=moved)

    def pin_memory(self) -> Batch:
        """Return this batch in page-locked memory; `DataLoader` calls it."""
        if self.buffer is not None:
            return self._over(self.buffer.pin_memory())
        return replace(self, tensors={name: t.pin_memory() for name, t in self.tensors.items()})

    def _over(self, buffer: Tensor) -> Batch:
        assert self.layout is not None
        return (
            self if buffer is self.buffer else replace(self, tensors=unpacked(buffer, self.layout), buffer=buffer)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross a worker's pipe: as bytes where they are few, else as one tensor in shared memory."""
        if self.buffer is None:
            return Batch, (self.tensors, self.size, self.known)
        if self.buffer.numel() <= INLINE_BYTES:
            return _from_bytes, (self.buffer.numpy().tobytes(), self.layout, self.size, self.known)
        return _from_buffer, (self.buffer, self.layout, self.size, self.known)


def _from_buffer(buffer: Tensor, layout: Layout, size: int, known: Mapping[str, Any]) -> Batch:
    return Batch(unpacked(buffer, layout), size, known, buffer, layout)


def _from_bytes(data: bytes, layout: Layout, size: int, known: Mapping[str, Any]) -> Batch:
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return _from_buffer(buffer, layout, size, known)
