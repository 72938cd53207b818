"""Epochs predicted: the simulation's bounds and exact cases, a prediction's bounds, the record of a real one."""

import json
import sys
import textwrap
from dataclasses import asdict, replace
from datetime import datetime

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tclab import InputError, Point, lab
from tclab.sweeps import close_workers, run_epoch
from tclab.sweeps.execution._setup import setup
from tclab.sweeps.predict._epoch import BOTH, COMPUTE, LOADER, TRAINING_SAMPLES, full_steps, predict_epoch, read_epoch
from tclab.sweeps.predict._epoch_costs import Costs, _touch
from tclab.sweeps.predict._epoch_simulation import ContentionFactors, LoaderOverheads, simulate

seconds = st.floats(0.001, 10.0)
epochs = st.lists(st.tuples(seconds, seconds), min_size=1, max_size=30)


def split(epoch):
    return [load for load, _ in epoch], [step for _, step in epoch]


# ---- the simulation


@given(epochs)
def test_without_workers_loading_and_training_add_up(epoch):
    load, step = split(epoch)
    assert simulate(load, step, workers=0) == pytest.approx(sum(load) + sum(step))


@given(epochs, st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_no_epoch_is_faster_than_its_bounds(epoch, workers, ahead, cores):
    load, step = split(epoch)
    contention = ContentionFactors.of_cores(cores, workers)
    found = simulate(load, step, workers=workers, prefetch_factor=ahead, contention=contention)
    slack = 1 + 1e-9
    assert found * slack >= load[0] + sum(step)
    assert found * slack >= max(sum(load[worker::workers]) for worker in range(workers)) + step[-1]
    assert found * slack >= (sum(load) + sum(step)) / cores
    assert found <= (sum(load) + sum(step)) * max(1, (workers + 1) / cores) * slack


@given(epochs, st.integers(1, 3), st.integers(1, 4))
def test_more_batches_ahead_are_never_slower_where_each_process_has_a_core(epoch, workers, ahead):
    load, step = split(epoch)
    found = [simulate(load, step, workers=workers, prefetch_factor=ahead + more) for more in (0, 1)]
    assert found[1] <= found[0] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("load", "step", "workers", "ahead", "expected"),
    [
        (1, 2, 1, 2, 1 + 10 * 2),  # the first batch is waited for, then training never stops
        (2, 1, 1, 2, 10 * 2 + 1),  # batch after batch, and the last step
        (2, 1, 1, 1, 10 * 2 + 1),  # the next batch is asked for when one is taken: one ahead is enough
        (2, 1, 2, 2, 5 * 2 + 2),  # two at a time; the last two steps
        (4, 1, 2, 1, 5 * 4 + 2),
        (3, 1, 3, 2, 3 * 4 + 1),  # batches 0, 3, 6 and 9 are one worker's
    ],
)  # fmt: skip
def test_regular_epochs_take_what_they_take_by_hand(load, step, workers, ahead, expected):
    found = simulate([load] * 10, [step] * 10, workers=workers, prefetch_factor=ahead)
    assert found == pytest.approx(expected)


def test_batches_are_taken_in_order_and_no_more_are_ahead_than_allowed():
    # batch 0 is late: worker 1 has made 1 and 3 by then, and may not begin 5 before one is taken
    found = simulate([10, 1, 1, 1, 1, 1], [1] * 6, workers=2, prefetch_factor=2)
    assert found == pytest.approx(10 + 6)
    # one ahead for each: the second may make 1 alone, so 3 begins when 1 is taken
    slow = simulate([4, 1, 1, 5], [1] * 4, workers=2, prefetch_factor=1)
    assert slow == pytest.approx(5 + 5 + 1)  # 1 is taken at 5, 3 is made at 10


def test_processes_share_cores_fairly():
    one = simulate([1.0] * 50, [1.0] * 50, workers=1, contention=ContentionFactors.of_cores(1, 1))
    assert one == pytest.approx(100)  # a core does no more than there is to do
    measured = ContentionFactors(load=(1.0,), load_while_training=(0.5,), step=(1.0, 0.8))
    # training at 0.8 beside a batch in the making, which goes on at 0.5: 2 s of wall for 1.6 s of step, then alone
    found = simulate([1.0, 1.0], [2.0, 2.0], workers=1, contention=measured)
    assert found == pytest.approx(1 + 2 + 0.4 + 2)


