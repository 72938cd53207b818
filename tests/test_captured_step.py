"""A captured step trains as an eager one does: by a stand-in for CUDA graphs on a CPU, weights are equal bit by bit."""

from functools import partial

import pytest
import torch
from replay_on_cpu import captured_on_cpu

import tclab
from tclab.masking import get
from tclab.perturbation import Perturbations
from tclab.sweeps._measure import measure
from tclab.sweeps._point_inputs import resolve
from tclab.training import _captured_step
from tclab.training._step import Exchange, Step

GRAPH = tclab.CellGraph.synthetic(0.02, seed=1, metabolism=False).select(3)
CASES = [
    *(("hetero_cell", strategy, "float32") for strategy in ("node_mask", "dense", "edge_mask", "stored_index")),
    ("hetero_cell", "node_mask", "bfloat16"),
    ("hetero_cell_production", "node_mask", "float32"),
    *((model, "indices", "float32") for model in ("dango", "hetero_cell_once")),
]


@pytest.fixture(autouse=True)
def on_cpu():
    with captured_on_cpu():
        yield


def setup(model="hetero_cell", strategy="node_mask", dtype="float32", deleted=(3,), **options):
    """Return an eager and a captured step, and eight batches of two samples that delete so many nodes each."""
    kind, samples = tclab.models.get(model).sized(hidden=8, layers=2), []
    for i in range(8):
        some = Perturbations.synthetic(GRAPH, 2, deleted=deleted[i % len(deleted)], seed=i)
        samples.append(get(strategy)(GRAPH).batch(some))
    steps = [Step(kind, get(strategy)(GRAPH), dtype=dtype, capture=capture, **options) for capture in (False, True)]
    return *steps, samples


