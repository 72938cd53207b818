"""The step and its loops: each mode runs what it names and nothing else, seen from outside."""

from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import tclab
from tclab import InputError, masking
from tclab.masking import Batch
from tclab.models import HeteroCell
from tclab.perturbation import Deletions, Perturbations, synthetic_perturbations
from tclab.training._loading import Batches, Loader
from tclab.training._loops import run_lightning, run_plain
from tclab.training._step import Step

LOOPS = {"plain": run_plain, "lightning": run_lightning}


@pytest.fixture(scope="module")
def graph():
    return tclab.CellGraph.synthetic(0.02).without_metabolism().select(4)


def made(graph, model="hetero_cell", strategy="node_mask", **options):
    return Step(tclab.models.get(model), masking.get(strategy)(graph), **options)


def batches(graph, number, *, strategy="node_mask", size=3):
    data = Batches(masking.get(strategy)(graph), synthetic_perturbations(graph, number * size), size)
    return Loader(data, workers=0, pin_memory=False)


class Told:
    """A ledger that writes down what it is told: for each step its stages, in the order of their first entry."""

    def __init__(self):
        self.stages, self.inside = [], None

    def steps(self, items):
        for item in items:
            self.stages.append([])
            yield item

    @contextmanager
    def stage(self, name):
        assert self.inside in (None, "loop"), f"{name} inside {self.inside}"
        around, self.inside = self.inside, name
        if name not in self.stages[-1]:  # once left, a stage may be entered again, to let go of what it took, say
            self.stages[-1].append(name)
        yield
        self.inside = around


TRAINED = {"drawn": 5, "transfers": 5, "views": 5, "forwards": 5, "backwards": 5}
STAGES = ["transfer", "mask", "forward", "loss", "backward", "clip", "optimizer"]
# mode → what runs in five steps, the stages, and whether weights change
MODES = {
    "data": ({"drawn": 5, "transfers": 5}, ["transfer"], False),
    "empty": (
        {"drawn": 5, "transfers": 5, "views": 5, "backwards": 5, "updates": 5},
        ["transfer", "mask", "loss", "backward", "optimizer"],
        False,
    ),
    "model": (TRAINED, ["transfer", "mask", "forward", "loss", "backward"], False),
    "step": ({**TRAINED, "clips": 5, "updates": 5}, STAGES, True),
    "fixed_batch": ({**TRAINED, "drawn": 1, "clips": 5, "updates": 5}, STAGES, True),
}


@pytest.mark.parametrize(
    ("mode", "loop"), [(mode, loop) for mode in MODES for loop in LOOPS if (mode, loop) != ("empty", "plain")]
)
def test_a_mode_runs_what_it_names_in_its_order_and_nothing_else(monkeypatch, graph, mode, loop):
    """Seen from outside the step, by what it calls."""
    expected, stages, moves = MODES[mode]
    seen, views, told = Counter(), [], Told()

    def count(owner, name, what):
        called = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **o: seen.update([what]) or called(*a, **o))

    strategy = masking.get("node_mask")(graph)
    making = strategy.view
    strategy.view = lambda batch: views.append(making(batch)) or views[-1]
    count(Batch, "to", "transfers")
    count(nn.utils, "clip_grad_norm_", "clips")
    count(HeteroCell, "output", "forwards")
    step = Step(tclab.models.get("hetero_cell"), strategy, mode=mode)

    def backward(parameter):
        seen.update(["backwards"])
        assert mode == "empty" or not views[-1]._closed  # a strategy may take its buffers back after it, not before

    def drawing():
        for loaded in batches(graph, 8):
            seen.update(["drawn"])
            yield loaded

    *_, last = step.model.parameters()
    last.register_post_accumulate_grad_hook(backward)
    before = [parameter.detach().clone() for parameter in step.model.parameters()]
    hook = register_optimizer_step_pre_hook(lambda *_: seen.update(["updates"]))
    losses = LOOPS[loop](step, drawing(), steps=5, ledger=told)
    hook.remove()
    assert seen + Counter(views=len(views)) == expected
    assert told.stages == [[*(["loop"] if loop == "lightning" else []), *stages]] * 5
    assert len(losses) == (0 if mode == "data" else 5)
    assert all(view._closed for view in views)
    assert all(parameter.grad is None for parameter in step.model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True)) is moves
    if mode in ("data", "empty"):
        assert sum(p.numel() for p in step.model.parameters()) == 1  # there is no model


def parameters(step):
    return torch.cat([parameter.detach().flatten() for parameter in step.model.parameters()])


