"""What DataLoaders' time goes to, by worker, in any program and with no mark in it.

While `loader_times` is open, torch's iterators over a DataLoader are timed where they are made, whoever makes them: a
loop, Lightning, or an iterator around them, such as PyG's. A timer is put around what makes a batch: in the process
itself, or by a `worker_init_fn` in each worker. The times travel with the batch, and are taken off it as it leaves
torch's iterator; so workers that are spawned, forked, kept or killed leave nothing behind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from time import perf_counter_ns
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from tclab._display import Display, Shown, counted, seconds_text
from tclab.timing._user_code import short_place, user_frame


class BatchTimes(NamedTuple):
    """The making of one batch. Moments are nanoseconds of `perf_counter_ns`, whose clock processes share."""

    worker: int | None  # number of the worker; `None` for the process that iterates
    begin_ns: int
    end_ns: int
    collate_ns: int  # in collate_fn, a part of the whole
    wait_ns: int = 0  # that the loop waited for it; 0 of the first, which waits for workers that start
    arrived_ns: int = 0  # when the loop got it


@dataclass
class LoaderPass:
    """One iteration over a DataLoader.

    **Arguments:**

    - `loader`: "Dataset at file:line": the dataset's class, and the user's innermost line that began the loader's first
      pass. Loaders made anew at the same place are one; others of the same name are "… (2)".
    - `workers`: of the loader. `fresh`: they were started for this pass.
    - `made_anew`: the program made the DataLoader itself anew.
    - `training`: gradients were enabled when it began.
    - `begin_ns`: by `perf_counter_ns`.
    - `start_seconds`: `iter(loader)` and the wait for the first batch, where workers were started for it.
    - `wait_seconds`: the waits for all other batches.
    - `batches`: the `BatchTimes` of each batch that came with them; workers that were there before have none.
    """

    loader: str
    workers: int
    fresh: bool
    made_anew: bool
    training: bool
    begin_ns: int
    start_seconds: float = 0.0
    wait_seconds: float = 0.0
    batches: list[BatchTimes] = field(default_factory=list)

    @property
    def starts(self) -> dict[int | None, float]:
        """Worker → seconds from the begin to its first sample: its process, imports and worker_init_fn."""
        first = {one.worker: one.begin_ns for one in reversed(self.batches) if self.fresh}
        return {worker: (at - self.begin_ns) / 1e9 for worker, at in first.items()}

    @property
    def seconds_saved_if_persistent(self) -> float:
        """What persistent workers would have saved: the start of the slowest, without the first batch."""
        return min(self.start_seconds, max(self.starts.values(), default=self.start_seconds))


@dataclass(repr=False)
class LoaderTimes(Shown):
    """What DataLoaders' time went to; `print` it.

    **Arguments:**

    - `passes`: each iteration over a DataLoader.
    - `seconds`: wall time that `loader_times` was open.
    """

    passes: list[LoaderPass] = field(default_factory=list)
    seconds: float = 0.0

    def by_loader(self) -> dict[str, list[LoaderPass]]:
        """Return loader → its passes, in the order of the first."""
        found: dict[str, list[LoaderPass]] = {}
        for one in self.passes:
            found.setdefault(one.loader, []).append(one)
        return found

    def restarts(self) -> dict[str, list[LoaderPass]]:
        """Return loader → its passes that started its workers anew, the first left out, where there are any."""
        fresh = {name: [one for one in of if one.fresh] for name, of in self.by_loader().items()}
        return {name: of[1:] for name, of in fresh.items() if len(of) > 1}

    def rows(self) -> Iterator[tuple[str, int | None, int, int, float | None, float, float, float]]:
        """Yield the sums of each loader and worker over all passes.

        They are the loader, the worker's number (`None` for the process that iterates), batches, starts, and seconds:
        of all starts (`None` where it never started), and of all batches in the dataset, in collate_fn, and of the
        loop's waits for them, which without workers are the making.
        """
        for name, passes in self.by_loader().items():
            batches = [batch for one in passes for batch in one.batches]
            for worker in sorted({batch.worker for batch in batches}, key=lambda worker: worker or 0):
                made = [batch for batch in batches if batch.worker == worker]
                starts = [one.starts[worker] for one in passes if worker in one.starts]
                collate = sum(batch.collate_ns for batch in made) / 1e9
                fetch = sum(batch.end_ns - batch.begin_ns for batch in made) / 1e9 - collate
                wait = sum(batch.wait_ns for batch in made) / 1e9
                yield name, worker, len(made), len(starts), sum(starts) if starts else None, fetch, collate, wait

    def _display(self) -> Display:
        lines = []
        for name, worker, batches, starts, start, *parts in self.rows():
            begun = "" if start is None else f"{starts} × {seconds_text(start / starts)}"
            each = [seconds_text(seconds / batches) for seconds in parts]
            lines.append((name, "main" if worker is None else str(worker), str(batches), begun, *each))
        columns = ("loader", "worker", "batches", "starts", "fetch", "collate", "wait") if lines else ()
        passes = counted(len(self.passes), "pass", "passes")
        title = f"{passes} over DataLoaders; fetch, collate and wait are of a batch"
        if before := [one for one in self.passes if one.wait_seconds and not one.batches]:
            waits = seconds_text(sum(one.wait_seconds for one in before))
            title += f"; {len(before)} with workers that were there before, of which only the waits are known: {waits}"
        return Display(title, columns, lines)


# ---- where a batch is made


class _Timed(NamedTuple):
    """A batch on its way, with its times; a DataLoader's pinning thread knows named tuples."""

    batch: Any
    times: BatchTimes


