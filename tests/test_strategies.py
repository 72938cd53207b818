"""Strategies: what a batch weighs, where the host waits, what is refused; `delta` gives up."""

from collections import Counter

import pytest
import torch

import tclab
from tclab import CellGraph, InputError, masking
from tclab.masking import Strategy, _on_device
from tclab.models import HeteroCell
from tclab.perturbation import Deletions, Perturbations
from tclab.timing import syncs
from tclab.training._equivalence import EquivalenceReference
from tclab.training._step import Step

SMALL = CellGraph.synthetic(0.03)
NETWORKS = SMALL.without_metabolism()


def batch_of(strategy, graph, size, **options):
    return masking.get(strategy)(graph, **options).batch(Perturbations.synthetic(graph, size))


def test_a_batch_of_28_has_seventeen_bytes_an_edge_of_each_sample_or_none():
    edge_mask = batch_of("edge_mask", NETWORKS, 28)
    assert edge_mask.bytes_of("edge_mask") == 28 * NETWORKS.num_edges == edge_mask.bytes_of("edge") / 17
    assert edge_mask.bytes == sum(tensor.nbytes for tensor in edge_mask.tensors.values())
    node_mask = batch_of("node_mask", NETWORKS, 28)
    assert node_mask.bytes_of("edge") == 0
    assert node_mask.bytes == 4 * 28 + 8 * (84 + 3 * 29)  # scores; genes, and where each sample begins, of three types
    for strategy in ("gpu_mask", "gpu_mask_loop", "gpu_mask_cached"):  # of the seventeen, a mask is one
        shipped = batch_of(strategy, NETWORKS, 4, collation="edges")
        assert [shipped.bytes_of(start) for start in ("edge", "edge_mask")] == [4 * NETWORKS.num_edges * 16, 0]
        assert batch_of(strategy, NETWORKS, 4).bytes_of("edge") == 0


@pytest.mark.parametrize(
    ("strategy", "operations"),
    [
        ("gpu_mask_loop", {"_local_scalar_dense": 5 * 3 * 9}),  # for each sample, node and network
        ("gpu_filter", {"index": 9}),
        *((name, {}) for name in ("node_mask", "gpu_mask", "gpu_mask_cached", "edge_mask")),
    ],
)
def test_the_host_waits_in_the_loop_and_the_filter_alone(strategy, operations):
    batch = batch_of(strategy, NETWORKS, 5)
    step = Step(tclab.models.get("hetero_cell"), masking.get(strategy)(NETWORKS), mode="model")
    step(batch)
    with syncs() as found:
        step(batch)
    assert Counter(wait.operation for wait in found.waits) == operations
    assert [place.split(":")[0] for place in found.places] == [__file__] * len(operations)  # the user's line


def test_the_cached_mask_is_restored_by_close_and_lent_once():
    strategy = masking.get("gpu_mask_cached")(SMALL)
    batch = strategy.batch(Perturbations.synthetic(SMALL, 3))
    with strategy.view(batch) as view:
        mask = view.edges("physical")[1]
        assert not mask.all()
        with pytest.raises(RuntimeError, match="an earlier view of it is still open"):
            strategy.view(batch)
    assert mask.all()
    with pytest.raises(RuntimeError, match="this view is closed"):
        view.neighbour_sum("physical", view.lift(torch.ones(SMALL.num_nodes["gene"], 1)))
    strategy.view(batch).close()


@pytest.mark.parametrize("name", ["gpu_mask", "gpu_mask_loop", "gpu_mask_cached", "gpu_filter"])
def test_edges_are_replicated_for_the_largest_slice_alone(name, monkeypatch):
    sizes, edge_pieces = [], _on_device.edge_pieces
    monkeypatch.setattr(_on_device, "edge_pieces", lambda graph, size: sizes.append(size) or edge_pieces(graph, size))
    strategy, samples = masking.get(name)(SMALL), Perturbations.synthetic(SMALL, 5)
    for size in (3, 3, 1, 3, 1, 2, 5, 1):  # a batch of 7 in slices of 3, two of them; then others
        part = samples.read(range(size))
        with strategy.view(strategy.batch(part)) as view, tclab.view(SMALL, list(part.deletions), "edge_mask") as right:
            x = torch.randn(SMALL.num_nodes["gene"], 2)
            kept = right.keep["gene"]
            sums = (each.neighbour_sum("physical", each.lift(x))[kept] for each in (view, right))
            torch.testing.assert_close(*sums)
    assert sizes == [3, 5]


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_only_what_is_within_some_hops_of_a_deleted_node_is_left_and_all_where_none_is_deleted(hops):
    nodes = torch.arange(12)
    line = CellGraph.from_edges({"next": torch.stack([nodes[:-1], nodes[1:]])}, num_nodes=12)
    samples = [[5], [0, 9], []]
    left = [
        (b, node)
        for b, deleted in enumerate(samples)
        for node in range(12)
        if node not in deleted and min((abs(node - one) for one in deleted), default=0) <= hops
    ]
    assert tclab.view(line, samples, f"khop_{hops}").rows() == left


