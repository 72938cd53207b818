"""Batches from a dataset, by a strategy, in DataLoader workers, each with the time that it took to make."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from tclab.errors import InputError, unknown
from tclab.masking import Batch, SharedMemoryError, Strategy
from tclab.perturbation import Samples
from tclab.timing import Making, raw_clock_ns
from tclab.training.shards import Shard

START_METHODS = tuple(multiprocessing.get_all_start_methods())  # the system's own first


@dataclass(frozen=True, eq=False)
class LoadedBatch:
    """A batch with how it was made.

    **Arguments:**

    - `batch`: what travels.
    - `making`: by whom, when, and in what time: `sample` (reading and decoding, and what is lost with the deleted
      nodes), `mask` (making or reading masks, or whatever the strategy encodes), `collate`.
    - `copied`: CUDA events before and after its copy to the device, where that was made ahead on a side stream.
    """

    batch: Batch
    making: Making
    copied: tuple[Any, Any] | None = None

    def pin_memory(self) -> LoadedBatch:
        """Return this batch in page-locked memory; `DataLoader` calls it."""
        return replace(self, batch=self.batch.pin_memory())


@dataclass(frozen=True)
class _Refused:
    """What a worker says instead of a batch; an exception would come out with its traceback as its message."""

    error: type[Exception]
    words: str


class Batches(Dataset[LoadedBatch]):
    """Batch after batch of a dataset: batch `i` is samples `order[i * size]` to `order[(i + 1) * size - 1]`.

    **Arguments:**

    - `strategy`: its half that loads, on the CPU graph, prepared.
    - `samples`: where they are read, `Perturbations` or `StoredSamples`.
    - `size`: how many make a batch; samples that fill none are left out.
    - `order`: [n] which samples, in order; all of them as they come unless given.
    - `shard`: which rank's part of every batch; of one rank, which has all, unless given. A batch of several
      ranks has `size` samples for each.
    - `keep_last`: the samples that are left over make a last, smaller batch.
    - `micro_batch`: make each batch in slices of at most so many samples, which a step goes through one by one.
    """

    def __init__(
        self,
        strategy: Strategy,
        samples: Samples,
        size: int,
        order: Sequence[int] | np.ndarray | None = None,
        *,
        shard: Shard | None = None,
        keep_last: bool = False,
        micro_batch: int | None = None,
    ) -> None:
        self.strategy = strategy
        self.samples = samples
        self.size = size
        self.micro_batch = micro_batch
        self.order = np.arange(len(samples)) if order is None else np.asarray(order, dtype=np.int64)
        self.shard = Shard() if shard is None else shard
        self.keep_last = keep_last

    def __len__(self) -> int:
        whole, left = divmod(len(self.order), self.size * self.shard.ranks)
        return whole + (self.keep_last and left > 0)

    def __getitem__(self, number: int) -> LoadedBatch:
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of {len(self)}")
        return self.made_of(*self.part(self.order, number))

    def part(self, order: np.ndarray, number: int) -> tuple[list[int], tuple[int, ...]]:
        """Return which samples of an order are this rank's in one batch, and how many each rank has."""
        size = self.size * self.shard.ranks
        whole = order[number * size : (number + 1) * size].tolist()
        return self.shard.part(whole), self.shard.sizes(len(whole))

    def _slices(self, size: int) -> int:
        return 1 if self.micro_batch is None else -(-size // self.micro_batch)

    def made_of(self, indices: Sequence[int], sizes: tuple[int, ...] = ()) -> LoadedBatch:
        """Return the batch of some samples, in the order asked for; of several ranks it knows all their `sizes`.

        And how many `slices` each goes through; a rank without samples has one that stands in.
        """
        raw, begin = raw_clock_ns(), perf_counter_ns()
        stages = {"sample": 0, "mask": 0, "collate": 0}
        parts = []
        end = begin
        most = self.micro_batch or max(len(indices), 1)
        ranks = {"sizes": sizes, "slices": tuple(self._slices(max(size, 1)) for size in sizes)}
        for first in range(0, max(len(indices), 1), most):  # no samples are a batch too
            own, started = indices[first : first + most], end
            read = self.samples.read(own)
            lost = self.strategy.lost_by(read.deletions)
            sampled = perf_counter_ns()
            encoded = self.strategy.encode(own, lost)
            masked = perf_counter_ns()
            part = self.strategy.collate(lost, read.scores, encoded)
            parts.append(replace(part, known={**part.known, **ranks}) if len(sizes) > 1 else part)
            end = perf_counter_ns()
            stages["sample"] += sampled - started
            stages["mask"] += masked - sampled
            stages["collate"] += end - masked
        raw_end = raw_clock_ns()
        worker = get_worker_info()
        made = Making(None if worker is None else worker.id, begin, end, stages, (raw, raw_end))
        return LoadedBatch(parts[0] if len(parts) == 1 else Batch.sliced(parts), made)


class _Made(Dataset[Any]):
    """Batches by the samples that are in them, as the sampler chose; in a worker, an error is handed over whole."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __getitem__(self, part: tuple[list[int], tuple[int, ...]]) -> LoadedBatch | _Refused:
        try:
            return self._batches.made_of(*part)
        except (InputError, SharedMemoryError) as error:
            if get_worker_info() is None:
                raise
            return _Refused(type(error), str(error))


class _Order(Sampler[tuple[list[int], tuple[int, ...]]]):
    """Which samples make each batch; in another order each epoch where there is a seed."""

    def __init__(self, batches: Batches, seed: int | None) -> None:
        self._batches = batches
        self._seed = seed
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[list[int], tuple[int, ...]]]:
        order = self._batches.order
        if self._seed is not None:
            order = np.random.default_rng([self._seed, self._epoch]).permutation(order)
            self._epoch += 1
        for number in range(len(self)):
            yield self._batches.part(order, number)


class WorkerDiedError(RuntimeError):
    """A worker process ended before it had made its batches."""


class Loader:
    """The batches of a dataset, epoch after epoch, made in this process or in workers.

    Workers run one torch thread each (`DataLoader` sees to that).

    **Arguments:**

    - `batches`: what is loaded.
    - `workers`: how many processes; 0 makes batches in this one, and the arguments on processes mean nothing.
    - `pin_memory`: copy each batch to page-locked memory, in a thread of this process; needs CUDA.
    - `prefetch_factor`: how many batches each worker makes ahead, 2 unless given.
    - `start_method`: one of `START_METHODS`, the system's own unless given.
    - `persistent_workers`: keep the workers from one epoch to the next.
    - `shuffle_seed`: shuffle the samples, in another order each epoch; in their order unless given.

    **Raises:** `InputError` for an unknown start method. In an epoch: `WorkerDiedError` for a worker that ends,
    `SharedMemoryError` for a batch that does not fit into shared memory, and what a strategy raises.
    """

    def __init__(
        self,
        batches: Batches,
        *,
        workers: int,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        start_method: str | None = None,
        persistent_workers: bool | None = None,
        shuffle_seed: int | None = None,
    ) -> None:
        options: dict[str, Any] = {}
        if workers:
            method = START_METHODS[0] if start_method is None else start_method
            if method not in START_METHODS:
                raise unknown("start_method", method, START_METHODS)
            options = {
                "prefetch_factor": 2 if prefetch_factor is None else prefetch_factor,
                "multiprocessing_context": method,
                "persistent_workers": bool(persistent_workers),
            }
        self._loader: DataLoader[Any] = DataLoader(
            _Made(batches),
            batch_size=None,
            sampler=_Order(batches, shuffle_seed),
            num_workers=workers,
            pin_memory=pin_memory,
            collate_fn=_as_it_is,
            **options,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[LoadedBatch]:
        iterator = _started(self._loader)
        for _ in range(len(self)):
            try:
                item = next(iterator)
            except RuntimeError as error:
                raise _explained(error, iterator) from None
            if isinstance(item, _Refused):
                raise item.error(item.words)
            yield item
            item = None  # a batch may be a gigabyte: let it go before the next is waited for


def loader(batches: Batches, *, workers: int, **options: Any) -> Loader:
    """Return the loader of some batches; see `Loader`."""
    return Loader(batches, workers=workers, **options)


def _as_it_is(batch: Any) -> Any:
    return batch


def _started(loader: DataLoader[Any]) -> Iterator[Any]:
    """Start an epoch, without the handler that torch sets for workers that die.

    It would raise wherever the training process happens to be, in a backward say, and name no worker. The
    iterator finds a dead worker by itself when it waits for a batch, within 5 seconds.
    """
    if threading.current_thread() is not threading.main_thread():
        return iter(loader)
    before = signal.getsignal(signal.SIGCHLD)
    try:
        return iter(loader)
    finally:
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)


_REASONS = {
    signal.SIGKILL: "the system kills so when memory runs out (see dmesg), or somebody did: use fewer workers or a "
    "smaller prefetch_factor or batch",
    signal.SIGBUS: "memory that it had mapped was not there: /dev/shm is full, or a store's file was cut while it "
    "was read",
    signal.SIGSEGV: "a crash in compiled code: run with workers=0 to see where",
    signal.SIGABRT: "compiled code gave up: its last words are above",
    signal.SIGTERM: "somebody ended it",
}


def _explained(error: RuntimeError, iterator: Any) -> Exception:
    """Return what to say of an error of the loader: which worker died, how, and the likely reason."""
    said = []
    for number, process in enumerate(getattr(iterator, "_workers", [])):
        process.join(timeout=0.1)
        code = process.exitcode
        if code is None or (code == 0 and "exited unexpectedly" not in str(error)):
            continue
        if code < 0:
            end = signal.Signals(-code)
            said.append(
                f"worker {number} (pid {process.pid}) was killed by {end.name}: {_REASONS.get(end, 'no idea why')}"
            )
        else:
            said.append(
                f"worker {number} (pid {process.pid}) ended with exit code {code}: its last words are above"
            )
    if "worker" not in str(error) or not said:
        return error
    return WorkerDiedError("; ".join(said))
