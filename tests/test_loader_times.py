"""Any DataLoader with no mark in it: worker start, fetch, collate and wait, by worker; and what is advised on it."""

import inspect
from collections import Counter
from multiprocessing import active_children
from time import monotonic_ns, perf_counter, sleep

import pytest
import torch
from clock import Clock
from torch.utils.data import DataLoader, Dataset, IterableDataset, dataloader, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from tclab import timing
from tclab.timing._ledger import BatchTiming
from tclab.timing._loader_times import LoaderPass, LoaderTimes, _Timed
from tclab.timing._profile import Profile

pytestmark = pytest.mark.filterwarnings("ignore")  # lightning's own advice on workers
FETCH, COLLATE, READY, N = 0.01, 0.02, 0.2, 12  # seconds of a sample, of a batch and of a worker's start; samples


class Sleepy(Dataset):
    """Samples that know who made them and how long that took."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        begin = perf_counter()
        sleep(FETCH)
        return i, get_worker_info().id, perf_counter() - begin


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def collate(samples):
    begin = perf_counter()
    sleep(COLLATE)
    took = (perf_counter() - begin) / len(samples)
    return torch.tensor([(*sample, took) for sample in samples], dtype=torch.float64)  # [batch, 4]


def ready(worker):
    sleep(READY)


def plain(**options):
    return DataLoader(list(range(4)), batch_size=2, **options)


CONTEXTS = [
    ("fork", False),
    ("fork", True),
    ("forkserver", False),
    ("forkserver", True),
    pytest.param("spawn", True, marks=pytest.mark.slow),
]  # each of its workers imports torch


@pytest.mark.clock
@pytest.mark.parametrize(("context", "persistent"), CONTEXTS)
def test_the_workers_of_a_loader_are_timed_one_by_one(context, persistent):
    loader = DataLoader(Sleepy(), batch_size=3, num_workers=2, collate_fn=collate, worker_init_fn=ready,
                        multiprocessing_context=context, persistent_workers=persistent)  # fmt: skip
    with timing.loader_times() as found:
        made = torch.cat([batch for _ in range(2) for batch in loader])  # the batches as they would be
    assert made[:, 0].tolist() == [*range(N), *range(N)]
    assert loader.worker_init_fn is ready
    first, second = found.passes
    assert (first.fresh, second.fresh) == (True, not persistent)
    assert list(found.restarts().values()) == ([] if persistent else [[second]])
    assert min(first.starts.values()) > READY
    assert first.starts[0] <= first.start_seconds  # which waits for the batch of worker 0
    rows = list(found.rows())
    assert [worker for _, worker, *_ in rows] == [0, 1]
    for _, worker, batches, starts, start_seconds, fetch_seconds, collate_seconds, wait_seconds in rows:
        assert (batches, starts) == (4, 1 if persistent else 2)  # of two passes
        assert READY * starts < start_seconds
        theirs = made[made[:, 1] == worker].sum(0).tolist()
        assert theirs[2] <= fetch_seconds == pytest.approx(theirs[2], rel=0.1)
        assert theirs[3] <= collate_seconds == pytest.approx(theirs[3], rel=0.1)
        assert wait_seconds <= first.wait_seconds + second.wait_seconds
    assert torch.cat(list(loader))[:, 0].tolist() == list(range(N))  # and afterwards, with workers that go on
    assert (len(found.passes), len(second.batches)) == (2, 4)


@pytest.mark.parametrize(
    ("make", "batches"),
    [(lambda: plain(), 2), (lambda: DataLoader(list(range(5)), batch_size=None), 5),
     (lambda: DataLoader(Stream(), batch_size=4), 3), (lambda: DataLoader(Stream(), batch_size=4, num_workers=1), 3)],
)  # fmt: skip
def test_every_kind_of_loader_gives_what_it_gave_and_is_counted(make, batches):
    bare = list(make())
    with timing.loader_times() as found:
        timed = list(make())
    assert str(timed) == str(bare)
    ((_, worker, made, *_),) = found.rows()
    assert made == batches
    assert ("main" in str(found)) == (worker is None) == (found.passes[0].workers == 0)


def test_what_a_pinning_thread_gets_is_pinned_inside(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor + 1)
    pinned = pin_memory(_Timed({"x": torch.zeros(2)}, made := BatchTiming(0, 1, 2, {"collate": 3})))
    assert (pinned.batch["x"].tolist(), pinned.timing) == ([1.0, 1.0], made)


def patched():
    """Return what `loader_times` replaces while it is open."""
    return dataloader.DataLoader._get_iterator, dataloader._MultiProcessingDataLoaderIter._reset


class Around:
    """An iterator around torch's, as PyG's loaders have one: each batch is changed in the process that iterates."""

    def __init__(self, iterator):
        self.iterator = iterator

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.iterator) + 1

    def _reset(self, loader, first_iter=False):
        self.iterator._reset(loader, first_iter)


class Wrapping(DataLoader):
    def _get_iterator(self):
        return Around(super()._get_iterator())


class Late(DataLoader):
    """A loader whose iterator is made at the first batch, and holds one batch ahead."""

    def __iter__(self):
        ahead = []
        for batch in super().__iter__():
            if ahead:
                yield ahead.pop()
            ahead.append(batch)
        yield from ahead


class Foreign(DataLoader):
    """A loader with an iterator of its own, as torchdata's StatefulDataLoader has one."""

    def _get_iterator(self):
        return self.Iterator(self)

    class Iterator(dataloader._BaseDataLoaderIter):
        def _next_data(self):
            return self._index_sampler and torch.tensor(next(self._sampler_iter))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Wrapping, Late, Foreign])
