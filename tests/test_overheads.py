"""Overheads of a training loop: each does what it names, and changes nothing that it must not change."""

import itertools
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn import LayerNorm

import tclab
from tclab import InputError, masking
from tclab.case_study import OVERHEADS
from tclab.case_study._overheads import BatchWideLayerNorm, StepWithOverheads, apply_to_model
from tclab.models._layers import _Attention
from tclab.perturbation import synthetic_perturbations
from tclab.sweeps.config._overhead_names import applicable_overheads, inexact_overheads, validate_overheads
from tclab.timing import syncs
from tclab.training._equivalence import equivalence_reference
from tclab.training._loading import Batches, Loader
from tclab.training._loops import run_plain

SET_UPS = {"hetero_cell_production": "node_mask", "dango": "indices"}
STRATEGIES = {**SET_UPS, "hetero_cell": "node_mask"}
GATED = ("node_mask", "edge_mask", "subgraph")
BOTH = [(model, overhead) for model in SET_UPS for overhead in applicable_overheads(model)]


@pytest.fixture(scope="module")
def graph():
    return tclab.CellGraph.synthetic(0.02).without_metabolism().select(3)


def made(graph, model, overheads=(), **options):
    strategy = masking.get(options.pop("strategy", STRATEGIES[model]))(graph)
    return StepWithOverheads(tclab.models.get(model), strategy, overheads=overheads, **{"dtype": "float64", **options})


def batches(graph, model, number=2, size=3):
    data = Batches(masking.get(STRATEGIES[model])(graph), synthetic_perturbations(graph, number * size), size)
    return [loaded.batch for loaded in Loader(data, workers=0, pin_memory=False)]


def trained(graph, model, overheads, steps=3):
    step = made(graph, model, overheads, learning_rate=1e-2)
    losses = run_plain(step, batches(graph, model, steps), steps=steps)
    return torch.stack(losses), torch.cat([p.detach().flatten() for p in step.model.parameters()])


def test_every_overhead_belongs_to_a_model_and_there_are_no_others():
    assert {name for model in tclab.models.names() for name in applicable_overheads(model)} == set(OVERHEADS)
    assert {model for overhead in OVERHEADS.values() for model in overhead.models or ()} <= set(tclab.models.names())
    assert applicable_overheads("own") == ["item_logging", "print_loss", "zero_params_loss"]  # those of the loop
    assert inexact_overheads(OVERHEADS) == ["batch_wide_layer_norm", "wild_type_once"]


@pytest.mark.parametrize(("model", "overhead"), BOTH)
def test_a_overhead_changes_the_training_only_where_it_says_so(graph, model, overhead):
    with_it, without = made(graph, model, (overhead,)).model, made(graph, model).model
    assert [n for n, _ in with_it.named_parameters()] == [n for n, _ in without.named_parameters()]
    assert all(map(torch.equal, with_it.parameters(), without.parameters()))
    losses, weights = trained(graph, model, ())
    own_losses, own_weights = trained(graph, model, (overhead,))
    if OVERHEADS[overhead].exact:
        torch.testing.assert_close(own_losses, losses, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(own_weights, weights, rtol=1e-7, atol=1e-9)
    else:
        assert (own_weights - weights).abs().max() > 1e-4


def waits(graph, model, overheads):
    step, (batch, _) = made(graph, model, overheads, mode="model"), batches(graph, model)
    step(batch)
    with syncs() as found:
        step(batch)
    return found


@pytest.mark.parametrize("model", SET_UPS)
def test_logging_reads_fifteen_figures_one_by_one(graph, model):
    assert waits(graph, model, ()).count == 0
    assert waits(graph, model, ("item_logging",)).operations == {"_local_scalar_dense": 15}


def test_what_is_logged_is_true(graph):
    step, (batch, _) = made(graph, "dango", ("item_logging",)), batches(graph, "dango")
    with torch.no_grad():
        predictions = step.model(step.strategy.view(batch))
    error = predictions - batch.target
    loss = step(batch)
    assert step.logged["loss"] == loss.item()
    assert step.logged["mse"] == pytest.approx(error.square().mean().item())
    assert step.logged["prediction_max"] == pytest.approx(predictions.max().item())
    assert step.logged["target_mean"] == pytest.approx(batch.target.mean().item(), rel=1e-6)
    assert step.logged["error_rms"] == pytest.approx(error.square().mean().sqrt().item())


def test_each_steps_loss_is_printed(graph, capsys):
    losses, _ = trained(graph, "dango", ("print_loss",))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for line, loss in zip(lines, losses.tolist(), strict=True):
        assert float(line.removeprefix("Loss: ")) == pytest.approx(loss, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "parts", "aggregation"),
    [
        ("hetero_cell", 7, "Sum"),  # preprocessor, 3 aggregations, gate, transform, head
        ("hetero_cell_production", 8, "Pairwise"),  # and the local head
    ],
)
def test_nan_is_asked_for_after_each_part_and_found(graph, model, parts, aggregation):
    found = waits(graph, model, ("isnan_checks",))
    assert found.operations == {"_local_scalar_dense": parts}
    step = made(graph, model, ("isnan_checks",))
    with torch.no_grad():
        step.model.layers[1].convolutions[0].norm.bias[0] = float("nan")
    with pytest.raises(RuntimeError, match=f"NaN in the output of {aggregation}"):
        step(batches(graph, model)[0])


