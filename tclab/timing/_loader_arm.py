"""A loader in a race: its batches epoch after epoch, and what is made ahead dropped before each block.

A loader's workers go on making batches while other arms run, which would shorten its own blocks and take processors
from the others'. So before each block all workers of all arms have made what they may make ahead, and of the arm's own
this is dropped. The workers are found beneath whatever wraps a loader: an attribute, a closure, a generator's variable.
A loader whose batches come from threads or processes that are not found is refused before anything is measured.

The start of an epoch may take as long as many batches. Two arms that begin their epochs at different places of their
blocks, and go on so for a race, look different although they are equal: one has the starts inside the clock, the other
outside, or in other blocks of a round. So a block has whole epochs, where they are short, and begins anywhere in one.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import compress
from math import ceil
from random import Random
from time import sleep
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakSet

from tclab.errors import InputError, shown

_HARMLESS = {"torch", "multiprocessing", "tqdm"}  # packages whose threads make no batches
_MOST_OBJECTS = 5000  # that are looked at beneath a loader: a data set may have millions
_MOST_ELEMENTS = 1000  # of a container that is looked into
_SHORT_EPOCH = 100  # batches, and fewer: blocks have whole ones
_LONG_EPOCH = 1000  # batches, and more: too few begin in a race to matter
_MOST_DRAWN = 10_000  # batches that are drawn for those that workers made ahead
DRAWN = Random()  # where blocks begin, and the orders of rounds; by the system's entropy, and so others in each race
_RACED: WeakSet[Iterator[Any]] = WeakSet()  # the batches of all loader arms of this process


def loader_arm(
    loader: Iterable[Any], step: Callable[[Any], Any]
) -> tuple[Callable[[], None], Callable[[int], None] | None, int]:
    """Return call, `settle` and period of an arm that calls `step` on a loader's next batch, epoch after epoch.

    Its workers start here. Where it has some, a short epoch is a period, or as many steps as there are workers.

    **Raises:** `InputError` for a loader without a batch, or one whose batches come from where a race cannot see.
    """
    batches, threads, children = endless(loader), {*threading.enumerate()}, {*multiprocessing.active_children()}
    first = [next(batches)]
    found = {worker for iterator in worker_iterators(batches) for worker in iterator._workers}
    makers = [thread.name for thread in threading.enumerate() if thread not in threads and _may_prefetch(thread)]
    makers += [process.name for process in {*multiprocessing.active_children()} - children - found]
    if makers:
        raise InputError(
            f"{shown(loader)} starts {makers[0]}, which may make batches while other candidates run, so its blocks "
            "would be too short; expected a loader whose workers a race can find: a DataLoader, or what holds one"
        )
    if found:
        _RACED.add(batches)
    workers = len(found) or getattr(loader, "num_workers", 0)  # as a loader of another package says
    unseen = 0 if found else workers * (getattr(loader, "prefetch_factor", None) or 2)  # torch's default
    epoch = _LONG_EPOCH - 1  # in batches
    with suppress(TypeError, NotImplementedError):  # of batches without end, or a wrapper that does not say
        epoch = len(loader)  # type: ignore[arg-type]
    period = epoch * ceil(workers / epoch) if epoch <= _SHORT_EPOCH else workers

    def call() -> None:
        step(first.pop() if first else next(batches))

    def settle(calls: int) -> None:
        """Drop the batches that workers made while other arms ran, and step on the next, which may be waited for.

        After that step a block begins as every step does that is a period later. Before it some more are dropped, so
        that a block of so many calls begins anywhere in an epoch.
        """
        for _ in range(unseen + DRAWN.randrange(min(calls + 1, epoch) if epoch < _LONG_EPOCH else 1)):
            next(batches)
        ahead = {each: range(each._rcvd_idx, each._send_idx) for each in worker_iterators(batches)}
        for _ in range(_MOST_DRAWN):
            if all(each._rcvd_idx not in ahead.get(each, ()) for each in worker_iterators(batches)):
                return call()
            next(batches)
        raise InputError(f"{shown(loader)} draws no further batch of its workers; expected steps that do")

    return (call, settle, period) if workers else (call, None, 1)


def wait_for_workers() -> None:
    """Wait until no worker of any arm has a batch to make, and so none takes time from the block that follows."""
    for iterator in [each for batches in _RACED for each in worker_iterators(batches)]:
        with suppress(NotImplementedError):  # macOS does not know how long its queues are
            busy = list(compress(iterator._workers, iterator._workers_status))  # without those at their end
            # of a worker that was killed torch tells at the next batch
            while iterator._data_queue.qsize() < iterator._tasks_outstanding and all(one.is_alive() for one in busy):
                sleep(0.001)


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield a loader's batches, epoch after epoch. **Raises:** `InputError` for an epoch without a batch."""
    while True:
        batch = nothing = object()
        for batch in loader:
            yield batch
        if batch is nothing:
            raise InputError(f"{shown(loader)} yields no batch, expected a loader that yields some in each epoch")


def worker_iterators(root: Any) -> list[Any]:
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
