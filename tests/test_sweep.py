"""Points in child processes: rows, statuses, crashes, kill -9 and resume."""

import itertools
import json
import sys
import textwrap
import threading
from dataclasses import replace

import pandas as pd
import pytest

import tclab
from tclab import InputError, Point
from tclab.sweeps import close_workers
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._progress import Progress, print_progress
from tclab.sweeps.store._row_files import Results
from tclab.sweeps.store._rows import MEASURED_COLUMNS, POINT_COLUMNS, columns_of, not_measured, table


def tiny(**fields):
    return Point(**{"scale": 0.02, "batch_size": 2, "networks": 2, "steps": 2, "warmup": 0, "device": "cpu", **fields})


@pytest.fixture(autouse=True, scope="module")
def no_child_is_left():
    yield
    close_workers()


def of_the_step(frame):
    (row,) = frame[frame["stage"] == "step"].to_dict("records")
    return row


def test_rows_have_the_columns_of_the_contract_and_add_up():
    frame = tclab.run(tiny(steps=4))
    assert list(frame.columns[:10]) == list(POINT_COLUMNS)
    assert set(MEASURED_COLUMNS) <= set(frame.columns)
    inside = {"data_wait", "transfer", "mask", "forward", "loss", "backward", "clip", "optimizer", "other"}
    made = {"sample", "mask", "collate", "other"}
    host, worker = (frame[frame["where"] == where].set_index("stage") for where in ("host", "worker"))
    assert set(host.index) == inside | {"step"}
    assert set(worker.index) == made | {"batch", "idle"}
    assert len(frame) == len(host) + len(worker)
    assert (frame["status"] == "ok").all()
    assert (host["n"] == 4).all()
    assert (worker["n"].drop("idle") == 4).all()
    assert worker["n"]["idle"] == 3  # nobody knows how long it was idle before the first
    assert (frame["q1_seconds"] <= frame["median_seconds"]).all()
    assert (frame["median_seconds"] <= frame["q3_seconds"]).all()
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
    assert worker["host_syncs"].isna().all()
    row = of_the_step(frame)
    assert (row["equivalence"], row["networks"], row["network_names"]) == ("passed", 2, "regulatory,physical")
    assert row["samples_per_second"] == pytest.approx(2 / row["mean_seconds"])
    assert row["host_accounted"] == pytest.approx(1.0, abs=0.1)
    assert all(pd.isna(row[name]) for name in ("device_accounted", "steady", "gpu"))  # four steps are too few to say
    before, after = json.loads(row["conditions"])
    assert before["load"] is not None
    assert before.keys() == after.keys()


def test_batches_made_in_the_training_process_lie_within_its_wait():
    frame = tclab.run(tiny(steps=2, workers=0))
    loading = frame[frame["where"] == "loading"].set_index("stage")["median_seconds"]
    assert set(loading.index) == {"sample", "mask", "collate", "other", "batch"}
    host = frame[frame["where"] == "host"].set_index("stage")["median_seconds"]
    assert loading["batch"] <= host["data_wait"]


STRATEGIES = [name for name in tclab.masking.names() if name not in ("indices", "stored_mask")]
# that any strategy runs with: each is in one point at least, and each strategy too
FIELDS = [
    {"model": "hetero_cell_production"},
    {"metabolism": "used"},
    {"dtype": "bfloat16"},
    {"dtype": "float64"},
    {"workers": 0},
    {"workers": 2},
    {"networks": ("tflink", "physical")},
    {"perturbations": 0},
    {"loss": "mle_wass_supcr"},
    {"optimizer": "plain"},
]


@pytest.mark.parametrize("fields", [
    *({**more, "strategy": strategy} for more, strategy in itertools.zip_longest(FIELDS, STRATEGIES, fillvalue={})),
    {"metabolism": "carried", "strategy": "edge_mask"},
    {"collation": "edges", "strategy": "gpu_mask"},
    {"strategy": "stored_mask", "workers": 2},
    {"optimizer": "foreach", "loop": "lightning"},
    {"loss": "dango_pre_then_post", "model": "dango", "strategy": "indices", "networks": None},
])  # fmt: skip
def test_every_strategy_and_every_field_of_a_point_is_run_in_a_child(fields):
    row = of_the_step(tclab.run(tiny(**fields)))
    assert row["status"] == "ok"
    assert pd.isna(row["store_bytes"]) is not fields.get("strategy", "").startswith("stored")
    for name, value in fields.items():
        if name not in ("model", "networks"):
            assert row[name] == (str(value) if name == "perturbations" else value)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["plain", "lightning"])
