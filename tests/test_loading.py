"""Loading: the same batches by every way of reading, collating and handing over; workers that die; no room."""

import itertools
import multiprocessing
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch.utils.data._utils import worker

import tclab
from tclab import masking
from tclab.perturbation import Deletions, Perturbations
from tclab.perturbation._sample_store import stored
from tclab.sweeps._measure import setup
from tclab.sweeps._point_inputs import resolve
from tclab.training._loading import Batches, Loader, WorkerDiedError

GRAPH = tclab.CellGraph.synthetic(0.03)
STORES = ("memory", "lmdb", "json")
SAMPLES = Perturbations(
    Deletions.of([range(10 * n, 11 * n) for n in range(12)], num_nodes=GRAPH.num_nodes["gene"]),
    torch.randn(12, generator=torch.Generator().manual_seed(0)),
)  # the first deletes nothing, the last eleven genes


def equal(found, expected):
    assert (found.host_values, found.size) == (expected.host_values, expected.size)
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        torch.testing.assert_close(found.tensors[name], tensor, rtol=0, atol=0, msg=name)
    for kind, deletions in expected.deletions.items():
        assert [nodes.tolist() for nodes in found.deletions[kind]] == [nodes.tolist() for nodes in deletions], kind


# a store knows nothing of strategies: each has one of the three
@pytest.mark.parametrize(("strategy", "store"), list(zip(masking.names(), itertools.cycle(STORES))))
def test_every_strategy_reads_from_every_store_here_and_in_workers(strategy, store, tmp_path):
    loading = masking.get(strategy)(GRAPH)
    loading.prepare(SAMPLES, tmp_path / "masks")
    batches = Batches(loading, stored(GRAPH, SAMPLES, tmp_path / "samples", store), 5)
    expected = [loading.batch(SAMPLES.read(range(5 * b, 5 * b + 5)), range(5 * b, 5 * b + 5)) for b in range(2)]
    for workers in (0, 2):
        loaded = list(Loader(batches, workers=workers))
        for found, right in zip(loaded, expected, strict=True):  # samples that fill no batch are left out
            equal(found.batch, right)
        assert [found.timing.worker for found in loaded] == ([0, 1] if workers else [None, None])
    with pytest.raises(IndexError, match="batch 2 of 2"):
        batches[2]
    loading.close()


class Threads(masking.get("edge_mask")):
    """Says how many threads torch has where batches are made."""

    name = "threads"

    def collate(self, removed, scores, encoded):
        batch = super().collate(removed, scores, encoded)
        return replace(batch, host_values={**batch.host_values, "threads": torch.get_num_threads()})


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=pytest.mark.slow if m != "fork" else ()) for m in multiprocessing.get_all_start_methods()],
)
def test_workers_of_every_kind_make_the_same_with_one_thread_and_say_when(method):
    torch.set_num_threads(2)
    try:
        last = dict.fromkeys((0, 1), time.perf_counter_ns())
        loaded = list(Loader(Batches(Threads(GRAPH), SAMPLES, 2), workers=2, multiprocessing_context=method))
    finally:
        torch.set_num_threads(1)
    for number, item in enumerate(loaded):
        assert item.batch.host_values.pop("threads") == 1
        equal(item.batch, masking.get("edge_mask")(GRAPH).batch(SAMPLES.read([2 * number, 2 * number + 1])))
        made = item.timing
        assert (made.worker, list(made.stages)) == (number % 2, ["sample", "mask", "collate"])
        assert sum(made.stages.values()) == made.end_ns - made.begin_ns
        assert last[made.worker] < made.begin_ns  # one after the other, by a clock that both processes share
        last[made.worker] = made.end_ns
    assert max(last.values()) < time.perf_counter_ns()


def test_an_epoch_that_is_not_gone_through_ends_with_its_point_and_not_when_its_garbage_is_found():
    point = resolve(tclab.Point(scale=0.01, batch_size=1, networks=1, device="cpu", workers=2))
    before = set(multiprocessing.active_children())
    with setup(point, 9) as here:
        batches = here.batches()
        next(batches)
        kept = [batches]
        kept.append(kept)  # as an exception's frames keep what they hold
        assert set(multiprocessing.active_children()) > before
    assert set(multiprocessing.active_children()) <= before


class Dies(masking.get("node_mask")):
    """Ends its worker at sample 7, in one of several ways."""

    name = "dies"

    def __init__(self, graph, how):
        super().__init__(graph)
        self.how = how

    def encode(self, indices, removed):
        if 7 in indices and self.how == "exit":
            os._exit(3)
        if 7 in indices and self.how == "refuse":
            raise tclab.InputError("sample 7 is no sample")
        if 7 in indices:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("SIGKILL", r"worker 1 \(pid \d+\) was killed by SIGKILL: the system does this when memory"),
        ("exit", r"worker 1 \(pid \d+\) ended with exit code 3"),
    ],
)
def test_a_worker_that_dies_is_named_with_its_end_and_nothing_hangs(how, words):
    others = {*multiprocessing.active_children()}
    with pytest.raises(WorkerDiedError, match=words):  # noqa: PT012
        for _ in Loader(Batches(Dies(GRAPH, how), SAMPLES, 2), workers=2, prefetch_factor=1):
            time.sleep(0.1)  # the error comes where a batch is waited for, not in the middle of a step
    deadline = time.monotonic() + 10
    while {*multiprocessing.active_children()} - others and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not {*multiprocessing.active_children()} - others


