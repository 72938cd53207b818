"""A loader in a race: what its workers made ahead is drained, whoever wraps it, or it is refused."""

import multiprocessing
from itertools import islice
from queue import Queue
from threading import Thread
from weakref import WeakSet

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tclab.errors import InputError
from tclab.timing._loader_arm import _RACED, loader_arm, wait_for_workers


class Zeros(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return torch.zeros(1)


class Held:
    """A wrapper with one batch ahead, as PyG's and timm's prefetchers."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        ahead = []
        for batch in self.loader:
            if ahead:
                yield ahead.pop()
            ahead.append(batch)
        yield from ahead


class Pieces(Held):
    def __iter__(self):
        for batch in self.loader:
            yield from batch  # four steps a batch


class Global(Held):
    """A wrapper that keeps its iterator in a global variable."""

    def __iter__(self):
        of_epochs["now"] = iter(self.loader)
        while (batch := next(of_epochs["now"], None)) is not None:
            yield batch


of_epochs = {}


class Threaded(Held):
    """A wrapper whose thread makes batches ahead, without end."""

    def __iter__(self):
        batches = Queue(2)
        Thread(target=lambda: [batches.put(batch) for batch in self.loader], daemon=True).start()
        while True:
            yield batches.get()


def workers_loader(**options):
    return DataLoader(Zeros(), batch_size=4, num_workers=2, prefetch_factor=1, **options)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda loader: loader, Held, Pieces, lambda loader: Held(Held(loader)),
        lambda loader: workers_loader(in_order=False), Global,
        lambda loader: Once(lambda: islice(loader, 9)), lambda loader: Once(lambda: zip(loader, [1] * 8, strict=False)),
    ],
    ids=["bare", "ahead", "pieces", "twice", "any order", "global", "islice", "zip"],
)  # fmt: skip
@pytest.mark.parametrize("persistent", [False, True])
def test_what_workers_made_ahead_is_drained_whoever_wraps_their_loader(wrap, persistent):
    others = {*_RACED}

    def running():
        return [*{*_RACED} - others]  # none, where a wrapper gives the last batches of an epoch

    _, settle, period, *_ = loader_arm(wrap(workers_loader(persistent_workers=persistent)), lambda batch: None)
    assert period in (2, 10)  # an epoch, where a wrapper says how long it is
    drained = 0
    for _ in range(8):  # across epochs
        before = WeakSet(running())  # one that an epoch left behind ends
        wait_for_workers()
        assert all(iterator._data_queue.qsize() == iterator._tasks_outstanding for iterator in before)
        ahead = {i for iterator in before for i in range(iterator._rcvd_idx, iterator._send_idx)}
        settle(1)
        # of the others another epoch began
        again = [range(i._rcvd_idx, i._send_idx) for i in before if i._send_idx > max(ahead, default=-1)]
        assert not any(ahead.intersection(those) for those in again)
        drained += len(again)
    assert drained > 1
    of_epochs.clear()  # ends the workers of the last epoch


class Waiting(Zeros):
    """Items of which all but the first four wait for a word."""

    def __init__(self):
        self.goes = multiprocessing.Event()

    def __getitem__(self, i):
        if i >= 4:
            self.goes.wait()
        return super().__getitem__(i)


def test_a_worker_that_was_killed_is_not_waited_for(monkeypatch):
    samples = Waiting()
    others = {*_RACED}
    arm = loader_arm(DataLoader(samples, batch_size=4, num_workers=2), lambda batch: None)
    (iterator,) = {*_RACED} - others
    with monkeypatch.context() as patched:  # torch raises an error wherever this process is when one is killed
        patched.setattr(iterator._workers[1], "is_alive", lambda: False)
        waiting = Thread(target=wait_for_workers, daemon=True)
        waiting.start()
        waiting.join(timeout=60)  # it ends at once, or never
        assert not waiting.is_alive()
        assert iterator._data_queue.qsize() < iterator._tasks_outstanding
    samples.goes.set()
    del arm


class Once:
    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return iter(self.make())


def test_a_loader_whose_batches_come_from_where_a_race_cannot_see_is_refused():
    with pytest.raises(InputError, match=r"starts Thread-.*, which may make batches while other candidates run"):
        loader_arm(Threaded([1] * 50), print)
    assert loader_arm([1, 2], print)[1:3] == (None, 1)
