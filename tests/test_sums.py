"""Sums in two bytes: each is added up in float32 and rounded once, so that no error grows with the number of terms."""

from functools import partial

import pytest
import torch

import tclab
from tclab import masking
from tclab.graph import Network
from tclab.message_passing.kernels._row_ops import add_rows, take_rows
from tclab.models import HeteroCell
from tclab.models._dango import _SAGE
from tclab.models._layers import MetabolicConv
from tclab.models._losses import log_cosh
from tclab.perturbation import Deletions, Perturbations

HUB = 6607  # neighbours of the largest hub of yeast's networks; one of 100 has as many roundings
STRATEGIES = {
    name: partial(masking.get(name), **({"limit": 9.0} if name == "delta" else {}))
    for name in masking.names()
    if masking.get(name).masks_graph and not masking.get(name).stores  # what is stored becomes the same view
    if masking.get(name).exact or name == "khop_2"
}
two_bytes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
hubs = pytest.mark.parametrize("leaves", [100, HUB])
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def rounding(dtype):
    """Return the largest relative error of rounding once to a dtype."""
    return torch.finfo(dtype).eps / 2


def star(leaves, *, weight=None):
    """Return a graph of a hub, 0, and its leaves; edges go both ways, and all may have one weight."""
    leaf = torch.arange(1, leaves + 1)
    edge_index = torch.cat([torch.stack([leaf, 0 * leaf]), torch.stack([0 * leaf, leaf])], dim=1)
    weights = None if weight is None else torch.full((2 * leaves,), weight, dtype=torch.float64)
    spokes = Network("spokes", edge_index, "gene", "gene", leaves + 1, leaves + 1, weight=weights)
    return tclab.CellGraph({"gene": leaves + 1}, {"spokes": spokes}, "gene")


def view_of(strategy, graph, samples):
    made = STRATEGIES[strategy](graph)
    deletions = Deletions.of(samples, num_nodes=graph.num_nodes[graph.deleted_type])
    perturbations, indices = Perturbations(deletions, torch.zeros(len(samples))), list(range(len(samples)))
    return made.view(made.batch(perturbations.read(indices), indices))


def positive(*shape, seed=0):
    """Return numbers from 0.5 to 1.5 that bfloat16 and float16 have; sums of them lose nothing by cancellation."""
    drawn = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) + 0.5
    return drawn.bfloat16().double()


def errors(compute, dtype, *inputs):
    """Return the relative errors (norms) of what `compute` returns of inputs in a dtype, and of each gradient."""
    outcomes = []
    for exact in (False, True):
        given = [x.detach().to(torch.float64 if exact else dtype, copy=True).requires_grad_() for x in inputs]
        out = compute(*given)
        out.double().backward(positive(*out.shape, seed=1))
        outcomes.append([out.detach(), *(x.grad for x in given)])
    rounded, right = outcomes
    assert all(part.dtype == dtype for part in rounded)
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(rounded, right, strict=True)]


@two_bytes
@hubs
@every_strategy
@pytest.mark.parametrize("weight", [None, 0.1])
def test_neighbours_and_their_gradients_whatever_the_degree(strategy, leaves, weight, dtype):
    view = view_of(strategy, star(leaves, weight=weight), [[1, 2, 3], [leaves]])

    def hubs_and_leaves(x, self_weight):
        rows = []
        for part in view.with_wild_type():
            (summed,) = part.convolve(["spokes"], part.begin(x), [lambda rows: rows], [self_weight])
            rows.append(part.complete(summed)[part.keep["gene"]])
        return torch.cat(rows)

    def hub(x, self_weight):  # alone, as its row is one among many
        return hubs_and_leaves(x, self_weight)[:1]

    inputs = positive(leaves + 1, 5), positive(1)
    for rows in (hub, hubs_and_leaves):  # of what float16 has
        assert max(errors(lambda x, w, rows=rows: rows(x, w) / 16, dtype, *inputs)) < 4 * rounding(dtype)


@two_bytes
@hubs
@every_strategy
def test_pools_and_their_gradients_whatever_the_number_of_rows(strategy, leaves, dtype):
    view = view_of(strategy, star(leaves), [[1, 2, 3], [leaves]])
    rows = view.lift(torch.zeros(leaves + 1, 1)).size(0)
    for scores in (torch.zeros(rows, 1), positive(rows, 1)):
        ones = view.pool(scores.to(dtype), torch.ones(rows, 2, dtype=dtype))
        assert (ones - 1).abs().max() <= rounding(dtype)
        found = errors(lambda s, x: 1024 * view.pool(s, x), dtype, scores, positive(rows, 5))
        assert max(found) < 2 * rounding(dtype)


