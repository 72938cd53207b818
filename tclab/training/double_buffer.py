"""The next batch is copied to the device on a stream of its own while this one computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from tclab.errors import InputError
from tclab.training.loading import LoadedBatch


def double_buffered(batches: Iterable[LoadedBatch], device: torch.device | str) -> Iterator[LoadedBatch]:
    """Return the batches on the device, each copied there while the one before it computes.

    The copy of a batch is put on a side stream before the batch ahead of it is given out, and whoever takes a
    batch has its stream wait for that copy alone. It overlaps only from page-locked memory (`pin_memory`). Two
    batches are on the device at a time.

    **Arguments:**

    - `batches`: on the CPU, in page-locked memory.
    - `device`: a CUDA device.

    **Raises:** `InputError` for any other.
    """
    device = torch.device(device)
    if device.type != "cuda":
        raise InputError(f"double_buffer needs cuda, and the device is {str(device)!r}")
    return _ahead(batches, device)


def _ahead(batches: Iterable[LoadedBatch], device: torch.device) -> Iterator[LoadedBatch]:
    stream = torch.cuda.Stream(device)
    waiting: LoadedBatch | None = None
    for loaded in batches:
        before, waiting = waiting, _copied(loaded, device, stream)
        if before is not None:
            yield _arrived(before, device)
            before = None
    if waiting is not None:
        yield _arrived(waiting, device)


def _copied(loaded: LoadedBatch, device: torch.device, stream: torch.cuda.Stream) -> LoadedBatch:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        begin.record(stream)
        batch = loaded.batch.to(device, non_blocking=True)
        end.record(stream)
    return replace(loaded, batch=batch, copied=(begin, end))


def _arrived(loaded: LoadedBatch, device: torch.device) -> LoadedBatch:
    assert loaded.copied is not None
    current = torch.cuda.current_stream(device)
    current.wait_event(loaded.copied[1])
    for tensor in loaded.batch.held:
        tensor.record_stream(current)  # so that its memory is not given to the next copy while it is read
    return loaded