def test_rows_hold_the_stages_that_a_mode_runs_and_no_others(loop):
    modes = ["data", "model", "step", "fixed_batch", *(["empty"] if loop == "lightning" else [])]
    frames = {mode: tclab.run(tiny(mode=mode, loop=loop)) for mode in modes}
    stages = {mode: set(frame[frame["where"] == "host"]["stage"]) for mode, frame in frames.items()}
    loading = {"data_wait", "transfer", "other", "step"} | ({"loop"} if loop == "lightning" else set())
    assert stages["data"] == loading
    assert stages["model"] == loading | {"mask", "forward", "loss", "backward"}
    assert stages["step"] == stages["fixed_batch"] == stages["model"] | {"clip", "optimizer"}
    if loop == "lightning":
        assert stages["empty"] == loading | {"mask", "loss", "backward", "optimizer"}
    for mode in modes:  # one batch over and over is not made again
        assert ("worker" in set(frames[mode]["where"])) is (mode != "fixed_batch")
    for mode, frame in frames.items():
        assert (frame["status"] == "ok").all(), mode
        assert (frame["loop"] == loop).all()
        gates = frame[frame["stage"] == "step"]["equivalence"]
        assert gates.isna().all() if mode in ("data", "empty") else (gates == "passed").all()
        assert pd.isna(of_the_step(frame)["host_syncs"]) is (mode == "data")


def test_an_overhead_is_in_its_row_with_what_it_costs():
    plain = of_the_step(tclab.run(tiny()))
    row = of_the_step(tclab.run(tiny(overheads=("item_logging", "isnan_checks"))))
    assert plain["overheads"] == ""
    assert row["overheads"] == "item_logging,isnan_checks"
    assert row["equivalence"] == "passed"
    assert row["host_syncs"] - plain["host_syncs"] == 15 + 7


def test_what_does_not_apply_is_skipped_with_its_reason():
    for fields, why in (
        ({"overheads": ("dense_targets",)}, "hetero_cell cannot take on the overhead dense_targets"),
        ({"overheads": ("print_loss",), "mode": "data"}, "mode data has no model for the overhead print_loss"),
        ({"loss": "dango"}, "hetero_cell is not trained on dango"),
        ({"model": "dango", "strategy": "edge_mask"}, "dango reads no masked graph"),
        ({"strategy": "indices"}, "indices makes no masked graph"),
    ):
        row = of_the_step(tclab.run(tiny(**fields)))
        assert row["status"].startswith(f"skipped: {why}")
        assert pd.isna(row["median_seconds"])


