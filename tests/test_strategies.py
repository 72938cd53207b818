import pytest
import torch

import tclab
from tclab import InputError, masking
from tclab.masking import Strategy
from tclab.models import HeteroCell
from tclab.perturbation import synthetic_perturbations
from tclab.timing import syncs
from tclab.training._step import Step


def batch_of(strategy, graph, size, **options):
    perturbations = synthetic_perturbations(graph, size)
    loading = masking.get(strategy)(graph, **options)
    return loading.batch(perturbations)


def test_bytes_of_a_batch_of_28_at_full_size(full):
    graph = full.without_metabolism()
    edge_mask = batch_of("edge_mask", graph, 28)
    assert edge_mask.edge_bytes == 1_153_524_120
    assert edge_mask.mask_bytes == 28 * graph.num_edges == edge_mask.edge_bytes / 17
    assert edge_mask.bytes == pytest.approx(1.155e9, rel=1e-3)
    assert edge_mask.bytes == sum(tensor.nbytes for tensor in edge_mask.tensors.values())
    del edge_mask
    node_mask = batch_of("node_mask", graph, 28)
    assert node_mask.deletions["gene"].nodes.numel() == 84
    assert node_mask.edge_bytes == node_mask.mask_bytes == 0
    assert node_mask.bytes == 4 * 28 + 8 * (84 + 3 * 29)  # scores; genes, and where each sample begins, of three types


@pytest.fixture(scope="module")
def small():
    return tclab.CellGraph.synthetic(0.03)


@pytest.mark.parametrize("strategy", ["gpu_mask", "gpu_mask_loop", "gpu_mask_cached"])
def test_shipping_the_edges_costs_sixteen_of_seventeen_bytes(strategy, small):
    graph = small.without_metabolism()
    shipped = batch_of(strategy, graph, 4, ship_edges=True)
    assert (shipped.edge_bytes, shipped.mask_bytes) == (4 * graph.num_edges * 16, 0)
    assert batch_of(strategy, graph, 4).edge_bytes == 0


def waits(strategy, graph, batch_size):
    batch = batch_of(strategy, graph, batch_size)
    step = Step(tclab.models.get("hetero_cell"), masking.get(strategy)(graph), mode="model")
    step(batch)
    with syncs() as found:
        step(batch)
    return found


def test_the_host_waits_once_for_each_sample_node_and_network_in_the_loop(small):
    graph = small.without_metabolism()
    found = waits("gpu_mask_loop", graph, 5)
    assert found.operations == {"_local_scalar_dense": 5 * 3 * 9}
    (place,) = found.places  # the user's line: all of it happens in one call of a step
    assert place.split(":")[0] == __file__


@pytest.mark.parametrize(
    ("strategy", "times"),
    [("node_mask", 0), ("gpu_mask", 0), ("gpu_mask_cached", 0), ("edge_mask", 0), ("gpu_filter", 9)],
)
def test_the_vectorised_ways_let_the_host_go_on(strategy, times, small):
    assert waits(strategy, small.without_metabolism(), 5).count == times


def test_the_cached_mask_is_restored_by_close_and_lent_once(small):
    strategy = masking.get("gpu_mask_cached")(small)
    batch = batch_of("gpu_mask_cached", small, 3)
    with strategy.view(batch) as view:
        mask = view.edges("physical")[1]
        assert not mask.all()
        with pytest.raises(RuntimeError, match="an earlier view of it is still open"):
            strategy.view(batch)
    assert mask.all()
    with pytest.raises(RuntimeError, match="this view is closed"):
        view.neighbour_sum("physical", view.lift(torch.ones(small.num_nodes["gene"], 1)))
    strategy.view(batch).close()


def test_unknown_strategies_name_the_nearest():
    graph = tclab.CellGraph.synthetic(0.01)
    with pytest.raises(tclab.InputError, match="unknown strategy 'nodemask'; did you mean 'node_mask'"):
        tclab.view(graph, [[1]], "nodemask")
    with pytest.raises(tclab.InputError, match=r"is called .fastest."):
        tclab.view(graph, [[1]], "auto")


@pytest.mark.parametrize(
    ("deletions", "words"),
    [
        ([[1], [66]], "sample 1 deletes node 66, expected 0 to 65"),
        ([[-1]], "sample 0 deletes node -1"),
        ([[2, 3, 2]], "deletes a node twice"),
        ([], "deletions is empty"),
    ],
)
def test_bad_deletions_are_named(deletions, words):
    with pytest.raises(tclab.InputError, match=words):
        tclab.view(tclab.CellGraph.synthetic(0.01), deletions)


def test_a_strategy_of_ones_own_is_one_class_and_one_call(small):
    @masking.register
    class Mine(masking.get("node_mask")):
        name = "mine"

    assert masking.names()[-1] == "mine"
    masking.register(Mine)  # a notebook cell that is run again
    model = HeteroCell.profiling(small)
    torch.testing.assert_close(model(tclab.view(small, [[1], [2]], "mine")), model(tclab.view(small, [[1], [2]])))
    with pytest.raises(tclab.InputError, match="is already a strategy"):
        masking.register(type("Other", (Strategy,), {"name": "node_mask"}))
    with pytest.raises(tclab.InputError, match="has no name"):
        masking.register(type("Nameless", (Strategy,), {}))
    with pytest.raises(tclab.InputError, match="is no subclass"):
        masking.register(int)


@pytest.mark.parametrize("name", ["subgraph", "node_mask", "gpu_mask", "delta"])
def test_a_graph_without_nodes_is_refused(name):
    graph = tclab.CellGraph.from_edges({"roads": torch.zeros(2, 0, dtype=torch.int64)}, num_nodes=0)
    with pytest.raises(tclab.InputError, match="the graph has no node nodes, expected one or more"):
        tclab.view(graph, [[]], name)


@pytest.mark.parametrize("deletions", [[3, 17], torch.tensor([3, 17])])
def test_a_sample_that_is_no_list_is_refused(small, deletions):
    with pytest.raises(InputError, match=r"sample 0 is .*3.*, expected a list of the nodes it deletes"):
        tclab.view(small, deletions)
