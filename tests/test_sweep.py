"""Points in child processes: rows, statuses, crashes, kill -9 and resume."""

import json
import threading
from dataclasses import replace

import pandas as pd
import pytest

import tclab
from tclab import InputError, Point
from tclab.sweeps._fingerprint import import_file
from tclab.sweeps._point_inputs import resolve
from tclab.sweeps._rows import Results, columns_of, not_measured, table
from tclab.sweeps._run import close_workers


def tiny(**fields):
    return Point(**{"scale": 0.01, "batch_size": 2, "networks": 2, "steps": 2, "warmup": 0, "device": "cpu", **fields})


def of_the_step(frame):
    (row,) = frame[frame["stage"] == "step"].to_dict("records")
    return row


def test_rows_have_the_columns_of_the_contract_and_add_up():
    frame = tclab.run(tiny(steps=4))
    first = ["graph", "scale", "model", "strategy", "batch_size", "networks", "mode", "device", "ranks", "dtype"]
    assert list(frame.columns[:12]) == [*first, "stage", "where"]
    inside = {"data_wait", "transfer", "mask", "forward", "loss", "backward", "clip", "optimizer", "other"}
    made = {"sample", "mask", "collate", "other"}
    host, worker = (frame[frame["where"] == where].set_index("stage") for where in ("host", "worker"))
    assert set(host.index) == inside | {"step"}
    assert set(worker.index) == made | {"batch", "idle"}
    assert (frame["status"] == "ok").all()
    assert (host["n"] == 4).all()
    assert worker["n"]["idle"] == 3  # nobody knows how long it was idle before the first
    for timeline, whole, parts in ((host, "step", inside), (worker, "batch", made)):
        samples = timeline["samples_seconds"]
        for step in range(4):
            total = sum(samples[stage][step] for stage in parts)
            assert total == pytest.approx(samples[whole][step], rel=1e-9)
    whole = frame["stage"] == "step"
    for column in ("samples_per_second", "batch_bytes", "edge_bytes", "mask_bytes", "peak_bytes", "host_accounted"):
        assert frame[whole][column].notna().all()
        assert frame[~whole][column].isna().all()  # missing is null, never 0
    assert host["host_syncs"]["step"] == host["host_syncs"].drop("step").sum()
    row = of_the_step(frame)
    assert (row["equivalence"], row["networks"], row["network_names"]) == ("passed", 2, "regulatory,physical")
    assert row["samples_per_second"] == pytest.approx(2 / row["mean_seconds"])
    assert row["host_accounted"] == pytest.approx(1.0, abs=0.1)
    assert all(pd.isna(row[name]) for name in ("device_accounted", "steady", "gpu"))  # four steps are too few to say
    before, after = json.loads(row["conditions"])
    assert before.keys() == after.keys()


@pytest.mark.parametrize("fields", [
    {"strategy": "subgraph", "model": "hetero_cell_production"},
    {"strategy": "edge_mask", "metabolism": "carried", "dtype": "bfloat16"},
    {"strategy": "stored_index", "workers": 2, "perturbations": 0, "loader": "prefetch_factor:1"},
    {"strategy": "stored_mask", "workers": 2, "store": "lmdb", "loader": "persistent_workers:true"},
    {"strategy": "gpu_mask", "collation": "edges", "networks": ("tflink", "physical")},
    {"strategy": "gpu_filter", "loss": "mle_wass_supcr"},
    {"strategy": "node_mask", "metabolism": "used", "workers": 0, "store": "json", "mode": "fixed_batch"},
    {"strategy": "node_mask", "mode": "empty", "loop": "lightning"},
    {"strategy": "gpu_mask_cached", "optimizer": "foreach", "loop": "lightning"},
    {"strategy": "dense", "mode": "data"},
    {"strategy": "delta", "optimizer": "plain", "dtype": "float64"},
    {"strategy": "sampled_edges", "accumulate": 2, "steps": 4},
    {"strategy": "indices", "loss": "dango_pre_then_post", "model": "dango", "networks": None},
])  # fmt: skip
def test_every_kind_of_strategy_and_every_field_of_a_point_is_run_in_a_child(fields):
    frame = tclab.run(tiny(**fields))
    row = of_the_step(frame)
    assert row["status"] == "ok"
    assert {"host", "worker" if row["workers"] else "loading"} >= set(frame["where"])
    assert pd.notna(row["store_bytes"]) is ("store" in fields or fields["strategy"].startswith("stored"))
    assert pd.isna(row["equivalence"]) is (row["mode"] in ("data", "empty"))
    assert pd.isna(row["host_syncs"]) is (row["mode"] == "data")
    if "accumulate" in fields:  # counted where they were taken
        assert frame.set_index("stage")["n"][["backward", "optimizer"]].tolist() == [4, 2]
    for name, value in fields.items():
        if name not in ("model", "networks"):
            assert row[name] == (str(value) if name == "perturbations" else value)


