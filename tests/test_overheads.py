"""Overheads of a training loop: each does what it names, and changes nothing that it must not change."""

import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tclab
from tclab import InputError, Point, masking
from tclab.case_study import OVERHEADS
from tclab.case_study._overheads import StepWithOverheads
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


@pytest.mark.parametrize(("model", "overhead"), BOTH)
def test_no_overhead_changes_the_training(graph, model, overhead):
    with_it, without = made(graph, model, (overhead,)).model, made(graph, model).model
    assert [n for n, _ in with_it.named_parameters()] == [n for n, _ in without.named_parameters()]
    assert all(map(torch.equal, with_it.parameters(), without.parameters()))
    losses, weights = trained(graph, model, ())
    own_losses, own_weights = trained(graph, model, (overhead,))
    torch.testing.assert_close(own_losses, losses, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(own_weights, weights, rtol=1e-7, atol=1e-9)


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
        ("hetero_cell", "isnan_checks", ITEM, 7),  # preprocessor, 3 aggregations, gate, transform, head
        ("hetero_cell_production", "isnan_checks", ITEM, 8),  # and the local head
        ("dango", "zero_params_loss", "aten::sum", None),  # one a parameter
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


PRODUCTION = "hetero_cell_production"


@pytest.mark.parametrize(
    ("model", "strategy", "overheads", "part", "expected"),
    [
        # the rows that a part of the model is called with in two steps, in graphs of all nodes or in samples
        ("dango", "indices", (), "heads.0", [[1], [1]]),
        ("dango", "indices", ("second_forward",), "heads.0", [[1, 1], [1, 1]]),
        (PRODUCTION, "node_mask", (), "preprocessor", [[1], [1]]),
        (PRODUCTION, "node_mask", ("preprocessor_per_sample",), "preprocessor", [[4], [4]]),
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


def test_an_overhead_given_twice_is_refused_and_their_order_is_none():
    with pytest.raises(InputError, match="expected each overhead once"):
        Point(overheads=["print_loss", "print_loss"])
    assert Point(overheads="print_loss") == Point(overheads=("print_loss",))
    assert Point(overheads=["print_loss", "item_logging"]) == Point(overheads=["item_logging", "print_loss"])


IMPORTED = """
import sys
from tclab import Point, masking
from tclab.sweeps.execution._setup import step_of
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