@pytest.mark.parametrize("loop", LOOPS)
def test_gradients_that_add_up_are_clipped_and_used_once(graph, loop):
    for clip in (10.0, None):
        told = Told()
        LOOPS[loop](made(graph, accumulate=3, clip=clip), batches(graph, 7), steps=7, ledger=told)
        assert ["optimizer" in stages for stages in told.stages] == [False, False, True, False, False, True, False]
        assert ["clip" in stages for stages in told.stages] == [
            clip is not None and "optimizer" in stages for stages in told.stages
        ]
    options = {"dtype": "float64", "learning_rate": 1e-2}
    whole, halves = made(graph, **options), made(graph, accumulate=2, **options)
    LOOPS[loop](whole, batches(graph, 2, size=4), steps=2)
    LOOPS[loop](halves, batches(graph, 4, size=2), steps=4)
    torch.testing.assert_close(parameters(whole), parameters(halves), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("model", "strategy", "options"),
    [
        ("hetero_cell", "node_mask", {}),
        ("hetero_cell", "gpu_mask_cached", {"optimizer": "foreach"}),
        ("hetero_cell", "node_mask", {"loss": "mle_wass_supcr", "clip": None}),
        ("dango", "indices", {"accumulate": 3, "clip": 0.01, "loss": "dango_pre_then_post", "epoch": 3}),
    ],
)
def test_both_loops_give_the_same_parameters_and_another_seed_gives_others(graph, model, strategy, options):
    def trained(run, seed=0):
        step = made(graph, model, strategy, learning_rate=1e-2, seed=seed, **options)
        losses = run(step, batches(graph, 4, strategy=strategy), steps=4)
        return torch.cat([torch.stack(losses), parameters(step)])

    expected = trained(run_plain)
    assert torch.equal(trained(run_lightning), expected)
    assert torch.equal(trained(run_plain), expected)
    assert not torch.equal(trained(run_plain, seed=1), expected)


def test_gradients_are_clipped_to_the_norm(graph):
    norms = []

    def before_update(optimizer, *_):
        norms.append(nn.utils.get_total_norm([p.grad for p in optimizer.param_groups[0]["params"]]))

    hook = register_optimizer_step_pre_hook(before_update)
    for clip in (None, 1e-3):
        run_plain(made(graph, clip=clip), batches(graph, 1), steps=1)
    hook.remove()
    assert norms[0] > 1e-2
    assert norms[1] == pytest.approx(1e-3, rel=1e-3)


def test_the_three_ways_of_adamw_are_what_they_say_and_agree(graph):
    expected = None
    for name, fused, foreach in (("fused", True, None), ("foreach", None, True), ("plain", False, False)):
        step = made(graph, optimizer=name, dtype="float64", learning_rate=1e-2)
        group = step.optimizer.param_groups[0]
        assert (group["fused"], group["foreach"]) == (fused, foreach)
        run_plain(step, batches(graph, 3), steps=3)
        expected = parameters(step) if expected is None else expected
        torch.testing.assert_close(parameters(step), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loop", LOOPS)
def test_too_few_batches_are_said_so(graph, loop):
    with pytest.raises(InputError, match="the loader gave 2 batches, expected one for each of 3 steps"):
        LOOPS[loop](made(graph), batches(graph, 2), steps=3)


def test_lightning_leaves_no_file_and_says_nothing(graph, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for mode in ("data", "empty", "step"):
        run_lightning(made(graph, mode=mode), batches(graph, 2), steps=2)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("model", "strategy", "options"),
    [
        pytest.param(
            "hetero_cell", "node_mask", {"loss": "mle_wass_supcr", "learning_rate": 3e-3}, marks=pytest.mark.slow
        ),
        ("dango", "indices", {"loss": "dango_pre_then_post", "epoch": 10, "learning_rate": 1e-2}),
    ],
)
def test_a_model_learns_a_planted_signal(model, strategy, options):
    """Each node moves the score by an amount of its own; the loss, and the error on sets never seen, fall."""
    graph = tclab.CellGraph.synthetic(0.01).without_metabolism().select(2)
    nodes = graph.num_nodes["gene"]
    generator = torch.Generator().manual_seed(0)
    effect = torch.randn(nodes, generator=generator)
    rows = [torch.randperm(nodes, generator=generator)[:3].tolist() for _ in range(320)]
    scores = torch.stack([effect[row].sum() for row in rows]) / 3**0.5
    planted = Perturbations(Deletions.of(rows, num_nodes=nodes), scores)
    strategy = masking.get(strategy)(graph)
    data = [loaded.batch for loaded in Loader(Batches(strategy, planted, 16), workers=0, pin_memory=False)]
    train, unseen = data[:15], data[15:]
    step = Step(tclab.models.get(model), strategy, **options)

    def error():
        with torch.no_grad():
            parts = [(step.model(strategy.view(batch)) - batch.target).square().mean() for batch in unseen]
        return torch.stack(parts).mean().item()

    before = error()
    losses = [torch.stack(run_plain(step, train, steps=15)).mean().item() for _ in range(7)]
    assert losses[-1] < 0.25 * losses[0], losses
    assert error() < 0.5 * before
