"""`CellGraph`, `Network` and `Deletions`: made from what, kept in a file; what is refused."""

import json
import os
import weakref
import zipfile
from decimal import Decimal
from pathlib import Path

import drawn
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from tclab import CellGraph, InputError, Point, view
from tclab.graph import Network
from tclab.graph._cell_graph import keep_graph
from tclab.graph._synthetic_graph import NETWORK_SIZES
from tclab.perturbation import Deletions, Perturbations
from tclab.perturbation._deletions import removed_by, steps_per_epoch
from tclab.sweeps._point_inputs import cell_graph_of

SMALL = CellGraph.synthetic(0.02)
NODES = SMALL.num_nodes["gene"]

# ---- synthetic cells


def test_full_size_has_the_published_nodes_and_edges(full):
    assert full.num_nodes == {"gene": 6_607, "reaction": 7_122, "metabolite": 2_806}
    assert full.num_edges == 2_423_370
    for name, size in NETWORK_SIZES.items():
        edges = full.networks[name].edge_index
        assert (edges.unique().numel(), edges.size(1)) == (size.nodes, size.edges)
        assert not (edges[0] == edges[1]).any()
        assert (edges[0] * full.num_nodes["gene"] + edges[1]).unique().numel() == size.edges  # no edge twice
        assert size.directed or (edges[0] < edges[1]).all()  # stored once, in one direction
    gpr, stoichiometry = full.relations["gpr"], full.relations["stoichiometry"]
    assert (gpr.num_edges, stoichiometry.num_edges) == (5_450, 26_325)
    assert gpr.edge_index[1].unique().numel() == 4_881  # reactions with genes
    assert (stoichiometry.weight != 0).all()


def test_degrees_are_heavy_tailed(full):
    degree = torch.bincount(full.networks["string12_0_coexpression"].edge_index.flatten()).float()
    degree = degree[degree > 0].sort().values
    assert degree[-1] > 5 * degree.median()
    assert degree[-len(degree) // 10 :].sum() > 0.2 * degree.sum()  # a tenth of the nodes has a fifth of the ends


@pytest.mark.parametrize("scale", [0.001, 0.01, 0.05, 0.3])
def test_scale_keeps_density_and_the_seed_makes_the_graph(scale):
    graph = CellGraph.synthetic(scale, 5)
    assert graph.fingerprint() == CellGraph.synthetic(scale, 5).fingerprint()
    assert graph.fingerprint() != CellGraph.synthetic(scale, 6).fingerprint()
    assert graph.num_nodes["gene"] == max(2, round(6_607 * scale))
    for name, size in NETWORK_SIZES.items():
        edges = graph.networks[name].edge_index
        wanted = max(1, round(size.edges * scale**2))
        nodes = min(max(2, round(size.nodes * scale)), 2 * wanted)
        assert edges.size(1) == min(wanted, nodes * (nodes - 1) // (1 if size.directed else 2))
        assert edges.unique().numel() == nodes
        assert (edges[0] != edges[1]).all()


def test_a_small_graph_has_a_small_metabolism_in_which_a_reaction_has_as_many_genes():
    reactions = SMALL.num_nodes["reaction"]
    assert (reactions, SMALL.num_nodes["metabolite"]) == (142, 56)
    assert SMALL.relations["gpr"].num_edges / reactions == pytest.approx(5_450 / 7_122, rel=0.01)
    assert SMALL.relations["stoichiometry"].num_edges / reactions == pytest.approx(26_325 / 7_122, rel=0.01)
    assert SMALL.relations["stoichiometry"].edge_index[0].unique().numel() == reactions  # each turns something over


# ---- what a graph can do


def test_networks_are_chosen_by_number_or_name_in_order():
    assert list(SMALL.select(3).networks) == ["regulatory", "physical", "tflink"]
    assert list(SMALL.select(["tflink", "regulatory"]).networks) == ["tflink", "regulatory"]


def test_edges_are_sorted_and_weights_go_with_them():
    network = Network("n", torch.tensor([[2, 0, 1], [0, 1, 1]]), "a", "a", 3, 3, weight=torch.tensor([20.0, 1.0, 11.0]))
    assert network.edge_index.tolist() == [[0, 1, 2], [1, 1, 0]]
    assert network.weight.tolist() == [1.0, 11.0, 20.0]


@given(drawn.graphs())
def test_hetero_data_becomes_the_same_graph(graph):
    data = HeteroData()
    for kind, nodes in graph.num_nodes.items():
        data[kind].num_nodes = nodes
    for name, network in graph.relations.items():
        store = data[network.source, name, network.target]
        store.cascades, store.edge_index = network.cascades, network.edge_index
        if network.weight is not None:
            store.edge_weight = network.weight
    again = CellGraph.from_hetero_data(data, deleted_type=graph.deleted_type)
    assert again.fingerprint() == graph.fingerprint()
    assert list(again.networks) == list(graph.networks)


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("gpu", r"unknown device 'gpu'; did you mean 'cuda'\? known: cpu, cuda"),
        ("vulkan", "unknown device 'vulkan'; known: cpu, cuda"),
        (None, "unknown device None; known: cpu, cuda"),
        ("xpu:98", "device is 'xpu:98', and torch .* finds .* xpu devices? here; expected .*'cpu'"),
        ("cuda:98", "device is 'cuda:98', and torch .* finds .* cuda devices? here; expected .*'cpu'"),
    ],
)
def test_a_device_that_is_not_there_is_named_with_what_is_expected(device, sentence):
    for call in (lambda: SMALL.to(device), lambda: view(SMALL, [[0]], device=device)):
        with pytest.raises(InputError, match=sentence):
            call()


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU")
def test_the_device_cuda_without_a_gpu_is_refused_in_words():
    with pytest.raises(InputError, match=r"device is 'cuda', and torch .* finds 0 cuda devices here; expected 'cpu'$"):
        SMALL.to("cuda")


