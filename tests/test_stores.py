"""Stores of encoded samples: sizes told before, kill -9, full disks, and what is refused."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tclab
from tclab import InputError, masking
from tclab.perturbation import Deletions, Perturbations, synthetic_perturbations
from tclab.perturbation._sample_store import Store, StoredSamples, StoreSize, build_store
from tclab.sweeps.execution._page_cache import cached_share, drop_from_cache

GRAPH = tclab.CellGraph.synthetic(0.03)
FILE_SYSTEM = subprocess.run(["stat", "-f", "-c", "%T", tempfile.gettempdir()], capture_output=True).stdout
ON_DISK = hasattr(os, "posix_fadvise") and b"tmpfs" not in FILE_SYSTEM
HEADER = {"encoding": "test", "graph": "a graph"}


def size_of(values):
    return StoreSize.of(np.array([len(value) for value in values], dtype=np.int64))


def build(path, values, **more):
    return build_store(path, values.__getitem__, **{"size": size_of(values), "header": HEADER, **more})


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no tmpfs to try")
def test_a_tmpfs_that_cannot_forget_its_files_is_said():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder, "s")
        build(path, [b"1" * 5000] * 9).close()
        with pytest.raises(InputError, match=r"100% of .* stays in memory .* set TMPDIR to a folder on a disk"):
            drop_from_cache([path])


def test_a_store_that_was_closed_is_read_again_after_it_was_dropped(tmp_path):
    values = [bytes([i]) * 5000 for i in range(9)]
    store = build(tmp_path / "s", values)
    assert store.read(range(9), bytes) == values
    store.close()
    if not ON_DISK:
        pytest.skip("temporary files are in memory")
    drop_from_cache([tmp_path / "s"])
    assert cached_share([tmp_path / "s"]) == 0
    assert store.read(range(9), bytes) == values
    assert 0 < cached_share([tmp_path / "s"]) <= 1


def test_a_store_that_is_there_is_not_written_again(tmp_path):
    values = [bytes([i]) * 500 for i in range(9)]
    build(tmp_path / "s", values).close()
    before = (tmp_path / "s").stat()
    asked = []
    build_store(tmp_path / "s", asked.append, size=size_of(values), header=HEADER).close()
    assert not asked
    assert (tmp_path / "s").stat().st_mtime_ns == before.st_mtime_ns
    assert os.listdir(tmp_path) == ["s"]


@given(st.lists(st.integers(0, 9000), max_size=60))
def test_a_store_gives_back_what_was_put_in_and_is_no_larger_than_was_said(lengths):
    values = [bytes([i % 251]) * length for i, length in enumerate(lengths)]
    with tempfile.TemporaryDirectory() as folder:
        store = build(folder + "/s", values)
        assert len(store) == len(values)
        assert store.read(range(len(values)), bytes) == values
        backwards = list(range(len(values)))[::-1]
        assert store.read(backwards, bytes) == values[::-1]
        for i in (-1, len(values)):
            with pytest.raises(IndexError, match=f"sample {i} of {len(values)} in"):
                store.read([i], bytes)
        store.close()
        size = size_of(values)
        assert size.value_bytes == sum(lengths)
        assert os.path.getsize(folder + "/s") <= size.disk_bytes


@pytest.mark.parametrize("length", [16, 700, 1500, 5000, 100_000])
def test_the_size_that_is_told_is_near_the_size_that_comes(length, tmp_path):
    size = StoreSize.of(np.full(20_000_000 // (length + 30), length))
    build_store(tmp_path / "s", lambda i: bytes(length), size=size, header=HEADER).close()
    found = (tmp_path / "s").stat().st_size
    assert found <= size.disk_bytes <= 1.6 * found + (1 << 20)


def test_whole_masks_of_the_real_dataset_are_805_gb_and_nothing_is_built_to_know_it(full):
    graph = full.without_metabolism()
    size = masking.get("stored_mask")(graph).store_size(Deletions.nothing(332_313))
    assert size.value_bytes == 332_313 * 2_423_370
    assert str(size) == "332,313 samples, 805 GB (806 GB on disk)"
    three = synthetic_perturbations(graph, 3).deletions
    index = masking.get("stored_index")(graph)
    removed = index.removed_by(three)
    degrees = sum(network.incidence("gene").ptr.diff() for network in graph.networks.values())
    assert index.store_size(three).value_bytes == 4 * (3 * 9 + int(degrees[removed["gene"].nodes].sum()))


@pytest.mark.parametrize("name", ["stored_index", "stored_mask"])
def test_as_many_as_asked_are_built_and_take_what_was_said(name, tmp_path):
    strategy = masking.get(name)(GRAPH)
    few = synthetic_perturbations(GRAPH, 5)
    strategy.prepare(few, tmp_path / "s")
    assert strategy._store.read(range(5), len) == strategy.encoded_bytes(few.deletions).tolist()
    with pytest.raises(IndexError, match="sample 5 of 5"):
        strategy.batch(synthetic_perturbations(GRAPH, 6))
    strategy.close()


def test_a_disk_that_is_too_small_is_refused_with_the_two_numbers(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=3_000_000))
    size = StoreSize.of(np.full(332_313, 2_423_370))
    asked = []
    with pytest.raises(tclab.InputError, match=r"needs 806 GB for 332,313 samples, and its disk has 3 MB"):
        build_store(tmp_path / "s", asked.append, size=size, header=HEADER)
    assert not asked
    assert not os.listdir(tmp_path)


FULL = """
    import os, resource, shutil, sys
    import numpy as np
    from tclab.perturbation._sample_store import StoreSize, build_store

    resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, 5 << 20))
    usage = shutil.disk_usage("/")
    shutil.disk_usage = lambda path: usage._replace(free=1 << 40)  # somebody else fills the disk meanwhile
    try:
        build_store(sys.argv[1] + "/s", lambda i: bytes(1 << 20), size=StoreSize.of(np.full(200, 1 << 20)),
                    header={"encoding": "test"})
    except ValueError as error:
        print(type(error).__name__, error)
    print(os.listdir(sys.argv[1]))
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(masking.__file__).rsplit("/tclab/", 1)[0]}


