"""The batch of a strategy: what travels from the loader to the device, and the few numbers that the host knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tclab.masking._packing import INLINE_BYTES, Layout, Piece, packed, unpacked
from tclab.perturbation import Deletions


class _Contents(NamedTuple):
    """What one buffer holds, in this order: for each node type its deletions' `nodes` and `ptr`, then the tensors."""

    most: dict[str, int]  # node type → the largest number of its nodes that any sample deletes
    names: tuple[str, ...]  # of the tensors
    layout: Layout  # where each of all of them lies

    def of(self, views: Sequence[Tensor]) -> tuple[dict[str, Tensor], dict[str, Deletions]]:
        """Return the tensors by name and the deletions by node type, given the buffer's views in their order."""
        each = iter(views)
        deletions = {kind: Deletions(next(each), next(each), most) for kind, most in self.most.items()}
        return dict(zip(self.names, each, strict=True)), deletions


@dataclass(frozen=True, eq=False)
class Batch:
    """The raw batch of a strategy; only this crosses a worker's pipe, Lightning and DDP.

    **Arguments:**

    - `tensors`: what travels besides the deletions, by name (`target`, `edge_index/physical`, …).
    - `deletions`: node type → which of its nodes each sample removes, dependants included.
    - `size`: how many samples, B.
    - `host_values`: numbers that the host knows from making the batch, so that it need not wait for the device.
    - `buffer`: the one tensor, [bytes] uint8, that all others are views of, with its `contents`; `None` where each
      is a tensor of its own.
    - `slices`: the batches that make this one, sample after sample, where it was made in slices; the tensors and
      deletions are theirs then, and it has none itself.
    """

    tensors: Mapping[str, Tensor]
    deletions: dict[str, Deletions]
    size: int
    host_values: Mapping[str, Any] = field(default_factory=dict)
    buffer: Tensor | None = None
    contents: _Contents | None = None
    slices: tuple[Batch, ...] = ()

    @staticmethod
    def sliced(slices: Sequence[Batch]) -> Batch:
        """Return the batch that some others make, each with its own samples."""
        return Batch({}, {}, sum(part.size for part in slices), slices=tuple(slices))

    @property
    def parts(self) -> tuple[Batch, ...]:
        """The slices, or this batch where it is whole."""
        return self.slices or (self,)

    @staticmethod
    def packed(
        pieces: Mapping[str, Tensor | Piece], deletions: dict[str, Deletions], size: int, host_values: Mapping[str, Any]
    ) -> Batch:
        """Return the batch of some tensors and deletions, all in one buffer."""
        most = {kind: one.most for kind, one in deletions.items()}
        buffer, layout, views = packed([*_tensors_of(deletions), *pieces.values()])
        contents = _Contents(most, tuple(pieces), layout)
        return Batch(*contents.of(views), size, host_values, buffer, contents)

    @property
    def bytes(self) -> int:
        """How many bytes travel; a buffer's padding, under 64 a tensor, is not counted."""
        return sum(tensor.nbytes for part in self.parts for tensor in part._each())

    @property
    def edge_bytes(self) -> int:
        """How many of them are edges and edge masks."""
        return self._bytes_named("edge")

    @property
    def mask_bytes(self) -> int:
        """How many of those are edge masks."""
        return self._bytes_named("edge_mask")

    def _bytes_named(self, start: str) -> int:
        named = (item for part in self.parts for item in part.tensors.items())
        return sum(tensor.nbytes for name, tensor in named if name.startswith(start))

    @property
    def target(self) -> Tensor:
        """The samples' scores, [B] float32."""
        return torch.cat([part.target for part in self.slices]) if self.slices else self.tensors["target"]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Return this batch with its tensors on `device`: one copy, where they lie in one buffer."""
        return self.moved(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """Return this batch in page-locked memory; `DataLoader` calls it."""
        return self.moved(lambda tensor: tensor.pin_memory())

    def moved(self, move: Callable[[Tensor], Tensor]) -> Batch:
        """Return this batch with `move` of each tensor, or of the one buffer that they lie in."""
        if self.slices:
            return Batch.sliced([part.moved(move) for part in self.slices])
        if self.buffer is not None:
            assert self.contents is not None
            buffer = move(self.buffer)
            return self if buffer is self.buffer else _from_buffer(buffer, self.contents, self.size, self.host_values)
        tensors = {name: move(tensor) for name, tensor in self.tensors.items()}
        deletions = {kind: Deletions(move(d.nodes), move(d.ptr), d.most) for kind, d in self.deletions.items()}
        return replace(self, tensors=tensors, deletions=deletions)

    @property
    def storages(self) -> list[Tensor]:
        """The tensors that hold this batch's memory; all others may be views of them."""
        each = [part._each() if part.buffer is None else [part.buffer] for part in self.parts]
        return [tensor for tensors in each for tensor in tensors]

    def _each(self) -> list[Tensor]:
        """Return every tensor of a batch that is not sliced."""
        return [*self.tensors.values(), *_tensors_of(self.deletions)]

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross a worker's pipe: as bytes where they are few, else as one tensor in shared memory."""
        if self.slices:
            few = sum(tensor.nbytes for tensor in self.storages) <= INLINE_BYTES
            fields = [(part.buffer, part.contents, part.size, part.host_values) for part in self.slices]
            packed = all(part.buffer is not None for part in self.slices)
            return (Batch.sliced, (self.slices,)) if few or not packed else (_from_buffers, (fields,))
        if self.buffer is None:
            return Batch, (self.tensors, self.deletions, self.size, self.host_values)
        if self.buffer.numel() <= INLINE_BYTES:
            return _from_bytes, (self.buffer.numpy().tobytes(), self.contents, self.size, self.host_values)
        return _from_buffer, (self.buffer, self.contents, self.size, self.host_values)


def _tensors_of(deletions: dict[str, Deletions]) -> list[Tensor]:
    """Return the deletions' tensors in the order in which a buffer holds them."""
    return [tensor for one in deletions.values() for tensor in (one.nodes, one.ptr)]


def _from_buffer(buffer: Tensor, contents: _Contents, size: int, host_values: Mapping[str, Any]) -> Batch:
    return Batch(*contents.of(unpacked(buffer, contents.layout)), size, host_values, buffer, contents)


def _from_buffers(parts: list[tuple[Tensor, _Contents, int, Mapping[str, Any]]]) -> Batch:
    return Batch.sliced([_from_buffer(*part) for part in parts])


def _from_bytes(data: bytes, contents: _Contents, size: int, host_values: Mapping[str, Any]) -> Batch:
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return _from_buffer(buffer, contents, size, host_values)
