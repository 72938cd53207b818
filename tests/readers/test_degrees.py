"""Degrees of synthetic and of real networks, and how far a deletion reaches: as tables and charts."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tclab import CellGraph, InputError
from tclab.graph._synthetic_graph import NETWORK_SIZES, SHAPES, network_edges
from tclab.lab.charts._graph_charts import degrees, gini, network_table, reach_rows
from tclab.readers import edge_list, string_dango

pytest.importorskip("altair")
from tclab.lab import charts

SAMPLES = Path(__file__).resolve().parents[2] / "data_samples" / "cell"


@pytest.mark.parametrize("channel", ["neighborhood", "fusion", "cooccurence", "database"])
def test_the_law_makes_degrees_as_uneven_as_a_real_channel(shared_data, channel):
    degree = degrees(string_dango(shared_data / f"string_v9.1_dango/yeast_string_{channel}_adjacency.txt.gz"))
    degree = degree[degree > 0]
    shape = SHAPES[f"string12_0_{channel}"]
    made = network_edges(len(degree), degree.sum() // 2, np.random.default_rng(7), shape=shape)
    assert gini(np.bincount(made.reshape(-1))) == pytest.approx(gini(degree), abs=0.03)
    assert [gini(np.array(one)) for one in ([3, 3, 3], [0, 0, 0, 4], [0, 0])] == [0, 0.75, 0]


def test_few_genes_regulate_as_in_yeastract(full, shared_data):
    pairs = shared_data / "yeastract/igem_yeastract_orf_tf_1_999.csv.gz"  # target, factor
    real = edge_list(pairs, sep=",", header=False, columns=(1, 0), directed=True)
    known, made = (len(network.edge_index[0].unique()) for network in (real, full.networks["regulatory"]))
    assert made == pytest.approx(known, rel=0.1)


def test_reach_grows_by_one_step_a_layer():
    chain = CellGraph.from_edges({"chain": torch.tensor([[0, 1, 2], [1, 2, 3]])}, num_nodes=4)
    found = reach_rows({"chain": chain}, samples=20, deleted=1, seed=3)
    first = found[found["sample"] == found.loc[found["rows"].idxmax(), "sample"]]
    assert first["rows"].tolist() == [0.5, 0.75, 1.0]
    for name in ("messages", "recomputed"):
        assert first[name].tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    with pytest.raises(InputError, match="1 to 4 deleted nodes, not 5"):
        reach_rows({"chain": chain}, deleted=5)


def test_the_reach_chart_is_of_its_rows():
    graphs = {"real": CellGraph.from_folder(SAMPLES), "synthetic": CellGraph.synthetic(0.05)}
    table = network_table(graphs).set_index(["graph", "network"])
    assert table["published_edges"].isna().loc[("real", "biogrid_physical")]
    assert table.loc["synthetic", "published_edges"].to_dict() == {n: size.edges for n, size in NETWORK_SIZES.items()}
    assert table.loc["synthetic", "edges"].sum() == graphs["synthetic"].without_metabolism().num_edges
    rows = reach_rows(graphs, samples=5, deleted=2)
    (drawn,) = charts.reach_chart(rows).to_dict()["datasets"].values()
    assert len(drawn) == 2 * 3 * 3
    assert all(0 <= row["low"] <= row["y"] <= row["high"] <= 1 for row in drawn)
