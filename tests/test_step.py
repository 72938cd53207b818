"""The step and its loops: each mode runs what it names and nothing else, seen from outside."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import tclab
from tclab import InputError, masking
from tclab.perturbation import Deletions, Perturbations
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
    data = Batches(masking.get(strategy)(graph), Perturbations.synthetic(graph, number * size), size)
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


STAGES = ["transfer", "mask", "forward", "loss", "backward", "clip", "optimizer"]
# mode → its stages, in their order
MODES = {
    "data": ["transfer"],
    "empty": ["transfer", "mask", "loss", "backward", "optimizer"],
    "model": ["transfer", "mask", "forward", "loss", "backward"],
    "step": STAGES,
    "fixed_batch": STAGES,
}


@pytest.mark.parametrize(
    ("mode", "loop"), [(mode, loop) for mode in MODES for loop in LOOPS if (mode, loop) != ("empty", "plain")]
)
def test_a_mode_runs_what_it_names_in_its_order_and_nothing_else(graph, mode, loop):
    views, drawn, told = [], [], Told()
    strategy = masking.get("node_mask")(graph)
    making = strategy.view
    strategy.view = lambda batch: views.append(making(batch)) or views[-1]
    step = Step(tclab.models.get("hetero_cell"), strategy, mode=mode)
    *_, last = step.model.parameters()

    @last.register_post_accumulate_grad_hook
    def backward(parameter):  # a strategy may take its buffers back after it, not before
        assert mode == "empty" or not views[-1]._closed

    before = parameters(step)
    drawing = (drawn.append(loaded) or loaded for loaded in batches(graph, 8))
    losses = LOOPS[loop](step, drawing, steps=5, ledger=told)
    assert len(drawn) == (1 if mode == "fixed_batch" else 5)
    assert len(views) == len(losses) == (0 if mode == "data" else 5)
    assert told.stages == [[*(["loop"] if loop == "lightning" else []), *MODES[mode]]] * 5
    assert all(view._closed for view in views)
    assert all(parameter.grad is None for parameter in step.model.parameters())
    assert torch.equal(before, parameters(step)) is (mode not in ("step", "fixed_batch"))
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
    run_lightning(made(graph), batches(graph, 2), steps=2)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_model_learns_a_planted_signal():
    """Each node moves the score by an amount of its own; the loss, and the error on sets never seen, fall."""
    graph = tclab.CellGraph.synthetic(0.01).without_metabolism().select(2)
    nodes = graph.num_nodes["gene"]
    effect = torch.randn(nodes)
    rows = [torch.randperm(nodes)[:3].tolist() for _ in range(320)]
    scores = torch.stack([effect[row].sum() for row in rows]) / 3**0.5
    planted = Perturbations(Deletions.of(rows, num_nodes=nodes), scores)
    step = made(graph, "dango", "indices", loss="dango_pre_then_post", epoch=10, learning_rate=1e-2)
    data = list(Loader(Batches(step.strategy, planted, 16), workers=0, pin_memory=False))
    train, unseen = data[:15], data[15:]

    def error():
        with torch.no_grad():
            batches = [loaded.batch for loaded in unseen]
            parts = [(step.model(step.strategy.view(batch)) - batch.target).square().mean() for batch in batches]
        return torch.stack(parts).mean().item()

    before = error()
    losses = [torch.stack(run_plain(step, train, steps=15)).mean().item() for _ in range(7)]
    assert losses[-1] < 0.25 * losses[0], losses
    assert error() < 0.5 * before


# ---- a batch in slices; every strategy so, with a loss that is a mean: test_equality.py; accumulated: test_ranks.py


def test_slices_train_as_the_whole_batch_does(graph):
    """With a loss of which a part is of no sample: DANGO's reconstruction, beside its error."""

    def trained(model, strategy, loss, micro_batch=None):
        step = made(graph, model, strategy, dtype="float64", loss=loss, epoch=5, learning_rate=1e-2)
        data = Batches(step.strategy, Perturbations.synthetic(graph, 10), 5, micro_batch=micro_batch)
        return torch.cat([torch.stack(run_plain(step, Loader(data, workers=0), steps=2)), parameters(step)])

    whole = trained("dango", "indices", "dango")
    for micro_batch in (1, 2, 5):
        torch.testing.assert_close(trained("dango", "indices", "dango", micro_batch), whole, rtol=1e-9, atol=1e-9)
    with pytest.raises(InputError, match="the loss is over the whole batch"):
        trained("hetero_cell", "node_mask", "mle_wass_supcr", 2)


def test_a_batch_in_slices_is_whole_again_wherever_it_goes(graph):
    samples, loading = Perturbations.synthetic(graph, 5), masking.get("edge_mask")(graph)
    whole = Batches(loading, samples, 5)[0].batch
    here = Batches(loading, samples, 5, micro_batch=2)
    (sent,) = Loader(here, workers=1)
    for batch in (here[0].batch, sent.batch):
        assert [part.size for part in batch.slices] == [2, 2, 1]
        assert batch.size == whole.size == 5
        assert torch.equal(batch.to("cpu").target, whole.target)
        assert batch.bytes_of("edge") == whole.bytes_of("edge")  # each sample's edges, however they are cut
        assert batch.bytes == sum(part.bytes for part in batch.slices)
    for ours, theirs in zip(sent.batch.slices, here[0].batch.slices, strict=True):
        assert all(torch.equal(ours.tensors[name], theirs.tensors[name]) for name in theirs.tensors)
