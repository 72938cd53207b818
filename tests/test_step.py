"""The step and its loops: each mode runs what it names and nothing else, seen from outside."""

import dataclasses
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import tclab
from tclab import InputError, masking
from tclab.masking import Batch
from tclab.perturbation import Deletions, Perturbations, synthetic_perturbations
from tclab.timing import Ledger
from tclab.timing._ledger import NullLedger
from tclab.timing._ledger_rows import TOLERANCE
from tclab.training._loading import Batches, Loader
from tclab.training._loops import run_lightning, run_plain, step_task
from tclab.training._step import Step

LOOPS = {"plain": run_plain, "lightning": run_lightning}
SET_UPS = [("hetero_cell", "node_mask"), ("dango", "indices")]


@pytest.fixture(scope="module")
def graph():
    return tclab.CellGraph.synthetic(0.02).without_metabolism().select(4)


def made(graph, model, strategy, **options):
    return Step(tclab.models.get(model), masking.get(strategy)(graph), **options)


def batches(graph, strategy, number, size=3):
    data = Batches(masking.get(strategy)(graph), synthetic_perturbations(graph, number * size), size)
    return Loader(data, workers=0, pin_memory=False)


class Seen:
    """What was seen to run, counted from outside the step."""

    def __init__(self):
        self.drawn = self.transfers = self.models = self.views = self.forwards = 0
        self.backwards = self.clips = self.updates = 0
        self.open_in_backward = []
        self.closed_after = []
        self.moved = []

    def counts(self):
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


def observed(monkeypatch, graph, mode, loop, steps=5, strategy="node_mask"):
    """Run a mode in a loop and return what was seen, whether any weight moved, and the step."""
    seen, views = Seen(), []
    to, clip = Batch.to, nn.utils.clip_grad_norm_

    def moving(self, *args, **options):
        seen.transfers += 1
        seen.moved.append(self)
        return to(self, *args, **options)

    def clipping(*args, **options):
        seen.clips += 1
        return clip(*args, **options)

    monkeypatch.setattr(Batch, "to", moving)
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", clipping)

    def building(*args):
        seen.models += 1
        model = kind.build(*args)
        model.preprocessor.register_forward_hook(lambda *_: setattr(seen, "forwards", seen.forwards + 1))
        return model

    kind = tclab.models.get("hetero_cell")
    viewing = masking.get(strategy)(graph)
    making = viewing.view

    def view(batch):
        seen.views += 1
        views.append(making(batch))
        return views[-1]

    viewing.view = view
    step = Step(dataclasses.replace(kind, build=building), viewing, mode=mode)
    *_, last = step.model.parameters()

    def backward(parameter):
        seen.backwards += 1
        seen.open_in_backward.append(not views[-1]._closed if views else None)

    last.register_post_accumulate_grad_hook(backward)
    before = [parameter.detach().clone() for parameter in step.model.parameters()]

    def drawing():
        for loaded in batches(graph, strategy, steps + 3):
            seen.drawn += 1
            yield loaded

    updating = register_optimizer_step_pre_hook(lambda *_: setattr(seen, "updates", seen.updates + 1))
    try:
        seen.losses = LOOPS[loop](step, drawing(), steps=steps)
    finally:
        updating.remove()
    assert all(view._closed for view in views)
    moved = any(not torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True))
    return seen, moved, step


