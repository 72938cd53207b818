"""Overheads of a training loop: each does what it names, and changes nothing that it must not change."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn import LayerNorm

import tclab
from tclab import Point, masking
from tclab.case_study import OVERHEADS
from tclab.case_study._overheads import BatchWideLayerNorm, StepWithOverheads
from tclab.models._layers import _Attention
from tclab.perturbation import synthetic_perturbations
from tclab.sweeps.config._overhead_names import applicable_overheads
from tclab.training._loading import Batches, Loader
from tclab.training._loops import run_plain

SET_UPS = {"hetero_cell_production": "node_mask", "dango": "indices"}
STRATEGIES = {**SET_UPS, "hetero_cell": "node_mask"}
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
    assert [name for name, overhead in OVERHEADS.items() if not overhead.exact] == ["batch_wide_layer_norm"]


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


class Operations(TorchDispatchMode):
    """Counts the calls of one operation."""

    def __init__(self, name):
        super().__init__()
        self.name, self.count = name, 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.count += op._schema.name == self.name
        return op(*args, **(kwargs or {}))


ITEM = "aten::_local_scalar_dense"  # the host waits for a value


@pytest.mark.parametrize(
    ("model", "overhead", "operation", "more"),
    [
        ("dango", "item_logging", ITEM, 15),
        ("hetero_cell_production", "item_logging", ITEM, 15),
        ("hetero_cell", "isnan_checks", ITEM, 7),  # preprocessor, 3 aggregations, gate, transform, head
        ("hetero_cell_production", "isnan_checks", ITEM, 8),  # and the local head
        ("dango", "zero_params_loss", "aten::sum", None),  # one a parameter
        ("hetero_cell_production", "zero_params_loss", "aten::sum", None),
        ("dango", "dense_targets", "aten::_to_dense", 3),  # one a network
    ],
)
def test_a_overhead_adds_its_operations_to_every_step(graph, model, overhead, operation, more):
    counts = []
    for overheads in ((), (overhead,)):
        step, (first, second) = made(graph, model, overheads, mode="model"), batches(graph, model)
        step(first)  # what a first step makes once is no overhead
        with Operations(operation) as found:
            step(second)
        counts.append(found.count)
    assert counts[1] - counts[0] == (more or len(list(step.model.parameters())))
    if operation == ITEM:
        assert counts[0] == 0


@pytest.mark.parametrize(("model", "aggregation"), [("hetero_cell", "Sum"), ("hetero_cell_production", "Pairwise")])
def test_nan_is_found_in_the_part_that_gives_it(graph, model, aggregation):
    step = made(graph, model, ("isnan_checks",))
    with torch.no_grad():
        step.model.layers[1].convolutions[0].norm.bias[0] = float("nan")
    with pytest.raises(RuntimeError, match=f"NaN in the output of {aggregation}"):
        step(batches(graph, model)[0])


PRODUCTION = "hetero_cell_production"


@pytest.mark.parametrize(
    ("model", "strategy", "overheads", "part", "expected"),
    [
        # the rows that a part of the model is called with in two steps, in graphs of all nodes or in samples
        ("dango", "indices", (), "heads.0", [[1], [1]]),
        ("dango", "indices", ("second_forward",), "heads.0", [[1, 1], [1, 1]]),
        (PRODUCTION, "node_mask", (), "preprocessor", [[1], [1]]),
        (PRODUCTION, "node_mask", ("preprocessor_per_sample",), "preprocessor", [[4], [4]]),
        # one way keeps the wild type apart by itself, and its rows too
        (PRODUCTION, "edge_mask", (), "preprocessor", [[1, 1], [1, 1]]),
        (PRODUCTION, "edge_mask", ("preprocessor_per_sample",), "preprocessor", [[1, 3], [1, 3]]),
        (PRODUCTION, "node_mask", (), "layers.0.aggregation", [[4], [4]]),
        (PRODUCTION, "node_mask", ("wild_type_apart",), "layers.0.aggregation", [[1, 3], [1, 3]]),
    ],
)
def test_a_overhead_runs_a_part_of_the_model_on_so_many_copies(graph, model, strategy, overheads, part, expected):
    step, rows = made(graph, model, overheads, strategy=strategy), []
    step.model.get_submodule(part).register_forward_hook(lambda module, inputs, output: rows.append(output.size(0)))
    data = Batches(masking.get(strategy)(graph), synthetic_perturbations(graph, 6), 3)
    for i, copies in enumerate(expected):
        rows.clear()
        step(data[i].batch)
        assert rows == [n * graph.num_nodes["gene"] for n in copies]


def test_what_is_logged_is_true(graph):
    step, (batch, _) = made(graph, "dango", ("item_logging",)), batches(graph, "dango")
    with torch.no_grad():
        predictions = step.model(step.strategy.view(batch))
    error = predictions - batch.target
    loss = step(batch)
    assert step.logged["loss"] == loss.item()
    assert step.logged["mse"] == pytest.approx(error.square().mean().item())
    assert step.logged["prediction_max"] == pytest.approx(predictions.max().item())
    assert step.logged["error_rms"] == pytest.approx(error.square().mean().sqrt().item())


def test_each_steps_loss_is_printed(graph, capsys):
    losses, _ = trained(graph, "dango", ("print_loss",))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for line, loss in zip(lines, losses.tolist(), strict=True):
        assert float(line.removeprefix("Loss: ")) == pytest.approx(loss, rel=1e-3)


@pytest.mark.parametrize("model", SET_UPS)
def test_quadratic_attention_grows_with_the_square_of_the_batch(graph, model):
    for size in (3, 6):
        for overheads, expected in (((), (size, 3, 3)), (("quadratic_attention",), (1, 3 * size, 3 * size))):
            step, seen = made(graph, model, overheads), []
            for module in step.model.modules():
                if isinstance(module, _Attention):
                    module.register_forward_hook(lambda m, inputs, o, seen=seen: seen.append(tuple(inputs[1].shape)))
            step(batches(graph, model, 1, size=size)[0])
            assert seen == [expected] * 2


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


def test_overheads_have_no_order_and_each_is_taken_on_once():
    assert Point(overheads=["print_loss", "print_loss"]) == Point(overheads="print_loss")
    assert Point(overheads="print_loss") == Point(overheads=("print_loss",))
    assert Point(overheads=["print_loss", "item_logging"]) == Point(overheads=["item_logging", "print_loss"])


IMPORTED = """
import sys
from tclab import Point, masking
from tclab.sweeps.execution._measure import step_of
from tclab.sweeps.config._point_inputs import cell_graph_of

for overheads, slow in (((), False), (("print_loss", "isnan_checks"), True)):
    point = Point(scale=0.01, networks=1, device="cpu", overheads=overheads)
    step = step_of(point, masking.get("node_mask")(cell_graph_of(point)))
    assert ("tclab.case_study" in sys.modules) is slow, overheads
    assert (type(step).__name__ == "StepWithOverheads") is slow
assert not {"altair", "ipywidgets", "tclab.lab"} & set(sys.modules)
"""


def test_what_overheads_do_is_imported_for_a_point_that_has_some_and_draws_nothing(root):
    subprocess.run([sys.executable, "-c", IMPORTED], cwd=root, check=True)
