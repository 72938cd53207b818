"""Stores of encoded samples: sizes told before, kill -9 and resume, full disks, and what is refused."""

import errno
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
from tclab.perturbation import Deletions, Perturbations, _sample_store, synthetic_perturbations
from tclab.perturbation._build_store import StoreSize, build_store
from tclab.perturbation._sample_store import SUM_FILE, Store
from tclab.perturbation._stored_samples import StoredSamples

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
        build(folder + "/s", [b"1" * 5000] * 9).close()
        files = list(Path(folder).rglob("data.mdb"))
        with pytest.raises(InputError, match=r"100% of .* stays in memory .* set TMPDIR to a folder on a disk"):
            _sample_store.drop_from_cache(files)


def test_a_store_that_was_open_is_read_again_after_it_was_dropped(tmp_path):
    values = [bytes([i]) * 5000 for i in range(9)]
    store = build(tmp_path / "s", values)
    assert store.read(range(9), bytes) == values
    if not ON_DISK:
        pytest.skip("temporary files are in memory")
    _sample_store.drop_from_cache([tmp_path / "s" / "data.mdb"])
    assert _sample_store.cached_share([tmp_path / "s" / "data.mdb"]) == 0
    assert store.read(range(9), bytes) == values
    assert 0 < _sample_store.cached_share([tmp_path / "s" / "data.mdb"]) <= 1


def test_a_store_that_is_whole_is_not_written_again(tmp_path):
    values = [bytes([i]) * 500 for i in range(9)]
    build(tmp_path / "s", values).close()
    file = tmp_path / "s" / "data.mdb"
    before = file.read_bytes()
    build(tmp_path / "s", values).close()  # as every rank on a machine does, while others check its length
    assert file.read_bytes() == before


@given(st.lists(st.integers(0, 9000), max_size=60))
def test_a_store_gives_back_what_was_put_in_and_is_no_larger_than_was_said(lengths):
    values = [bytes([number % 251]) * length for number, length in enumerate(lengths)]
    with tempfile.TemporaryDirectory() as folder:
        store = build(folder + "/s", values)
        assert len(store) == len(values)
        assert store.read(range(len(values)), bytes) == values
        backwards = list(range(len(values)))[::-1]
        assert store.read(backwards, bytes) == values[::-1]
        with pytest.raises(IndexError, match=f"of {len(values)} in"):
            store[len(values)]
        with pytest.raises(IndexError, match="sample -1"):
            store[-1]
        store.close()
        size = size_of(values)
        assert size.value_bytes == sum(lengths)
        assert os.path.getsize(folder + "/s/data.mdb") <= size.disk_bytes


@pytest.mark.parametrize("length", [16, 700, 1500, 5000, 100_000])
def test_the_size_that_is_told_is_near_the_size_that_comes(length, tmp_path):
    number = 20_000_000 // (length + 30)
    size = StoreSize.of(np.full(number, length))
    build_store(tmp_path / "s", lambda sample: bytes(length), size=size, header=HEADER).close()
    found = (tmp_path / "s" / "data.mdb").stat().st_size
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
    values = [strategy._store[sample] for sample in range(5)]
    assert [len(value) for value in values] == strategy.encoded_bytes(few.deletions).tolist()
    with pytest.raises(IndexError, match="sample 5 of 5"):
        strategy.batch(synthetic_perturbations(GRAPH, 6))
    strategy.close()


def test_the_size_is_shown_before_the_first_sample_and_progress_after(tmp_path):
    seen, written = [], []

    def value(sample):
        written.append(sample)
        return bytes(30 << 20)

    size = StoreSize.of(np.full(5, 30 << 20))
    build_store(
        tmp_path / "s", value, size=size, header=HEADER, progress=lambda b: seen.append((b, len(written)))
    ).close()
    first, before = seen[0]
    assert (first.done, first.kept, before) == (0, 0, 0)
    assert first.size == size
    assert [building.done for building, _ in seen] == [0, 3, 5]  # a commit every 64 MiB at the latest


def test_a_disk_that_is_too_small_is_refused_with_the_two_numbers(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=3_000_000))
    size = StoreSize.of(np.full(332_313, 2_423_370))
    asked = []
    with pytest.raises(tclab.InputError, match=r"needs 806 GB for 332,313 samples, and its disk has 3 MB"):
        build_store(tmp_path / "deep" / "s", asked.append, size=size, header=HEADER)
    assert not asked
    assert not (tmp_path / "deep").exists()