def test_a_graph_lets_go_of_what_it_copied_to_a_device():
    copies = [weakref.ref(network) for network in SMALL.to("meta").networks.values()]
    assert all(copy() is not None for copy in copies)
    SMALL.release("meta")
    assert all(copy() is None for copy in copies)


def test_induced_graph_keeps_the_edges_among_its_nodes():
    likes = Network("likes", torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), "node", "node", 4, 4)
    graph = CellGraph({"node": 4}, {"likes": likes}, "node", {"node": ["a", "b", "c", "d"]})
    part = graph.induced({"node": torch.tensor([1, 2, 3])})
    assert part.networks["likes"].edge_index.tolist() == [[0, 1], [1, 2]]
    assert part.node_names == {"node": ["b", "c", "d"]}


# ---- in a file


NAMES = {"gene": [f"gene {i}" for i in range(NODES)]}
NAMED = CellGraph(SMALL.num_nodes, SMALL.relations, "gene", NAMES, source="made up")


def test_a_graph_comes_back_equal(tmp_path):
    one = CellGraph.from_edges({"likes": torch.tensor([[0, 1], [1, 2]])}, num_nodes=3, node_type="person")
    assert repr(one) == "CellGraph(3 person nodes; 1 network, 2 edges; made in memory)"
    nothing = CellGraph.from_edges({"none": torch.empty(2, 0, dtype=torch.int64)}, num_nodes=3)
    for number, one in enumerate((NAMED, nothing)):
        one.save(tmp_path / str(number))  # under the very name
        again = CellGraph.from_file(tmp_path / str(number))
        assert again.fingerprint() == one.fingerprint()  # of counts, edges and weights
        for name in ("deleted_type", "source", "node_names"):
            assert getattr(again, name) == getattr(one, name)
        directed = [(name, network.directed) for name, network in one.relations.items()]
        assert [(name, network.directed) for name, network in again.relations.items()] == directed
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        NAMED.save(tmp_path / "nowhere" / "graph.npz")


def header(path, **values):
    with np.load(path) as file:
        arrays = dict(file)
    changed = json.loads(str(arrays["header"])) | values
    np.savez(path, **{**arrays, "header": np.array(json.dumps(changed))})


def bits_flipped(path):
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as packed:
        at = packed.getinfo("1/edge_index.npy").header_offset + 300
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "is damaged or cut short"),
        (bits_flipped, "CRC"),
        (lambda path: header(path, format="tclab graph 99"), "has another format than 'tclab graph 2'"),
        (lambda path: header(path, num_nodes={"gene": 3}), "the graph 3"),
    ],
)
def test_a_spoilt_file_is_an_error(tmp_path, spoil, why):
    path = tmp_path / "graph.npz"
    NAMED.save(path)
    spoil(path)
    with pytest.raises(InputError, match=why):
        CellGraph.from_file(path)


