"""Every exact strategy compiled, in every dtype, and the same bits twice; uncompiled they are in test_equality.py."""

import warnings

import pytest
import torch
from torch._inductor import config as inductor

import tclab
from tclab import masking, models
from tclab.models import HeteroCell
from tclab.training._equivalence import equivalence_reference, norm_error

EXACT = [name for name in masking.names() if masking.get(name).exact and masking.get(name).masks_graph]
SAMPLES = [[3, 4], [7], []]
# norm of the difference over the norm, of predictions and of the whole gradient, against `subgraph` in float64
ONE_A_VIEW = ["subgraph", "edge_mask", "node_mask", "dense", "delta"]  # the others give an edge list like these
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 5e-2}


@pytest.fixture(scope="module")
def graph():
    return tclab.CellGraph.synthetic(0.02, seed=1, metabolism=False).select(["physical"])


def outcome(graph, strategy, dtype, *, compiled=False):
    torch.manual_seed(0)
    model = HeteroCell(graph.num_nodes[graph.deleted_type], list(graph.networks), width=8, layers=2)
    model = model.double() if dtype == "float64" else model
    call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    with tclab.view(graph, SAMPLES, strategy) as view:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            predictions = call(view)
        (predictions.double() * torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)).sum().backward()
    return predictions.detach(), [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("strategy", "dtype"),
    [
        ("node_mask", "float32"),
        *(pytest.param(name, "float32", marks=pytest.mark.slow) for name in ONE_A_VIEW if name != "node_mask"),
        *(pytest.param(name, "bfloat16", marks=pytest.mark.slow) for name in ONE_A_VIEW),
    ],
)
def test_every_strategy_goes_through_compile_whole(graph, strategy, dtype):
    torch._dynamo.reset()
    expected = outcome(graph, "subgraph", "float64")
    outcome(graph, strategy, dtype)  # what a graph makes once is made outside the compiler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own imports
        found = outcome(graph, strategy, dtype, compiled=True)
    assert norm_error(found, expected) <= TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("strategy", EXACT)
def test_two_runs_on_a_cpu_give_the_same_bits(graph, strategy, dtype):
    first, second = (outcome(graph, strategy, dtype) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["node_mask", "delta"])
def test_a_strategy_passes_the_check_compiled_by_the_whole_compiler(strategy):
    """Of two networks by edges Inductor read sums before they were made; see `kernels/_row_ops.py`."""
    graph = tclab.CellGraph.synthetic(0.01, seed=1, metabolism=False).select(2)
    reference = equivalence_reference(models.get("hetero_cell").sized(hidden=16, layers=1), graph)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own imports
        with inductor.patch(compile_threads=1):  # in this process
            found = reference.compare(strategy, compile=True)
    assert found.passed, found
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