def test_whoever_wraps_an_iterator_of_torchs_gets_what_he_gets_untimed(kind, workers):
    options = {"batch_size": 2, "num_workers": workers, "persistent_workers": kind is Wrapping and workers > 0}

    def epochs():
        loader = kind(list(range(6)), **options)
        return [batch.tolist() for _ in range(2) for batch in loader]

    bare = epochs()
    with timing.loader_times() as found:
        assert epochs() == bare
    if kind is Foreign:
        assert found.passes == []
    else:
        assert [len(one.batches) for one in found.passes] == [3, 3]
        assert [one.fresh for one in found.passes] == [workers > 0, workers > 0 and kind is not Wrapping]


def test_the_loaders_of_pyg_are_timed_and_give_what_they_give():
    loaders, sampler = pytest.importorskip("torch_geometric.loader"), pytest.importorskip("torch_geometric.sampler")
    from torch_geometric.data import Data

    class Seeds(sampler.BaseSampler):
        def sample_from_nodes(self, index, **more):
            k = len(index.node)
            output = {"node": index.node, "row": torch.arange(k), "col": torch.arange(k), "edge": torch.arange(k)}
            return sampler.SamplerOutput(**output, metadata=(index.input_id, index.time))

        def sample_from_edges(self, index, **more):
            raise NotImplementedError

    ring = Data(x=torch.arange(6.0)[:, None], edge_index=torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6]))
    for workers in (0, 1):
        loader = loaders.NodeLoader(ring, Seeds(), batch_size=3, num_workers=workers, filter_per_worker=False)
        with timing.loader_times() as found:
            batches = [batch.x.flatten().tolist() for batch in loaders.PrefetchLoader(loader, torch.device("cpu"))]
        assert batches == [[0, 1, 2], [3, 4, 5]]
        assert [len(one.batches) for one in found.passes] == [2]


def test_times_inside_times_have_the_passes_that_begin_in_them():
    before, loader = patched(), plain()
    with timing.loader_times() as outer:
        list(loader)
        with timing.loader_times() as inner:
            unfinished = iter(loader)
            next(unfinished)
        list(unfinished)
        list(loader)
    assert [len(one.batches) for one in outer.passes] == [2, 2, 2]
    assert [len(one.batches) for one in inner.passes] == [1]
    assert {one.loader for one in inner.passes} == {one.loader for one in outer.passes}
    assert patched() == before


def test_an_error_of_a_worker_and_a_loop_that_is_left_are_as_before():
    class Failing(Sleepy):
        def __getitem__(self, i):
            raise ValueError("no such record")

    before = patched()
    with pytest.raises(ValueError, match="no such record"), timing.loader_times() as found:
        list(DataLoader(Failing(), num_workers=1))
    assert patched() == before
    assert not list(found.rows())
    children = set(active_children())  # the error holds the iterator of one
    with timing.loader_times() as left:
        for _ in plain(num_workers=2):
            break
    assert set(active_children()) <= children  # the iterator is freed with the loop
    assert len(left.passes[0].batches) == 1


