"""What DataLoaders do while a ledger or a profile is open: when they start, and what their workers' time goes to.

Nothing of the loop is marked: `DataLoader.__iter__` and what fetches a batch are wrapped until it closes. A worker
samples its own stack and writes what it knows to a file, since its process ends without a word.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any
from weakref import ref

from tclab._io import TemporaryFolder
from tclab.timing._epoch_parts import LOADER_END, LOADER_START, PartClock
from tclab.timing._ledger_rows import BatchTiming, raw_clock_ns
from tclab.timing._sample_parts import COLLATE
from tclab.timing._stack_sampler import Site, StackSampler, user_frame

_FLUSH_NS = 2_000_000_000
_MOST_BATCHES = 5000  # that a process keeps the times of
_SAMPLE = "sample"


@dataclass
class LoaderPass:
    """One iteration over a DataLoader.

    **Arguments:**

    - `loader`: number of the loader, in the order in which they were first iterated over. One that is made where and
      like one that is no more has its number.
    - `place`: "Dataset at file:line": the dataset's class, and the user's innermost line that began it.
    - `workers`, `persistent`: of the loader. `fresh`: its processes, if any, were started for this pass.
    - `training`: gradients were enabled when it began.
    - `begin_ns`: by `perf_counter_ns`.
    - `start_seconds`: `iter(loader)` and the wait for the first batch.
    - `wait_seconds`: the waits for all later batches.
    - `end_seconds`: waiting for its processes to end; 0 without.
    - `batches`: that it gave.
    - `ready_seconds`: from its begin to the last worker that was ready: its process, its imports, its
      worker_init_fn; `None` if unknown.
    - `end_ns`: when its last batch was given.
    - `objects`: how many DataLoaders stood for this loader up to now: a program may make one for each pass.
    """

    loader: int
    place: str
    workers: int
    persistent: bool
    fresh: bool
    training: bool
    begin_ns: int
    start_seconds: float = 0.0
    wait_seconds: float = 0.0
    end_seconds: float = 0.0
    batches: int = 0
    ready_seconds: float | None = None
    end_ns: int = 0
    objects: int = 1

    @property
    def seconds_saved_if_persistent(self) -> float:
        """What it would have taken less with workers that were there: their start, without the first batch, and end."""
        start = self.start_seconds if self.ready_seconds is None else min(self.start_seconds, self.ready_seconds)
        return start + self.end_seconds


@dataclass
class FetchTimes:
    """What one process spent on making batches."""

    where: str  # "worker 0", … or "main"
    fetch_ns: int = 0
    collate_ns: int = 0  # in `collate_fn`, which is a part of it
    samples: int = 0
    # of each batch begin, end, raw begin, raw end, processor time, collating; nanoseconds
    batches: list[list[int]] = field(default_factory=list)
    sites: dict[tuple[str, Site], float] = field(default_factory=dict)  # (stage, line) → sampled seconds


def _replace(kind: Any, name: str, with_: Callable[..., Any]) -> Callable[[], None]:
    """Have `with_(original, object, …)` run for a method, in this process alone; return what puts the method back."""
    original, owner = getattr(kind, name), os.getpid()

    def replaced(object: Any, *args: Any) -> Any:
        if os.getpid() != owner:  # in a forked worker
            return original(object, *args)
        return with_(original, object, *args)

    setattr(kind, name, replaced)
    return lambda: setattr(kind, name, original)


class _Fetching:
    """Times each batch that a process makes, and tells its sampler whether it runs the dataset or the collate_fn."""

    def __init__(self, times: FetchTimes, sampler: StackSampler, flush: Callable[[], None] | None = None) -> None:
        self.times = times
        self.sampler = sampler
        self.flush = flush
        from torch.utils.data._utils import fetch

        kinds: tuple[Any, ...] = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
        self.undo = [_replace(kind, "fetch", self._timed) for kind in kinds]  # call each to put the fetchers back

    def _timed(self, original: Any, fetcher: Any, index: Any) -> Any:
        collate, took = fetcher.collate_fn, 0

        def collating(samples: Any) -> Any:
            nonlocal took
            self.sampler.phase = COLLATE
            at = perf_counter_ns()
            try:
                return collate(samples)
            finally:
                took += perf_counter_ns() - at

        fetcher.collate_fn = collating
        cpu, raw, begin = thread_time_ns(), raw_clock_ns(), perf_counter_ns()
        self.sampler.phase = _SAMPLE
        try:
            return original(fetcher, index)
        finally:
            self.sampler.phase = ""
            end, raw_end = perf_counter_ns(), raw_clock_ns()  # at once, or they differ by what runs between them
            fetcher.collate_fn = collate
            times = self.times
            times.fetch_ns += end - begin
            times.collate_ns += took
            times.samples += len(index) if hasattr(index, "__len__") else 1
            if len(times.batches) < _MOST_BATCHES:
                times.batches.append([begin, end, raw, raw_end, thread_time_ns() - cpu, took])
            if self.flush is not None:
                self.flush()


class _WorkerStart:
    """The `worker_init_fn` of a watched loader: begins to sample in the worker, and calls the user's."""

    def __init__(self, users: Callable[[int], Any] | None, folder: str, number: int) -> None:
        self.users = users
        self.folder = folder
        self.number = number

    def __call__(self, worker: int) -> None:
        if self.users is not None:
            self.users(worker)
        ready = perf_counter_ns()
        sampler = StackSampler(lambda: "")
        times = FetchTimes(f"worker {worker}")
        path = Path(self.folder) / f"{self.number}-{worker}-{os.getpid()}.json"
        written = 0

        def flush(at_end: bool = False) -> None:
            nonlocal written
            if not at_end and perf_counter_ns() - written < _FLUSH_NS:
                return
            if at_end:
                sampler.stop()
            sites = [[stage, list(site), seconds] for (stage, site), seconds in sampler.sites().items()]
            known = {**vars(times), "sites": sites, "pass": self.number, "ready_ns": ready}
            try:
                path.write_text(json.dumps(known), encoding="utf-8")
            except OSError:  # the folder is gone: the ledger has closed
                return
            written = perf_counter_ns()

        sampler.start()
        _Fetching(times, sampler, flush)
        util.Finalize(None, flush, args=(True,), exitpriority=100)


