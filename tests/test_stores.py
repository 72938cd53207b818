"""Stores of encoded samples: sizes told before, kill -9 and full disks."""

import multiprocessing
import os
import resource
import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tclab
from tclab import InputError, masking
from tclab._display import bytes_text
from tclab.perturbation import Deletions
from tclab.perturbation._sample_store import build_store, disk_bytes

GRAPH = tclab.CellGraph.synthetic(0.03)


def bytes_of(values):
    return np.array([len(value) for value in values], dtype=np.int64)


def build(path, values):
    return build_store(path, values.__getitem__, bytes_of(values))


def in_child(run):
    """Run a function in a forked process; return how that ended."""
    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join()
    return child.exitcode


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


def test_whole_masks_of_the_real_dataset_are_805_gb_and_nothing_is_built_to_know_it():
    networks = GRAPH.without_metabolism()
    lengths = masking.get("stored_mask")(networks).encoded_bytes(Deletions.nothing(332_313))
    assert lengths.tolist() == [networks.num_edges] * 332_313
    assert bytes_text(disk_bytes(lengths // networks.num_edges * 2_423_370)) == "806 GB"
    for length in (16, 1500, 100_000):  # what is told is hardly more than what comes
        assert disk_bytes(np.full(10**6, length)) <= 1.6 * 10**6 * (length + 30)


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

    assert in_child(fill) == 0
    assert not os.listdir(tmp_path)


def test_a_build_killed_with_9_leaves_no_store_and_begins_anew(tmp_path):
    few = [str(i).encode() * 10 for i in range(300)]

    def value(i):
        if i == 200:
            os.kill(os.getpid(), signal.SIGKILL)
        return bytes(1 << 20)

    assert in_child(lambda: build_store(tmp_path / "s", value, np.full(300, 1 << 20))) == -signal.SIGKILL
    assert os.listdir(tmp_path) == ["s.tmp"]
    assert build(tmp_path / "s", few).read(range(300), bytes) == few
    assert os.listdir(tmp_path) == ["s"]
    assert build_store(tmp_path / "s", None, bytes_of(few)).read([7], bytes) == [few[7]]  # it is not written again


# ---- what is read


def test_nothing_is_built_over_another_file(tmp_path):
    (tmp_path / "thesis.txt").write_text("all of it")
    for path in ("thesis.txt", "thesis.txt/s"):
        with pytest.raises(InputError, match="cannot be written or read"):
            build(tmp_path / path, [b"a"])
    assert (tmp_path / "thesis.txt").read_text() == "all of it"
