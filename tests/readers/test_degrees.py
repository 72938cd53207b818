"""Degrees of synthetic and of real networks, and how far a deletion reaches: as tables and charts."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tclab import CellGraph, InputError
from tclab.graph._synthetic_graph import SHAPES, network_edges
from tclab.lab.charts._graph_charts import reach_rows
from tclab.readers import edge_list, string_dango

pytest.importorskip("altair")
from tclab.lab import charts


def gini(values):
    """Return the Gini coefficient of some counts: 0 where all are equal, towards 1 where one has all."""
    ordered, n = np.sort(values), len(values)
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * ordered.sum()))


SAMPLES = Path(__file__).resolve().parents[2] / "data_samples" / "cell"


@pytest.mark.parametrize("channel", ["neighborhood", "fusion", "cooccurence", "database"])
def test_the_law_makes_degrees_as_uneven_as_a_real_channel(shared_data, channel):
    real = string_dango(shared_data / f"string_v9.1_dango/yeast_string_{channel}_adjacency.txt.gz")
    degree = np.bincount(real.edge_index.numpy().reshape(-1))
    degree = degree[degree > 0]
    shape = SHAPES[f"string12_0_{channel}"]
    made = network_edges(len(degree), degree.sum() // 2, np.random.default_rng(7), shape=shape)
    assert gini(np.bincount(made.reshape(-1))) == pytest.approx(gini(degree), abs=0.03)


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
    rows = reach_rows(graphs, samples=5, deleted=2)
    chart = charts.reach_chart(rows).to_dict()
    (drawn,) = chart["datasets"].values()
    share = rows[rows["graph"] == "real"]["messages"].mean()
    assert chart["title"]["text"][0] == f"delta sends {share:.1%} of the messages that node_mask sends (real)"
    assert {row["panel"].split()[0].strip(":") for row in drawn} == {"rows", "messages", "recomputed"}  # as the table
    assert len(drawn) == 2 * 3 * 3
    assert all(0 <= row["low"] <= row["y"] <= row["high"] <= 1 for row in drawn)