def test_speeds_of_more_processes_than_were_measured_get_no_more_done_together():
    contention = ContentionFactors(load=(1.0, 0.8), load_while_training=(0.9, 0.6), step=(1.0, 0.9, 0.7))
    assert contention.of_load(4, training=False) == pytest.approx(0.4)
    assert contention.of_load(3, training=True) == pytest.approx(0.4)
    assert contention.of_step(5) == pytest.approx(0.35)


def test_machinery_is_paid_where_it_is_due():
    costs = LoaderOverheads(send=0.5, receive=0.25, start=2.0, wake=3.0, end=7.0)
    found = simulate([1.0] * 4, [1.0] * 4, workers=2, prefetch_factor=2, loader_overheads=costs)
    # both started by 4, the first batches at 8.5, the second ones at 10, each step 1.25, the end
    assert found == pytest.approx(4 + 4.5 + 4 * 1.25 + 7)
    assert simulate([1.0], [1.0], workers=0, loader_overheads=costs) == pytest.approx(2)  # none without workers
    early = LoaderOverheads(send=-2.0)  # more than a batch takes: no time is given back
    assert simulate([1.0] * 4, [1.0] * 4, workers=1, loader_overheads=early) == pytest.approx(4)


@pytest.mark.parametrize("fields", [{"workers": -1}, {"workers": 1, "prefetch_factor": 0}])
def test_what_no_loader_can_be_is_refused(fields):
    with pytest.raises(InputError, match="expected"):
        simulate([1.0], [1.0], **fields)


class Reading(TorchDispatchMode):
    """Sees which memory is summed."""

    def __init__(self):
        super().__init__()
        self.storages = set()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.overloadpacket is torch.ops.aten.sum:
            self.storages.add(args[0].untyped_storage().data_ptr())
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_all_that_a_batch_holds_is_read_to_say_what_taking_it_costs(micro_batch):
    with setup(tiny(batch_size=4, workers=0, micro_batch=micro_batch).resolved(), 4) as here:
        batch = next(here.batches()).batch
    with Reading() as reading:
        _touch(batch)
    assert len(batch.storages) == (1 if micro_batch is None else 2)
    assert reading.storages == {tensor.untyped_storage().data_ptr() for tensor in batch.storages}


# ---- the prediction


@given(epochs, st.integers(0, 3), st.integers(1, 40))
def test_a_prediction_lies_between_the_cheapest_and_the_dearest_epoch(epoch, workers, steps):
    load, step = split(epoch)
    found = predict_epoch(Costs(load, step), steps=steps, workers=workers)
    assert found.low <= found.seconds <= found.high
    least = simulate([min(load)] * steps, [min(step)] * steps, workers=workers)
    most = simulate([max(load)] * steps, [max(step)] * steps, workers=workers)
    assert least * (1 - 1e-9) <= found.low
    assert found.high <= most * (1 + 1e-9)


def test_a_prediction_says_what_binds_and_is_the_same_again():
    slow, quick = [0.10, 0.12] * 5, [0.01, 0.012] * 5
    assert predict_epoch(Costs(slow, quick), steps=50, workers=1).binds == LOADER
    assert predict_epoch(Costs(quick, slow), steps=50, workers=1).binds == COMPUTE
    assert predict_epoch(Costs(slow, slow), steps=50, workers=0).binds == BOTH
    # where one core has to do both, cheaper batches and cheaper steps save alike
    crowded = Costs(slow, slow, contention=ContentionFactors.of_cores(1, 1))
    assert predict_epoch(crowded, steps=50, workers=1).binds == BOTH
    assert predict_epoch(Costs(slow, quick), steps=50, workers=2) == predict_epoch(
        Costs(slow, quick), steps=50, workers=2
    )


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_long_epoch_goes_on_at_its_pace(workers):
    costs = Costs([0.3] * 4, [0.2] * 4, loader_overheads=LoaderOverheads(start=1.0, wake=2.0, end=3.0))
    steps = 30_000
    exact = simulate([0.3] * steps, [0.2] * steps, workers=workers, loader_overheads=costs.loader_overheads)
    assert predict_epoch(costs, steps=steps, workers=workers).seconds == pytest.approx(exact, rel=1e-3)


def test_costs_come_back_from_json():
    costs = Costs([0.1], [0.2], 0.3, LoaderOverheads(send=1.0), ContentionFactors.of_cores(2, 2))
    assert Costs.from_dict(json.loads(json.dumps(asdict(costs)))) == costs
    assert Costs.from_dict(asdict(Costs([0.1], [0.2]))).contention is None


