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
    channels = [n for name, n in SMALL.networks.items() if name.startswith("string")]
    assert len(channels) == 6
    found = {frozenset(p) for p in pairs(one.networks["string_merged"])}  # undirected
    assert found == {frozenset(p) for channel in channels for p in pairs(channel)}
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
    else:
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


def test_a_point_is_of_a_variant_that_is_given_as_its_graph():
    merged = SMALL.variant("merged_string")
    assert cell_graph_of(tclab.Point(graph=merged)).networks.keys() == merged.networks.keys()
    with pytest.raises(InputError, match="unknown variant 'homogenous'; did you mean 'homogeneous'"):
        SMALL.variant("homogenous")