FULL = """
    import sys
    import numpy as np
    from tclab.perturbation._build_store import StoreSize, build_store
    import shutil

    folder = sys.argv[1]
    usage = shutil.disk_usage("/")
    shutil.disk_usage = lambda path: usage._replace(free=1 << 40)  # somebody else fills the disk meanwhile
    try:
        build_store(folder + "/s", lambda i: bytes(1 << 20), size=StoreSize.of(np.full(200, 1 << 20)),
                    header={"encoding": "test"})
    except ValueError as error:
        print(type(error).__name__, error)
    import os
    print(os.listdir(folder))
"""


def run(code, *arguments, before=()):
    script = textwrap.dedent(code)
    environment = {**os.environ, "PYTHONPATH": str(masking.__file__).rsplit("/tclab/", 1)[0]}
    command = [*before, sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def can_mount():
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return False
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="a small disk cannot be mounted here")
def test_a_disk_that_fills_up_gets_a_clear_error_and_nothing_stays_behind(tmp_path):
    # what follows becomes $0 (python), $1 (-c), $2 (the code) and $3 (the folder)
    mount = 'mount -t tmpfs -o size=20m tmpfs "$3" && exec "$0" "$1" "$2" "$3"'
    found = run(FULL, tmp_path, before=["unshare", "-rm", "sh", "-c", mount])
    assert "InputError the disk of" in found.stdout, found.stderr
    assert "is full after" in found.stdout
    assert found.stdout.splitlines()[-1] == "[]"


def test_a_file_that_may_not_grow_is_a_full_disk_too(tmp_path):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, 5 << 20))\n"
    found = run(limited + textwrap.dedent(FULL), tmp_path)
    assert "InputError the disk of" in found.stdout, found.stderr
    assert found.stdout.splitlines()[-1] == "[]"


def test_a_disk_that_is_full_when_all_is_written_but_the_checksum_costs_no_store(tmp_path, monkeypatch):
    values = [bytes([i]) * 100 for i in range(9)]
    build(tmp_path / "s", values).close()
    (tmp_path / "s" / SUM_FILE).unlink()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(InputError, match="No space left on device"):
            build(tmp_path / "s", values)
    assert (tmp_path / "s" / "data.mdb").exists()
    assert build(tmp_path / "s", values).read(range(9), bytes) == values


@pytest.mark.slow
def test_a_full_disk_costs_no_file_but_the_stores_own(tmp_path):
    """In a folder with other files, in which a build goes on and the disk fills up."""
    (tmp_path / "s").mkdir()
    begun = """
        import sys
        import numpy as np
        from tclab.perturbation._build_store import StoreSize, build_store
        def value(sample):
            if sample == 2:
                raise KeyboardInterrupt
            return bytes(1 << 20)
        try:
            build_store(
                sys.argv[1] + "/s", value, size=StoreSize.of(np.full(200, 1 << 20)), header={"encoding": "test"}
            )
        except KeyboardInterrupt:
            pass
    """
    assert run(begun, tmp_path).returncode == 0
    assert (tmp_path / "s" / "data.mdb").is_file()
    (tmp_path / "s" / "thesis.tex").write_text("mine")
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, 5 << 20))\n"
    found = run(limited + textwrap.dedent(FULL), tmp_path)
    assert "InputError the disk of" in found.stdout, found.stderr
    assert [file.name for file in (tmp_path / "s").iterdir()] == ["thesis.tex"]


SLOW = """
    import sys, time
    import numpy as np
    from tclab.perturbation._build_store import StoreSize, build_store

    def value(sample):
        time.sleep(0.02)
        return str(sample).encode() * 10

    sizes = np.array([len(str(i)) * 10 for i in range(300)])
    build_store(sys.argv[1], value, size=StoreSize.of(sizes), header={"encoding": "test"},
                progress=lambda b: print(b.done, b.kept, flush=True)).close()
"""