class LoaderWatch:
    """Watches every DataLoader that the process iterates over, from `open` to `close`."""

    def __init__(self, clock: PartClock, sampler: StackSampler) -> None:
        self.clock = clock
        self.sampler = sampler
        self.passes: list[LoaderPass] = []
        self.fetches: list[FetchTimes] = []
        self._folder: TemporaryFolder | None = None
        self._loaders: list[ref[Any]] = []
        self._undo: list[Callable[[], None]] = []

    def open(self) -> None:
        from torch.utils.data import dataloader

        own = FetchTimes("main")
        self.fetches.append(own)
        self._undo += _Fetching(own, self.sampler).undo
        several = dataloader._MultiProcessingDataLoaderIter
        self._undo.append(_replace(dataloader.DataLoader, "__iter__", self._iter))
        self._undo.append(_replace(dataloader._BaseDataLoaderIter, "__next__", self._next))
        self._undo.append(_replace(several, "_shutdown_workers", self._shut_down))

    def close(self) -> None:
        """Put everything back, and read what the workers wrote."""
        while self._undo:
            self._undo.pop()()
        self.read()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def read(self) -> None:
        """Read what workers have written; those that go on write every two seconds."""
        for path in sorted(self._folder.path.glob("*.json")) if self._folder is not None else ():
            try:
                known = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):  # its worker was killed while it wrote
                continue
            sites = {(stage, Site(*site)): seconds for stage, site, seconds in known.pop("sites")}
            number, ready = known.pop("pass"), known.pop("ready_ns")
            self.fetches.append(FetchTimes(**{**known, "sites": sites}))
            one = self.passes[number]
            one.ready_seconds = max(one.ready_seconds or 0.0, (ready - one.begin_ns) / 1e9)

    def batch_timings(self) -> list[BatchTiming]:
        """Return the times of the batches that workers made, in their order."""
        timings = []
        for fetch in self.fetches:
            worker = None if fetch.where == "main" else int(fetch.where.partition(" ")[2])
            for begin, end, raw, raw_end, cpu, collate in fetch.batches:
                timings.append(BatchTiming(worker, begin, end, {COLLATE: collate}, (raw, raw_end), cpu))
        return sorted(timings, key=lambda timing: timing.end_ns)

    def _iter(self, original: Any, loader: Any) -> Any:
        import torch

        if loader.num_workers and self._folder is None:  # which takes some 30 ms, and a loop may have no workers
            self._folder = TemporaryFolder()
        fresh = not (loader.persistent_workers and loader._iterator is not None)
        frame = user_frame(sys._getframe())
        place = "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        one = LoaderPass(
            0, f"{type(loader.dataset).__name__} at {place}", loader.num_workers,
            bool(loader.persistent_workers), fresh, torch.is_grad_enabled(), perf_counter_ns(),
        )  # fmt: skip
        self._number(one, loader)
        self.passes.append(one)
        users = loader.worker_init_fn
        self.clock.enter(LOADER_START)
        if self._folder is not None and loader.num_workers:
            loader.worker_init_fn = _WorkerStart(users, str(self._folder.path), len(self.passes) - 1)
        try:
            iterator = original(loader)
        finally:
            loader.worker_init_fn = users
            self.clock.leave(LOADER_START)
        iterator._tclab_pass = one
        one.start_seconds = (perf_counter_ns() - one.begin_ns) / 1e9
        return iterator

    def _number(self, one: LoaderPass, loader: Any) -> None:
        """Say which loader a pass is over."""
        known = [made() for made in self._loaders]
        like = [p for p in self.passes if known[p.loader] is None and (p.place, p.workers) == (one.place, one.workers)]
        if any(loader is other for other in known):
            one.loader = next(number for number, other in enumerate(known) if other is loader)
            one.objects = max(p.objects for p in self.passes if p.loader == one.loader)
        elif like:
            one.loader, one.objects = like[-1].loader, like[-1].objects + 1
            self._loaders[one.loader] = ref(loader)
        else:
            one.loader = len(known)
            self._loaders.append(ref(loader))

    def loader(self, number: int) -> Any:
        """Return a DataLoader by its number; `None` if the program has it no more."""
        return self._loaders[number]()

    def _next(self, original: Any, iterator: Any) -> Any:
        one: LoaderPass | None = getattr(iterator, "_tclab_pass", None)
        if one is None:
            return original(iterator)
        first = not one.batches and one.workers > 0
        if first:
            self.clock.enter(LOADER_START)
            self.clock.times[LOADER_START] -= 1  # it was counted when it began
        begin, ending = perf_counter_ns(), one.end_seconds
        try:
            batch = original(iterator)
            one.batches += 1
        finally:
            one.end_ns = perf_counter_ns()
            took = (one.end_ns - begin) / 1e9 - (one.end_seconds - ending)  # the last call ends the processes
            if first:
                self.clock.leave(LOADER_START)
                one.start_seconds += took
            else:
                one.wait_seconds += took
        return batch

    def _shut_down(self, original: Any, iterator: Any) -> Any:
        one: LoaderPass | None = getattr(iterator, "_tclab_pass", None)
        begin = perf_counter_ns()
        with self.clock.part(LOADER_END):
            result = original(iterator)
        if one is not None:
            one.end_seconds += (perf_counter_ns() - begin) / 1e9
        return result
