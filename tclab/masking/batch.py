"""What travels from the loader to the device: tensors by name, and the few numbers the host should know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    - `slices`: the batches that make this one, sample after sample, where it was made in slices; `tensors` then
      are theirs, and none its own.
    """

    tensors: Mapping[str, Tensor]
    size: int
    known: Mapping[str, Any] = field(default_factory=dict)
    buffer: Tensor | None = None
    layout: Layout | None = None
    slices: tuple[Batch, ...] = ()

    @staticmethod
    def sliced(slices: Sequence[Batch]) -> Batch:
        """Return the batch that some others make, each with its own samples."""
        return Batch({}, sum(part.size for part in slices), slices=tuple(slices))

    @property
    def parts(self) -> tuple[Batch, ...]:
        """The slices, or this batch where it is whole."""
        return self.slices or (self,)

    @staticmethod
    def packed(pieces: Mapping[str, Tensor | Piece], size: int, known: Mapping[str, Any]) -> Batch:
        """Return the batch of some tensors, all in one buffer."""
        buffer, layout, tensors = packed(pieces)
        return Batch(tensors, size, known, buffer, layout)

    @property
    def bytes(self) -> int:
        """How many bytes travel; a buffer's padding, under 64 a tensor, is not counted."""
        return sum(tensor.nbytes for part in self.parts for tensor in part.tensors.values())

    @property
    def edge_bytes(self) -> int:
        """How many of them are edges and edge masks."""
        named = (item for part in self.parts for item in part.tensors.items())
        return sum(tensor.nbytes for name, tensor in named if name.startswith("edge"))

    @property
    def target(self) -> Tensor:
        """The samples' scores, [B] float32."""
        return torch.cat([part.target for part in self.slices]) if self.slices else self.tensors["target"]

    def deletions(self, node_type: str) -> Deletions:
        """Return which nodes of a type each sample loses."""
        return Deletions(
            self.tensors[f"deleted/{node_type}"],
            self.tensors[f"deleted_ptr/{node_type}"],
            self.known[f"most/{node_type}"],
        )

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Return this batch with its tensors on `device`: one copy, where they lie in one buffer."""
        if self.slices:
            return Batch.sliced([part.to(device, non_blocking=non_blocking) for part in self.slices])
        if self.buffer is not None and self.layout is not None:
            return self._over(self.buffer.to(device, non_blocking=non_blocking))
        moved = {name: t.to(device, non_blocking=non_blocking) for name, t in self.tensors.items()}
        return replace(self, tensors=moved)

    def pin_memory(self) -> Batch:
        """Return this batch in page-locked memory; `DataLoader` calls it."""
        if self.slices:
            return Batch.sliced([part.pin_memory() for part in self.slices])
        if self.buffer is not None:
            return self._over(self.buffer.pin_memory())
        return replace(self, tensors={name: t.pin_memory() for name, t in self.tensors.items()})

    @property
    def held(self) -> list[Tensor]:
        """The tensors that hold this batch's memory; `tensors` may be views of them."""
        own = [list(part.tensors.values()) if part.buffer is None else [part.buffer] for part in self.parts]
        return [tensor for tensors in own for tensor in tensors]

    def _over(self, buffer: Tensor) -> Batch:
        assert self.layout is not None
        return (
            self if buffer is self.buffer else replace(self, tensors=unpacked(buffer, self.layout), buffer=buffer)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross a worker's pipe: as bytes where they are few, else as one tensor in shared memory."""
        if self.slices:
            few = sum(tensor.nbytes for tensor in self.held) <= INLINE_BYTES
            fields = [(part.buffer, part.layout, part.size, part.known) for part in self.slices]
            packed = all(part.buffer is not None for part in self.slices)
            return (Batch.sliced, (self.slices,)) if few or not packed else (_from_buffers, (fields,))
        if self.buffer is None:
            return Batch, (self.tensors, self.size, self.known)
        if self.buffer.numel() <= INLINE_BYTES:
            return _from_bytes, (self.buffer.numpy().tobytes(), self.layout, self.size, self.known)
        return _from_buffer, (self.buffer, self.layout, self.size, self.known)


def _from_buffer(buffer: Tensor, layout: Layout, size: int, known: Mapping[str, Any]) -> Batch:
    return Batch(unpacked(buffer, layout), size, known, buffer, layout)


def _from_buffers(parts: list[tuple[Tensor, Layout, int, Mapping[str, Any]]]) -> Batch:
    return Batch.sliced([_from_buffer(*part) for part in parts])


def _from_bytes(data: bytes, layout: Layout, size: int, known: Mapping[str, Any]) -> Batch:
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return _from_buffer(buffer, layout, size, known)
