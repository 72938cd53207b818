"""Loading: the same batches by every way of reading, collating and handing over; workers that die; no room."""

import itertools
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tclab
from tclab import masking
from tclab.perturbation import Deletions, synthetic_perturbations
from tclab.perturbation._sample_store import stored
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._measure import setup
from tclab.training._loading import Batches, Loader, WorkerDiedError

GRAPH = tclab.CellGraph.synthetic(0.03)
STORES = ("memory", "lmdb", "json")
SAMPLES = synthetic_perturbations(GRAPH, 12)


def equal(found, expected):
    assert set(found.tensors) == set(expected.tensors)
    assert found.host_values == expected.host_values
    assert found.size == expected.size
    assert found.deletions.keys() == expected.deletions.keys()
    for kind, deletions in expected.deletions.items():
        assert torch.equal(found.deletions[kind].nodes, deletions.nodes), kind
        assert torch.equal(found.deletions[kind].ptr, deletions.ptr), kind
        assert found.deletions[kind].most == deletions.most, kind
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype, name
        assert torch.equal(found.tensors[name], tensor), name


# a store knows nothing of strategies: each has one of the three
@pytest.mark.parametrize(("strategy", "store"), list(zip(masking.names(), itertools.cycle(STORES))))
def test_every_strategy_reads_from_every_store_here_and_in_workers(strategy, store, tmp_path):
    loading = masking.get(strategy)(GRAPH)
    loading.prepare(SAMPLES, tmp_path / "masks")
    samples = stored(GRAPH, SAMPLES, tmp_path / "samples", store)
    batches = Batches(loading, samples, 5)
    expected = [loading.batch(SAMPLES.read(range(5 * b, 5 * b + 5)), range(5 * b, 5 * b + 5)) for b in range(2)]
    for workers in (0, 2):
        loads = Loader(batches, workers=workers)
        loaded = list(loads)
        assert len(loads) == len(loaded) == len(batches) == 2  # samples that fill no batch are left out
        for found, right in zip(loaded, expected, strict=True):
            equal(found.batch, right)
        assert [found.timing.worker for found in loaded] == ([0, 1] if workers else [None, None])
    equal(batches[1].batch, expected[1])
    with pytest.raises(IndexError, match="batch 2 of 2"):
        batches[2]
    loading.close()


@given(data=st.data())
def test_what_is_packed_comes_out_as_it_was(data):
    dtype = st.sampled_from(
        [torch.uint8, torch.bool, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64]
    )
    shapes = data.draw(st.lists(st.lists(st.integers(0, 40), max_size=3), max_size=6))
    tensors = {f"t{i}": torch.randint(0, 2, shape).to(data.draw(dtype)) * (i + 1) for i, shape in enumerate(shapes)}
    deletions = {"a": Deletions.of([[4, 1], [], [2]], num_nodes=5), "b": Deletions.nothing(3)}
    batch = masking.Batch.packed(tensors, deletions, 3, {"fact": 2})
    assert batch.bytes == sum(tensor.nbytes for tensor in tensors.values()) + 8 * (3 + 4) + 8 * 4
    sent = ForkingPickler.loads(ForkingPickler.dumps(batch))
    for one in (batch, sent, batch.to("cpu")):
        assert [name for name in one.tensors if not name.startswith("removed")] == list(tensors)
        for name, tensor in tensors.items():
            assert one.tensors[name].dtype == tensor.dtype
            assert torch.equal(one.tensors[name], tensor)
        assert [nodes.tolist() for nodes in one.deletions["a"]] == [[4, 1], [], [2]]
        assert {kind: (len(found), found.most) for kind, found in one.deletions.items()} == {"a": (3, 2), "b": (3, 0)}
        assert one.host_values == {"fact": 2}
    if sent.buffer.numel():
        assert {tensor.untyped_storage().data_ptr() for tensor in sent.tensors.values()} == {sent.buffer.data_ptr()}


class Threads(masking.get("stored_mask")):
    """Says how many threads torch has where batches are made."""

    name = "threads"

    def collate(self, removed, scores, encoded):
        batch = super().collate(removed, scores, encoded)
        return replace(batch, host_values={**batch.host_values, "threads": torch.get_num_threads()})


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=pytest.mark.slow if m != "fork" else ()) for m in multiprocessing.get_all_start_methods()],
)
def test_workers_of_every_kind_make_the_same_with_one_thread_and_say_when(method, tmp_path):
    loading = Threads(GRAPH)
    loading.prepare(SAMPLES, tmp_path / "s")
    samples = stored(GRAPH, SAMPLES, tmp_path / "samples", "lmdb")
    torch.set_num_threads(2)
    try:
        begin = time.perf_counter_ns()
        loaded = list(Loader(Batches(loading, samples, 2), workers=2, multiprocessing_context=method))
        end = time.perf_counter_ns()
    finally:
        torch.set_num_threads(1)
    last = {0: begin, 1: begin}
    for number, item in enumerate(loaded):
        assert item.batch.host_values.pop("threads") == 1
        equal(item.batch, masking.get("edge_mask")(GRAPH).batch(SAMPLES.read([2 * number, 2 * number + 1])))
        made = item.timing
        assert made.worker == number % 2
        assert list(made.stages) == ["sample", "mask", "collate"]
        assert all(nanoseconds > 0 for nanoseconds in made.stages.values())
        assert sum(made.stages.values()) == made.end_ns - made.begin_ns
        assert last[made.worker] < made.begin_ns  # one after the other, by a clock that both processes share
        last[made.worker] = made.end_ns
    assert max(last.values()) < end
    loading.close()


