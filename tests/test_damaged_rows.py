"""Files of rows that are damaged, foreign or cannot be written: nothing wrong is read, and no sweep ends."""

import errno
import multiprocessing
import os
import random
import signal
import warnings

import pyarrow.parquet as pq
import pytest

import tclab
from tclab import InputError, Point
from tclab.sweeps import _rows, _sweep
from tclab.sweeps._point_inputs import resolve
from tclab.sweeps._rows import Results, columns_of, table

POINTS = [Point(scale=0.02, batch_size=size, networks=2, device="cpu") for size in (1, 2, 3)]


def measured(point, at="2026-11-22T10:00:00+00:00", **columns):
    """Return rows such as a worker returns for a point."""
    every = {**columns_of(point), "where": "host", "n": 2, "status": "ok", "measured_at": at, **columns}
    stages = {"step": 0.5, "forward": 0.3, "backward": 0.2}
    return table(
        {**every, "stage": stage, "median_seconds": seconds, "samples_seconds": [seconds, seconds]}
        for stage, seconds in stages.items()
    )


@pytest.fixture
def runs(monkeypatch):
    """The points that sweeps run, each of which is measured at once."""
    runs = []

    def point_rows(point, **options):
        runs.append(point)
        return measured(point)

    monkeypatch.setattr("tclab.sweeps._sweep.point_rows", point_rows)
    return runs


@pytest.fixture
def results(tmp_path):
    results = Results(tmp_path / "rows")
    for point in POINTS:
        results.write(measured(point), Results.name(resolve(point)))
    return results


def without_rows(path):
    pq.write_table(pq.read_table(path).slice(0, 0), path)


def of_nobody(path):
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)


@pytest.mark.parametrize("damage", [without_rows, of_nobody])
def test_a_damaged_file_is_named_and_its_point_measured_again(results, runs, damage):
    path = results.folder / Results.name(resolve(POINTS[1]))
    damage(path)
    with pytest.warns(UserWarning, match=rf"{path} is left out.*delete it"):
        assert len(results.frame()) == 6
    with pytest.warns(UserWarning, match=rf"{path} is left out.*delete it"):
        frame = tclab.sweep(POINTS, results=results.folder, progress=None)
    assert runs == [resolve(POINTS[1])]
    assert len(frame) == len(results.frame()) == 9  # written anew: a warning would be an error


def damaged(whole, kind, draw):
    """Return bytes with a bit changed (kind 0), noise (1) or zeros (2) over a stretch, or cut short (3)."""
    at, length = draw.randrange(len(whole)), draw.randrange(1, 64)
    bit, noise, rest = bytes([whole[at] ^ 1 << draw.randrange(8)]), draw.randbytes(length), whole[at + length :]
    return whole[:at] + (bit + whole[at + 1 :], noise + rest, bytes(length) + rest, b"")[kind]


def test_no_damage_reads_back_as_other_rows_or_raises(results, tmp_path):
    path = results.folder / Results.name(resolve(POINTS[1]))
    whole, rows = path.read_bytes(), results.read(path.name)
    draw, unread = random.Random(0), 0
    alone = Results(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(200):
            (alone.folder / path.name).write_bytes(damaged(whole, number % 4, draw))
            read = alone.read(path.name)
            unread += read is None
            assert read is None or read.equals(rows), number
    assert unread > 150


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_is_full_loses_nothing_that_was_measured(results, runs, monkeypatch, code):
    def full(path, content, **options):
        raise OSError(code, os.strerror(code))

    (results.folder / Results.name(resolve(POINTS[2]))).unlink()
    (results.folder / Results.name(resolve(POINTS[0]))).unlink()
    monkeypatch.setattr(_rows, "atomic_write", full)
    with pytest.warns(UserWarning, match=f"results is .*, which cannot be written: {os.strerror(code)}"):
        frame = tclab.sweep(POINTS, results=results.folder, progress=None)
    assert runs == [resolve(POINTS[0])]
    step = frame[frame["stage"] == "step"].set_index("batch_size")
    assert step["status"][1] == step["status"][2] == "ok"
    assert step["status"][3].startswith("not run: results is ")


@pytest.mark.parametrize("bad", ["", None, "a\0b", "file/rows"])
def test_what_is_no_folder_is_refused_before_anything_runs(bad, tmp_path, monkeypatch, runs):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"results is .*(expected a folder|cannot be written: Not a directory)"):
        tclab.sweep(POINTS, results=bad, progress=None)
    assert os.listdir(tmp_path) == ["file"]
    assert runs == []