def _timed(fetch: Callable[[Any, Any], Any], worker: int | None) -> Callable[[Any, Any], _Timed]:
    """Return a fetcher's method `fetch` with a timer around it and around its collate_fn."""

    def timed(fetcher: Any, index: Any) -> _Timed:
        users, collated = fetcher.collate_fn, [0]

        def collating(found: Any) -> Any:
            begin = perf_counter_ns()
            batch = users(found)
            collated.append(perf_counter_ns() - begin)
            return batch

        fetcher.collate_fn = collating
        begin = perf_counter_ns()
        batch = fetch(fetcher, index)
        fetcher.collate_fn = users
        return _Timed(batch, BatchTimes(worker, begin, perf_counter_ns(), sum(collated)))

    return timed


def _start_worker(users: Callable[[int], Any] | None, worker: int) -> None:
    """Call, as the `worker_init_fn` of a timed loader, the user's, and put the timer into the worker."""
    from torch.utils.data._utils import fetch

    if users is not None:
        users(worker)
    kinds: tuple[Any, ...] = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
    for kind in kinds:
        kind.fetch = _timed(kind.fetch, worker)


# ---- where a loop iterates


_OPEN: list[LoaderTimes] = []  # the outermost first


class _Watch:
    """The loaders that a program iterates over while `loader_times` is open.

    **Arguments:**

    - `make`: torch's `DataLoader._get_iterator`. `reset`: how an iterator with persistent workers begins anew.
    """

    def __init__(self, make: Callable[[Any], Any], reset: Callable[..., None]) -> None:
        self.make, self.reset = make, reset
        self.names = WeakKeyDictionary[Any, str]()

    def name(self, loader: Any) -> str:
        """Return a new loader's name."""
        frame = user_frame(sys._getframe(1))
        place = "" if frame is None else f" at {short_place(frame.f_code.co_filename, frame.f_lineno)}"
        label, taken = f"{type(loader.dataset).__name__}{place}", set(self.names.values())
        return next(name for name in chain([label], (f"{label} ({i})" for i in count(2))) if name not in taken)

    def begin_again(self, iterator: Any, loader: Any, first_iter: bool = False) -> None:
        """Begin a pass over a loader whose workers persist; its first is begun by `begin`."""
        if first_iter:
            self.reset(iterator, loader, first_iter)
        else:
            self.begin(loader, lambda: self.reset(iterator, loader) or iterator, fresh=False)

    def begin(self, loader: Any, make: Callable[[], Any] | None = None, *, fresh: bool = True) -> Any:
        """Begin a pass over a loader: return torch's iterator, which times it."""
        import torch

        made_anew = loader not in self.names
        name = self.names[loader] = self.names.get(loader) or self.name(loader)
        workers, users = loader.num_workers, loader.worker_init_fn
        begun = LoaderPass(name, workers, fresh and workers > 0, made_anew, torch.is_grad_enabled(), perf_counter_ns())
        loader.worker_init_fn = partial(_start_worker, users) if workers else users
        try:
            iterator = make() if make else self.make(loader)
        finally:
            loader.worker_init_fn = users
        if not workers:
            fetcher = iterator._dataset_fetcher
            fetcher.fetch = partial(_timed(type(fetcher).fetch, None), fetcher)
        iterator._next_data = partial(self.next, ref(iterator), begun)
        for times in _OPEN:
            times.passes.append(begun)
        return iterator

    def next(self, iterator: ref[Any], of_pass: LoaderPass) -> Any:
        """Return an iterator's next batch without its times, which go to the pass."""
        now: Any = iterator()
        begin, times = perf_counter_ns(), None
        batch = type(now)._next_data(now)
        end = perf_counter_ns()
        wait_ns = end - begin
        if isinstance(batch, _Timed):
            batch, times = batch
        if _OPEN:
            if of_pass.fresh and not of_pass.start_seconds:
                of_pass.start_seconds, wait_ns = (end - of_pass.begin_ns) / 1e9, 0
            of_pass.wait_seconds += wait_ns / 1e9
            of_pass.batches += [times._replace(wait_ns=wait_ns, arrived_ns=end)] if times else []
        return batch


@contextmanager
def loader_times() -> Iterator[LoaderTimes]:
    """Time every DataLoader that a block of code iterates over: `with loader_times() as found: train()`.

    Nothing of the program is marked, and a trainer's own loaders count, such as Lightning's, and so do those inside an
    iterator of another package, such as PyG's `NodeLoader`. A loader that makes no iterator of torch's, such as
    torchdata's `StatefulDataLoader`, is left alone. A start is one of workers that start inside the block; of workers
    that ran before it only waits are known. Inside another `loader_times`, or a script that `tclab profile` runs, both
    have the passes that begin in them.
    """
    from torch.utils.data import dataloader

    kind: Any = dataloader.DataLoader
    several: Any = dataloader._MultiProcessingDataLoaderIter
    found, begin, torchs = LoaderTimes(), perf_counter_ns(), (kind._get_iterator, several._reset)
    if not _OPEN:
        watch = _Watch(*torchs)
        kind._get_iterator = lambda loader: watch.begin(loader)
        several._reset = lambda *given, **options: watch.begin_again(*given, **options)
    _OPEN.append(found)
    try:
        yield found
    finally:
        _OPEN.remove(found)
        if not _OPEN:
            kind._get_iterator, several._reset = torchs
        found.passes = [replace(each, batches=[*each.batches]) for each in found.passes]  # they may go on for another
        found.seconds = (perf_counter_ns() - begin) / 1e9
