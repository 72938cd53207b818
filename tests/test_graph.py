import csv

import drawn
import pytest
import torch
from hypothesis import given
from torch_geometric.data import HeteroData

from tclab import CellGraph, InputError
from tclab.graph import Network
from tclab.graph._synthetic_graph import NETWORK_SIZES
from tclab.perturbation import Deletions
from tclab.perturbation._deletions import removed_by


def test_full_size_has_the_published_nodes_and_edges(full):
    assert full.num_nodes["gene"] == 6_607
    assert full.num_edges == 2_423_370
    for name, size in NETWORK_SIZES.items():
        edges = full.networks[name].edge_index
        assert edges.size(1) == size.edges
        assert edges.unique().numel() == size.nodes
        assert not (edges[0] == edges[1]).any()
        assert (edges[0] * 6_607 + edges[1]).unique().numel() == size.edges
        if not size.directed:  # stored once, in one direction
            assert (edges[0] < edges[1]).all()


def test_sizes_are_those_of_the_reference_table(root):
    path = root.parent / "shared" / "reference" / "networks.csv"
    if not path.exists():
        pytest.skip("the folder ../shared/reference with published counts is not here")
    with path.open() as file:
        for row in csv.DictReader(file):
            size = NETWORK_SIZES[row["network"]]
            assert (size.nodes, size.edges) == (int(row["nodes"]), int(row["edges"]))
            assert size.directed == (row["directed"] == "true")


def test_metabolism_has_its_real_size(full):
    metabolism = full.metabolism
    assert (full.num_nodes["reaction"], full.num_nodes["metabolite"]) == (7_122, 2_806)
    assert metabolism.gpr.num_edges == 5_450
    assert metabolism.stoichiometry.num_edges == 26_325
    assert metabolism.gpr.edge_index[1].unique().numel() == 4_881  # reactions with genes
    assert (metabolism.stoichiometry.weight != 0).all()


def test_a_small_graph_has_a_small_metabolism_in_which_a_reaction_has_as_many_genes(full):
    small = CellGraph.synthetic(0.02)
    of_small, of_full = small.metabolism, full.metabolism
    assert (small.num_nodes["reaction"], small.num_nodes["metabolite"]) == (142, 56)
    assert small.num_nodes["reaction"] / small.num_nodes["gene"] == pytest.approx(7_122 / 6_607, rel=0.01)
    for name in ("gpr", "stoichiometry"):
        mine, theirs = getattr(of_small, name), getattr(of_full, name)
        assert mine.num_edges / 142 == pytest.approx(theirs.num_edges / 7_122, rel=0.01)
    assert of_small.stoichiometry.edge_index[0].unique().numel() == 142  # every reaction turns something over