def test_the_newest_rows_are_those_measured_last_and_reading_writes_nothing(results):
    """Whatever the names and times of the files say, which a copy changes."""
    results.write(measured(POINTS[0], cpu="another", at="2026-11-22T10:00:05+00:00"), "000.parquet")
    os.utime(results.folder / "000.parquet", (0, 0))
    before = {path: path.stat().st_mtime_ns for path in results.folder.iterdir()}
    steps = results.frame().query("stage == 'step'")
    assert steps["cpu"].fillna("this").tolist() == ["this", "this", "this", "another"]
    assert before == {path: path.stat().st_mtime_ns for path in results.folder.iterdir()}
    assert Results(results.folder / "none").frame().empty
    assert not (results.folder / "none").exists()


def test_rows_of_other_columns_and_of_a_file_are_read_as_todays(results, tmp_path):
    """A field that has come since is null, a column that has gone is left out; so a folder outlives a version."""
    name = Results.name(resolve(POINTS[0]))
    rows = results.read(name)
    results.write(rows.drop_columns(["loss"]).append_column("gone", [["x"] * len(rows)]), name)
    read = results.read(name)
    assert read.schema == rows.schema
    assert read["loss"].null_count == len(rows)
    assert read.drop_columns(["loss"]) == rows.drop_columns(["loss"])
    file, some = tmp_path / "some.parquet", results.frame()[["stage", "status", "model", "samples_seconds"]]
    some.to_parquet(file)
    assert list(tclab.rows(file).columns) == rows.schema.names
    some[["stage"]].to_parquet(file)
    with pytest.raises(InputError, match="have no column 'status'"):
        tclab.rows(file)
    file.write_text("stage,tempo\nstep,1\n")
    with pytest.raises(InputError, match=r"some.parquet: .*not a parquet file.*\(read as a Parquet file of rows"):
        tclab.rows(file)
    file.write_bytes(b"PAR1, and then nothing")
    with pytest.raises(InputError, match=r"some.parquet: .*\(read as a Parquet file of rows"):
        tclab.rows(file)


def sweep_until_killed(folder, points, said):
    """Sweep as another process, which tells of its first point and goes no further."""
    _sweep.point_rows = lambda point, **options: measured(point)
    tclab.sweep(points, results=folder, progress=lambda one: (said.send("swept"), signal.pause()))


def test_a_folder_is_one_sweeps_until_kill_9_and_the_next_goes_on_where_that_one_was(tmp_path, runs):
    results, context = Results(tmp_path / "rows"), multiprocessing.get_context("forkserver")
    heard, said = context.Pipe(duplex=False)
    other = context.Process(target=sweep_until_killed, args=(results.folder, POINTS, said), daemon=True)
    other.start()
    try:
        assert heard.recv() == "swept"
        with pytest.raises(InputError, match=rf"into which process {other.pid} of \S+ since 20\d\d-\S+ sweeps: wait"):
            tclab.sweep(POINTS, results=results.folder, progress=None)
        assert runs == []
    finally:
        other.kill()  # it holds nothing any more
        other.join()
    frame = tclab.sweep(POINTS, results=results.folder, progress=None)
    assert runs == [resolve(point) for point in POINTS[1:]]  # what had been measured is read
    assert (frame["status"] == "ok").all()
    assert len(list(results.folder.glob("*.parquet"))) == 3