@pytest.mark.parametrize(("strategy", "collation"), [("node_mask", "lean"), ("subgraph", "pyg"), ("subgraph", "lean")])
def test_a_batch_moves_to_a_device_whole(strategy, collation):
    moved = batch_of(strategy, SMALL, 3, collation=collation).to("meta")
    assert {tensor.device.type for tensor in moved.tensors.values()} == {"meta"}


NOBODY = CellGraph.from_edges({"roads": torch.zeros(2, 0, dtype=torch.int64)}, num_nodes=0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((SMALL, [[1]], "nodemask"), "unknown strategy 'nodemask'; did you mean 'node_mask'"),
        ((SMALL, [[1]], "auto"), "unknown strategy 'auto'"),
        ((SMALL, [[1], [198]]), "sample 1 deletes node 198, expected 0 to 197"),
        ((SMALL, []), "deletions is empty"),
        *(
            ((NOBODY, [[]], name), "the graph has no node nodes, expected one or more")
            for name in ("subgraph", "node_mask", "gpu_mask", "delta")
        ),
    ],
)
def test_what_no_view_can_be_made_of_is_refused(given, words):
    with pytest.raises(InputError, match=words):
        tclab.view(*given)


@pytest.mark.parametrize("name", masking.names())
def test_a_batch_of_no_sample_is_refused(name):
    with pytest.raises(InputError, match="deletions is empty, expected at least one sample"):
        batch_of(name, SMALL, 0)


def test_a_strategy_of_ones_own_is_one_class_and_one_call():
    @masking.register
    class Mine(masking.get("node_mask")):
        name = "mine"

    assert masking.names()[-1] == "mine"
    masking.register(Mine)  # a notebook cell that is run again
    model = HeteroCell.profiling(SMALL)
    torch.testing.assert_close(model(tclab.view(SMALL, [[1], [2]], "mine")), model(tclab.view(SMALL, [[1], [2]])))
    for wrong, words in (
        (type("Other", (Strategy,), {"name": "node_mask"}), "is already a strategy"),
        (type("Nameless", (Strategy,), {}), "has no name"),
        (int, "is not a subclass"),
    ):
        with pytest.raises(InputError, match=words):
            masking.register(wrong)


# ---- delta


def delta_batch(graph, samples, **options):
    deletions = Deletions.of(samples, num_nodes=graph.num_nodes[graph.deleted_type])
    strategy = masking.get("delta")(graph, **options)
    return strategy, strategy.batch(Perturbations(deletions, torch.zeros(len(samples))))


def test_delta_falls_over_to_the_shared_product_where_much_differs():
    nodes = torch.arange(12)
    graph = CellGraph.from_edges({"knows": torch.cartesian_prod(nodes, nodes).t()}, num_nodes=12)
    _, batch = delta_batch(graph, [[1], list(range(8))])
    assert batch.host_values["layers"] == 0  # a batch goes as deep as its worst sample
    assert batch.bytes_of("edge") == 0


def test_delta_carries_what_differs_as_deep_as_pays_or_as_it_is_told():
    ring = torch.arange(200)
    lines = torch.stack([torch.cat([ring, (ring + 1) % 200]), torch.cat([(ring + 1) % 200, ring])])
    graph, failed = tclab.CellGraph.from_edges({"lines": lines}, num_nodes=200, node_type="station"), [[0], [7, 90]]
    layers = {depth: tclab.view(graph, failed, "delta", depth=depth)._layers for depth in (None, 0, 1, 8)}
    assert {depth: len(of_depth) for depth, of_depth in layers.items()} == {None: 3, 0: 0, 1: 1, 8: 8}
    with pytest.raises(tclab.InputError, match="unknown strategy with a depth 'node_mask'; known: delta"):
        tclab.view(graph, failed, "node_mask", depth=2)
    for depth in (-1, 1.5, True, "2"):
        with pytest.raises(tclab.InputError, match=r"depth is .*, expected a whole number, 0 or more"):
            tclab.view(graph, failed, "delta", depth=depth)


def test_under_dropout_delta_makes_every_sample_draw_its_own():
    nodes = torch.arange(20)
    line = CellGraph.from_edges({"next": torch.stack([nodes[:-1], nodes[1:]])}, num_nodes=20)
    model = HeteroCell(20, ["next"], width=8, layers=2, dropout=0.5).train()
    strategy, batch = delta_batch(line, [[], []], limit=1.0)
    first, second = model(strategy.view(batch))
    assert first != second  # the same sample twice: only their dropout tells them apart
    assert EquivalenceReference(lambda graph: model.eval(), line, [[], []], whole=True).compare("delta").passed
