"""Stores of encoded samples: sizes told before, kill -9 and full disks."""

import os
import resource
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tclab
from tclab import InputError, masking
from tclab._display import bytes_text
from tclab.perturbation import Deletions, Perturbations, synthetic_perturbations
from tclab.perturbation._sample_store import StoredSamples, build_store, disk_bytes

GRAPH = tclab.CellGraph.synthetic(0.03)
FEW = synthetic_perturbations(GRAPH, 4)


def bytes_of(values):
    return np.array([len(value) for value in values], dtype=np.int64)


def build(path, values):
    return build_store(path, values.__getitem__, bytes_of(values))


def in_child(run):
    """Return the id of a forked process that runs a function and ends with what it returns."""
    child = os.fork()
    if child:
        return child
    status = 99
    try:
        status = run()
    finally:
        os._exit(status)


# ---- what is built


@given(st.lists(st.integers(0, 9000), max_size=60))
def test_a_store_gives_back_what_was_put_in_and_is_no_larger_than_was_said(lengths):
    values = [bytes([i % 251]) * length for i, length in enumerate(lengths)]
    with tempfile.TemporaryDirectory() as folder:
        store = build(Path(folder, "s"), values)
        assert len(store) == len(values)
        for order in (range(len(values)), list(range(len(values)))[::-1]):
            assert store.read(order, bytes) == [values[i] for i in order]
        for i in (-1, len(values)):
            with pytest.raises(IndexError, match=f"sample {i} of {len(values)} in"):
                store.read([i], bytes)
        store.close()
        assert os.path.getsize(folder + "/s") <= disk_bytes(bytes_of(values))


@pytest.mark.parametrize("length", [16, 700, 1500, 5000, 100_000])
def test_the_size_that_is_told_is_near_the_size_that_comes(length, tmp_path):
    lengths = np.full(5_000_000 // (length + 30), length)
    build_store(tmp_path / "s", lambda i: bytes(length), lengths).close()
    found = (tmp_path / "s").stat().st_size
    assert found <= disk_bytes(lengths) <= 1.6 * found + (1 << 20)


def test_whole_masks_of_the_real_dataset_are_805_gb_and_nothing_is_built_to_know_it(full):
    graph = full.without_metabolism()
    lengths = masking.get("stored_mask")(graph).encoded_bytes(Deletions.nothing(332_313))
    assert lengths.sum() == 332_313 * 2_423_370
    assert bytes_text(disk_bytes(lengths)) == "806 GB"
    three = synthetic_perturbations(graph, 3).deletions
    index = masking.get("stored_index")(graph)
    degrees = sum(network.incidence("gene").ptr.diff() for network in graph.networks.values())
    removed = index.removed_by(three)["gene"].nodes
    assert index.encoded_bytes(three).sum() == 4 * (3 * 9 + int(degrees[removed].sum()))


def test_a_store_that_is_there_is_not_written_again(tmp_path):
    build(tmp_path / "s", [b"a"] * 9).close()
    before = (tmp_path / "s").stat()
    build_store(tmp_path / "s", None, bytes_of([b"a"] * 9)).close()
    assert (tmp_path / "s").stat().st_mtime_ns == before.st_mtime_ns
    assert os.listdir(tmp_path) == ["s"]


# ---- what goes wrong while it is built


def test_a_disk_that_is_too_small_is_refused_with_the_two_numbers(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=3_000_000))
    with pytest.raises(InputError, match=r"needs 806 GB for 332,313 samples, and its disk has 3 MB"):
        build_store(tmp_path / "s", None, np.full(332_313, 2_423_370))
    assert not os.listdir(tmp_path)


def test_a_disk_that_fills_up_gets_a_clear_error_and_nothing_stays_behind(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 40))  # it is filled meanwhile

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, 5 << 20))
        with pytest.raises(InputError, match=r"the store .* cannot be written or read"):
            build(tmp_path / "s", [bytes(1 << 20)] * 200)
        return 0

    assert os.waitpid(in_child(fill), 0)[1] == 0
    assert not os.listdir(tmp_path)


def test_a_build_killed_with_9_leaves_no_store_and_begins_anew(tmp_path):
    values = [bytes(1 << 20)] * 300

    def value(i):
        if i == 200:
            (tmp_path / "most of it").touch()
            time.sleep(600)
        return values[i]

    child = in_child(lambda: build_store(tmp_path / "s", value, bytes_of(values)))
    end = time.monotonic() + 60
    while not (tmp_path / "most of it").exists() and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    (tmp_path / "most of it").unlink()
    assert os.listdir(tmp_path) == ["s.tmp"]
    few = [str(i).encode() * 10 for i in range(300)]
    assert build(tmp_path / "s", few).read(range(300), bytes) == few
    assert os.listdir(tmp_path) == ["s"]


# ---- what is read


def test_a_store_is_read_on_after_a_fork(tmp_path):
    store = build(tmp_path / "s", [b"a", b"b"])
    assert store.read([1], bytes) == [b"b"]
    child = in_child(lambda: 0 if store.read([0, 1], bytes) == [b"a", b"b"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.read([0], bytes) == [b"a"]


def test_nothing_is_built_over_another_file(tmp_path):
    (tmp_path / "thesis.txt").write_text("all of it")
    for path in ("thesis.txt", "thesis.txt/s"):
        with pytest.raises(InputError, match="cannot be written or read"):
            build(tmp_path / path, [b"a"])
    assert (tmp_path / "thesis.txt").read_text() == "all of it"


@given(data=st.data(), encoding=st.sampled_from(["lmdb", "json"]))
def test_stored_samples_are_those_in_memory(data, encoding):
    node, score = (
        st.integers(0, GRAPH.num_nodes["gene"] - 1),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
    samples = st.lists(st.tuples(st.lists(node, unique=True, max_size=5), score), min_size=1, max_size=12)
    rows, scores = zip(*data.draw(samples), strict=True)
    deletions = Deletions.of(rows, num_nodes=GRAPH.num_nodes["gene"])
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    with tempfile.TemporaryDirectory() as folder:
        stored = StoredSamples(GRAPH, Perturbations(deletions, torch.tensor(scores)), Path(folder, "s"), encoding)
        assert len(stored) == len(rows)
        found = stored.read(indices)
        stored.close()
    assert [nodes.tolist() for nodes in found.deletions] == [rows[i] for i in indices]
    assert found.deletions.most == max((len(rows[i]) for i in indices), default=0)
    assert torch.equal(found.scores, torch.tensor([scores[i] for i in indices], dtype=torch.float32))


def test_an_integer_record_is_16_bytes_for_three_genes_and_a_json_one_hundreds(tmp_path):
    words, records = (StoredSamples(GRAPH, FEW, tmp_path / encoding, encoding) for encoding in ("lmdb", "json"))
    assert words._store.read(range(4), len) == [16] * 4
    (record,) = records._store.read([0], bytes)
    assert b'"gene_interaction": ' in record
    assert len(record) > 500
    words.close()
    records.close()
