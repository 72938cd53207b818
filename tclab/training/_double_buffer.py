"""Double buffering: copying the next batch to the device on a side stream while the current one computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from tclab.errors import InputError
from tclab.training._loading import LoadedBatch


def double_buffered(batches: Iterable[LoadedBatch], device: torch.device | str) -> Iterator[LoadedBatch]:
    """Return the batches on the device, each copied there while the one before it computes.

    The copy of a batch is enqueued on a side stream before the preceding batch is yielded, and the current stream waits
    for the copy of a batch only when that batch is yielded. Copies overlap with compute only from page-locked memory
    (`pin_memory`). Two batches are on the device at a time.

    **Arguments:**

    - `batches`: batches on the CPU, in page-locked memory.
    - `device`: a CUDA device.

    **Raises:** `InputError` for a device other than CUDA.
    """
    device = torch.device(device)
    if device.type != "cuda":
        raise InputError(f"double_buffer needs cuda, and the device is {str(device)!r}")
    return _double_buffered(batches, device)


def _double_buffered(batches: Iterable[LoadedBatch], device: torch.device) -> Iterator[LoadedBatch]:
    stream = torch.cuda.Stream(device)
    following: LoadedBatch | None = None
    for loaded in batches:
        current, following = following, _start_copy(loaded, device, stream)
        if current is not None:
            yield _wait_for_copy(current, device)
            current = None
    if following is not None:
        yield _wait_for_copy(following, device)


def _start_copy(loaded: LoadedBatch, device: torch.device, stream: torch.cuda.Stream) -> LoadedBatch:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        begin.record(stream)
        batch = loaded.batch.to(device, non_blocking=True)
        end.record(stream)
    return replace(loaded, batch=batch, copied=(begin, end))


def _wait_for_copy(loaded: LoadedBatch, device: torch.device) -> LoadedBatch:
    assert loaded.copied is not None
    current = torch.cuda.current_stream(device)
    current.wait_event(loaded.copied[1])
    for tensor in loaded.batch.held:
        tensor.record_stream(current)  # keeps the allocator from reusing its memory for the next copy while it is read
    return loaded