def test_what_a_worker_refuses_is_said_in_its_own_words():
    for workers in (0, 1):
        with pytest.raises(tclab.InputError, match=r"^sample 7 is no sample$"):
            list(Loader(Batches(Dies(GRAPH, "refuse"), SAMPLES, 2), workers=workers))


# ---- messages: what a pipe takes at once, a worker that is killed has written whole or not at all

LONG = "a_network_whose_name_says_where_each_of_its_edges_was_measured_by_whom_and_when_"


def of_long_names(relations=10):
    edges = torch.randint(30, (2, 60), generator=torch.Generator().manual_seed(0))
    graph = tclab.CellGraph.from_edges({f"{LONG}{i}": edges for i in range(relations)}, num_nodes=30)
    weighted = replace(graph.relations[f"{LONG}0"], weight=torch.ones(60), cascades=True)
    return graph.with_relations({**graph.relations, weighted.name: weighted})


@pytest.fixture
def in_worker(monkeypatch):
    """Let torch and tclab take this process for a worker of a DataLoader."""
    info = worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=None)
    return lambda: monkeypatch.setattr(worker, "_worker_info", info)


@pytest.mark.parametrize("micro_batch", [None, 1])
@pytest.mark.parametrize(
    ("strategy", "collation"), [(name, each) for name in masking.names() for each in masking.get(name).collations]
)
def test_a_message_fits_into_what_a_pipe_takes_at_once_and_is_the_batch(
    strategy, collation, micro_batch, in_worker, tmp_path
):
    graph = of_long_names()
    samples = Perturbations.synthetic(graph, 12)
    loading = masking.get(strategy)(graph, collation=collation, **({"limit": 1e9} if strategy == "delta" else {}))
    loading.prepare(samples, tmp_path / "masks")
    batches = Batches(loading, samples, 12, micro_batch=micro_batch)
    expected = batches[0].batch
    in_worker()
    sent = ForkingPickler.dumps((10**9, batches[0]))
    assert len(sent) + 4 <= select.PIPE_BUF  # and its length
    _, found = ForkingPickler.loads(sent)
    assert found.timing.worker == 0
    for ours, theirs in zip(found.batch.parts, expected.parts, strict=True):
        equal(ours, theirs)
    loading.close()


NOISE = f"{random.Random(0).getrandbits(80_000):x}"  # which no compression makes short


class SaysMuch(Dies):
    """Sends long values with each batch; at sample 7 it raises, or is killed while it writes its message."""

    name = "says_much"

    def encode(self, indices, removed):
        def write(connection, message):
            os.write(connection.fileno(), message[: select.PIPE_BUF])  # as much as the system takes at once
            os.kill(os.getpid(), signal.SIGKILL)

        if 7 in indices and isinstance(self.how, type):
            raise self.how(NOISE)
        if 7 in indices:
            multiprocessing.connection.Connection._send = write

    def pack(self, removed, encoded):
        values = {"names": [f"{LONG}{i}" for i in range(200)], "noise": NOISE, "function": lambda: 0}
        return {}, {"value": values.get(self.how)}


@pytest.mark.parametrize("how", ["names", "noise"])
def test_a_worker_that_is_killed_while_it_writes_leaves_no_half_message(how):
    loader, read = Loader(Batches(SaysMuch(GRAPH, how), SAMPLES, 2), workers=1, prefetch_factor=1), []
    with pytest.raises(WorkerDiedError, match=r"worker 0 \(pid \d+\) was killed by SIGKILL"):
        read.extend(loader)
    # of long names the last message has arrived; what is longer lies in the memory of a worker that is gone
    assert len(read) == (4 if how == "names" else 3)
    assert all(item.batch.host_values == read[0].batch.host_values for item in read)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (tclab.InputError, f"^{NOISE}$"),
        (KeyError, f"(?s)Caught KeyError in DataLoader worker process 0.*Traceback.*in encode.*{NOISE}"),
    ],
)
def test_an_error_arrives_whole_however_long(error, words):
    loader = Loader(Batches(SaysMuch(GRAPH, error), SAMPLES, 2), workers=1)
    with pytest.raises(error, match=words):
        list(loader)
    loader.close()


def test_what_cannot_be_sent_is_an_error_and_no_wait():
    loader = Loader(Batches(SaysMuch(GRAPH, "function"), SAMPLES, 2), workers=1)
    with pytest.raises(AttributeError, match="in DataLoader worker process 0"):  # what pickle says of a local function
        list(loader)
    loader.close()


NO_ROOM = """
import tclab
from tclab import masking
from tclab.perturbation import Deletions, Perturbations
from tclab.training._loading import Batches, Loader

graph = tclab.CellGraph.synthetic(0.03)
batches = Batches(masking.get("edge_mask")(graph), Perturbations.synthetic(graph, 60), 30)
try:
    list(Loader(batches, workers=1, multiprocessing_context="fork"))
except RuntimeError as error:
    print(type(error).__name__, error)
"""


def can_mount():
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return False
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm"]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="a small /dev/shm cannot be mounted here")
def test_a_shared_memory_that_is_full_kills_no_worker(root):
    mount = 'mount -t tmpfs -o size=500k tmpfs /dev/shm && exec "$0" "$@"'
    command, given = ["unshare", "-rm", "sh", "-c", mount, sys.executable, "-c", NO_ROOM], {"PYTHONPATH": str(root)}
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | given)
    assert re.match(r"SharedMemoryError a batch needs [\d,]+ bytes of shared memory, and /dev/shm", found.stdout), found
