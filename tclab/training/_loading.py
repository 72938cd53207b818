"""Loading: a strategy's batches of a dataset, made by DataLoader workers, each with its `BatchTiming`."""

from __future__ import annotations

import signal
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from time import perf_counter_ns
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset, get_worker_info

from tclab.errors import InputError
from tclab.masking import Batch, Strategy
from tclab.masking._batch import SharedMemoryError, empty_bytes
from tclab.perturbation._sample_store import Samples
from tclab.timing._ledger import BatchTiming


@dataclass(frozen=True, eq=False)
class LoadedBatch:
    """A batch as the loader gives it, with the times of making it.

    Its stages are `sample` (reading and decoding samples and finding the nodes that they remove), `mask` (making or
    reading masks, or whatever the strategy encodes) and `collate`.
    """

    batch: Batch
    timing: BatchTiming

    def pin_memory(self) -> LoadedBatch:
        """Return this batch in page-locked memory; `DataLoader` calls it."""
        return replace(self, batch=self.batch.pin_memory())


# A pipe takes up to 4,096 bytes at once or not at all (POSIX's PIPE_BUF). So a worker that is killed leaves no half
# message, on which the reader would wait for ever. The rest is for what DataLoader adds: a batch's position, a length.
_MESSAGE_BYTES = 3_840


class _Message:
    """What a worker hands over, pickled as DataLoader would, and where that is long compressed or in shared memory.

    So it is short however many tensors, names and values there are, and whatever an error says. To compress a header
    of 13 kB takes 50 µs; shared memory would cost the reader a file and a socket more for every batch.
    """

    def __init__(self, value: Any) -> None:
        self.data: Any = bytes(ForkingPickler.dumps(value))
        self.compressed = len(self.data) > _MESSAGE_BYTES
        if self.compressed:
            self.data = zlib.compress(self.data, level=1)
        if len(self.data) > _MESSAGE_BYTES:
            self.data = empty_bytes(len(self.data)).copy_(torch.frombuffer(bytearray(self.data), dtype=torch.uint8))

    def __reduce__(self) -> tuple[Any, ...]:
        """Become the value itself where it is read."""
        return _received, (self.data, self.compressed)


def _received(data: bytes | Tensor, compressed: bool) -> Any:
    sent: Any = data if isinstance(data, bytes) else data.numpy()
    return ForkingPickler.loads(zlib.decompress(sent) if compressed else sent)


class Batches(Dataset[Any]):
    """A dataset of `LoadedBatch`es: `i` holds samples `order[i * size]` to `order[(i + 1) * size - 1]`.

    R ranks with batches of b samples train on what one process with batches of R · b samples trains on, each on its
    consecutive part of every one. Samples that fill no whole batch are left out.

    **Arguments:**

    - `strategy`: makes the batches; it is on the CPU graph and has been prepared.
    - `samples`: the `Perturbations` or `StoredSamples` that samples are read from.
    - `size`: samples a batch, on each rank.
    - `order`: [n] int64 positions of the samples in `samples`; all of them in order by default.
    - `shard`: this rank and the number of ranks.
    - `micro_batch`: make each batch in slices of at most this many samples, which a step runs one by one.
    """

    def __init__(
        self, strategy: Strategy, samples: Samples, size: int, order: Sequence[int] | np.ndarray | None = None, *,
        shard: tuple[int, int] = (0, 1), micro_batch: int | None = None
    ) -> None:  # fmt: skip
        self.strategy = strategy
        self.samples = samples
        self.size = size
        self.micro_batch = micro_batch
        self.order = np.arange(len(samples)) if order is None else np.asarray(order, dtype=np.int64)
        self.shard = shard

    def __len__(self) -> int:
        return len(self.order) // (self.size * self.shard[1])

    def __getitem__(self, i: int) -> Any:
        """Return the `LoadedBatch`; a worker returns errors, too, and all that it returns arrives by a `_Message`."""
        if not 0 <= i < len(self):
            raise IndexError(f"batch {i} of {len(self)}")
        rank, ranks = self.shard
        first = (i * ranks + rank) * self.size
        indices, worker = self.order[first : first + self.size].tolist(), get_worker_info()
        if worker is None:
            return self._made(indices)
        try:
            return _Message(self._made(indices))
        except (InputError, SharedMemoryError) as error:
            return _Message(error)
        except Exception:  # DataLoader raises it again, with this traceback
            return _Message(ExceptionWrapper(where=f"in DataLoader worker process {worker.id}"))

    def _made(self, indices: list[int]) -> LoadedBatch:
        begin = perf_counter_ns()
        stages = {"sample": 0, "mask": 0, "collate": 0}
        parts, end = [], begin

        def ends(stage: str) -> None:
            nonlocal end
            now = perf_counter_ns()
            stages[stage] += now - end
            end = now

        slice_size = self.micro_batch or len(indices)
        for first in range(0, len(indices), slice_size):
            some = indices[first : first + slice_size]
            parts.append(self.strategy.batch(self.samples.read(some), some, ends=ends))
        worker = get_worker_info()
        timing = BatchTiming(None if worker is None else worker.id, begin, end, stages)
        return LoadedBatch(parts[0] if len(parts) == 1 else Batch.sliced(parts), timing)


