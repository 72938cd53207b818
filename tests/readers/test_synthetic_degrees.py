from __future__ import annotations

import numpy as np
import pytest
import torch

from tclab import CellGraph, InputError
from tclab.graph._synthetic_graph import NETWORK_SIZES, SHAPES, network_edges
from tclab.lab.reports._graph_statistics import degrees, gini, network_sizes, overlap, reach
from tclab.readers import sgd_features, string_dango, yeastract


@pytest.fixture(scope="module")
def synthetic(full):
    return full


def test_every_network_keeps_its_exact_size(synthetic):
    sizes = network_sizes(synthetic).set_index("network")
    assert {name: (row.nodes, row.edges) for name, row in sizes.iterrows()} == {
        name: (size.nodes, size.edges) for name, size in NETWORK_SIZES.items()
    }
    assert not sizes["self_loops"].any()
    for network in synthetic.networks.values():
        assert len(np.unique(network.edge_index.numpy(), axis=1).T) == network.num_edges


@pytest.mark.parametrize("scale", [0.001, 0.01, 0.05, 0.3])
def test_small_graphs_keep_the_rules_and_the_seed(scale):
    graph = CellGraph.synthetic(scale=scale, seed=5)
    assert graph.fingerprint() == CellGraph.synthetic(scale=scale, seed=5).fingerprint()
    assert graph.fingerprint() != CellGraph.synthetic(scale=scale, seed=6).fingerprint()
    for name, network in graph.networks.items():
        nodes = int((degrees(network) > 0).sum())
        most = nodes * (nodes - 1) // (1 if network.directed else 2)
        assert network.num_edges == min(most, max(1, round(NETWORK_SIZES[name].edges * scale**2)))
        assert (network.edge_index[0] != network.edge_index[1]).all()


@pytest.mark.parametrize("channel", ["neighborhood", "fusion", "cooccurence", "database"])
def test_the_law_makes_degrees_as_uneven_as_a_real_channel(public, channel):
    degree = degrees(string_dango(public(f"string_v9.1_dango/yeast_string_{channel}_adjacency.txt.gz")))
    degree = degree[degree > 0]
    shape = SHAPES[f"string12_0_{channel}"]
    made = network_edges(len(degree), degree.sum() // 2, np.random.default_rng(7), shape=shape)
    assert gini(np.bincount(made.reshape(-1))) == pytest.approx(gini(degree), abs=0.03)


def test_few_genes_regulate_as_in_yeastract(synthetic, public):
    genes = sgd_features(public("sgd_features/SGD_features_barseq.tab.gz"))
    real = yeastract(public("yeastract/igem_yeastract_orf_tf_1_999.csv.gz"), genes)
    known = (degrees(real, "source") > 0).sum()
    assert (degrees(synthetic.networks["regulatory"], "source") > 0).sum() == pytest.approx(known, rel=0.1)


def test_gini_tells_even_from_uneven():
    assert gini(np.array([3, 3, 3])) == 0
    assert gini(np.array([0, 0, 0, 4])) == 0.75
    assert gini(np.array([0, 0])) == 0


def test_reach_grows_by_one_step_a_layer():
    chain = CellGraph.from_edges({"chain": torch.tensor([[0, 1, 2], [1, 2, 3]])}, num_nodes=4)
    found = reach(chain, samples=20, deleted=1, seed=3)
    first = found[found["sample"] == found.loc[found["rows"].idxmax(), "sample"]]
    assert first["rows"].tolist() == [0.5, 0.75, 1.0]
    assert first["messages"].tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert first["recomputed"].tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    with pytest.raises(InputError, match="1 to 4 deleted nodes, not 5"):
        reach(chain, deleted=5)


def test_overlap_counts_pairs_without_direction():
    edges = {"one": torch.tensor([[0, 1], [1, 2]]), "other": torch.tensor([[1, 2], [0, 3]])}
    found = overlap(CellGraph.from_edges(edges, num_nodes=4)).set_index(["first", "second"])
    assert found.loc[("one", "other"), "shared"] == 1
    assert found.loc[("one", "other"), "jaccard"] == pytest.approx(1 / 3)
