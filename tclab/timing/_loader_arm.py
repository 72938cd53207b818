"""A loader in a race: its batches epoch after epoch, and what is made ahead dropped before each block.

A loader's workers go on making batches while other arms run, which would shorten its own blocks and take processors
from the others'. So before each block all workers of all arms have made what they may make ahead, and of the arm's own
this is dropped. Whatever wraps a loader, its workers are known: torch's iterators are noted as they begin an epoch.
A loader whose batches come from threads or processes that are not found is refused before anything is measured.

The start of an epoch may take as long as many batches. Two arms that begin their epochs at different places of their
blocks, and go on so for a race, look different although they are equal: one has the starts inside the clock, the other
outside, or in other blocks of a round. So a block has whole epochs, where they are short, and begins anywhere in one.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import compress
from math import ceil
from random import Random
from time import sleep
from typing import Any, NamedTuple
from weakref import WeakSet, WeakValueDictionary

from tclab.errors import InputError, shown

_HARMLESS = {"torch", "multiprocessing", "tqdm"}  # packages whose threads make no batches
_SHORT_EPOCH = 100  # batches, and fewer: blocks have whole ones
_LONG_EPOCH = 1000  # batches, and more: too few begin in a race to matter
_MOST_DRAWN = 10_000  # batches that are drawn for those that workers made ahead
DRAWN = Random()  # where blocks begin, and the orders of rounds; by the system's entropy, and so others in each race
_RACED: WeakSet[Any] = WeakSet()  # torch's iterators with workers, of all loader arms of this process


class Arm(NamedTuple):
    """One candidate of a race.

    **Arguments:**

    - `call`: does one unit of work.
    - `settle`: called before each block, with its number of calls, outside the clock: what this arm's workers did while
      other arms ran must not make its own block shorter.
    - `period`: calls of which a block has a multiple, where the budget has room for such blocks.
    - `returns_seconds`: a call returns its own seconds, and no clock is read.
    - `identity`: a JSON value that the race's record keeps; only a race of the same identities resumes it.
    """

    call: Callable[[], Any]
    settle: Callable[[int], object] | None = None
    period: int = 1
    returns_seconds: bool = False
    identity: Any = None


def loader_arm(loader: Iterable[Any], step: Callable[[Any], Any]) -> Arm:
    """Return the arm that calls `step` on a loader's next batch, epoch after epoch.

    Its workers start here. Where it has some, a short epoch is a period, or as many steps as there are workers.

    **Raises:** `InputError` for a loader without a batch, or one whose batches come from where a race cannot see.
    """
    from torch.utils.data import dataloader  # late: a race of functions needs none of it

    batches, threads, children = endless(loader), {*threading.enumerate()}, {*multiprocessing.active_children()}
    iterators = WeakValueDictionary[int, Any]()  # torch's, the last of each loader
    kind: Any = dataloader._MultiProcessingDataLoaderIter

    def draw() -> Any:
        """Return the next batch, and note torch's iterators that begin an epoch over workers meanwhile."""
        reset = kind._reset

        def noted(iterator: Any, loader: Any, *given: Any, **options: Any) -> None:
            iterators[id(loader)] = iterator
            _RACED.add(iterator)
            reset(iterator, loader, *given, **options)

        kind._reset = noted
        try:
            return next(batches)
        finally:
            kind._reset = reset

    first = [draw()]
    found = {worker for iterator in iterators.values() for worker in iterator._workers}
    makers = [thread.name for thread in threading.enumerate() if thread not in threads and _may_prefetch(thread)]
    makers += [process.name for process in {*multiprocessing.active_children()} - children - found]
    if makers:
        raise InputError(
            f"{shown(loader)} starts {makers[0]}, which may make batches while other candidates run, so its blocks "
            "would be too short; expected a loader whose workers a race can find: a DataLoader, or what holds one"
        )
    workers = len(found) or getattr(loader, "num_workers", 0)  # as a loader of another package says
    unseen = 0 if found else workers * (getattr(loader, "prefetch_factor", None) or 2)  # torch's default
    epoch = _LONG_EPOCH - 1  # in batches
    with suppress(TypeError, NotImplementedError):  # of batches without end, or a wrapper that does not say
        epoch = len(loader)  # type: ignore[arg-type]
    period = epoch * ceil(workers / epoch) if epoch <= _SHORT_EPOCH else workers

    def call() -> None:
        step(first.pop() if first else draw())

    def settle(calls: int) -> None:
        """Drop the batches that workers made while other arms ran, and step on the next, which may be waited for.

        After that step a block begins as every step does that is a period later. Before it some more are dropped, so
        that a block of so many calls begins anywhere in an epoch.
        """
        for _ in range(unseen + DRAWN.randrange(min(calls + 1, epoch) if epoch < _LONG_EPOCH else 1)):
            draw()
        ahead = {each: range(each._rcvd_idx, each._send_idx) for each in iterators.values()}
        for _ in range(_MOST_DRAWN):
            if all(each._rcvd_idx not in ahead.get(each, ()) for each in iterators.values()):
                return call()
            draw()
        raise InputError(f"{shown(loader)} draws no further batch of its workers; expected steps that do")

    return Arm(call, settle, period) if workers else Arm(call)


def wait_for_workers() -> None:
    """Wait until no worker of any arm has a batch to make, and so none takes time from the block that follows."""
    for iterator in [*_RACED]:
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


def _may_prefetch(thread: threading.Thread) -> bool:
    runs = getattr(thread, "_target", None) or type(thread).run
    return (getattr(runs, "__module__", None) or "").partition(".")[0] not in _HARMLESS