def assert_same(eager, captured, batches):
    for batch in batches:
        assert torch.equal(eager(batch), captured(batch))
    for (name, a), b in zip(eager.model.named_parameters(), captured.model.parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(("model", "strategy", "dtype"), CASES)
def test_a_replay_trains_as_an_eager_step_does_on_other_deletions(model, strategy, dtype):
    eager, captured, batches = setup(model, strategy, dtype)
    calls, run = [], captured._captured._run
    captured._captured._run = lambda batch, stage: calls.append(batch) or run(batch, stage)
    assert_same(eager, captured, batches)
    assert (len(calls), captured.batches) == (3, 8)  # two eager, one recorded: all others were replayed


def test_another_layout_and_another_epoch_are_recorded_anew():
    eager, captured, batches = setup(deleted=(3, 1), seed=1)
    assert_same(eager, captured, batches)
    assert len(captured._captured._recorded) == 2
    eager, captured, batches = setup("dango", "indices")
    for epoch in (0, 7, 10):  # the reconstruction's share of the loss falls
        eager.epoch = captured.epoch = epoch
        assert_same(eager, captured, batches[:4])
    captured.optimizer.param_groups[0]["lr"] = eager.optimizer.param_groups[0]["lr"] = 0.01
    assert_same(eager, captured, batches)


def test_what_replaces_or_freezes_tensors_is_recorded_anew():
    eager, captured, batches = setup()
    assert_same(eager, captured, batches[:4])
    for step in (eager, captured):  # a loaded state lies in other tensors, as moved weights do
        step.optimizer.load_state_dict({**step.optimizer.state_dict()})
        step.model.load_state_dict({name: 0.9 * x for name, x in step.model.state_dict().items()})
    assert_same(eager, captured, batches[:4])
    for step in (eager, captured):
        step.model.embedding.weight.requires_grad_(False)
    assert_same(eager, captured, batches[:4])
    for step in (eager, captured):
        step.model.transform.weight.data = step.model.transform.weight.data.clone()
    assert_same(eager, captured, batches[:4])


def test_a_learning_rate_that_changes_with_every_batch_is_a_tensor_or_refused(monkeypatch):
    *steps, batches = setup(learning_rate=torch.tensor(0.1))
    assert_same(*steps, batches[:3])
    for batch in batches:
        for step in steps:
            step.optimizer.param_groups[0]["lr"].mul_(0.5)
        assert_same(*steps, [batch])
    _, captured, batches = setup()
    monkeypatch.setattr(_captured_step, "EAGER_IN_A_ROW", 4)
    for i, batch in enumerate(batches[:4]):
        captured.optimizer.param_groups[0]["lr"] = 0.1 / (1 + i)
        captured(batch)
    captured.optimizer.param_groups[0]["lr"] = 1.0
    with pytest.raises(tclab.InputError, match="expected as many samples that delete as many nodes, and a tensor"):
        captured(batches[0])


def scaled(weight):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.step(torch.optim.SGD([weight]))


@pytest.mark.parametrize("update", [lambda weight: weight.sum().item(), scaled])
def test_a_step_that_waits_says_in_which_stage(update):
    _, captured, batches = setup()
    captured.optimizer.step = partial(update, captured.model.transform.weight)
    for batch in batches[:2]:
        captured(batch)
    with pytest.raises(tclab.InputError, match=r"the stage optimizer cannot be captured: .*waits for the device"):
        captured(batches[2])


def test_too_many_layouts_are_an_error_that_names_the_last(monkeypatch):
    monkeypatch.setattr(_captured_step, "EAGER_IN_A_ROW", 2)
    _, captured, batches = setup(deleted=(1, 2, 3))
    captured(batches[0])
    captured(batches[1])
    with pytest.raises(tclab.InputError, match=r"no graph served 2 batches in a row.*'removed/gene', \(6,\)"):
        captured(batches[2])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"strategy": "delta"}, "the shapes of delta depend on which nodes are deleted"),
        ({"strategy": "gpu_mask"}, "the shapes of gpu_mask"),
        ({"compile": True}, "compile is True; a captured step has False"),
        ({"accumulate": 2}, "accumulate is 2; a captured step has 1"),
        ({"mode": "empty"}, "mode is 'empty'; a captured step has 'step' or 'model' or 'fixed_batch'"),
        ({"exchange": Exchange()}, "ranks is 'several'; a captured step has 1"),
        ({"loss": "mle_wass_supcr"}, "the loss remembers earlier batches"),
    ],
)
def test_a_step_that_cannot_be_captured_says_why(options, why):
    strategy = get(options.pop("strategy", "node_mask"))(GRAPH)
    with pytest.raises(tclab.InputError, match=why):
        Step(tclab.models.get("hetero_cell"), strategy, capture=True, **options)


def test_slices_and_a_framework_that_runs_the_optimizer_are_refused():
    _, captured, (batch, *_) = setup()
    for moved, how in ((tclab.masking.Batch.sliced([batch, batch]), {}), (batch, {"update": print})):
        with pytest.raises(tclab.InputError, match="takes no slices, and runs the backward and the optimizer itself"):
            captured.run(moved, **how)


def test_a_point_is_captured_or_says_why_not(monkeypatch):
    point = tclab.Point(scale=0.02, networks=1, batch_size=2, capture=True, device="cpu", workers=0, steps=3)
    rows = measure(resolve(point))
    assert {"transfer", "mask", "forward", "loss", "backward", "clip", "optimizer"} < {row["stage"] for row in rows}
    monkeypatch.delitem(_captured_step.GRAPHS, "cpu")
    assert point.skipped() == "skipped: a step is captured on cuda, not on cpu"
    with pytest.raises(tclab.InputError, match="a step is captured on cuda, not on cpu"):
        tclab.Captured(print)(get("node_mask")(GRAPH).batch(Perturbations.synthetic(GRAPH, 2)))
    monkeypatch.setitem(_captured_step.GRAPHS, "cpu", None)
    assert tclab.Point(capture=True, micro_batch=2).skipped().startswith("skipped: micro_batch is 2")