def test_an_order_chooses_samples():
    strategy = masking.get("node_mask")(GRAPH)
    chosen = [11, 3, 5, 0, 2]
    in_order = [item.batch.target.tolist() for item in Loader(Batches(strategy, SAMPLES, 2, chosen), workers=0)]
    assert in_order == [SAMPLES.scores[[11, 3]].tolist(), SAMPLES.scores[[5, 0]].tolist()]


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
    how = "SIGKILL"

    def encode(self, indices, removed):
        if 7 in indices:
            if self.how == "exit":
                os._exit(3)
            if self.how == "refuse":
                raise tclab.InputError("sample 7 is no sample")
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("SIGKILL", r"worker 1 \(pid \d+\) was killed by SIGKILL: the system does this when memory runs out"),
        ("exit", r"worker 1 \(pid \d+\) ended with exit code 3"),
    ],
)
def test_a_worker_that_dies_is_named_with_its_end_and_nothing_hangs(how, words):
    strategy = Dies(GRAPH)
    strategy.how = how
    with pytest.raises(WorkerDiedError, match=words):  # noqa: PT012
        for _ in Loader(Batches(strategy, SAMPLES, 2), workers=2, prefetch_factor=1):
            time.sleep(0.3)  # the error comes where a batch is waited for, not in the middle of a step
    deadline = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not multiprocessing.active_children()


def test_what_a_worker_refuses_is_said_in_its_own_words():
    strategy = Dies(GRAPH)
    strategy.how = "refuse"
    for workers in (0, 1):
        with pytest.raises(tclab.InputError, match=r"^sample 7 is no sample$"):
            list(Loader(Batches(strategy, SAMPLES, 2), workers=workers))


NO_ROOM = """
    import tclab
    from tclab import masking
    from tclab.perturbation import synthetic_perturbations
    from tclab.training._loading import Batches, Loader

    graph = tclab.CellGraph.synthetic(0.03)
    strategy = masking.get("edge_mask")(graph)
    batches = Batches(strategy, synthetic_perturbations(graph, 60), 30)
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
    command = ["unshare", "-rm", "sh", "-c", mount, sys.executable, "-c", textwrap.dedent(NO_ROOM)]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert re.match(r"SharedMemoryError a batch needs [\d,]+ bytes of shared memory, and /dev/shm", found.stdout), found


def test_what_a_point_says_of_loading():
    """Without workers nothing is said of them."""
    options = {"prefetch_factor": 4, "multiprocessing_context": "spawn", "persistent_workers": True}
    assert tclab.Point(workers=0, loader=options) == tclab.Point(workers=0)
    assert (tclab.Point().prefetch_factor, tclab.Point(loader=options).prefetch_factor) == (2, 4)
    on_cpu = tclab.Point(scale=0.02, device="cpu", loader={"pin_memory": True})
    assert on_cpu.skipped() == "skipped: pin_memory needs cuda"
    for fields, words in (({"store": "lmbd"}, "did you mean 'lmdb'"), ({"collation": "pyg"}, "known: lean")):
        with pytest.raises(tclab.InputError, match=words):
            tclab.Point(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"store": "json", "loader": {"prefetch_factor": 1}},
        {"store": "lmdb", "strategy": "stored_mask", "collation": "pyg", "loader": "persistent_workers:true"},
        {"store": "lmdb", "model": "dango", "strategy": "indices", "networks": None, "workers": 0},
    ],
)
def test_every_axis_of_loading_is_run_by_a_point(fields):
    point = tclab.Point(**{"scale": 0.02, "batch_size": 2, "networks": 2, "steps": 2, "device": "cpu", **fields})
    frame = tclab.run(point)
    assert (frame["status"] == "ok").all(), frame["status"]
    row = frame[frame["stage"] == "step"].iloc[0]
    assert (row["store"], row["collation"]) == (point.store, point.collation)
    assert (None if pd.isna(row["loader"]) else row["loader"]) == (str(point.loader) or None)