def test_a_graph_is_kept_once_for_points_to_read(tmp_path):
    some = SMALL.select(3)
    kept = keep_graph(some, tmp_path / "new")
    written = Path(kept).stat().st_mtime_ns
    assert keep_graph(some, tmp_path / "new") == kept
    assert Path(kept).stat().st_mtime_ns == written
    for graph in (kept, some):
        assert cell_graph_of(Point(graph=graph)).networks.keys() == some.networks.keys()


# ---- what is refused


def edges(given, num_nodes=3):
    return CellGraph.from_edges(given, num_nodes=num_nodes)


def roads(num_nodes=3, **more):
    given = torch.tensor([[0, 1], [1, 2]])
    return Network("roads", given, "node", "node", num_nodes, num_nodes, **more)


def of_hetero(edge_index, nodes=None, **more):
    data = HeteroData()
    data["gene", "binds", "gene"].update({"edge_index": torch.as_tensor(edge_index), **more})
    if nodes is not None:
        data["gene"].num_nodes = nodes
    return CellGraph.from_hetero_data(data, deleted_type="gene")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        *((lambda s=s: CellGraph.synthetic(s), "scale is") for s in (0, -1, float("nan"), float("inf"), "big", True)),
        (lambda: SMALL.select(["physicl"]), "unknown network 'physicl'; did you mean 'physical'"),
        *((lambda n=n: SMALL.select(n), "expected 1 to 9") for n in (0, 10, True)),
        (lambda: SMALL.select(["tflink", "tflink"]), "none of them twice"),
        (lambda: edges({"roads": [[0, 1], [1, 2]]}), r"edge_index is \[\[0, 1\], \[1, 2\]\], expected a tensor"),
        (lambda: edges([torch.zeros(2, 1)]), "edges is a list, expected a tensor"),
        (lambda: edges({"roads": torch.zeros(3, 2, dtype=torch.int64)}), r"\[3, 2\] torch.int64, expected \[2, E\]"),
        (lambda: edges({"roads": torch.zeros(2, 2)}), r"\[2, 2\] torch.float32, expected \[2, E\] int64"),
        *((lambda n=n: roads(n), "its node nodes are") for n in (-1, 2.5, 2**62, True, None)),
        (lambda: roads(2), "index 2 is not among the 2 nodes of type"),
        *((lambda n=n: CellGraph({"a": 3, "b": n}, {}, "a"), "the graph's b nodes are") for n in (-1, 2.5, 2**62)),
        (lambda: CellGraph({"gene": 3}, {}, "gen"), "unknown node type 'gen'"),
        (lambda: of_hetero(torch.zeros(8, 2, dtype=torch.int64), 5), "edge_index"),
        (lambda: of_hetero([[0, 1], [1, 846]], 845), "846|845"),
        (lambda: of_hetero([[0], [1]]), r"node type 'gene' of 'binds' is not counted: set data\['gene'\]\.num_nodes"),
        (lambda: CellGraph.from_hetero_data(Data(), deleted_type="gene"), "data is a Data, expected a HeteroData"),
        (lambda: roads(weight=torch.tensor([1.0, float("nan")])), "weight of edge 1 is nan, expected a finite number"),
    ],
)
def test_what_is_no_graph_is_refused_with_its_value(call, why):
    with pytest.raises(InputError, match=why):
        call()


def test_weights_in_edge_attr_are_left_out_with_a_word():
    with pytest.warns(UserWarning, match="edge_attr of 'binds' is left out: edge_weight holds"):
        graph = of_hetero([[0, 1], [1, 2]], 3, edge_attr=torch.tensor([0.5, 2.0]))
    assert graph.networks["binds"].weight is None


# ---- deletions


@pytest.mark.parametrize(
    "samples",
    [
        [[3, 1], []],
        (iter([3, 1]), range(0)),
        [torch.tensor([3, 1]), torch.tensor([], dtype=torch.int64)],
        [np.array([3, 1], dtype=np.uint8), ()],
        [[np.int64(3), torch.tensor(1)], []],
    ],
)
def test_lists_of_whole_numbers_are_samples(samples):
    assert [nodes.tolist() for nodes in Deletions.of(samples, num_nodes=5)] == [[3, 1], []]


