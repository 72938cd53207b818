"""Overheads of a training loop: each does what it names, and changes nothing that it must not change."""

from functools import cache

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch_geometric.nn import LayerNorm

import tclab
from tclab import InputError, masking
from tclab.perturbation import Perturbations
from tclab.sweeps._overheads import BatchWideLayerNorm, add_overheads
from tclab.sweeps._point import OVERHEADS, applicable_overheads
from tclab.sweeps.config import with_each_overhead
from tclab.timing import Ledger
from tclab.training._loading import Batches, LoadedBatch
from tclab.training._loops import run_plain
from tclab.training._step import Step

HETERO, PRODUCTION, DANGO = "hetero_cell", "hetero_cell_production", "dango"
STRATEGIES = {HETERO: "node_mask", PRODUCTION: "node_mask", DANGO: "indices"}
BOTH = [(model, overhead) for model in (PRODUCTION, DANGO) for overhead in applicable_overheads(model)]
GRAPH = tclab.CellGraph.synthetic(0.01).without_metabolism().select(2)
GENES = GRAPH.num_nodes["gene"]


def made(model, overheads=(), *, strategy=None, **options):
    strategy = masking.get(strategy or STRATEGIES[model])(GRAPH)
    step = Step(tclab.models.get(model), strategy, **{"dtype": "float64", **options})
    add_overheads(step, overheads)
    return step


def batches(step, number=2, size=3, **options):
    data = Batches(step.strategy, Perturbations.synthetic(GRAPH, number * size), size, **options)
    return [data[i].batch for i in range(number)]


@cache
def trained(model, overheads=(), steps=2):
    step = made(model, overheads, learning_rate=1e-2)
    loaded = [LoadedBatch(batch, None) for batch in batches(step, steps)]
    losses = run_plain(step, loaded, steps=steps)
    return torch.stack(losses), dict(step.model.named_parameters())


def test_every_overhead_belongs_to_a_model_and_there_are_no_others():
    assert {name for model in tclab.models.names() for name in applicable_overheads(model)} == set(OVERHEADS)
    assert {model for overhead in OVERHEADS.values() for model in overhead.models or ()} <= set(tclab.models.names())
    assert applicable_overheads("own") == ["item_logging", "print_loss", "zero_params_loss"]  # those of the loop
    assert all(name in with_each_overhead.__doc__ for name in OVERHEADS)
    assert [name for name, overhead in OVERHEADS.items() if not overhead.exact] == ["batch_wide_layer_norm"]