class WorkerDiedError(RuntimeError):
    """Raised when a worker process ends before it has made its batches; the message says why it ended."""


class Loader:
    """A `torch.utils.data.DataLoader` of `Batches` that names the worker that died and why.

    Each iteration is an epoch. Worker processes run one torch thread each, as `DataLoader` sets it.

    **Arguments:**

    - `workers`: number of worker processes; 0 loads in this process.
    - `options`: of `DataLoader`, by its names; without workers `pin_memory` alone.

    **Raises:** in an epoch, `WorkerDiedError` if a worker ends early, `SharedMemoryError` for a batch that does not fit
    into shared memory, and whatever the strategy raises.
    """

    def __init__(self, batches: Batches, *, workers: int, **options: Any) -> None:
        self._loader: DataLoader[Any] = DataLoader(batches, batch_size=None, num_workers=workers, **options)
        self._epochs: WeakSet[Any] = WeakSet()  # torch's iterators of those that have begun

    def __len__(self) -> int:
        return len(self._loader)

    def close(self) -> None:
        """End the workers of epochs that were begun and not gone through.

        Where the garbage collector finds such an epoch, the queues to its workers are closed before it, nothing tells
        them to end, and it waits five seconds for each: at whatever moment, a timed step among them.
        """
        for epoch in list(self._epochs):
            epoch._shutdown_workers()  # what torch's own `__del__` calls

    def __iter__(self) -> Iterator[LoadedBatch]:
        before = signal.getsignal(signal.SIGCHLD)
        if str(getattr(before, "__module__", "")).startswith("torch."):  # of a DataLoader before this one
            before = signal.SIG_DFL
        iterator = iter(self._loader)
        if threading.current_thread() is threading.main_thread():
            # torch's handler for workers that die would raise anywhere, in a backward for example, and name no worker;
            # without it the iterator detects a dead worker while it waits for a batch, within 5 seconds
            signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)
        if self._loader.num_workers:
            self._epochs.add(iterator)
        for _ in range(len(self)):
            try:
                item = next(iterator)
            except (RuntimeError, OSError, EOFError) as error:  # the last two of a memory that a dead worker shared
                raise _worker_error(error, iterator) from None
            if isinstance(item, Exception):
                raise item
            yield item
            item = None  # frees a batch, which may take a gigabyte, before waiting for the next


_REASONS = {
    signal.SIGKILL: "the system does this when memory runs out (see dmesg), or a person did: use fewer workers or a "
    "smaller prefetch_factor or batch",
    signal.SIGBUS: "mapped memory was not there: /dev/shm is full, or a store's file was truncated while it was read",
    signal.SIGSEGV: "a crash in compiled code: run with workers=0 to see where",
}


def _worker_error(error: Exception, iterator: Any) -> Exception:
    """Return the loader's error as a `WorkerDiedError` that names dead workers, their exit and its likely reason."""
    reasons = []
    for i, process in enumerate(getattr(iterator, "_workers", [])):
        process.join(timeout=0.1)  # one that no longer answers may be about to end
        code = process.exitcode
        how = f"ended with exit code {code}: its error output is above"
        if code is not None and code < 0:
            end = signal.Signals(-code)
            how = f"was killed by {end.name}: {_REASONS.get(end, 'reason unknown')}"
        if code or (code == 0 and "exited unexpectedly" in str(error)):
            reasons.append(f"worker {i} (pid {process.pid}) {how}")
    return WorkerDiedError("; ".join(reasons)) if reasons else error
