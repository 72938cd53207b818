"""Packing of all tensors of a batch end to end into one, which crosses the pipe, is pinned and is copied."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

_ALIGNED = 64  # a cache line; more than any dtype or vectorised kernel asks for
_SHARED = Path("/dev/shm")

Layout = list[tuple[int, tuple[int, ...], torch.dtype]]  # of each tensor: (first byte, shape, dtype)


class SharedMemoryError(RuntimeError):
    """A batch does not fit into shared memory, through which workers hand their batches over."""


@dataclass(frozen=True)
class Piece:
    """A tensor that does not exist yet: it is written once, straight into the packed one."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: Callable[[Tensor], object]  # called with the empty tensor, writes its values

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return math.prod(self.shape) * self.dtype.itemsize


def unfilled(out: Tensor) -> None:
    """The `fill` of a piece that is asked for its shape alone."""


def packed(pieces: Sequence[Tensor | Piece]) -> tuple[Tensor, Layout, list[Tensor]]:
    """Return one tensor that holds others end to end, [bytes] uint8, where each of them lies, and its views of them.

    In a DataLoader worker it lies in shared memory, as it must before it can be handed over.

    **Raises:** `SharedMemoryError` where there is too little of that.
    """
    layout: Layout = []
    end = 0
    for piece in pieces:
        layout.append((end, tuple(piece.shape), piece.dtype))
        end += -(-piece.nbytes // _ALIGNED) * _ALIGNED
    buffer = _empty(end)
    tensors = unpacked(buffer, layout)
    for piece, out in zip(pieces, tensors, strict=True):
        if isinstance(piece, Piece):
            piece.fill(out)
        else:
            out.copy_(piece)
    return buffer, layout, tensors


def unpacked(buffer: Tensor, layout: Layout) -> list[Tensor]:
    """Return the tensors that lie in one, as views of it."""
    whole: dict[torch.dtype, Tensor] = {}
    tensors = []
    for begin, shape, dtype in layout:
        if dtype not in whole:
            whole[dtype] = buffer.view(dtype)
        strides = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
        tensors.append(whole[dtype].as_strided(shape, strides, begin // dtype.itemsize))
    return tensors


# Up to here a batch goes through the pipe itself: a pipe takes up to 4096 bytes at once or not at all (POSIX's
# PIPE_BUF), so that a worker which is killed leaves no half message, on which the reader would wait for ever.
# Shared memory would cost a file, a socket and a thread's wake-up for every batch.
INLINE_BYTES = 2048


def _empty(size: int) -> Tensor:
    in_worker = torch.utils.data.get_worker_info() is not None
    if not in_worker or size <= INLINE_BYTES:
        return torch.empty(size, dtype=torch.uint8)
    with shared_memory(size):
        return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(size))


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