def test_accumulated_steps_are_counted_where_they_were_taken():
    frame = tclab.run(tiny(accumulate=2, steps=4)).set_index("stage")
    assert frame["n"]["step"] == frame["n"]["backward"] == 4
    assert frame["n"]["optimizer"] == frame["n"]["clip"] == 2


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Strategies of a user's own, in a file that child processes can import."""
    (tmp_path / "own_strategies.py").write_text(
        textwrap.dedent("""
            import os, signal
            import tclab
            from tclab import masking

            NodeMask = masking.get("node_mask")

            @masking.register
            class Crashes(NodeMask):
                name = "crashes"
                def view(self, batch):
                    os.kill(os.getpid(), signal.SIGSEGV)

            @masking.register
            class Raises(NodeMask):
                name = "raises"
                def pack(self, removed, encoded):
                    raise ValueError("no such thing\\nand more")

            @masking.register
            class RaisesOddText(NodeMask):
                name = "raises_odd_text"
                def pack(self, removed, encoded):
                    raise ValueError("half \\udcff of it " + "x" * 1_000_000)

            @masking.register
            class Reads(NodeMask):
                name = "reads"
                def view(self, batch):
                    print('{"rows": []}')  # which is no answer to the parent
                    input()  # as a breakpoint() does

            @masking.register
            class Sleeps(NodeMask):
                name = "sleeps"
                def view(self, batch):
                    signal.pause()

            @masking.register
            class DeletesNothingFromAFew(NodeMask):
                name = "deletes_nothing_from_a_few"
                def view(self, batch):
                    if batch.size >= 4:
                        return super().view(batch)
                    removed = {kind: tclab.perturbation.Deletions.nothing(batch.size) for kind in self.graph.num_nodes}
                    return tclab.message_passing.SharedView(self.graph, removed)
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_strategies  # noqa: F401

    yield
    sys.modules.pop("own_strategies")


def test_a_strategy_that_crashes_is_a_row_and_the_sweep_goes_on(own, tmp_path):
    names = ("crashes", "raises", "raises_odd_text", "reads", "edge_mask")
    frame = tclab.sweep([tiny(strategy=name) for name in names], results=tmp_path / "rows")
    status = frame[frame["stage"] == "step"].set_index("strategy")["status"].to_dict()
    odd = status.pop("raises_odd_text")
    assert odd.startswith("failed: ValueError: half \\udcff of it xxx")
    assert len(odd) < 1100
    assert status == {
        "reads": "failed: EOFError: EOF when reading a line",
        "crashes": "failed: killed by SIGSEGV",
        "raises": "failed: ValueError: no such thing",
        "edge_mask": "ok",
    }


@pytest.mark.slow  # processes of its own
def test_a_point_that_hangs_is_ended_after_the_limit_and_the_next_one_runs(own, tmp_path):
    frame = tclab.sweep(tiny(strategy="sleeps"), results=tmp_path / "rows", hang_seconds=1.0)
    assert of_the_step(frame)["status"] == "failed: the point was not through after 1 s, and its process was ended"
    assert of_the_step(tclab.run(tiny(), hang_seconds=600.0))["status"] == "ok"


def test_the_check_tries_a_point_as_it_is_run_and_what_is_wrong_gets_no_time(own):
    point = tiny(strategy="deletes_nothing_from_a_few", batch_size=4, dtype="float64")
    assert of_the_step(tclab.run(point))["equivalence"] == "passed"
    sliced = tclab.run(replace(point, micro_batch=1))
    assert (sliced["status"].item(), sliced["equivalence"].item()) == ("wrong", "failed")
    assert sliced["equivalence_fp64_error"].item() > 1e-6
    assert sliced["median_seconds"].isna().all()  # what is wrong gets no time
    rough = of_the_step(tclab.run(replace(point, strategy="node_mask", dtype="bfloat16")))
    assert rough["equivalence"] == "passed"
    assert rough["equivalence_fp32_ratio"] <= 2.0


def test_a_strategy_no_child_could_import_is_refused_in_words():
    lost = type("Lost", (tclab.masking.get("node_mask"),), {"name": "lost", "__module__": "__main__"})
    tclab.masking.register(lost)
    with pytest.raises(InputError, match="put it in a file of its own"):
        tclab.run(tiny(strategy="lost"))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is Linux's")
def test_a_point_that_runs_out_of_memory_is_oom_and_the_next_one_runs(tmp_path):
    big = tiny(scale=0.2, networks=9, batch_size=64, strategy="edge_mask")
    frame = tclab.sweep([big, tiny()], results=tmp_path, memory_bytes=1_500_000_000)
    status = frame[frame["stage"] == "step"]["status"].tolist()
    assert status == ["oom", "ok"]
    again = tclab.sweep([big], results=tmp_path, memory_bytes=1_500_000_000)  # kept: the same limit, the same end
    assert again["status"].tolist() == ["oom"]


def test_kept_rows_are_read_and_failures_run_again_only_when_asked(own, tmp_path):
    points = [tiny(), tiny(strategy="raises")]
    first = tclab.sweep(points, results=tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.parquet")}
    assert len(stamps) == 2
    second = tclab.sweep(points, results=tmp_path)
    pd.testing.assert_frame_equal(first, second)
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.parquet")}
    tclab.sweep(points, results=tmp_path, retry=True)
    changed = {path.name for path in tmp_path.glob("*.parquet") if path.stat().st_mtime_ns != stamps[path]}
    assert changed == {Results(tmp_path).path(points[1]).name}


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
    assert [(one.done, one.kept) for one in seen] == [(place, place == 1) for place in (1, 2, 3, 4, 5, 7, 8)]
    assert {one.total for one in seen} == {9}
    assert rows["batch_size"].tolist() == [1, 2, 3, 1, 2, 1, 2]
    pd.testing.assert_frame_equal(rows, tclab.sweep(points, results=tmp_path, repeats=3, progress=None))
    assert len(ran) == 7
    assert tclab.sweep(points[0], results=tmp_path)["measured_at"].tolist() == ["001"]


def test_a_folder_that_cannot_be_written_is_named_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"results is .*file.*, expected a folder that can be written"):
        tclab.sweep([tiny()], results=tmp_path / "file" / "rows")


def test_rows_of_another_machine_never_stand_in(tmp_path, monkeypatch):
    from tclab.sweeps.store import _row_files as results

    here = Results(tmp_path).path(tiny())
    assert here == Results(tmp_path).path(tiny())
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(results, "_machine", lambda _: {"cpu": "another"})
        assert Results(tmp_path).path(tiny()) != here
    assert Results.name(tiny(), memory_bytes=10**9) != Results.name(tiny())
    for variable in ("OMP_NUM_THREADS", "MALLOC_ARENA_MAX"):  # which may change within a process
        with monkeypatch.context() as other:
            other.setenv(variable, "17")
            assert Results(tmp_path).path(tiny()) != here


def test_a_budget_leaves_points_for_the_next_time(tmp_path, capsys):
    points = [tiny(batch_size=b) for b in (1, 2, 3)]
    with pytest.raises(InputError, match="budget_seconds is 0"):
        tclab.sweep(points, results=tmp_path, budget_seconds=0)
    frame = tclab.sweep(points, results=tmp_path, budget_seconds=1e-9)
    assert frame["status"].str.startswith("not run: the budget").tolist() == [True, True, True]
    assert not list(tmp_path.glob("*.parquet"))
    assert (tclab.sweep(points, results=tmp_path)["status"] == "ok").all()
    assert (tclab.sweep(points, results=tmp_path, budget_seconds=1e-9)["status"] == "ok").all()  # read, not run
    capsys.readouterr()
    assert (tclab.sweep(points[0], results=tmp_path)["status"] == "ok").all()  # one is enough
    assert capsys.readouterr().err.startswith("[1/1] hetero_cell")  # a script says how far it is
    print_progress(Progress(1, 3, points[0], not_measured(points[0], "not run"), kept=False, seconds_left=130.0))
    assert capsys.readouterr().err.endswith("not run · about 2 min 10 s left\n")
    tclab.sweep(points, results=tmp_path, progress=None)
    assert capsys.readouterr().err == ""


def test_stop_ends_a_sweep_and_the_point_under_way_and_keeps_what_was_measured(own, tmp_path):
    stop = threading.Event()
    points = [tiny(), tiny(strategy="sleeps"), tiny(batch_size=3)]
    told = []
    asleep = threading.Timer(1.0, stop.set)
    frame = tclab.sweep(points, results=tmp_path, stop=stop, progress=lambda one: told.append(one) or asleep.start())
    status = frame[frame["stage"] == "step"]["status"].tolist()
    assert status == ["ok", "not run: stopped", "not run: stopped"]
    assert len(told) == len(list(tmp_path.glob("*.parquet"))) == 1


def test_files_that_a_point_names_are_looked_for_where_it_is_run(tmp_path):
    for fields, words in (
        ({"graph": "no/such"}, "graph is 'no/such', expected 'synthetic' or a folder or file that exists"),
        ({"perturbations": "no/such/file"}, "perturbations is 'no/such/file', expected a file of a screen that exists"),
    ):
        point = tiny(**fields)
        assert Point(**point.to_dict()) == point
        for use in (resolve, tclab.run, tclab.fits, lambda p: tclab.sweep(p, results=tmp_path)):
            with pytest.raises(InputError, match=words):
                use(point)


def test_cuda_asked_for_where_there_is_none():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(InputError, match="device is 'cuda', and torch finds no CUDA device"):
        tclab.run(tiny(device="cuda"))