def test_degrees_are_heavy_tailed(full):
    edges = full.networks["string12_0_coexpression"].edge_index
    degree = torch.bincount(edges.flatten()).float()
    degree = degree[degree > 0].sort().values
    assert degree[-1] > 5 * degree.median()
    top = degree[-len(degree) // 10 :].sum() / degree.sum()
    assert top > 0.2  # a tenth of the nodes has more than a fifth of the ends


def test_same_seed_same_graph_other_seed_other_graph():
    one, same, other = (CellGraph.synthetic(0.05, seed) for seed in (3, 3, 4))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()


@pytest.mark.parametrize("scale", [0.001, 0.01, 0.1, 0.3])
def test_scale_keeps_density(scale):
    graph = CellGraph.synthetic(scale)
    assert graph.num_nodes["gene"] == max(2, round(6_607 * scale))
    for name, size in NETWORK_SIZES.items():
        network = graph.networks[name]
        nodes = min(max(2, round(size.nodes * scale)), 2 * max(1, round(size.edges * scale**2)))
        pairs = nodes * (nodes - 1) // (1 if size.directed else 2)
        assert network.num_edges == min(max(1, round(size.edges * scale**2)), pairs)
        assert network.edge_index.unique().numel() == nodes


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf"), "big", True])
def test_a_scale_that_is_no_size_is_refused(scale):
    with pytest.raises(InputError, match="scale is"):
        CellGraph.synthetic(scale)


def test_self_loops_are_a_switch():
    graph = CellGraph.synthetic(0.02).with_self_loops()
    for network in graph.networks.values():
        source, target = network.edge_index
        assert (source[source == target].sort().values == torch.arange(graph.num_nodes["gene"])).all()
    assert graph.with_self_loops().num_edges == graph.num_edges  # once is enough


def test_networks_are_chosen_by_number_or_name_in_order():
    graph = CellGraph.synthetic(0.02)
    assert list(graph.select(3).networks) == ["regulatory", "physical", "tflink"]
    assert list(graph.select(["tflink", "regulatory"]).networks) == ["tflink", "regulatory"]
    with pytest.raises(InputError, match="unknown network 'physicl'; did you mean 'physical'"):
        graph.select(["physicl"])
    for number in (0, 10, True):
        with pytest.raises(InputError, match="expected 1 to 9"):
            graph.select(number)
    with pytest.raises(InputError, match="none of them twice"):
        graph.select(["tflink", "tflink"])


def test_bad_edges_are_refused_with_their_value():
    with pytest.raises(InputError, match="index 5 is outside the 5 node nodes"):
        CellGraph.from_edges({"likes": torch.tensor([[0, 5], [1, 2]])}, num_nodes=5)
    with pytest.raises(InputError, match=r"\[3, 2\], expected \[2, E\]"):
        CellGraph.from_edges({"likes": torch.zeros(3, 2, dtype=torch.int64)}, num_nodes=5)
    with pytest.raises(InputError, match=r"torch.float32, expected torch.int64"):
        CellGraph.from_edges({"likes": torch.zeros(2, 2)}, num_nodes=5)
    with pytest.raises(InputError, match="unknown node type 'gen'"):
        CellGraph({"gene": 3}, {}, "gen")


def test_edges_are_sorted_and_weights_go_with_them():
    network = Network("n", torch.tensor([[2, 0, 1], [0, 1, 1]]), "a", "a", 3, 3, weight=torch.tensor([20.0, 1.0, 11.0]))
    assert network.edge_index.tolist() == [[0, 1, 2], [1, 1, 0]]
    assert network.weight.tolist() == [1.0, 11.0, 20.0]


def hetero_data(graph):
    data = HeteroData()
    for kind, nodes in graph.num_nodes.items():
        data[kind].num_nodes = nodes
    for name, network in graph.relations.items():
        store = data[network.source, name, network.target]
        store.cascades, store.edge_index = network.cascades, network.edge_index
        if network.weight is not None:
            store.edge_weight = network.weight
        if network.edge_type is not None:
            store.edge_type = network.edge_type
    return data


@given(drawn.graphs())
def test_hetero_data_becomes_the_same_graph(graph):
    again = CellGraph.from_hetero_data(hetero_data(graph), deleted_type=graph.deleted_type)
    assert again.fingerprint() == graph.fingerprint()
    assert list(again.networks) == list(graph.networks)


@given(drawn.graphs())
def test_csr_holds_every_edge_and_its_transpose(graph):
    for network in graph.relations.values():
        dense = torch.zeros(network.num_targets, network.num_sources, dtype=torch.float64)
        weight = network.weight if network.weight is not None else torch.ones(network.num_edges).double()
        for (source, target), value in zip(network.edge_index.t().tolist(), weight, strict=True):
            dense[target, source] += value
        assert torch.equal(network.dense(dtype=torch.float64), dense)
        for transpose, expected in ((False, dense), (True, dense.t())):
            crow, col, values, columns = network.csr_parts(dtype=torch.float64, transpose=transpose)
            assert (len(crow) - 1, columns) == expected.shape
            rows = torch.arange(len(crow) - 1).repeat_interleave(crow.diff())
            assert torch.equal(values, expected[rows, col.long()])
            assert len(set(zip(rows.tolist(), col.tolist(), strict=True))) == len(col)  # each entry once
            assert torch.count_nonzero(values) == torch.count_nonzero(expected)


@given(drawn.graphs(bipartite=True))
def test_deleting_closes_over_reactions_that_need_what_is_lost(graph):
    needs = graph.metabolism.gpr.edge_index.t().tolist()
    for deleted in ([], [0], list(range(graph.num_nodes["person"]))):
        deletions = Deletions.of([deleted], num_nodes=graph.num_nodes["person"])
        lost = {kind: of_kind[0] for kind, of_kind in removed_by(graph, deletions).items()}
        assert lost["person"].tolist() == deleted
        assert lost["reaction"].tolist() == sorted({r for p, r in needs if p in deleted})
        assert lost["metabolite"].tolist() == []


def test_induced_graph_keeps_the_edges_among_its_nodes():
    likes = Network("likes", torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), "node", "node", 4, 4)
    graph = CellGraph({"node": 4}, {"likes": likes}, "node", {"node": ["a", "b", "c", "d"]})
    part = graph.induced({"node": torch.tensor([1, 2, 3])})
    assert part.networks["likes"].edge_index.tolist() == [[0, 1], [1, 2]]
    assert part.node_names == {"node": ["b", "c", "d"]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"num_nodes": -1}, "its node nodes are -1, expected a whole number from 0"),
        ({"num_nodes": 2.5}, "its node nodes are 2.5"),
        ({"num_nodes": 2**62}, "expected a whole number from 0 to 2,147,483,647"),
        ({"num_nodes": True}, "its node nodes are True"),
        ({"num_nodes": None}, "its node nodes are None"),
        ({"edges": {"roads": [[0, 1], [1, 2]]}}, "edge_index is a list, expected a tensor"),
        ({"edges": [torch.zeros(2, 1, dtype=torch.int64)]}, "edges are a list, expected a tensor"),
        ({"edges": None}, "edges are a NoneType"),
    ],
)
def test_what_is_no_graph_is_refused(change, why):
    given = {"edges": {"roads": torch.tensor([[0, 1], [1, 2]])}, "num_nodes": 3} | change
    with pytest.raises(InputError, match=why):
        CellGraph.from_edges(**given)


@pytest.mark.parametrize("number", [-1, 2.5, 2**62])
def test_a_node_type_without_a_relation_is_counted_too(number):
    with pytest.raises(InputError, match="the graph's b nodes are"):
        CellGraph({"a": 3, "b": number}, {}, "a")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_refused(value):
    weight = torch.tensor([1.0, value], dtype=torch.float64)
    with pytest.raises(InputError, match=r"'roads': the weight of edge 1 is (nan|inf), expected a finite number"):
        Network("roads", torch.tensor([[0, 1], [1, 2]]), "a", "a", 3, 3, weight=weight)
