"""A loader in a race: its batches epoch after epoch, and what is made ahead dropped before each block.

A loader's workers go on making batches while other arms run, which would shorten its own blocks and take processors
from the others'. So before each block all workers of all arms have made what they may make ahead, and of the arm's own
this is dropped. The workers are found beneath whatever wraps a loader: an attribute, a closure, a generator's variable.
A loader whose batches come from threads or processes that are not found is refused before anything is measured.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from time import sleep
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakSet

from tclab.errors import InputError, shown

_HARMLESS = {"torch", "multiprocessing", "tqdm"}  # packages whose threads make no batches
_MOST_OBJECTS = 5000  # that are looked at beneath a loader: a data set may have millions
_MOST_ELEMENTS = 1000  # of a container that is looked into
_MOST_DRAWN = 1000  # batches that are drawn for one that a worker made ahead
_LOADED: WeakSet[LoaderArm] = WeakSet()  # the loader arms of this process


class LoaderArm:
    """A function that calls `step` on the next batch of `loader`, epoch after epoch.

    Where steps wait for the loader, each `num_workers` of them are a cycle: the arm's `period`.
    """

    def __init__(self, loader: Iterable[Any], step: Callable[[Any], Any]) -> None:
        self._loader, self._batches, self._step = loader, endless(loader), step
        self._workers = getattr(loader, "num_workers", 0)  # as a loader of another package says
        self._ahead = self._workers * (getattr(loader, "prefetch_factor", None) or 2)  # torch's default
        self.period = 0  # until the first call
        _LOADED.add(self)

    def __call__(self) -> None:
        if self.period:
            self._step(next(self._batches))
            return
        threads, children = {*threading.enumerate()}, {*multiprocessing.active_children()}
        self._step(next(self._batches))
        iterators = multiprocess_iterators(self._batches)
        workers = {worker for iterator in iterators for worker in iterator._workers}
        self.period = max(1, len(workers) or self._workers)
        makers = [thread.name for thread in threading.enumerate() if thread not in threads and _may_prefetch(thread)]
        makers += [process.name for process in {*multiprocessing.active_children()} - children - workers]
        if makers:
            raise InputError(
                f"{shown(self._loader)} starts {makers[0]}, which may make batches while other arms run, so that its "
                "own blocks would be too short; expected a loader whose workers a race can find, such as a DataLoader "
                "or an iterable that holds one"
            )

    def settle(self) -> None:
        """Drop the batches that workers made while other arms ran, and step on the next, which may be waited for.

        After that step a block begins as every `period`-th step does.
        """
        iterators = multiprocess_iterators(self._batches)
        for iterator in iterators:
            self._drain(iterator)
        for _ in range(0 if iterators else self._ahead):
            next(self._batches)
        if iterators or self._ahead:
            self()

    def _drain(self, iterator: Any) -> None:
        """Draw until the workers of torch's iterator have given what they may have made ahead, or its epoch ends."""
        ahead, received = iterator._prefetch_factor * iterator._num_workers, iterator._rcvd_idx
        for _ in range(_MOST_DRAWN * ahead):
            if ahead <= 0 or iterator._shutdown:
                return
            next(self._batches)
            ahead -= iterator._rcvd_idx - received if iterator._rcvd_idx >= received else iterator._rcvd_idx
            received = iterator._rcvd_idx
        raise InputError(f"{shown(self._loader)} draws no further batch of its workers; expected one whose steps do")


def wait_for_workers() -> None:
    """Wait until no worker of any arm has a batch to make, and so none takes time from the block that follows."""
    for arm in _LOADED:
        for iterator in multiprocess_iterators(arm._batches):
            workers = iterator._workers
            with suppress(NotImplementedError):  # macOS does not know how long its queues are
                while iterator._data_queue.qsize() < iterator._tasks_outstanding and any(w.is_alive() for w in workers):
                    sleep(0.001)


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield a loader's batches, epoch after epoch. **Raises:** `InputError` for an epoch without a batch."""
    while True:
        batch = nothing = object()
        for batch in loader:
            yield batch
        if batch is nothing:
            raise InputError(f"{shown(loader)} yields no batch, expected a loader that yields some in each epoch")


def multiprocess_iterators(root: Any) -> list[Any]:
    """Return torch's iterators with workers that an object holds, itself or through others."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    from torch.utils.data import Dataset, dataloader

    leaves = (ModuleType, type, Dataset, torch.Tensor, torch.nn.Module)
    found, seen, queue = [], {id(root)}, [root]
    while queue and len(seen) < _MOST_OBJECTS:
        held = queue.pop(0)
        if isinstance(held, dataloader._MultiProcessingDataLoaderIter):
            found.append(held)
            continue
        # a function without its module's globals, where other arms may be
        inside = gc.get_referents(*(held.__closure__ or ()) if isinstance(held, FunctionType) else (held,))
        for each in inside if len(inside) <= _MOST_ELEMENTS else ():
            if id(each) not in seen and gc.is_tracked(each) and not isinstance(each, leaves):
                seen.add(id(each))
                queue.append(each)
    return found


def _may_prefetch(thread: threading.Thread) -> bool:
    runs = getattr(thread, "_target", None) or type(thread).run
    return (getattr(runs, "__module__", None) or "").partition(".")[0] not in _HARMLESS
