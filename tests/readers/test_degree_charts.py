from __future__ import annotations

from pathlib import Path

import pytest

from tclab import CellGraph
from tclab.graph._synthetic_graph import NETWORK_SIZES

pytest.importorskip("altair")
from tclab.lab import charts, reports

SAMPLES = Path(__file__).resolve().parents[2] / "data_samples" / "cell"


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return {"real": CellGraph.from_folder(SAMPLES), "synthetic": CellGraph.synthetic(0.05)}


def test_sizes_are_next_to_the_published_ones(graphs):
    frame = reports.network_table(graphs).set_index(["graph", "network"])
    assert frame.loc[("synthetic", "physical"), "published_edges"] == NETWORK_SIZES["physical"].edges
    assert frame["published_edges"].isna().loc[("real", "biogrid_physical")]
    assert len(frame) == sum(len(graph.networks) for graph in graphs.values())


def test_the_reach_chart_has_medians_and_quartiles_of_its_rows(graphs):
    rows = reports.reach_rows(graphs, samples=5, deleted=2)
    (drawn,) = charts.reach_chart(rows).to_dict()["datasets"].values()
    assert len(drawn) == 2 * 3 * 3
    assert all(0 <= row["low"] <= row["y"] <= row["high"] <= 1 for row in drawn)