def test_a_build_killed_with_9_goes_on_where_it_stopped(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(masking.__file__).rsplit("/tclab/", 1)[0]}
    command = [sys.executable, "-c", textwrap.dedent(SLOW), str(tmp_path / "s")]
    building = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert building.stdout.readline() == "0 0\n"
    done = int(building.stdout.readline().split()[0])
    assert 0 < done < 300
    building.send_signal(signal.SIGKILL)
    building.wait()
    building.stdout.close()
    values = [str(sample).encode() * 10 for sample in range(300)]
    with pytest.raises(tclab.InputError, match=r"was not written to its end, \d+ of 300 samples"):
        Store(tmp_path / "s", header={"encoding": "test"})
    asked, seen = [], []

    def value(sample):
        asked.append(sample)
        return values[sample]

    store = build_store(tmp_path / "s", value, size=size_of(values), header={"encoding": "test"}, progress=seen.append)
    assert asked == list(range(done, 300))  # what was committed is not made again
    assert seen[0].kept == seen[0].done == done
    assert store.read(range(300), bytes) == values
    store.close()
    asked.clear()
    build_store(tmp_path / "s", value, size=size_of(values), header={"encoding": "test"}).close()
    assert not asked  # a whole store is opened, not built


def test_an_error_in_the_middle_leaves_a_store_that_is_refused_and_can_go_on(tmp_path):
    def interrupted(sample):
        if sample == 1:
            raise KeyboardInterrupt
        return b"a"

    size = StoreSize.of(np.ones(2, dtype=np.int64))
    with pytest.raises(KeyboardInterrupt):
        build_store(tmp_path / "s", interrupted, size=size, header=HEADER)
    with pytest.raises(tclab.InputError, match="not written to its end, 0 of 2 samples; build it again"):
        Store(tmp_path / "s", header=HEADER)
    store = build(tmp_path / "s", [b"a", b"b"])
    assert store.read([0, 1], bytes) == [b"a", b"b"]
    store.close()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_a_file_that_was_cut_is_refused_before_anything_is_read(share, tmp_path):
    build(tmp_path / "s", [bytes(5000)] * 100).close()
    file = tmp_path / "s" / "data.mdb"
    os.truncate(file, int(share * file.stat().st_size))
    with pytest.raises(tclab.InputError, match=r"cut short|is not a store that can be read"):
        Store(tmp_path / "s", header=HEADER)
    with pytest.raises(tclab.InputError, match=r"cut short|is not a store that can be read"):
        build(tmp_path / "s", [bytes(5000)] * 100)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"encoding": "other"}, "holds another encoding: its encoding is 'test', expected 'other'"),
        ({"graph": "b"}, "holds another graph's encoding: its graph is 'a graph', expected 'b'"),
        ({"samples": "7"}, "holds another number of samples: its samples is '2', expected '7'"),
        ({"deletions": "x"}, "holds the encoding of other deletions: its deletions is None"),
    ],
)
def test_a_store_knows_what_it_was_made_for(header, words, tmp_path):
    build(tmp_path / "s", [b"a", b"b"]).close()
    with pytest.raises(tclab.InputError, match=words):
        Store(tmp_path / "s", header={**HEADER, **header})


def test_nothing_is_built_into_another_store_or_another_folder(tmp_path):
    build(tmp_path / "s", [b"a", b"b"]).close()
    with pytest.raises(tclab.InputError, match="holds another graph's encoding"):
        build(tmp_path / "s", [b"a", b"b"], header={**HEADER, "graph": "b"})
    with pytest.raises(tclab.InputError, match="another number of samples"):
        build(tmp_path / "s", [b"a", b"b", b"c"])
    assert Store(tmp_path / "s", header=HEADER)[1] == b"b"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(tclab.InputError, match="other files in it"):
        build(tmp_path / "mine", [b"a"])
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all of it"
    with pytest.raises(tclab.InputError, match=r"has no data\.mdb"):
        Store(tmp_path / "nothing", header=HEADER)
    (tmp_path / "file").write_text("")
    with pytest.raises(tclab.InputError, match="a store cannot be made in"):
        build(tmp_path / "file" / "s", [b"a"])