def test_a_disk_that_fills_up_gets_a_clear_error_and_nothing_stays_behind(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(FULL), str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    assert "InputError the store" in found.stdout, found.stderr
    assert "cannot be written" in found.stdout
    assert found.stdout.splitlines()[-1] == "[]"


SLOW = """
    import sys, time
    import numpy as np
    from tclab.perturbation._sample_store import StoreSize, build_store

    def value(i):
        if i == 200:
            print("most of it", flush=True)
            time.sleep(600)
        return bytes(1 << 20)

    build_store(sys.argv[1], value, size=StoreSize.of(np.full(300, 1 << 20)), header={"encoding": "test"})
"""


def test_a_build_killed_with_9_leaves_no_store_and_begins_anew(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(SLOW), str(tmp_path / "s")]
    building = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert building.stdout.readline() == "most of it\n"
    building.send_signal(signal.SIGKILL)
    building.wait()
    building.stdout.close()
    assert os.listdir(tmp_path) == ["s.tmp"]
    with pytest.raises(tclab.InputError, match="is not a store that can be read"):
        Store(tmp_path / "s", header={"encoding": "test"})
    values = [str(i).encode() * 10 for i in range(300)]
    store = build(tmp_path / "s", values)
    assert store.read(range(300), bytes) == values
    store.close()
    assert os.listdir(tmp_path) == ["s"]


def test_an_error_in_the_middle_leaves_nothing(tmp_path):
    def interrupted(i):
        if i == 1:
            raise KeyboardInterrupt
        return b"a"

    with pytest.raises(KeyboardInterrupt):
        build_store(tmp_path / "s", interrupted, size=StoreSize.of(np.ones(2, dtype=np.int64)), header=HEADER)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_a_file_that_was_cut_is_refused_before_anything_is_read(share, tmp_path):
    build(tmp_path / "s", [bytes(5000)] * 100).close()
    os.truncate(tmp_path / "s", int(share * (tmp_path / "s").stat().st_size))
    with pytest.raises(tclab.InputError, match="is not a store that can be read"):
        Store(tmp_path / "s", header=HEADER)
    with pytest.raises(tclab.InputError, match="is not a store that can be read"):
        build(tmp_path / "s", [bytes(5000)] * 100)


def test_a_store_is_read_on_after_a_fork(tmp_path):
    store = build(tmp_path / "s", [b"a", b"b"])
    assert store.read([1], bytes) == [b"b"]
    child = os.fork()
    if not child:
        os._exit(0 if store.read([0, 1], bytes) == [b"a", b"b"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.read([0], bytes) == [b"a"]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"encoding": "other"}, "its encoding is 'test', expected 'other'"),
        ({"graph": "b"}, "its graph is 'a graph', expected 'b'"),
        ({"samples": "7"}, "its samples is '2', expected '7'"),
        ({"deletions": "x"}, "its deletions is None, expected 'x'"),
    ],
)
def test_a_store_knows_what_it_was_made_for(header, words, tmp_path):
    build(tmp_path / "s", [b"a", b"b"]).close()
    with pytest.raises(tclab.InputError, match=f"holds something else: {words}"):
        Store(tmp_path / "s", header={**HEADER, **header})