class Operations(TorchDispatchMode):
    def __init__(self, name):
        super().__init__()
        self.name, self.shapes = name, []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op._schema.name == self.name:
            self.shapes.append(tuple(args[0].shape))
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("model", SET_UPS)
def test_zero_times_every_parameter_is_a_sum_a_parameter(graph, model):
    sums = []
    for overheads in ((), ("zero_params_loss",)):
        step, (batch, other) = made(graph, model, overheads), batches(graph, model)
        step(batch)  # after a step no parameter has a gradient: all are added again
        with Operations("aten::sum") as found:
            step(other)
        sums.append(len(found.shapes))
    assert sums[1] - sums[0] == len(list(step.model.parameters()))


def forwards(graph, model, overheads, module_of, strategy=None):
    """Return the number of rows with which a part of the model was called, call by call, in one step."""
    step = made(graph, model, overheads, **({} if strategy is None else {"strategy": strategy}))
    rows = []
    module_of(step.model).register_forward_hook(lambda module, inputs, output: rows.append(output.size(0)))
    data = Batches(masking.get(strategy or SET_UPS[model])(graph), synthetic_perturbations(graph, 3), 3)
    step(data[0].batch)
    return rows


def test_dangos_second_forward_is_a_whole_one(graph):
    nodes = graph.num_nodes["gene"]

    def head(model):
        return model.heads[0]

    assert forwards(graph, "dango", (), head) == [nodes]
    assert forwards(graph, "dango", ("second_forward",), head) == [nodes] * 2
    assert forwards(graph, "dango", ("second_forward",), lambda m: m.hyper_sagnn.score) == [3, 3]


def test_dense_targets_are_made_in_each_step(graph):
    made_dense = []
    for overheads in ((), ("dense_targets",)):
        step = made(graph, "dango", overheads)
        for batch in batches(graph, "dango"):
            with Operations("aten::_to_dense") as found:
                step(batch)
            made_dense.append(len(found.shapes))
    assert made_dense == [0, 0, 3, 3]  # one a network, each step


@pytest.mark.parametrize("model", SET_UPS)
def test_quadratic_attention_grows_with_the_square_of_the_batch(graph, model):
    for overheads, sizes in (((), [3, 6]), (("quadratic_attention",), [9, 18])):
        for batch_size, most in zip((3, 6), sizes, strict=True):
            step, seen = made(graph, model, overheads), []
            for module in step.model.modules():
                if isinstance(module, _Attention):
                    module.register_forward_hook(lambda m, inputs, o, seen=seen: seen.append(inputs[1].shape))
            step(batches(graph, model, 1, size=batch_size)[0])
            expected = (batch_size, 3, 3) if not overheads else (1, most, most)
            assert [tuple(shape) for shape in seen] == [expected] * 2


def test_the_preprocessor_runs_on_every_copy(graph):
    nodes = graph.num_nodes["gene"]

    def preprocessor(model):
        return model.preprocessor

    overhead = ("preprocessor_per_sample",)
    assert forwards(graph, "hetero_cell_production", (), preprocessor) == [nodes]
    assert forwards(graph, "hetero_cell_production", overhead, preprocessor) == [4 * nodes]
    # one way keeps the wild type apart by itself, and its rows too
    assert forwards(graph, "hetero_cell_production", (), preprocessor, "edge_mask") == [nodes, nodes]
    assert forwards(graph, "hetero_cell_production", overhead, preprocessor, "edge_mask") == [nodes, 3 * nodes]