@two_bytes
@hubs
@pytest.mark.parametrize("shape", [(), (3,), (64,), (2, 5)])
@pytest.mark.parametrize("ops", [torch.ops.tclab, None], ids=["compiled", "eager"])
def test_rows_by_index_and_their_gradients_whatever_the_number_of_terms(ops, shape, leaves, dtype):
    take, add = (take_rows, add_rows) if ops is None else (ops.take_rows, ops.add_rows)
    index = torch.arange(leaves) % 2
    values = positive(leaves, *shape)
    assert max(errors(lambda x: add(x, index, 3), dtype, values)) < 2 * rounding(dtype)
    assert max(errors(lambda x: take(x, index), dtype, values[:2])) < 2 * rounding(dtype)


@two_bytes
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("strategy", ["subgraph", "edge_mask", "node_mask"])
def test_a_pool_of_what_autocast_left_in_float32_is_one_in_float32(strategy, autocast, dtype):
    view = view_of(strategy, star(HUB), [[1]])
    rows = view.lift(torch.zeros(HUB + 1, 1)).size(0)
    scores, values = positive(rows, 1).float(), positive(rows, 5).float()
    right = view.pool(scores.double(), values.double())
    with torch.autocast("cpu", dtype, enabled=autocast):
        assert (view.pool(scores, values) / right - 1).abs().max() < 1e-5
        assert view.pool(scores.to(dtype), values).dtype == torch.float32


@two_bytes
@pytest.mark.parametrize("strategy", ["subgraph", "edge_mask", "node_mask"])
def test_means_over_a_hub_are_as_exact_as_sums(strategy, dtype):
    """What a layer divides by is in float32: neither dtype has every whole number up to 6,607."""
    leaf = torch.arange(1, HUB + 1)
    edge_index = torch.stack([leaf, 0 * leaf])
    needed = Network("gpr", edge_index, "gene", "reaction", HUB + 1, 1)
    turned = Network("stoichiometry", torch.tensor([[0], [0]]), "reaction", "metabolite", 1, 1)
    relations = {**star(HUB).relations, "gpr": needed, "stoichiometry": turned}
    graph = tclab.CellGraph({"gene": HUB + 1, "reaction": 1, "metabolite": 1}, relations, "gene")
    view = view_of(strategy, graph, [[1]])
    sage, around = _SAGE("spokes", 4), MetabolicConv(4)
    around.norm = torch.nn.Identity()
    for linear in (sage.neighbours, *around.linears):
        torch.nn.init.eye_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
    torch.nn.init.zeros_(sage.root.weight)
    x = positive(HUB + 1, 4)
    rows = {name: view.lift(x.to(t))[view.keep["gene"]] for name, t in (("exact", torch.float64), ("own", dtype))}
    for layer in (sage, around):
        right = layer.double()(view, view.lift(x))[view.keep["gene"]]
        found = layer.to(dtype)(view, view.lift(x.to(dtype)))[view.keep["gene"]]
        assert found.dtype == dtype
        for part, whole in ((found[:1], right[:1]), (found, right)):
            assert (part.double() - whole).norm() / whole.norm() < 8 * rounding(dtype)
    assert rows["own"].dtype == dtype


@pytest.mark.parametrize("strategy", ["subgraph", "edge_mask", "node_mask", "delta"])
def test_a_model_under_autocast_predicts_what_it_predicts_in_fp64(strategy):
    graph = tclab.CellGraph.synthetic(0.1, seed=1, metabolism=False).select(2)
    view = view_of(strategy, graph, [[1, 2, 3], [400], []])
    torch.manual_seed(0)
    model = HeteroCell(graph.num_nodes["gene"], list(graph.networks), width=16, layers=2)
    outcomes = []
    for exact in (False, True):
        model.to(torch.float64 if exact else torch.float32).zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=not exact):
            predicted = model(view)
        assert predicted.dtype == model.transform.weight.dtype
        predicted.mean().backward()
        outcomes.append([predicted.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])])
    for found, right, allowed in zip(*outcomes, (5e-3, 5e-2), strict=True):
        assert (found.double() - right).norm() / right.norm() < allowed


@every_strategy
def test_a_view_says_which_samples_have_nothing_left(strategy):
    network = Network("roads", torch.tensor([[0, 1], [1, 2]]), "gene", "gene", 4, 4, directed=False)
    graph = tclab.CellGraph({"gene": 4}, {"roads": network}, "gene")
    view = view_of(strategy, graph, [[0], [0, 1, 2, 3], [], [3]])  # two hops from 3, which is alone, is nothing
    found = torch.cat([part.emptied() for part in view.with_wild_type()])
    assert found.tolist() == [False, False, True, False, strategy == "khop_2"]


@two_bytes
def test_log_cosh_adds_up_in_float32(dtype):
    near = 0.1 * positive(2, 50) - 0.1
    assert log_cosh(*near.to(dtype)).item() == pytest.approx(log_cosh(*near.to(dtype).double()).item(), rel=1e-4)