def test_a_prediction_needs_steps():
    with pytest.raises(InputError, match="steps is 0"):
        predict_epoch(Costs([1.0], [1.0]), steps=0, workers=0)
    with pytest.raises(InputError, match="no steps"):
        predict_epoch(Costs([], []), steps=1, workers=0)


# ---- a real epoch


def tiny(**fields):
    return Point(**{"scale": 0.02, "batch_size": 2, "networks": 1, "steps": 3, "warmup": 1, "device": "cpu", **fields})


@pytest.fixture(scope="module", autouse=True)
def no_child_is_left():
    yield
    close_workers()


@pytest.mark.parametrize("fields", [
    {"workers": 0},
    pytest.param({"workers": 1, "strategy": "edge_mask", "collation": "pyg", "mode": "data"}, marks=pytest.mark.slow),
    pytest.param({"workers": 2, "model": "dango", "strategy": "indices", "store": "json"}, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_prediction_is_on_the_disk_before_its_epoch_begins(fields, tmp_path):
    epoch = run_epoch(tiny(**fields), 5, tmp_path, threads=1, besides_seconds=7.5)
    first, second = sorted(path.name for path in tmp_path.iterdir())  # nothing half-written beside them
    assert (first.partition(".")[2], second.partition(".")[2]) == ("measured.json", "prediction.json")
    written = json.loads((tmp_path / second).read_text())
    began = datetime.fromisoformat(epoch.began_at)
    assert datetime.fromisoformat(written["written_at"]) < began
    assert (tmp_path / second).stat().st_mtime < began.timestamp()
    assert Point.from_dict(written["point"]) == tiny(**fields).resolved()
    assert written["environment"]["torch"]
    assert epoch == read_epoch(tmp_path / first)
    assert epoch.predicted.steps == 5
    assert epoch.predicted.workers == fields["workers"]
    assert epoch.full.steps == full_steps(epoch.point) == -(-TRAINING_SAMPLES // 2)
    assert len(epoch.costs.load_seconds) == len(epoch.costs.step_seconds) == 3
    assert min(epoch.costs.load_seconds) > 0
    assert (epoch.costs.contention is not None) == (fields["workers"] > 0)
    again = predict_epoch(epoch.costs, steps=5, workers=epoch.point.workers)
    assert again == epoch.predicted  # it follows from what is written beside it, and nothing else
    without = predict_epoch(epoch.costs, steps=epoch.full.steps, workers=epoch.point.workers)
    assert written["besides_seconds"] == 7.5  # of validation, checkpoints and logging: only a full epoch has them
    for bound in ("seconds", "low", "high"):
        assert getattr(epoch.full, bound) == pytest.approx(getattr(without, bound) + 7.5)
    assert epoch.measured_seconds > 0
    assert epoch.ratio > 0


@pytest.mark.slow
def test_each_epoch_has_a_record_of_its_own(tmp_path):
    for _ in range(2):
        run_epoch(tiny(workers=0), 2, tmp_path)
    assert len(list(tmp_path.glob("*.measured.json"))) == len(list(tmp_path.glob("*.prediction.json"))) == 2


@pytest.mark.slow
def test_an_epoch_in_lightning(tmp_path):
    pytest.importorskip("lightning")
    epoch = run_epoch(tiny(loop="lightning", workers=1), 3, tmp_path)
    assert epoch.costs.around_seconds > 0


@pytest.mark.parametrize(
    ("fields", "steps", "words"),
    [
        ({"mode": "fixed_batch"}, 3, "has no epoch"),
        ({"ranks": 2}, 3, "2 ranks asked for"),
        ({}, 0, "steps is 0"),
        ({}, 2.5, "steps is 2.5"),
        ({}, {"besides_seconds": -1}, "besides_seconds is -1"),
        ({}, {"besides_seconds": float("nan")}, "besides_seconds is nan"),
    ],
)
def test_what_has_no_epoch_is_refused_before_anything_runs(fields, steps, words, tmp_path):
    options = steps if isinstance(steps, dict) else {"steps": steps}
    with pytest.raises(InputError, match=words):
        run_epoch(tiny(**fields), **{"steps": 3, **options}, record=tmp_path / "record")
    assert not (tmp_path / "record").exists()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Strategies of a user's own, in a file that child processes can import."""
    (tmp_path / "own_epochs.py").write_text(
        textwrap.dedent("""
            import os, signal
            import tclab
            from tclab import masking

            NodeMask = masking.get("node_mask")

            @masking.register
            class DeletesNothing(NodeMask):
                name = "deletes_nothing"
                def view(self, batch):
                    removed = {kind: tclab.perturbation.Deletions.nothing(batch.size) for kind in self.graph.num_nodes}
                    return tclab.message_passing.SharedView(self.graph, removed)

            @masking.register
            class DiesLate(NodeMask):
                name = "dies_late"
                def pack(self, removed, encoded):
                    record = os.environ["TCLAB_TEST_RECORD"]
                    if os.path.exists(record) and os.listdir(record):
                        os.kill(os.getpid(), signal.SIGKILL)
                    return super().pack(removed, encoded)
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TCLAB_TEST_RECORD", str(tmp_path / "record"))
    import own_epochs  # noqa: F401

    yield
    sys.modules.pop("own_epochs")


@pytest.mark.slow
def test_a_strategy_that_is_wrong_gets_no_prediction(own, tmp_path):
    with pytest.raises(RuntimeError, match="deletes_nothing with 0 workers: wrong"):
        run_epoch(tiny(strategy="deletes_nothing", workers=0), 2, tmp_path / "record", fresh=True)
    assert list((tmp_path / "record").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "words"),
    [(0, "killed by SIGKILL"), (1, "worker 0 .* was killed by SIGKILL")],
)
def test_an_epoch_that_dies_leaves_its_prediction_and_no_measurement(workers, words, own, tmp_path):
    with pytest.raises(RuntimeError, match=words):
        run_epoch(tiny(strategy="dies_late", workers=workers), 3, tmp_path / "record", fresh=True)
    (left,) = (tmp_path / "record").iterdir()
    assert json.loads(left.read_text())["predicted"]["steps"] == 3


def test_a_record_that_is_none_is_named(tmp_path):
    path = tmp_path / "x.measured.json"
    path.write_text("{")
    with pytest.raises(InputError, match="no record of an epoch"):
        read_epoch(path)


# ---- what is shown


def test_a_chart_and_tables_of_epochs(tmp_path):
    shown = [
        run_epoch(tiny(workers=0, **fields), 3, tmp_path) for fields in ({}, {"model": "dango", "strategy": "indices"})
    ]
    chart = lab.charts.result_chart(shown).to_dict()
    drawn = [row for rows in chart["datasets"].values() for row in rows if "ratio" in row]
    assert [row["ratio"] for row in drawn] == pytest.approx([epoch.ratio for epoch in shown])
    table = lab.reports.epoch_table(shown)
    assert list(table["measured s"]) == [epoch.measured_seconds for epoch in shown]
    slow, fast = sorted(shown, key=lambda epoch: -epoch.measured_seconds)
    ratios = lab.reports.model_ratios(shown)
    assert list(ratios.index) == [f"{slow.point.model} : {fast.point.model}"]
    assert ratios["measured"].iloc[0] == pytest.approx(slow.measured_seconds / fast.measured_seconds)
    assert ratios["full epoch, predicted"].iloc[0] == pytest.approx(slow.full.seconds / fast.full.seconds)
    assert ratios[["strategies", "batches"]].iloc[0].tolist() == [
        f"{slow.point.strategy} : {fast.point.strategy}", f"{slow.point.batch_size} : {fast.point.batch_size}"
    ]  # fmt: skip
    assert lab.reports.model_ratios(shown[:1]).empty


def test_models_are_paired_at_one_batch_size_and_each_at_its_own_where_they_share_none(tmp_path):
    slow = run_epoch(tiny(workers=0), 3, tmp_path)
    fast = run_epoch(tiny(workers=0, model="dango", strategy="indices"), 3, tmp_path)

    def sized(epoch, size, seconds):
        return replace(epoch, point=replace(epoch.point, batch_size=size), measured_seconds=seconds)

    both = [sized(slow, 28, 4.0), sized(slow, 64, 9.0), sized(fast, 28, 0.5), sized(fast, 64, 1.0)]
    found = lab.reports.model_ratios(both)
    assert dict(zip(found["batches"], found["measured"], strict=True)) == {"28 : 28": 8.0, "64 : 64": 9.0}
    own = lab.reports.model_ratios([both[0], both[3]])
    assert own["batches"].tolist() == ["28 : 64"]
    assert own["measured"].tolist() == [4.0]
    assert own["a sample"].iloc[0] == pytest.approx(4.0 * 64 / 28)