NOTHING = dict.fromkeys(["drawn", "transfers", "models", "views", "forwards", "backwards", "clips", "updates"], 0)
LOADED = {**NOTHING, "drawn": 5, "transfers": 5}
TRAINED = {**LOADED, "models": 1, "views": 5, "forwards": 5, "backwards": 5}
EXPECTED = {
    "data": (LOADED, False),
    "empty": ({**LOADED, "views": 5, "backwards": 5, "updates": 5}, False),
    "model": (TRAINED, False),
    "step": ({**TRAINED, "clips": 5, "updates": 5}, True),
    "fixed_batch": ({**TRAINED, "drawn": 1, "clips": 5, "updates": 5}, True),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("mode", EXPECTED)
def test_a_mode_runs_what_it_names_and_nothing_else(monkeypatch, graph, mode, loop):
    if (mode, loop) == ("empty", "plain"):
        return  # a point refuses it
    seen, moved, step = observed(monkeypatch, graph, mode, loop)
    counts, moves = EXPECTED[mode]
    assert seen.counts() == counts
    assert moved is moves
    assert len(seen.losses) == (0 if mode == "data" else 5)
    assert all(parameter.grad is None for parameter in step.model.parameters())
    if counts["forwards"]:
        assert seen.open_in_backward == [True] * 5  # a strategy may take its buffers back after it, not before
    sent = {id(batch) for batch in seen.moved}
    assert len(sent) == (1 if mode == "fixed_batch" else 5)
    if mode in ("data", "empty"):
        assert sum(p.numel() for p in step.model.parameters()) == 1  # there is no model


STAGES = {
    "data": ["data_wait", "transfer"],
    "empty": ["data_wait", "transfer", "mask", "loss", "backward", "optimizer"],
    "model": ["data_wait", "transfer", "mask", "forward", "loss", "backward"],
    "step": ["data_wait", "transfer", "mask", "forward", "loss", "backward", "clip", "optimizer"],
}
STAGES["fixed_batch"] = STAGES["step"]
AROUND = {"plain": [], "lightning": ["loop"]}  # what a loop itself does, around the stages from `transfer` on


class Told:
    """A ledger that writes down what it is told."""

    def __init__(self):
        self.stages = []
        self.inside = None

    def steps(self, items):
        iterator = iter(items)
        while True:
            self.stages.append([])
            with self.stage("data_wait"):
                item = next(iterator, None)
            if item is None:
                self.stages.pop()
                return
            yield item

    @contextmanager
    def stage(self, name):
        assert self.inside in (None, "loop"), f"{name} inside {self.inside}"
        around, self.inside = self.inside, name
        self.stages[-1].append(name)
        yield
        self.inside = around


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("mode", STAGES)
def test_stages_are_told_in_their_order_and_one_that_does_not_run_is_not(graph, mode, loop):
    if (mode, loop) == ("empty", "plain"):
        return
    told = Told()
    LOOPS[loop](
        made(graph, "hetero_cell", "node_mask", mode=mode), batches(graph, "node_mask", 4), steps=3, ledger=told
    )
    # once left, a stage may be entered again in its step: to let go of what it took, say
    wait, *others = STAGES[mode]
    assert [list(dict.fromkeys(stages)) for stages in told.stages] == [[wait, *AROUND[loop], *others]] * 3


def test_without_clipping_there_is_no_such_stage(graph):
    told = Told()
    step = made(graph, "hetero_cell", "node_mask", clip=None)
    run_plain(step, batches(graph, "node_mask", 1), steps=1, ledger=told)
    assert [list(dict.fromkeys(stages)) for stages in told.stages] == [[*STAGES["step"][:-2], "optimizer"]]


@pytest.mark.parametrize("loop", LOOPS)
def test_gradients_that_add_up_are_clipped_and_used_once(graph, loop):
    told = Told()
    step = made(graph, "hetero_cell", "node_mask", accumulate=3)
    LOOPS[loop](step, batches(graph, "node_mask", 7), steps=7, ledger=told)
    assert ["optimizer" in stages for stages in told.stages] == [False, False, True, False, False, True, False]
    assert ["clip" in stages for stages in told.stages] == ["optimizer" in stages for stages in told.stages]


def parameters(step):
    return [parameter.detach() for parameter in step.model.parameters()]


LOOP_SET_UPS = [*SET_UPS, ("hetero_cell", "gpu_mask_cached")]
LOOP_OPTIONS = [
    {},
    {"accumulate": 3, "clip": 0.01},
    {"dtype": "bfloat16", "optimizer": "foreach"},
    {"loss": "mle_wass_supcr", "clip": None},
]


# each option and each set-up in one quick case at least, the rest of their product among the slow ones
@pytest.mark.parametrize(
    ("model", "strategy", "options"),
    [
        pytest.param(*set_up, options, marks=[] if (i + j) % 3 == 0 else pytest.mark.slow, id=f"{'-'.join(set_up)}-{i}")
        for i, options in enumerate(LOOP_OPTIONS)
        for j, set_up in enumerate(LOOP_SET_UPS)
    ],
)
def test_lightning_and_the_plain_loop_give_the_same_parameters_after_20_steps(graph, model, strategy, options):
    if model == "dango" and "loss" in options:
        options = {"loss": "dango_pre_then_post", "epoch": 3}
    steps, losses = [], []
    for run in LOOPS.values():
        steps.append(made(graph, model, strategy, learning_rate=1e-2, **options))
        losses.append(torch.stack(run(steps[-1], batches(graph, strategy, 20), steps=20)))
    assert torch.equal(*losses)
    for ours, theirs in zip(parameters(steps[0]), parameters(steps[1]), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("loss", ["log_cosh", "mle_wass_supcr"])
def test_the_same_seed_gives_the_same_loss_curve_and_another_another(graph, loop, loss):
    def curve(seed):
        step = made(graph, "hetero_cell", "node_mask", seed=seed, loss=loss)
        return torch.stack(LOOPS[loop](step, batches(graph, "node_mask", 6), steps=6))

    first, again, other = curve(0), curve(0), curve(1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_two_batches_that_add_up_are_one_of_twice_the_size(graph):
    one = made(graph, "hetero_cell", "node_mask", dtype="float64", learning_rate=1e-2)
    two = made(graph, "hetero_cell", "node_mask", dtype="float64", learning_rate=1e-2, accumulate=2)
    run_plain(one, batches(graph, "node_mask", 2, size=4), steps=2)
    run_plain(two, batches(graph, "node_mask", 4, size=2), steps=4)
    for ours, theirs in zip(parameters(one), parameters(two), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_gradients_are_clipped_to_the_norm(graph):
    norms = []
    hook = register_optimizer_step_pre_hook(
        lambda optimizer, *_: norms.append(
            torch.stack([p.grad.norm() for p in optimizer.param_groups[0]["params"]]).norm().item()
        )
    )
    try:
        for clip in (None, 1e-3):
            step = made(graph, "hetero_cell", "node_mask", clip=clip)
            run_plain(step, batches(graph, "node_mask", 1), steps=1)
    finally:
        hook.remove()
    assert norms[0] > 1e-2
    assert norms[1] == pytest.approx(1e-3, rel=1e-3)


def test_the_three_ways_of_adamw_are_what_they_say_and_agree(graph):
    found = []
    for name, fused, foreach in (("fused", True, None), ("foreach", None, True), ("plain", False, False)):
        step = made(graph, "hetero_cell", "node_mask", optimizer=name, dtype="float64", learning_rate=1e-2)
        group = step.optimizer.param_groups[0]
        assert (group["fused"], group["foreach"]) == (fused, foreach)
        run_plain(step, batches(graph, "node_mask", 3), steps=3)
        found.append(parameters(step))
    for fused, *others in zip(*found, strict=True):
        for other in others:
            torch.testing.assert_close(fused, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loop", LOOPS)
def test_too_few_batches_are_said_so(graph, loop):
    with pytest.raises(InputError, match="the loader gave 2 batches, expected one for each of 3 steps"):
        LOOPS[loop](made(graph, "hetero_cell", "node_mask"), batches(graph, "node_mask", 2), steps=3)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.clock
def test_the_ledger_of_a_loop_adds_up(graph, loop):
    for _ in range(3):  # a machine that stops us between two clocks is no fault of the ledger's, and rare
        with Ledger(cuda=False) as ledger:
            step = made(graph, "hetero_cell", "node_mask")
            LOOPS[loop](step, batches(graph, "node_mask", 5), steps=5, ledger=ledger)
        assert len(ledger) == 5
        if ledger.adds_up():
            break
    assert ledger.accounted["host"] == pytest.approx(1.0, abs=TOLERANCE), ledger.accounted
    seconds = ledger.seconds()
    assert {stage: len(times) for stage, times in seconds.items()} == dict.fromkeys(
        [*STAGES["step"], *AROUND[loop], "other", "step"], 5
    )


def test_lightning_leaves_no_file_and_says_nothing(graph, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for mode in ("data", "empty", "step"):
        run_lightning(made(graph, "hetero_cell", "node_mask", mode=mode), batches(graph, "node_mask", 2), steps=2)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore")  # Lightning's own, about workers and about its versions of torch
def test_raw_batches_cross_lightnings_transfer_in_a_trainer_of_ones_own(graph, monkeypatch, tmp_path):
    import lightning.pytorch as pl

    monkeypatch.chdir(tmp_path)
    step = made(graph, "hetero_cell", "node_mask", learning_rate=1e-2)
    module = step_task()(step, NullLedger())
    assert isinstance(module, pl.LightningModule)
    crossed = []
    transfer = module.transfer_batch_to_device
    module.transfer_batch_to_device = lambda batch, *a: crossed.append(type(batch).__name__) or transfer(batch, *a)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(module, batches(graph, "node_mask", 3))
    assert crossed == ["LoadedBatch"] * 6
    assert trainer.global_step == 6
    assert len(module.losses) == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "steps"}, "unknown mode 'steps'; did you mean 'step'"),
        ({"optimizer": "fuse"}, "unknown optimizer 'fuse'; did you mean 'fused'"),
        ({"clip": 0.0}, "clip is 0.0, expected a norm above 0, or None"),
        ({"accumulate": 0}, "accumulate is 0, expected"),
        ({"overheads": ["item_loging"]}, "unknown overhead 'item_loging'; did you mean 'item_logging'"),
    ],
)
def test_bad_options_of_a_step_are_one_clear_line_where_a_point_is_made(options, words):
    with pytest.raises(InputError, match=words):
        tclab.Point(**options)


def test_a_loss_that_the_model_does_not_have_is_one_clear_line(graph):
    with pytest.raises(InputError, match="unknown loss of hetero_cell 'dango'"):
        made(graph, "hetero_cell", "node_mask", loss="dango")


@pytest.mark.slow
def test_hetero_cell_learns_a_planted_signal_from_mle_wass_supcr():
    """Each node moves the score by an amount of its own; the loss, and the error on sets never seen, fall."""
    graph = tclab.CellGraph.synthetic(0.01).without_metabolism().select(2)
    nodes = graph.num_nodes["gene"]
    generator = torch.Generator().manual_seed(0)
    effect = torch.randn(nodes, generator=generator)
    rows = [torch.randperm(nodes, generator=generator)[:3].tolist() for _ in range(320)]
    scores = torch.stack([effect[row].sum() for row in rows]) / 3**0.5
    planted = Perturbations(Deletions.of(rows, num_nodes=nodes), scores)
    strategy = masking.get("node_mask")(graph)
    data = [loaded.batch for loaded in Loader(Batches(strategy, planted, 16), workers=0, pin_memory=False)]
    train, unseen = data[:15], data[15:]
    step = made(graph, "hetero_cell", "node_mask", loss="mle_wass_supcr", learning_rate=3e-3)

    def error():
        with torch.no_grad():
            parts = [(step.model(strategy.view(batch)) - batch.target).square().mean() for batch in unseen]
        return torch.stack(parts).mean().item()

    before = error()
    losses = [torch.stack(run_plain(step, train, steps=15)).mean().item() for _ in range(7)]
    assert losses[-1] < 0.25 * losses[0], losses
    assert error() < 0.5 * before
