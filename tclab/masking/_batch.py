"""The batch of a strategy: the tensors that travel from the loader to the device, end to end in one buffer, and the
few numbers that the host knows.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tclab.perturbation import Deletions

_ALIGNED = 64  # a cache line; more than any dtype or vectorised kernel asks for
_SHARED = Path("/dev/shm")

# Up to here a batch goes through the pipe itself: a pipe takes up to 4096 bytes at once or not at all (POSIX's
# PIPE_BUF), so that a worker which is killed leaves no half message, on which the reader would wait for ever.
# Shared memory would cost a file, a socket and a thread's wake-up for every batch.
INLINE_BYTES = 2048

Layout = dict[str, tuple[int, tuple[int, ...], torch.dtype]]  # name → first byte in the buffer, shape, dtype


@dataclass(frozen=True)
class Piece:
    """A tensor that does not exist yet: it is written once, straight into the buffer."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: Callable[[Tensor], object]  # called with the empty tensor, writes its values

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Batch:
    """The raw batch of a strategy; only this crosses a worker's pipe, Lightning and DDP.

    **Arguments:**

    - `tensors`: what travels besides the deletions, by name (`target`, `edge_index/physical`, …).
    - `deletions`: node type → which of its nodes each sample removes, dependants included.
    - `size`: how many samples, B.
    - `host_values`: numbers that the host knows from making the batch, so that it need not wait for the device.
    - `buffer`: the one tensor, [bytes] uint8, that all others are views of, with its `layout`; `None` where each
      is a tensor of its own.
    - `slices`: the batches that make this one, sample after sample, where it was made in slices; the tensors and
      deletions are theirs then, and it has none itself.
    """

    tensors: Mapping[str, Tensor]
    deletions: dict[str, Deletions]
    size: int
    host_values: Mapping[str, Any] = field(default_factory=dict)
    buffer: Tensor | None = None
    layout: Layout = field(default_factory=dict)
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
        """Return the batch of some tensors and deletions, all in one buffer.

        In a DataLoader worker the buffer lies in shared memory, as it must before it can be handed over.

        **Raises:** `SharedMemoryError` where there is too little of that.
        """
        named: dict[str, Tensor | Piece] = {**_named(deletions), **pieces}
        layout: Layout = {}
        end = 0
        for name, piece in named.items():
            layout[name] = (end, tuple(piece.shape), piece.dtype)
            end += -(-piece.nbytes // _ALIGNED) * _ALIGNED
        batch = _from_buffer(_empty(end), layout, _most(deletions), size, host_values)
        for name, out in batch.named().items():
            piece = named[name]
            if isinstance(piece, Piece):
                piece.fill(out)
            else:
                out.copy_(piece)
        return batch

    @property
    def bytes(self) -> int:
        """How many bytes travel; a buffer's padding, under 64 a tensor, is not counted."""
        return sum(tensor.nbytes for part in self.parts for tensor in part.named().values())

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
        if self.buffer is None:
            return self.with_tensors({name: move(tensor) for name, tensor in self.named().items()})
        buffer = move(self.buffer)
        if buffer is self.buffer:
            return self
        return _from_buffer(buffer, self.layout, _most(self.deletions), self.size, self.host_values)

    def named(self) -> dict[str, Tensor]:
        """Return every tensor of a batch that is not sliced, by name, those of the deletions first."""
        return {**_named(self.deletions), **self.tensors}

    def with_tensors(self, named: Mapping[str, Tensor]) -> Batch:
        """Return this batch with other tensors, named as `named` names them, that lie in no buffer."""
        tensors, deletions = _split(named, _most(self.deletions))
        return replace(self, tensors=tensors, deletions=deletions, buffer=None, layout={})

    @property
    def storages(self) -> list[Tensor]:
        """The tensors that hold this batch's memory; all others may be views of them."""
        each = [part.named().values() if part.buffer is None else [part.buffer] for part in self.parts]
        return [tensor for tensors in each for tensor in tensors]

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross a worker's pipe: as bytes where they are few, else as one tensor in shared memory for each slice."""
        inline = sum(tensor.nbytes for tensor in self.storages) <= INLINE_BYTES
        return _received, ([part._sent(inline) for part in self.parts],)

    def _sent(self, inline: bool) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
        """Return the function that makes this slice again in another process, and its arguments."""
        if self.buffer is None:
            return Batch, (self.tensors, self.deletions, self.size, self.host_values)
        data = self.buffer.numpy().tobytes() if inline else self.buffer
        return _from_buffer, (data, self.layout, _most(self.deletions), self.size, self.host_values)


def _named(deletions: Mapping[str, Deletions]) -> dict[str, Tensor]:
    """Return the deletions' tensors by the names that a layout has for them."""
    named: dict[str, Tensor] = {}
    for kind, one in deletions.items():
        named |= {f"removed/{kind}": one.nodes, f"removed_ptr/{kind}": one.ptr}
    return named


def _most(deletions: Mapping[str, Deletions]) -> dict[str, int]:
    """Return node type → the largest number of its nodes that any sample removes."""
    return {kind: one.most for kind, one in deletions.items()}


def _split(named: Mapping[str, Tensor], most: Mapping[str, int]) -> tuple[dict[str, Tensor], dict[str, Deletions]]:
    """Return the tensors by name and the deletions by node type, of those by the names that a layout has."""
    tensors = dict(named)
    deletions = {
        kind: Deletions(tensors.pop(f"removed/{kind}"), tensors.pop(f"removed_ptr/{kind}"), number)
        for kind, number in most.items()
    }
    return tensors, deletions


def _from_buffer(
    data: Tensor | bytes, layout: Layout, most: Mapping[str, int], size: int, host_values: Mapping[str, Any]
) -> Batch:
    """Return the batch whose tensors are views of a buffer, or of one with these bytes."""
    buffer = data if isinstance(data, Tensor) else torch.frombuffer(bytearray(data), dtype=torch.uint8)
    whole: dict[torch.dtype, Tensor] = {}
    views = {}
    for name, (begin, shape, dtype) in layout.items():
        if dtype not in whole:
            whole[dtype] = buffer.view(dtype)
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        views[name] = whole[dtype].as_strided(shape, strides, begin // dtype.itemsize)
    return Batch(*_split(views, most), size, host_values, buffer, layout)


def _received(parts: Sequence[tuple[Callable[..., Batch], tuple[Any, ...]]]) -> Batch:
    made = [make(*arguments) for make, arguments in parts]
    return made[0] if len(made) == 1 else Batch.sliced(made)


def _empty(size: int) -> Tensor:
    in_worker = torch.utils.data.get_worker_info() is not None
    if not in_worker or size <= INLINE_BYTES:
        return torch.empty(size, dtype=torch.uint8)
    with shared_memory(size):
        return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(size))


class SharedMemoryError(RuntimeError):
    """A batch does not fit into shared memory, through which workers hand their batches over."""


def shared_memory_free() -> int | None:
    """Return how many bytes of shared memory are free; `None` where the system does not tell."""
    return shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else None


@contextmanager
def shared_memory(size: int) -> Iterator[None]:
    """Turn torch's failure to allocate so many bytes of shared memory into an error that says how many are free.

    **Raises:** `SharedMemoryError` with the bytes that are needed and those that are free.
    """
    free = shared_memory_free()
    if free is not None and size > free:
        raise _too_little(size)
    try:
        yield
    except RuntimeError as error:  # another worker took the memory in the meantime; torch has no class for it
        if "unable to allocate shared memory" in str(error):
            raise _too_little(size) from None
        raise


def _too_little(size: int) -> SharedMemoryError:
    return SharedMemoryError(
        f"a batch needs {size:,} bytes of shared memory, and {_SHARED} has {shared_memory_free() or 0:,} free: "
        "use fewer workers, a smaller prefetch_factor or batch, no workers at all, or give it more "
        "(docker run --shm-size)"
    )