def test_what_does_not_apply_is_skipped_with_its_reason():
    for fields, why in (
        ({"overheads": ("dense_targets",)}, "hetero_cell cannot take on the overhead dense_targets"),
        ({"loss": "dango"}, "hetero_cell is not trained on dango"),
        ({"strategy": "indices"}, "indices makes no masked graph"),
        ({"loader": {"pin_memory": True}}, "pin_memory needs cuda"),
    ):
        row = of_the_step(tclab.run(tiny(**fields)))
        assert row["status"].startswith(f"skipped: {why}")
        assert pd.isna(row["median_seconds"])


@pytest.fixture
def own(root):
    import_file(root / "tests" / "own_strategies.py")


def test_a_strategy_that_crashes_is_a_row_and_the_sweep_goes_on(own, tmp_path):
    names = ("crashes", "raises", "reads", "edge_mask")
    frame = tclab.sweep([tiny(strategy=name) for name in names], results=tmp_path / "rows")
    status = frame[frame["stage"] == "step"].set_index("strategy")["status"].to_dict()
    odd = status.pop("raises")
    assert odd.startswith("failed: ValueError: no \\udcff such thing xxx")
    assert len(odd) < 1100
    assert status == {
        "reads": "failed: EOFError: EOF when reading a line",
        "crashes": "failed: killed by SIGSEGV",
        "edge_mask": "ok",
    }


def test_the_check_tries_a_point_as_it_is_run_and_what_is_wrong_gets_no_time(own):
    point = tiny(strategy="deletes_nothing_from_three", batch_size=4, dtype="float64", scale=0.01)
    assert of_the_step(tclab.run(point))["equivalence"] == "passed"
    sliced = tclab.run(replace(point, micro_batch=2))
    assert sliced["status"].item().startswith("wrong: in float64 in slices, ")
    assert sliced["equivalence"].item() == "failed"
    assert sliced["equivalence_fp64_error"].item() > 1e-6
    assert sliced["median_seconds"].isna().all()


def test_a_strategy_of_ones_own_is_tried_on_the_whole_graph_once_a_sweep(own, tmp_path, monkeypatch):
    count = tmp_path / "count"
    monkeypatch.setenv("OWN_COUNT", str(count))
    close_workers()  # the next one has the variable
    wrong = tiny(strategy="in_a_byte", scale=0.045)  # 297 genes
    rows = tclab.sweep(
        [wrong, *(tiny(strategy="counts", batch_size=n, scale=0.045) for n in (3, 4))], results=tmp_path / "rows"
    )
    steps = rows[rows["stage"] == "step"]
    assert steps["status"].iloc[0].startswith("wrong: on the whole graph in float64, 2 of 2 predictions are off")
    assert steps["status"].tolist()[1:] == ["ok", "ok"]
    assert steps["equivalence_full_size"].tolist() == ["failed", "passed", "passed"]
    assert steps["mean_seconds"].isna().tolist() == [True, False, False]
    assert len(count.read_text().splitlines()) == 2 * 2  # in fp64 and in fp32, each after another batch


def test_a_strategy_no_child_could_import_is_refused_in_words():
    lost = type("Lost", (tclab.masking.get("node_mask"),), {"name": "lost", "__module__": "__main__"})
    tclab.masking.register(lost)
    with pytest.raises(InputError, match="put it in a file of its own"):
        tclab.run(tiny(strategy="lost"))


