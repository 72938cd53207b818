"""The batch of a strategy: the tensors that travel from the loader to the device, end to end in one buffer, and the
few numbers that the host knows.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tclab.perturbation import Deletions

_ALIGNED = 64  # a cache line; more than any dtype or vectorised kernel asks for
_SHARED = Path("/dev/shm")

# Up to here a buffer's bytes cross within the worker's message: shared memory of their own would cost a file, a socket
# and a thread's wake-up for every batch.
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


Packed = tuple[dict[str, Tensor | Piece], dict[str, Any]]  # tensors that travel by name, and facts of the host


@dataclass(frozen=True, eq=False)
class Batch:
    """What a strategy sends: a worker hands it over in a `LoadedBatch`, and it moves to the device as a whole.

    **Arguments:**

    - `tensors`: what travels, by name (`target`, `edge_index/physical`, …): `removed/gene` and `removed_ptr/gene` are
      the nodes and pointers of `deletions`.
    - `most`: node type → the largest number of its nodes that any sample removes.
    - `size`: how many samples, B.
    - `host_values`: numbers that the host knows from making the batch, so that it need not wait for the device.
    - `buffer`: [bytes] uint8, of which all tensors are views; `layout` says where each lies. `None` if each has
      memory of its own.
    - `slices`: if the batch was made in slices, their batches, in order. They hold the tensors, and `tensors` is empty.
    """

    tensors: Mapping[str, Tensor]
    most: Mapping[str, int]
    size: int
    host_values: Mapping[str, Any] = field(default_factory=dict)
    buffer: Tensor | None = None
    layout: Layout = field(default_factory=dict)
    slices: tuple[Batch, ...] = ()

    @staticmethod
    def sliced(slices: Sequence[Batch]) -> Batch:
        """Return one batch of the samples of several, in order."""
        return Batch({}, {}, sum(part.size for part in slices), slices=tuple(slices))

    @staticmethod
    def packed(
        pieces: Mapping[str, Tensor | Piece], deletions: Mapping[str, Deletions], size: int,
        host_values: Mapping[str, Any]
    ) -> Batch:  # fmt: skip
        """Return the batch of some tensors and deletions, all in one buffer.

        In a DataLoader worker the buffer lies in shared memory, as it must before it can be handed over.

        **Raises:** `SharedMemoryError` where there is too little of that.
        """
        named: dict[str, Tensor | Piece] = {}
        for kind, removed in deletions.items():
            named |= {f"removed/{kind}": removed.nodes, f"removed_ptr/{kind}": removed.ptr}
        named |= pieces
        layout: Layout = {}
        end = 0
        for name, piece in named.items():
            layout[name] = (end, tuple(piece.shape), piece.dtype)
            end += -(-piece.nbytes // _ALIGNED) * _ALIGNED
        most = {kind: removed.most for kind, removed in deletions.items()}
        batch = _in_buffer(empty_bytes(end), layout, most, size, host_values)
        for name, out in batch.tensors.items():
            piece = named[name]
            if isinstance(piece, Piece):
                piece.fill(out)
            else:
                out.copy_(piece)
        return batch

    @property
    def parts(self) -> tuple[Batch, ...]:
        """The slices, or this batch where it is whole."""
        return self.slices or (self,)

    @cached_property
    def deletions(self) -> dict[str, Deletions]:
        """Which nodes each sample removes, dependants included, by node type; of a batch that is not sliced."""
        named = {kind: (self.tensors[f"removed/{kind}"], self.tensors[f"removed_ptr/{kind}"]) for kind in self.most}
        return {kind: Deletions(*tensors, self.most[kind]) for kind, tensors in named.items()}

    @property
    def bytes(self) -> int:
        """How many bytes travel; a buffer's padding, under 64 a tensor, is not counted."""
        return self.bytes_of("")

    def bytes_of(self, start: str) -> int:
        """How many bytes are in tensors whose names begin with `start`: "edge", edges and masks; "edge_mask", masks."""
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
            return replace(self, tensors={name: move(tensor) for name, tensor in self.tensors.items()})
        buffer = move(self.buffer)
        if buffer is self.buffer:
            return self
        return _in_buffer(buffer, self.layout, self.most, self.size, self.host_values)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave a worker: a buffer as bytes where they are few, else as one tensor in shared memory."""
        if self.slices:
            return Batch.sliced, (self.slices,)
        rest = (self.most, self.size, self.host_values)
        if self.buffer is None:
            return Batch, (self.tensors, *rest)
        data = self.buffer.numpy().tobytes() if self.buffer.nbytes <= INLINE_BYTES else self.buffer
        return _in_buffer, (data, self.layout, *rest)


def _in_buffer(
    data: Tensor | bytes, layout: Layout, most: Mapping[str, int], size: int, host_values: Mapping[str, Any]
) -> Batch:
    """Return the batch whose tensors are views of a buffer, or of one with these bytes."""
    buffer = data if isinstance(data, Tensor) else torch.frombuffer(bytearray(data), dtype=torch.uint8)
    whole = {dtype: buffer.view(dtype) for dtype in {dtype for _, _, dtype in layout.values()}}
    tensors = {}
    for name, (begin, shape, dtype) in layout.items():
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        tensors[name] = whole[dtype].as_strided(shape, strides, begin // dtype.itemsize)
    return Batch(tensors, most, size, host_values, buffer, layout)


def empty_bytes(size: int) -> Tensor:
    """Return [size] uint8, in a DataLoader worker in shared memory unless it is small.

    **Raises:** `SharedMemoryError` where there is too little of that.
    """
    if torch.utils.data.get_worker_info() is None or size <= INLINE_BYTES:
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
    try:
        yield
    except RuntimeError as error:
        if "unable to allocate shared memory" not in str(error):  # torch has no class for it
            raise
        raise SharedMemoryError(
            f"a batch needs {size:,} bytes of shared memory, and {_SHARED} has {shared_memory_free() or 0:,} free: "
            "use fewer workers, a smaller prefetch_factor or batch, no workers at all, or give it more "
            "(docker run --shm-size)"
        ) from None
