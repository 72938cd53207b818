"""Graph variants: networks merged into one."""

import pytest
import torch
from drawn import graphs
from hypothesis import given
from hypothesis import strategies as st

import tclab
from tclab import CellGraph, InputError
from tclab.graph import Network


@pytest.fixture(scope="module")
def small():
    return CellGraph.synthetic(0.03)


def pairs(network):
    return [tuple(pair) for pair in network.edge_index.t().tolist()]


def test_the_six_string_channels_become_one_where_the_first_was(small):
    one = small.variant("merged_string")
    assert list(one.relations) == ["regulatory", "physical", "tflink", "string_merged", "gpr", "stoichiometry"]
    channels = [n for name, n in small.networks.items() if name.startswith("string")]
    assert len(channels) == 6
    found = pairs(one.networks["string_merged"])
    assert len(found) == len(set(found))
    assert {frozenset(p) for p in found} == {frozenset(p) for channel in channels for p in pairs(channel)}
    assert not one.networks["string_merged"].directed
    assert one.networks["tflink"] is small.networks["tflink"]


def test_a_homogeneous_graph_keeps_every_edge_with_its_type(small):
    one = small.variant("homogeneous")
    (network,) = one.networks.values()
    assert network.num_edges == small.num_edges
    for place, old in enumerate(small.networks.values()):
        assert sorted(pairs(old)) == sorted(
            tuple(p) for p in network.edge_index[:, network.edge_type == place].t().tolist()
        )
    assert one.metabolism is not None
    assert small.variant("separate") is small


@given(graphs(), st.data())
def test_merging_is_a_union_and_types_take_it_apart_again(graph, data):
    names = list(graph.networks)
    chosen = data.draw(st.permutations(names))
    if len(names) < 2:
        with pytest.raises(InputError, match="1 networks to merge into 'one', expected two or more"):
            graph.merged(chosen, name="one")
        return
    union = graph.merged(chosen, name="one").networks["one"]
    assert pairs(union) == sorted({pair for name in names for pair in pairs(graph.networks[name])})
    typed = graph.merged(chosen, name="one", edge_types=True).networks["one"]
    for place, name in enumerate(chosen):
        own = typed.edge_index[:, typed.edge_type == place]
        assert torch.equal(own, graph.networks[name].edge_index)


def test_an_undirected_edge_stored_both_ways_round_is_one():
    def network(name, edges, directed):
        return Network(name, torch.tensor(edges).t(), "n", "n", 4, 4, directed=directed)

    for directed, expected in ((False, [(0, 1), (2, 3)]), (True, [(0, 1), (1, 0), (2, 3)])):
        relations = {"a": network("a", [[0, 1], [2, 3]], False), "b": network("b", [[1, 0]], directed)}
        graph = CellGraph({"n": 4}, relations, "n")
        assert pairs(graph.merged(["a", "b"], name="a").networks["a"]) == expected


def test_weights_stay_with_typed_edges_and_go_in_a_union():
    edges = torch.tensor([[0, 1], [1, 2]])
    weighted = Network("w", edges, "n", "n", 3, 3, weight=torch.tensor([2.0, 3.0], dtype=torch.float64))
    graph = CellGraph({"n": 3}, {"w": weighted, "p": Network("p", edges, "n", "n", 3, 3)}, "n")
    typed = graph.merged(["p", "w"], name="one", edge_types=True).networks["one"]
    assert {(t, w) for t, w in zip(typed.edge_type.tolist(), typed.weight.tolist(), strict=True)} == {
        (0, 1.0),
        (1, 2.0),
        (1, 3.0),
    }
    assert graph.merged(["p", "w"], name="one").networks["one"].weight is None


def test_predictions_of_a_homogeneous_sum_are_those_of_its_parts(small):
    """A neighbour sum over all edges is the sum of the neighbour sums over each network's, deletions included."""
    x = torch.randn(small.num_nodes["gene"], 5, dtype=torch.float64)
    for strategy in ("node_mask", "edge_mask", "subgraph"):
        apart = tclab.view(small, [[3, 5], []], strategy)
        together = tclab.view(small.variant("homogeneous"), [[3, 5], []], strategy)
        expected = sum(apart.neighbour_sum(name, apart.lift(x)) for name in small.networks)
        torch.testing.assert_close(together.neighbour_sum("all", together.lift(x)), expected)


def test_edge_types_go_along_everywhere(small, tmp_path):
    one = small.without_metabolism().variant("homogeneous")
    network = one.networks["all"]
    one.save(tmp_path / "graph.npz")
    read = CellGraph.from_file(tmp_path / "graph.npz")
    assert torch.equal(read.networks["all"].edge_type, network.edge_type)
    assert read.fingerprint() == one.fingerprint()
    kept = torch.arange(20)
    part = one.induced({"gene": kept}).networks["all"]
    inside = (network.edge_index < 20).all(0)
    assert torch.equal(part.edge_type, network.edge_type[inside])
    other = Network("all", network.edge_index, "gene", "gene", network.num_sources, network.num_targets,
                    edge_type=network.edge_type.flip(0))  # fmt: skip
    assert other.fingerprint() != network.fingerprint()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g: g.variant("homogenous"), "unknown variant 'homogenous'; did you mean 'homogeneous'"),
        (lambda g: g.select(3).variant("merged_string"), "0 networks to merge into 'string_merged'"),
        (lambda g: g.merged(["physical", "tflnk"], name="one"), "unknown network 'tflnk'; did you mean 'tflink'"),
        (lambda g: g.merged(["physical", "tflink"], name="gpr"), "another relation called 'gpr'"),
        (lambda g: g.variant("homogeneous").with_self_loops(), "add self-loops before networks are merged"),
        (
            lambda g: Network("x", torch.zeros(2, 3, dtype=torch.int64), "n", "n", 1, 1, edge_type=torch.zeros(3)),
            r"edge_type is torch.float32, expected torch.int64",
        ),
    ],
)
def test_what_cannot_be_merged_is_said_in_one_line(small, call, words):
    with pytest.raises(InputError, match=words):
        call(small)


def test_self_loops_of_merged_networks_are_one_a_node_or_one_a_network():
    graph = CellGraph.synthetic(0.02).with_self_loops().without_metabolism()
    nodes = graph.num_nodes["gene"]

    def loops(network):
        return int((network.edge_index[0] == network.edge_index[1]).sum())

    assert loops(graph.variant("merged_string").networks["string_merged"]) == nodes
    assert loops(graph.variant("homogeneous").networks["all"]) == 9 * nodes


@pytest.mark.parametrize(
    ("networks", "variant", "merged_networks"),
    [
        (1, "homogeneous", "1"),
        (3, "merged_string", "none"),
        (("physical", "string12_0_fusion"), "merged_string", "1"),
        (3, "homogeneous", None),
        (None, "merged_string", None),
    ],
)
def test_a_point_without_two_networks_to_merge_is_skipped(networks, variant, merged_networks):
    point = tclab.Point(scale=0.02, networks=networks, variant=variant)
    if merged_networks is None:
        assert point.skipped() is None
        point.cell_graph()
    else:
        words = f"skipped: variant {variant} merges two or more networks, and there is {merged_networks}"
        assert point.skipped() == words
        with pytest.raises(InputError, match="networks to merge"):
            point.cell_graph()