def test_points_after_one_without_memory_run_rows_are_kept_and_failures_run_again_when_asked(own, tmp_path):
    points = [tiny(strategy="greedy"), tiny(), tiny(strategy="raises")]
    first = tclab.sweep(points, results=tmp_path)
    status = [text.partition(":")[0] for text in first[first["stage"] == "step"]["status"]]
    assert status == ["oom", "ok", "failed"]
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.parquet")}
    assert len(stamps) == 3
    told = []
    pd.testing.assert_frame_equal(first, tclab.sweep(points, results=tmp_path, progress=told.append))
    assert [one.kept for one in told] == [True] * 3
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.parquet")}
    tclab.sweep(points, results=tmp_path, retry=True)
    changed = {path.name for path in tmp_path.glob("*.parquet") if path.stat().st_mtime_ns != stamps[path]}
    assert changed == {Results.name(resolve(points[i])) for i in (0, 2)}


def test_repeats_are_runs_in_fresh_processes_that_are_kept_and_added_to(tmp_path, monkeypatch):
    ran = []

    def rows_of(point, *, fresh, **_):
        ran.append((point.batch_size, fresh))
        if point.batch_size == 3:
            return not_measured(point, "oom")
        made = {"stage": "step", "status": "ok", "samples_seconds": [1.0, 2.0] * 6, "measured_at": f"{len(ran):03}"}
        return table([{**columns_of(point), **made}])

    monkeypatch.setattr("tclab.sweeps._sweep.point_rows", rows_of)
    points = [tiny(batch_size=number) for number in (1, 2, 3)]
    with pytest.raises(InputError, match="repeats is 0"):
        tclab.sweep(points, results=tmp_path, repeats=0)
    tclab.sweep(points[0], results=tmp_path)
    seen = []
    rows = tclab.sweep(points, results=tmp_path, repeats=3, progress=seen.append)
    assert ran == [(1, False), (2, True), (3, True), (1, True), (2, True), (1, True), (2, True)]
    assert [one.kept for one in seen] == [True] + [False] * 6
    assert rows["batch_size"].tolist() == [1, 2, 3, 1, 2, 1, 2]
    pd.testing.assert_frame_equal(rows, tclab.sweep(points, results=tmp_path, repeats=3, progress=None))
    assert len(ran) == 7


def test_rows_of_another_machine_never_stand_in(monkeypatch):
    here = Results.name(tiny())
    assert here == Results.name(tiny())
    assert Results.name(tiny(), machine={"cpu": "another"}) != here
    for variable in ("OMP_NUM_THREADS", "MALLOC_ARENA_MAX"):  # which may change within a process
        with monkeypatch.context() as other:
            other.setenv(variable, "17")
            assert Results.name(tiny()) != here


def test_stop_ends_a_sweep_and_the_point_under_way_and_keeps_what_was_measured(own, tmp_path):
    stop = threading.Event()
    points = [tiny(), tiny(strategy="sleeps"), tiny(batch_size=3)]
    told = []
    asleep = threading.Timer(1.0, stop.set)
    frame = tclab.sweep(points, results=tmp_path, stop=stop, progress=lambda one: told.append(one) or asleep.start())
    status = frame[frame["stage"] == "step"]["status"].tolist()
    assert status == ["ok", "not run: stopped", "not run: stopped"]
    assert len(told) == len(list(tmp_path.glob("*.parquet"))) == 1


def test_what_a_point_names_is_looked_for_where_it_is_run(tmp_path, monkeypatch):
    monkeypatch.setattr("tclab.sweeps._point.gpu_count", lambda: 0)
    for fields, words in (
        ({"graph": "no/such"}, "graph is 'no/such', expected 'synthetic' or a folder or file that exists"),
        ({"perturbations": "no/such/file"}, "perturbations is 'no/such/file', expected a file of samples that exists"),
        ({"device": "cuda"}, "device is 'cuda', and torch finds no CUDA device"),
    ):
        point = tiny(**fields)
        assert Point(**point.to_dict()) == point
        for use in (resolve, tclab.run, lambda p: tclab.sweep(p, results=tmp_path)):
            with pytest.raises(InputError, match=words):
                use(point)