# what the error says → what is no sample
NO_SAMPLE = {
    "expected the numbers of nodes": [[1.0], torch.tensor([1.7]), [np.float32(1)], [Decimal(1)], [float("nan")], [1j]],
    "expected the numbers": [["YAL001C"], [None], [2**70]],
    "expected a list of the nodes": [[[1]], np.array([[1], [2]]), {1: 2}, "12", None, 1, torch.tensor(3)],
    "is a mask": [[True, False], [np.True_], torch.tensor([True, False])],
    "expected 0 to 4": [[-1], [5]],
    "deletes a node twice": [[1, 1]],
}


@pytest.mark.parametrize(("words", "sample"), [(w, one) for w, some in NO_SAMPLE.items() for one in some], ids=repr)
def test_nothing_else_is_one(words, sample):
    with pytest.raises(InputError, match=f"sample 1 .*{words}"):
        Deletions.of([[0], sample], num_nodes=5)
    for samples in (None, 3, "12", {0: [1]}):
        with pytest.raises(InputError, match="for each expected a list of the nodes it deletes"):
            Deletions.of(samples, num_nodes=5)


@settings(max_examples=100)
@given(data=st.data(), graph=drawn.dependants())
def test_a_removed_node_takes_all_that_depend_on_it_with_it(data, graph):
    nodes = graph.num_nodes[graph.deleted_type]
    sample = st.lists(st.integers(0, nodes - 1), unique=True, max_size=3) if nodes else st.just([])
    samples = data.draw(st.lists(sample, max_size=4))
    removed = removed_by(graph, Deletions.of(samples, num_nodes=nodes))
    assert list(removed) == list(graph.num_nodes)
    right = [drawn.removed_one_by_one(graph, sample) for sample in samples]
    for kind, deletions in removed.items():
        assert [nodes.tolist() for nodes in deletions] == [each[kind].tolist() for each in right]
        assert deletions.most == max((len(each[kind]) for each in right), default=0)
        assert (deletions.nodes.dtype, deletions.ptr.dtype) == (torch.int64, torch.int64)


@pytest.mark.parametrize("order", [("feeds", "lights"), ("lights", "feeds")])
def test_a_cascade_goes_on_through_any_relation_in_any_order(order):
    line = Network("feeds", torch.tensor([[0, 1, 2], [1, 2, 3]]), "station", "station", 5, 5, cascades=True)
    lights = Network("lights", torch.tensor([[3, 4], [0, 1]]), "station", "house", 5, 2, cascades=True)
    graph = CellGraph(
        {"station": 5, "house": 2}, {name: {"feeds": line, "lights": lights}[name] for name in order}, "station"
    )
    for strategy in ("subgraph", "node_mask", "edge_mask"):
        with view(graph, [[0], [4], []], strategy) as copies:
            assert [nodes.tolist() for nodes in copies.deleted] == [[0, 1, 2, 3], [4], []]
    removed = removed_by(graph, Deletions.of([[0], [4], []], num_nodes=5))
    assert [houses.tolist() for houses in removed["house"]] == [[0], [1], []]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda value: Perturbations.synthetic(SMALL, value), "the samples are"),
        (lambda value: Perturbations.synthetic(SMALL, 3, deleted=value), "of 132 gene nodes a sample deletes"),
        (lambda value: Perturbations.synthetic(SMALL, 3, seed=value), "the seed is"),
        (lambda value: CellGraph.synthetic(0.02, seed=value), "the seed is"),
        (lambda value: steps_per_epoch(value, 1), "batch_size is"),
        (lambda value: steps_per_epoch(1, value), "ranks is"),
    ],
)
@pytest.mark.parametrize("value", [-1, 2.5, "3", None, True, float("nan")])
def test_a_count_or_seed_that_is_none_is_refused(make, why, value):
    with pytest.raises(InputError, match=f"{why} .*, expected a whole number"):
        make(value)


def test_a_sample_deletes_no_more_nodes_than_there_are():
    assert Perturbations.synthetic(SMALL, 2, deleted=132).deletions.most == 132
    with pytest.raises(InputError, match=r"a sample deletes 133, expected a whole number from 0 to 132"):
        Perturbations.synthetic(SMALL, 2, deleted=133)
