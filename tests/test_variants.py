"""Graph variants: networks merged into one."""

from dataclasses import replace

import pytest
import torch
from drawn import graphs
from hypothesis import given

import tclab
from tclab import CellGraph, InputError
from tclab.graph import Network
from tclab.sweeps.config._point_inputs import cell_graph_of

SMALL = CellGraph.synthetic(0.03)


def network(name, edges, **more):
    return Network(name, torch.tensor(edges).t(), "n", "n", 4, 4, **more)


def pairs(network):
    return [tuple(pair) for pair in network.edge_index.t().tolist()]


def test_variants_merge_the_six_string_channels_or_all_networks_where_the_first_was():
    assert SMALL.variant("separate") is SMALL
    one = SMALL.variant("merged_string")
    assert list(one.relations) == ["regulatory", "physical", "tflink", "string_merged", "gpr", "stoichiometry"]
    assert not one.networks["string_merged"].directed
    channels = [n for name, n in SMALL.networks.items() if name.startswith("string")]
    found = pairs(one.networks["string_merged"])
    assert (len(channels), len(found)) == (6, len(set(found)))
    assert {frozenset(p) for p in found} == {frozenset(p) for channel in channels for p in pairs(channel)}
    homogeneous = SMALL.variant("homogeneous")
    assert list(homogeneous.relations) == ["all", "gpr", "stoichiometry"]
    assert homogeneous.num_edges == SMALL.num_edges


def string_channels(graph):
    """Return the networks of a graph alone, each under a name that begins with `string`."""
    renamed = {f"string_{name}": replace(network, name=f"string_{name}") for name, network in graph.networks.items()}
    return CellGraph(graph.num_nodes, renamed, graph.deleted_type)


@given(graphs())
def test_merging_is_a_union(graph):
    channels = string_channels(graph)
    if len(channels.networks) < 2:
        with pytest.raises(InputError, match="1 networks to merge into 'string_merged', expected two or more"):
            channels.variant("merged_string")
        return
    union = channels.variant("merged_string").networks["string_merged"]
    assert pairs(union) == sorted({pair for network in channels.networks.values() for pair in pairs(network)})


def test_an_undirected_edge_stored_both_ways_round_is_one():
    for directed, expected in ((False, [(0, 1), (2, 3)]), (True, [(0, 1), (1, 0), (2, 3)])):
        a, b = network("a", [[0, 1], [2, 3]], directed=False), network("b", [[1, 0]], directed=directed)
        graph = string_channels(CellGraph({"n": 4}, {"a": a, "b": b}, "n"))
        assert pairs(graph.variant("merged_string").networks["string_merged"]) == expected


def test_weights_stay_where_every_edge_does_and_go_in_a_union():
    edges = [[0, 1], [1, 2]]
    weighted = network("w", edges, weight=torch.tensor([2.0, 3.0], dtype=torch.float64))
    graph = string_channels(CellGraph({"n": 4}, {"w": weighted, "p": network("p", edges)}, "n"))
    whole = graph.variant("homogeneous").networks["all"]
    assert sorted(zip(pairs(whole), whole.weight.tolist(), strict=True)) == [
        ((0, 1), 1.0), ((0, 1), 2.0), ((1, 2), 1.0), ((1, 2), 3.0)
    ]  # fmt: skip
    assert graph.variant("merged_string").networks["string_merged"].weight is None


def test_neighbour_sums_of_a_homogeneous_graph_are_those_of_its_parts_together():
    x = torch.randn(SMALL.num_nodes["gene"], 5, dtype=torch.float64)
    for strategy in ("node_mask", "edge_mask", "subgraph"):
        apart = tclab.view(SMALL, [[3, 5], []], strategy)
        together = tclab.view(SMALL.variant("homogeneous"), [[3, 5], []], strategy)
        expected = sum(apart.neighbour_sum(name, apart.lift(x)) for name in SMALL.networks)
        torch.testing.assert_close(together.neighbour_sum("all", together.lift(x)), expected)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g: g.variant("homogenous"), "unknown variant 'homogenous'; did you mean 'homogeneous'"),
        (lambda g: g.select(3).variant("merged_string"), "0 networks to merge into 'string_merged'"),
    ],
)
def test_what_cannot_be_merged_is_said_in_one_line(call, words):
    with pytest.raises(InputError, match=words):
        call(SMALL)


@pytest.mark.parametrize(("variant", "networks"), [("separate", 9), ("merged_string", 4), ("homogeneous", 1)])
def test_a_point_is_of_a_variant_that_is_given_as_its_graph(variant, networks):
    point = tclab.Point(graph=SMALL.variant(variant))
    assert len(cell_graph_of(point).networks) == networks
    assert cell_graph_of(point).num_edges == SMALL.variant(variant).num_edges
