"""`torch.compile`: strategies, layers and operations go through it whole, with the numbers that they have without it.

They are in one file, so that one process of the tests imports the compiler.
"""

import pickle

import drawn
import pytest
import torch
from test_shared_convs import LAYERS, run
from test_spmm import relations

import tclab
from tclab.message_passing.kernels._spmm import _flat
from tclab.training._equivalence import EquivalenceReference
from tclab.training._step import compiled_forward

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own imports
SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def dynamo_forgets():
    torch.compiler.reset()  # it refuses a ninth version of one function


# one strategy for each kind of view
@pytest.mark.parametrize(
    ("strategy", "dtype"),
    [
        ("node_mask", "float32"),
        *(pytest.param(name, "float32", marks=SLOW) for name in ("subgraph", "edge_mask")),
        *(pytest.param(name, "bfloat16", marks=SLOW) for name in ("subgraph", "delta")),
    ],
)
def test_every_kind_of_view_goes_through_whole(strategy, dtype, monkeypatch):
    compiling = torch.compile
    monkeypatch.setattr(torch, "compile", lambda forward: compiling(forward, backend="aot_eager", fullgraph=True))
    graph = tclab.CellGraph.synthetic(0.03, seed=1, metabolism=False).select(2)
    kind = tclab.models.get("hetero_cell").sized(hidden=8, layers=2)
    reference = EquivalenceReference(lambda part: kind.build(part, "off").eval(), graph)
    assert reference.compare(strategy, dtype=dtype, compile=True).passed


# Inductor refuses some operations that are taken for more than 1,024 rows alone, and once read sums of two networks
# before they were made; the check above compares small graphs
@SLOW
@pytest.mark.parametrize("strategy", ["node_mask", "delta"])
def test_inductor_compiles_a_graph_of_more_than_a_thousand_nodes(strategy):
    graph = tclab.CellGraph.synthetic(0.2, seed=1, metabolism=False).select(2)
    model = tclab.models.get("hetero_cell").sized(hidden=8, layers=1).build(graph, "off")
    view = tclab.view(graph, [[1, 2], [3], [5, 6, 7]], strategy)
    outputs = []
    from torch._inductor import config  # here, and not where every process of the tests would import it

    with config.patch(compile_threads=1):  # in this process
        for forward in (model, torch.compile(model, fullgraph=True)):
            out = forward(view)
            outputs.append([out, *torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True)])
    assert len(model.embedding.weight) > 1024
    for eager, compiled in zip(*outputs, strict=True):
        assert eager is compiled is None or torch.allclose(eager, compiled, rtol=1e-3, atol=1e-6)


# a tracing takes a second; the sums alone go through with the view above
@pytest.mark.parametrize("name", [one if one == "gatv2" else pytest.param(one, marks=SLOW) for one in LAYERS])
def test_each_layer_goes_through_whole_with_its_gradient_for_any_graph(name):
    (shared, x, keep), conv, cut = drawn.ring(), LAYERS[name](), torch.tensor([[0, 50, 90], [1, 2, 2]])
    compiled = torch.compile(conv, backend="aot_eager", fullgraph=True)
    for masks in (keep, (None, keep)):  # each is compiled anew
        torch.testing.assert_close(run(compiled, x, shared, masks, cut=cut), run(conv, x, shared, masks, cut=cut))
    # what it needs of a graph that it has not seen, or that forgot what was made, is made while it is traced
    other = tclab.SharedGraph(torch.randint(40, (2, 60), generator=torch.Generator().manual_seed(0)), 40)
    for graph in (other, pickle.loads(pickle.dumps(other))):
        torch.testing.assert_close(compiled(x, graph, keep), conv(x, pickle.loads(pickle.dumps(other)), keep))


def test_a_view_of_a_graph_that_no_call_has_seen_goes_through_whole():
    graph = tclab.CellGraph.synthetic(0.02, seed=1).select(1)  # the metabolism has weights
    model = tclab.models.HeteroCell.profiling(graph, metabolism="used", hidden=8, layers=1)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    view = tclab.view(graph, [[1, 2], [3]])
    first = compiled(view)
    torch.testing.assert_close(first, model(view))


def test_products_and_rows_by_index_are_registered_as_torch_asks():
    _, matrices = relations(5, 5, weighted=True)
    x, w = torch.randn(2, 5, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    keep = torch.rand(2, 5) < 0.7
    for masks in ((None, None), (keep, ~keep)):
        for xs in ([x], [x, x, x]):  # a result each, and the sum of all
            torch.library.opcheck(torch.ops.tclab.spmm, (xs, _flat(matrices), True, w, *masks))
    index = torch.tensor([3, 0, 3, 4])
    for rows in (x[0], x[0].detach().bfloat16().requires_grad_()):
        torch.library.opcheck(torch.ops.tclab.take_rows, (rows, index))
        torch.library.opcheck(torch.ops.tclab.add_rows, (rows[:4], index, 5))


def test_a_step_that_would_go_on_uncompiled_stops_instead(monkeypatch):
    compiling = torch.compile
    monkeypatch.setattr(torch, "compile", lambda forward: compiling(forward, backend="eager", dynamic=False))
    call = compiled_forward(lambda model, view: model * len(view))
    call(torch.ones(()), [0] * 99)  # the first is not compiled
    for size in range(torch._dynamo.config.recompile_limit):
        call(torch.ones(()), [0] * size)
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        call(torch.ones(()), [0] * 1000)