def test_loaders_are_named_by_their_dataset_and_line_and_those_made_anew_are_one():
    kept, other, line = plain(), plain(), inspect.currentframe().f_lineno
    with timing.loader_times() as found:
        for _ in range(2):
            list(kept) + list(other)
        for _ in range(3):
            list(plain(num_workers=1))
    first, second, third = (
        f"list at test_loader_times.py:{place}" for place in (line + 3, f"{line + 3} (2)", line + 5)
    )
    assert [one.loader for one in found.passes] == [first, second] * 2 + [third] * 3
    assert [one.made_anew for one in found.passes] == [True, True, False, False, True, True, True]
    assert len(found.restarts()[third]) == 2


def test_the_batches_of_training_say_how_many_workers_a_loop_needs(monkeypatch):
    monkeypatch.setattr("tclab.timing._advice.usable_cores", lambda: 16)
    clock = Clock().set_in(monkeypatch)
    with timing.Ledger() as ledger:
        for _ in ledger.steps(clock.work(0.004) for _ in range(12)):
            clock.work(0.004)
    training = LoaderPass("a", 1, True, True, True, 0, batches=[BatchTiming(0, 0, 8_000_000, {})] * 12)
    others = LoaderPass("validation", 3, True, True, False, 0, batches=[BatchTiming(0, 0, 10**9, {})])
    one = timing.advise(ledger, loaders=LoaderTimes([training, others], 1.0)).suggestions[0]
    assert one.change == "load with 2 workers instead of 1"
    assert "a batch is made in 8 ms, and the rest" in one.why


def test_without_a_ledger_the_arrival_of_batches_says_whether_a_loop_waits_for_its_loader(monkeypatch):
    monkeypatch.setattr("tclab.timing._advice.usable_cores", lambda: 2)
    ms = 10**6

    def loop(name, every, wait):
        made = [BatchTiming(i % 2, 0, 200 * ms, {"collate": 80 * ms}, wait * ms, i * every * ms) for i in range(12)]
        return LoaderPass(name, 2, True, True, True, 0, wait_seconds=12 * wait / 1e3, batches=made)

    slow, quick = loop("slow", 100, 90), loop("quick", 100, 5)
    (one,) = timing.advise(loaders=LoaderTimes([quick, slow], 3.0), margin=0.1).suggestions
    assert (one.change, one.ratio) == ("make a batch cheaper, or carry less in it", pytest.approx(0.1))
    made = (
        "a batch is made in 200 ms (120 ms fetch, 80 ms collate), so that 2 workers give one each 100 ms, and the rest"
    )
    assert f"waits for its batch for 90% [90%, 90%] of its time; {made} of a step takes 10 ms: 20 workers" in one.why
    assert timing.advise(loaders=LoaderTimes([quick], 3.0), margin=0.1).suggestions == ()
    lines = {"workers": Counter({("", 0): 5, ("/a/train.py", 19): 4, ("/a/train.py", 20): 1})}
    (one,) = Profile(lines, 3.0, loaders=LoaderTimes([slow], 3.0)).advice.suggestions
    assert one.why.endswith("could keep up, on 2 cores. 40% of the workers' time is in train.py:19.")
    assert Profile(lines, 3.0).advice.suggestions == ()
    ended = LoaderTimes([LoaderPass("slow", 2, True, True, True, 0)], 3.0)  # by an error in its first batch
    assert Profile(lines, 3.0, loaders=ended).advice.suggestions == ()


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_loader_that_starts_its_workers_anew_is_advised_to_keep_them(monkeypatch, made_anew):
    # a clock that the steps do not add up to, as a pause on a busy machine makes it: starts have a clock of their own
    monkeypatch.setattr("tclab.timing._ledger.raw_clock_ns", lambda: 3 * monotonic_ns())
    with timing.Ledger() as ledger:
        for _ in ledger.steps(range(8)):
            pass
    second = 10**9
    passes = [
        LoaderPass("Records at train.py:3", 2, True, made_anew or not begin, True, begin, 2.0, 1.0,
                   [BatchTiming(0, begin + second, begin + second, {})])
        for begin in (0, 10 * second, 20 * second)
    ]  # fmt: skip
    (one,) = timing.advise(ledger, loaders=LoaderTimes(passes, 25.0)).suggestions
    once = "one DataLoader for all passes, with " if made_anew else ""
    assert one.change == f"{once}persistent_workers=True for Records at train.py:3"
    assert one.ratio == pytest.approx(1 - 2 * 1 / 25)  # 1 of 2 s of a start is not the first batch
    assert not timing.advise(ledger, loaders=LoaderTimes(passes[:1], 25.0)).suggestions
