"""`delta`: what differs from the wild type, and nothing else, is carried."""

import pytest
import torch

import tclab
from tclab.masking._delta import Delta
from tclab.models import HeteroCell
from tclab.perturbation import Deletions, Perturbations
from tclab.training._equivalence import EquivalenceReference


def delta_view(graph, samples, **options):
    strategy = Delta(graph, **options)
    return strategy.view(strategy.batch(perturbations(graph, samples)))


def perturbations(graph, samples):
    deletions = Deletions.of(samples, num_nodes=graph.num_nodes[graph.deleted_type])
    return Perturbations(deletions, torch.zeros(len(samples)))


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
        (x,) = view.convolve(["next"], x, [torch.relu], weight)
        rows.append(len(x))
    # after 3 (or 10, 18), node 4 (or 11, 19) differs, then 5 (or 12); the last of 3 layers completes all rows
    assert rows == [20, 20 + 3, 20 + 2 + 3, 20 * 3]


def test_it_falls_over_to_the_shared_product_where_much_differs():
    nodes = 12
    everyone = torch.cartesian_prod(torch.arange(nodes), torch.arange(nodes)).t()
    graph = tclab.CellGraph.from_edges({"knows": everyone}, num_nodes=nodes)
    strategy = Delta(graph)
    removed = strategy.removed_by(perturbations(graph, [[1]]).deletions)
    assert len(strategy.encode([0], removed)) == 1  # one node's edges are few; after that, all nodes differ
    batch = strategy.batch(perturbations(graph, [[1], list(range(8))]))
    assert batch.host_values["layers"] == 0  # a batch goes as deep as its worst sample
    assert batch.edge_bytes == 0


def test_dropout_makes_every_sample_draw_its_own(line):
    torch.manual_seed(0)
    model = HeteroCell(20, ["next"], width=8, layers=2, dropout=0.5).train()
    samples = [[], []]
    torch.manual_seed(1)
    first, second = model(delta_view(line, samples, limit=1.0))
    assert first != second  # the same sample twice: only their dropout tells them apart
    assert EquivalenceReference(model.eval(), line, samples).compare("delta").passed