@pytest.mark.parametrize("name", ["stored_index", "stored_mask"])
def test_masks_of_another_graph_or_other_samples_are_refused(name, tmp_path):
    perturbations = synthetic_perturbations(GRAPH, 4)
    masking.get(name)(GRAPH).prepare(perturbations, tmp_path / "s")
    other = tclab.CellGraph.synthetic(0.03, seed=1)
    with pytest.raises(tclab.InputError, match="holds another graph's encoding"):
        masking.get(name)(other).prepare(perturbations, tmp_path / "s")
    with pytest.raises(tclab.InputError, match="holds the encoding of other deletions"):
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
    with pytest.raises(tclab.InputError, match="holds the encoding of other samples"):
        StoredSamples(GRAPH, Perturbations(perturbations.deletions, -perturbations.scores), tmp_path / "s", encoding)
    with pytest.raises(tclab.InputError, match="unknown encoding 'jsn'; did you mean 'json'"):
        StoredSamples(GRAPH, perturbations, tmp_path / "t", "jsn")


def test_an_integer_record_is_16_bytes_for_three_genes_and_a_json_one_hundreds(tmp_path):
    perturbations = synthetic_perturbations(GRAPH, 3)
    words = StoredSamples(GRAPH, perturbations, tmp_path / "a", "lmdb")
    records = StoredSamples(GRAPH, perturbations, tmp_path / "b", "json")
    assert [len(words._store[sample]) for sample in range(3)] == [16, 16, 16]
    assert b'"gene_interaction": ' in records._store[0]
    assert len(records._store[0]) > 500
    words.close()
    records.close()


DAMAGED = """
    import sys
    from pathlib import Path
    import tclab
    from tclab import masking
    from tclab.perturbation import synthetic_perturbations
    from tclab.perturbation._stored_samples import StoredSamples

    encoding, folder = sys.argv[1], Path(sys.argv[2])
    graph = tclab.CellGraph.synthetic(0.02, metabolism=False)
    samples = synthetic_perturbations(graph, 300 if encoding in ("lmdb", "json") else 12)

    def read():
        if encoding in ("lmdb", "json"):
            return StoredSamples(graph, samples, folder, encoding).read(range(len(samples))).fingerprint()
        strategy = masking.get(encoding)(graph)
        strategy.prepare(samples, folder)
        return str(strategy.encode(range(len(samples)), {}))

    right = read()
    whole = (folder / "data.mdb").read_bytes()
    pages = [whole[at:at + 4096] for at in range(0, len(whole), 4096)]
    for place in range(2, len(pages)):  # the first two say how large it is
        for lost in (bytes(4096), pages[place - 1], pages[2], pages[-1], b"{" * 4096):
            if lost != pages[place]:
                spoilt = b"".join([*pages[:place], lost, *pages[place + 1:]])
                (folder / "data.mdb").write_bytes(spoilt)
                try:
                    print("right" if read() == right else "wrong")
                except tclab.InputError as error:
                    print("refused", error)
"""


@pytest.mark.parametrize(
    "encoding",
    ["lmdb", *(pytest.param(name, marks=pytest.mark.slow) for name in ("json", "stored_mask", "stored_index"))],
)
def test_a_store_of_which_a_page_was_lost_is_refused_with_a_sentence(encoding, tmp_path):
    found = run(DAMAGED, encoding, tmp_path / "s")
    assert found.returncode == 0, found.stderr[-2000:]
    lines = found.stdout.splitlines()
    assert len(lines) > 20
    assert [line for line in lines if "is damaged" not in line and "is not a store" not in line] == []


def test_damage_in_a_large_store_is_found_and_an_undamaged_one_is_summed_once(tmp_path, monkeypatch):
    folder, values = tmp_path / "s", [bytes(range(256)) * 4096] * 66  # of 1 MiB
    store = build(folder, values)
    header = {**HEADER, "samples": "66"}
    file = folder / "data.mdb"
    assert file.stat().st_size > 64 << 20
    summed = []
    checksum = _sample_store._checksum
    monkeypatch.setattr(_sample_store, "_checksum", lambda path: summed.append(path) or checksum(path))
    assert store[65] == values[65]
    store.close()
    build(folder, values).close()
    assert summed == []
    os.utime(file)  # a copy, as far as it can be known
    for _ in range(2):
        Store(folder, header=header).close()
    assert len(summed) == 1
    with file.open("r+b") as opened:
        opened.seek(40 << 20)
        opened.write(b"another")
    for make in (lambda: Store(folder, header=header), lambda: build(folder, values)):
        with pytest.raises(tclab.InputError, match="is damaged: its checksum is another; remove it"):
            make()
