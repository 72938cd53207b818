"""Recording of chosen steps of a loop."""

import pytest
import torch

import tclab.trace as trace
from tclab import InputError
from tclab.timing import Ledger

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def loop(recorder, steps):
    weight = torch.randn(64, 64, requires_grad=True)
    for _ in range(steps):
        (weight @ weight).square().mean().backward()
        recorder.step()


def test_records_the_window(tmp_path):
    with trace.record(tmp_path, wait=4, warmup=1, active=2, steps=10) as recorder:
        loop(recorder, 10)
    assert recorder.path == tmp_path / "rank0.pt.trace.json.gz"
    assert [p.name for p in tmp_path.iterdir()] == [recorder.path.name]
    assert trace.analyze(tmp_path).steps["step"].tolist() == ["ProfilerStep#5", "ProfilerStep#6"]


def test_refuses_a_window_that_the_run_never_reaches(tmp_path):
    far = {"wait": 600, "warmup": 0, "active": 5, "steps": 3}
    for window, words in ((far, "warmup 0 = 600 and needs 605, .* makes 3"), ({"active": 0}, "expected")):
        with pytest.raises(InputError, match=words), trace.record(tmp_path / "traces", **window):
            pass
    assert not list(tmp_path.iterdir())


def test_a_loop_that_is_too_short_or_fails_leaves_nothing_or_a_warning(tmp_path):
    with pytest.raises(InputError, match="made 2: nothing"), trace.record(tmp_path, wait=3, active=2) as recorder:
        loop(recorder, 2)
    with pytest.raises(TypeError), trace.record(tmp_path, wait=1, active=1) as recorder:
        max(loop(recorder, 3))  # of None, after the window
    assert not list(tmp_path.iterdir())
    with pytest.warns(UserWarning, match="made 3: it holds 1"), trace.record(tmp_path, wait=1, active=5) as recorder:
        loop(recorder, 3)
    assert len(trace.analyze(recorder.path).steps) >= 1


def test_a_ledger_marks_its_stages(tmp_path):
    x = torch.randn(20, 20)
    with trace.record(tmp_path, wait=3, warmup=1, active=4, steps=8) as recorder, Ledger(marks=True) as ledger:
        for _ in ledger.steps(range(8)):
            with ledger.stage("forward"):
                y = x @ x
                with ledger.stage("mask"):
                    y = y * 2
            with ledger.stage("clip"):
                y.sum()
            recorder.step()
    report = trace.analyze(recorder.path)
    marks = report.ops[report.ops["name"].str.startswith("ledger: ")].set_index("name")["calls"]
    assert marks.to_dict() == {"ledger: forward": 4, "ledger: mask": 4, "ledger: clip": 4, "ledger: data_wait": 4}
    used = report.stages[report.stages["self_us"] > 0]
    assert {"data_loading", "graph_processing", "model_forward", "optimizer"} <= set(used["stage"])