@pytest.mark.parametrize(("model", "overhead"), BOTH)
def test_an_overhead_changes_the_training_only_where_it_says_so(model, overhead, capsys):
    losses, weights = trained(model)
    own_losses, own_weights = trained(model, (overhead,))
    assert list(own_weights) == list(weights)
    if OVERHEADS[overhead].exact:
        torch.testing.assert_close(own_losses, losses, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(own_weights, weights, rtol=1e-7, atol=1e-9)
    else:
        assert max((own_weights[name] - weights[name]).abs().max() for name in weights) > 1e-4
    if overhead == "print_loss":
        printed = [float(line.removeprefix("Loss: ")) for line in capsys.readouterr().out.splitlines()]
        assert printed == pytest.approx(losses.tolist(), rel=1e-3)


ITEM = "aten::_local_scalar_dense"  # the host waits for a value


@pytest.mark.parametrize(
    ("model", "overhead", "operation", "more"),
    [
        (DANGO, "item_logging", ITEM, 15),
        (HETERO, "isnan_checks", ITEM, 7),  # preprocessor, 3 aggregations, gate, transform, head
        (PRODUCTION, "isnan_checks", ITEM, 8),  # and the local head
        (DANGO, "zero_params_loss", "aten::sum", None),  # one a parameter
        (DANGO, "dense_targets", "aten::zeros_like", 2),  # one for each network
    ],
)
def test_an_overhead_adds_its_operations_to_every_step(model, overhead, operation, more):
    counts = []
    for overheads in ((), (overhead,)):
        step = made(model, overheads, mode="model")
        first, second = batches(step)
        step(first)  # what a first step makes once is no overhead
        with profile(activities=[ProfilerActivity.CPU]) as found:
            step(second)
        counts.append([event.name for event in found.events()].count(operation))
    assert counts[1] - counts[0] == (more or len(list(step.model.parameters())))
    if operation == ITEM:
        assert counts[0] == 0


def test_nan_is_found_in_the_part_that_gives_it():
    step = made(PRODUCTION, ("isnan_checks",))
    with torch.no_grad():
        step.model.layers[1].convolutions[0].norm.bias[0] = float("nan")
    with pytest.raises(RuntimeError, match="NaN in the output of Pairwise"):
        step(batches(step)[0])


@pytest.mark.parametrize(
    ("model", "strategy", "overheads", "part", "rows"),
    [
        # the heads' weights serve without their products, which are made for dense targets alone
        (DANGO, "indices", (), "scorer", [GENES]),
        (DANGO, "indices", (), "heads.0", []),
        (DANGO, "indices", ("dense_targets",), "heads.0", [GENES]),
        (DANGO, "indices", ("second_forward",), "scorer", [GENES, GENES]),
        (DANGO, "indices", ("second_forward", "dense_targets"), "heads.0", [GENES, GENES]),
        (PRODUCTION, "node_mask", (), "preprocessor", [GENES]),
        (PRODUCTION, "node_mask", ("preprocessor_per_sample",), "preprocessor", [4 * GENES]),
        # one way keeps the wild type apart by itself, and its rows too
        (PRODUCTION, "edge_mask", (), "preprocessor", [GENES, GENES]),
        (PRODUCTION, "edge_mask", ("preprocessor_per_sample",), "preprocessor", [GENES, 3 * GENES]),
        (PRODUCTION, "node_mask", (), "layers.0.aggregation", [4 * GENES]),
        (PRODUCTION, "node_mask", ("wild_type_apart",), "layers.0.aggregation", [GENES, 3 * GENES]),
        # sets of three attend each by itself, or all three sets at once
        (PRODUCTION, "node_mask", (), "local_head.attention.0", [3]),
        (PRODUCTION, "node_mask", ("quadratic_attention",), "local_head.attention.0", [1]),
        (DANGO, "indices", (), "hyper_sagnn.attention.0", [3]),
        (DANGO, "indices", ("quadratic_attention",), "hyper_sagnn.attention.0", [1]),
    ],
)
def test_an_overhead_runs_a_part_of_the_model_on_so_many_rows(model, strategy, overheads, part, rows):
    step, found = made(model, overheads, strategy=strategy), []
    step.model.get_submodule(part).register_forward_hook(lambda module, inputs, output: found.append(output.size(0)))
    for batch in batches(step):
        found.clear()
        step(batch)
    assert found == rows  # of a second step


def test_the_loss_stays_what_it_was_and_logging_is_a_stage():
    step = made(HETERO, ("item_logging", "zero_params_loss"), loss="mle_wass_supcr")
    with pytest.raises(InputError, match="the loss is over the whole batch, which comes in slices"):
        step(*batches(step, 1, size=4, micro_batch=2))
    with Ledger() as ledger:
        for batch in ledger.steps(batches(step)):
            step(batch, stage=ledger.stage)
    assert "log" in set(ledger.frame()["stage"])


def test_the_batch_wide_norm_is_pygs_in_its_default_mode():
    torch.manual_seed(0)
    x = torch.randn(40, 8, dtype=torch.float64)
    theirs, lean = LayerNorm(8).double(), nn.LayerNorm(8).double()
    assert theirs.mode == "graph"
    for norm in (theirs, lean):
        norm.weight.data.copy_(torch.linspace(0.5, 2, 8))
        norm.bias.data.copy_(torch.linspace(-1, 1, 8))
    torch.testing.assert_close(BatchWideLayerNorm(lean)(x), theirs(x))
