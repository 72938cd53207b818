"""`delta`: what differs from the wild type, and nothing else, is carried."""

from itertools import chain

import drawn
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tclab
from tclab.masking._delta import Delta
from tclab.message_passing._shared_view import link_of
from tclab.message_passing.kernels._delta_sums import Carried, delta_sums, spread
from tclab.message_passing.kernels._shared_sums import Link, flat_of
from tclab.models import HeteroCell
from tclab.perturbation import Deletions, Perturbations
from tclab.training._equivalence import FP64_TOLERANCE, EquivalenceReference, relative_error


def delta_view(graph, samples, **options):
    strategy = Delta(graph, **options)
    return strategy.view(strategy.batch(perturbations(graph, samples)))


def perturbations(graph, samples):
    deletions = Deletions.of(samples, num_nodes=graph.num_nodes[graph.deleted_type])
    return Perturbations(deletions, torch.zeros(len(samples)))


def outcome(model, view):
    model.zero_grad()
    predictions = model(view)
    (predictions * torch.linspace(-1.0, 2.0, len(predictions), dtype=predictions.dtype)).sum().backward()
    return predictions.detach(), [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


@given(data=st.data(), graph=drawn.graphs())
def test_it_is_exact_to_whatever_depth_it_carries_differences(data, graph):
    samples = data.draw(drawn.deletions(graph))
    torch.manual_seed(0)
    model = HeteroCell(
        graph.num_nodes[graph.deleted_type],
        list(graph.networks),
        width=4,
        layers=data.draw(st.integers(1, 4)),
        aggregation=data.draw(st.sampled_from(["sum", "mean", "cross_attention", "pairwise"])),
        metabolism="used" if graph.metabolism else "off",
    ).double()
    expected = outcome(model, tclab.view(graph, samples, "subgraph"))
    for depth in range(5):
        found = outcome(model, delta_view(graph, samples, depth=depth, limit=data.draw(st.sampled_from([0.3, 1.0]))))
        assert relative_error(found, expected) <= FP64_TOLERANCE, depth


@pytest.fixture(scope="module")
def line():
    """Twenty nodes in a line: after each layer, one node more differs."""
    nodes = torch.arange(20)
    return tclab.CellGraph.from_edges({"next": torch.stack([nodes[:-1], nodes[1:]])}, num_nodes=20)


def test_the_rows_that_differ_grow_by_one_node_a_layer(line):
    (view,) = delta_view(line, [[3], [10, 18]], depth=3, limit=1.0).with_wild_type()
    x = view.begin(torch.randn(20, 2))
    rows = [len(x)]
    weight = [torch.ones(1)]
    for _ in range(3):
        (x,) = view.convolved(["next"], x, [torch.relu], self_weights=weight)
        rows.append(len(x))
    # after 3 (or 10, 18), node 4 (or 11, 19) differs, then 5 (or 12); the last of 3 layers completes all rows
    assert rows == [20, 20 + 3, 20 + 2 + 3, 20 * 3]


def in_float64(link):
    return Link(*(csr._replace(values=csr.values.double()) for csr in link))


@pytest.mark.slow
def test_its_operations_are_registered_as_torch_asks():
    edge_index = torch.tensor([[0, 0, 1, 2, 3], [1, 1, 2, 3, 4]])
    weight = torch.tensor([0.1, 2.0, -1.0, 3.0, 0.7], dtype=torch.float64)
    networks = {
        name: tclab.graph.Network(name, edge_index.roll(by, 1), "person", "person", 5, 5, weight=weight)
        for name, by in (("likes", 0), ("knows", 2))
    }
    (view,) = delta_view(tclab.CellGraph({"person": 5}, networks, "person"), [[0], [2]], limit=9.0).with_wild_type()
    wild = [link_of(network, torch.float64) for network in networks.values()]
    for layer in view._layers:
        x = torch.randn(5 + len(layer.nodes), 3, dtype=torch.float64, requires_grad=True)
        weights = torch.randn(2, dtype=torch.float64, requires_grad=True)
        carried = [Carried(*map(in_float64, pair)) for pair in layer.carried.values()]
        links = list(map(in_float64, layer.spread.values()))
        changes = in_float64(layer.changes)

        def layer(x, weights, changes=changes, carried=carried, links=links):
            return spread(delta_sums(x, wild, changes, carried, self_weights=weights), links)

        assert torch.autograd.gradcheck(layer, (x, weights))
        flat = flat_of([*wild, changes, *chain.from_iterable(carried)])
        torch.library.opcheck(torch.ops.tclab.delta_sums, (x, weights, flat))
        parts = [part.detach().requires_grad_() for part in torch.ops.tclab.delta_sums(x, weights, flat)]
        assert all(len(part) > 5 for part in parts)  # rows that differ are among them
        torch.library.opcheck(torch.ops.tclab.spread, (parts, flat_of(links)))
        first = delta_sums(x, wild, changes, carried, self_weights=weights)[0]  # of the other there is no gradient
        assert torch.autograd.gradcheck(
            lambda x, weights, given=(wild, changes, carried): delta_sums(x, *given, self_weights=weights)[0],
            (x, weights),
        )
        assert torch.autograd.grad(first.sum(), weights)[0][1] == 0.0
        (gradient,) = torch.autograd.grad(layer(x, weights).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()


def test_it_falls_over_to_the_shared_product_where_much_differs():
    nodes = 12
    everyone = torch.cartesian_prod(torch.arange(nodes), torch.arange(nodes)).t()
    graph = tclab.CellGraph.from_edges({"knows": everyone}, num_nodes=nodes)
    strategy = Delta(graph)
    removed = strategy.removed_by(perturbations(graph, [[1]]).deletions)
    (encoded,) = strategy.encode([0], removed)
    assert len(encoded) == 1  # one node's edges are few; after that, all nodes differ
    batch = strategy.batch(perturbations(graph, [[1], list(range(8))]))
    assert batch.host_values["layers"] == 0  # a batch goes as deep as its worst sample
    assert batch.edge_bytes == 0


def test_weights_and_duplicates_travel_with_the_edges():
    edge_index = torch.tensor([[0, 0, 1, 2, 3], [1, 1, 2, 3, 4]])
    weight = torch.tensor([0.1, 2.0, -1.0, 3.0, 0.7], dtype=torch.float64)
    network = tclab.graph.Network("likes", edge_index, "person", "person", 5, 5, weight=weight)
    graph = tclab.CellGraph({"person": 5}, {"likes": network}, "person")
    model = HeteroCell(5, ["likes"], width=4, layers=3).double()
    samples = [[0], [2], []]
    expected = outcome(model, tclab.view(graph, samples, "subgraph"))
    found = outcome(model, delta_view(graph, samples, limit=1.0))
    assert relative_error(found, expected) <= FP64_TOLERANCE


def test_dropout_makes_every_sample_draw_its_own(line):
    torch.manual_seed(0)
    model = HeteroCell(20, ["next"], width=8, layers=2, dropout=0.5).train()
    samples = [[], []]
    torch.manual_seed(1)
    first, second = model(delta_view(line, samples, limit=1.0))
    assert first != second  # the same sample twice: only their dropout tells them apart
    assert EquivalenceReference(model.eval(), line, samples).compare("delta").passed