def test_the_wild_type_is_encoded_together_apart_or_once(graph):
    nodes = graph.num_nodes["gene"]
    for overheads, expected in (
        ((), [[4 * nodes]] * 2),
        (("wild_type_apart",), [[nodes, 3 * nodes]] * 2),
        (("wild_type_once",), [[nodes, 3 * nodes], [3 * nodes]]),
    ):
        step, rows = made(graph, "hetero_cell_production", overheads), []
        step.model.layers[0].aggregation.register_forward_hook(
            lambda m, i, output, rows=rows: rows.append(output.size(0))
        )
        for batch, wanted in zip(batches(graph, "hetero_cell_production"), expected, strict=True):
            rows.clear()
            step(batch)
            assert rows == wanted, overheads


def test_the_batch_wide_norm_is_pygs_in_its_default_mode(graph):
    torch.manual_seed(0)
    x = torch.randn(40, 8, dtype=torch.float64)
    theirs = LayerNorm(8).double()
    assert theirs.mode == "graph"
    lean = nn.LayerNorm(8).double()
    for norm in (theirs, lean):
        norm.weight.data.copy_(torch.linspace(0.5, 2, 8))
        norm.bias.data.copy_(torch.linspace(-1, 1, 8))
    torch.testing.assert_close(BatchWideLayerNorm(lean)(x), theirs(x))


def test_with_the_batch_wide_norm_a_prediction_depends_on_its_neighbours(graph):
    for overheads, depends in (((), False), (("batch_wide_layer_norm",), True)):
        model = made(graph, "hetero_cell_production", overheads).model
        with torch.no_grad():
            alone = model(tclab.view(graph, [[1, 2, 3]]))[0]
            among = model(tclab.view(graph, [[1, 2, 3], [4, 5, 6], list(range(20, 60))]))[0]
        assert ((alone - among).abs() > 1e-6).item() is depends
    assert not any(isinstance(m, nn.LayerNorm) for m in model.modules())


OF_THE_MODEL = [name for name, o in OVERHEADS.items() if "hetero_cell_production" in (o.models or ())]


@pytest.mark.parametrize(
    ("overhead", "strategy"),
    [
        ("wild_type_apart", "edge_mask"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in zip(OF_THE_MODEL, itertools.cycle(GATED))),
    ],
)
def test_the_check_tells_an_exact_overhead_from_one_that_is_not(graph, overhead, strategy):
    reference = equivalence_reference(
        tclab.models.get("hetero_cell_production"), graph, change=partial(apply_to_model, overheads=(overhead,))
    )
    result = reference.compare(strategy)
    assert result.passed is OVERHEADS[overhead].exact
    assert result.passed or result.fp64_error > 1e-3


def test_bad_overheads_are_one_clear_line():
    with pytest.raises(InputError, match="unknown overhead 'isnan_check'; did you mean 'isnan_checks'"):
        validate_overheads(["isnan_check"])
    with pytest.raises(InputError, match="expected each overhead once"):
        validate_overheads(["print_loss", "print_loss"])
    with pytest.raises(InputError, match="expected one of them"):
        validate_overheads(["wild_type_once", "wild_type_apart"])
    assert validate_overheads("print_loss") == ("print_loss",)
    assert validate_overheads(["print_loss", "item_logging"]) == validate_overheads(["item_logging", "print_loss"])


IMPORTED = """
import sys
from tclab import Point, masking
from tclab.sweeps.execution._setup import step_of

for overheads, slow in (((), False), (("print_loss", "isnan_checks"), True)):
    point = Point(scale=0.01, networks=1, device="cpu", overheads=overheads)
    step = step_of(point, masking.get("node_mask")(point.cell_graph()))
    assert ("tclab.case_study" in sys.modules) is slow, overheads
    assert (type(step).__name__ == "StepWithOverheads") is slow
assert not {"altair", "ipywidgets", "tclab.lab"} & set(sys.modules)
"""


def test_what_overheads_do_is_imported_for_a_point_that_has_some_and_draws_nothing(root):
    subprocess.run([sys.executable, "-c", IMPORTED], cwd=root, check=True)