def test_nothing_is_built_over_another_store_or_file(tmp_path):
    build(tmp_path / "s", [b"a", b"b"]).close()
    with pytest.raises(tclab.InputError, match="its graph is 'a graph', expected 'b'"):
        build(tmp_path / "s", [b"a", b"b"], header={**HEADER, "graph": "b"})
    with pytest.raises(tclab.InputError, match="its samples is '2', expected '3'"):
        build(tmp_path / "s", [b"a", b"b", b"c"])
    assert Store(tmp_path / "s", header=HEADER).read([1], bytes) == [b"b"]
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(tclab.InputError, match="is not a store that can be read"):
        build(tmp_path / "thesis.txt", [b"a"])
    assert (tmp_path / "thesis.txt").read_text() == "all of it"
    with pytest.raises(tclab.InputError, match=r"is not a store that can be read: .*No such file"):
        Store(tmp_path / "nothing", header=HEADER)
    with pytest.raises(tclab.InputError, match=r"cannot be written: .*(Not a directory|File exists)"):
        build(tmp_path / "thesis.txt" / "s", [b"a"])


@pytest.mark.parametrize("name", ["stored_index", "stored_mask"])
def test_masks_of_another_graph_or_other_samples_are_refused(name, tmp_path):
    perturbations = synthetic_perturbations(GRAPH, 4)
    masking.get(name)(GRAPH).prepare(perturbations, tmp_path / "s")
    other = tclab.CellGraph.synthetic(0.03, seed=1)
    with pytest.raises(tclab.InputError, match="holds something else: its graph is"):
        masking.get(name)(other).prepare(perturbations, tmp_path / "s")
    with pytest.raises(tclab.InputError, match="holds something else: its deletions is"):
        masking.get(name)(GRAPH).prepare(synthetic_perturbations(GRAPH, 4, seed=1), tmp_path / "s")


@given(data=st.data(), encoding=st.sampled_from(["lmdb", "json"]))
def test_stored_samples_are_those_in_memory(data, encoding):
    node = st.integers(0, GRAPH.num_nodes["gene"] - 1)
    rows = data.draw(st.lists(st.lists(node, unique=True, max_size=5), min_size=1, max_size=12))
    scores = data.draw(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=len(rows), max_size=len(rows))
    )
    perturbations = Perturbations(
        Deletions.of(rows, num_nodes=GRAPH.num_nodes["gene"]), torch.tensor(scores, dtype=torch.float32)
    )
    with tempfile.TemporaryDirectory() as folder:
        stored = StoredSamples(GRAPH, perturbations, folder + "/s", encoding)
        assert len(stored) == len(rows)
        indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
        found, expected = stored.read(indices), perturbations.read(indices)
        stored.close()
    assert [row.tolist() for row in map(found.deletions.__getitem__, range(len(indices)))] == [
        rows[index] for index in indices
    ]
    assert torch.equal(found.deletions.nodes, expected.deletions.nodes)
    assert torch.equal(found.deletions.ptr, expected.deletions.ptr)
    assert found.deletions.most == expected.deletions.most
    assert torch.equal(found.scores, expected.scores)
    assert torch.equal(found.scores, torch.tensor([scores[index] for index in indices], dtype=torch.float32))


@pytest.mark.parametrize("encoding", ["lmdb", "json"])
def test_stored_samples_with_other_scores_are_refused(encoding, tmp_path):
    perturbations = synthetic_perturbations(GRAPH, 4)
    StoredSamples(GRAPH, perturbations, tmp_path / "s", encoding).close()
    with pytest.raises(tclab.InputError, match="holds something else: its perturbations is"):
        StoredSamples(GRAPH, Perturbations(perturbations.deletions, -perturbations.scores), tmp_path / "s", encoding)


def test_an_integer_record_is_16_bytes_for_three_genes_and_a_json_one_hundreds(tmp_path):
    perturbations = synthetic_perturbations(GRAPH, 3)
    words = StoredSamples(GRAPH, perturbations, tmp_path / "a", "lmdb")
    records = StoredSamples(GRAPH, perturbations, tmp_path / "b", "json")
    assert words._store.read(range(3), len) == [16, 16, 16]
    (record,) = records._store.read([0], bytes)
    assert b'"gene_interaction": ' in record
    assert len(record) > 500
    words.close()
    records.close()
