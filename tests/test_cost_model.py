"""Mask or filter: costs that were put in come out, hits are told, and what is measured is what it says."""

import numpy as np
import pandas as pd
import pytest
import torch

import tclab
from tclab import InputError, lab, sweeps
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.predict import _cost_model as cost_model
from tclab.sweeps.predict import cells, fit_costs, measure_cells, roofline
from tclab.sweeps.predict._cost_model import CostModel, rows_of_cells
from tclab.sweeps.predict._roofline import Ceilings

TRUE = {"alpha": 2e-9, "alpha_width": 0.05e-9, "beta": 1e-9, "gamma": 9e-9, "delta": 3e-9}
CONSTANT = 1e-5


def made_up(wanted, *, noise=0.0, seed=0, more_removed=1.0):
    """Return the rows of cells on a machine whose costs are known, where a draw removed more than was asked for."""
    generator = np.random.default_rng(seed)
    rows = []
    for cell in wanted.itertuples(index=False):
        edges = cell.edges * cell.batch_size
        features = edges * cell.width
        seconds = {
            "mask": (TRUE["alpha_width"] + TRUE["beta"]) * features + TRUE["alpha"] * edges,
            "sum": TRUE["beta"] * features * (1 - cell.removed * more_removed),
            "find": TRUE["gamma"] * edges,
            "write": TRUE["delta"] * edges,
        }
        seconds = {name: (s + CONSTANT) * (1 + noise * generator.standard_normal()) for name, s in seconds.items()}
        found = {"removed_found": cell.removed * more_removed}
        rows.append({**cell._asdict(), **found, **seconds, "mask_seconds": seconds["mask"],
                     "filter_seconds": seconds["find"] + seconds["write"] + seconds["sum"]})  # fmt: skip
    return pd.DataFrame(rows)


SEEN = cells("1000,100000:8,64:1,8:0.01,0.5,0.9")
UNSEEN = cells("5000:32:2:0.02,0.95 70000:16:4:0.3 70000:256:4:0.6")


def test_costs_that_were_put_in_come_out():
    model = fit_costs(made_up(SEEN))
    for name, value in TRUE.items():
        assert model.costs[name] == pytest.approx(value, rel=1e-6)
    best, low, high = model.break_even(64)
    assert best == pytest.approx((9 + 3 - 2 - 0.05 * 64) / 64)
    assert low <= best * (1 + 1e-9)
    assert high >= best * (1 - 1e-9)


def test_what_the_draw_removed_is_fitted_and_not_what_was_asked_for():
    model = fit_costs(made_up(SEEN, more_removed=1.1))
    assert model.costs["beta"] == pytest.approx(TRUE["beta"], rel=1e-6)
    assert model.costs["sum"] == pytest.approx(CONSTANT, rel=1e-6)


def test_noise_widens_the_interval_around_what_is_true():
    model = fit_costs(made_up(SEEN, noise=0.05, seed=3))
    for name, value in TRUE.items():
        low, high = model.interval(name)
        assert low < high
        assert low * 0.9 <= value <= high * 1.1


def test_winners_are_predicted_and_counted():
    model = fit_costs(made_up(SEEN))
    both, rate = model.against(made_up(UNSEEN))
    assert rate == "4 of 4 winners predicted; 0 undecided; times off by 0% (median)"
    assert set(both["measured"]) == {"masking", "filtering"}
    wrong = made_up(UNSEEN).rename(columns={"mask_seconds": "filter_seconds", "filter_seconds": "mask_seconds"})
    assert "0 of 4 winners predicted" in model.against(wrong)[1]


@pytest.mark.parametrize("words", ["", "100:8:1", "100:8:1:1.0", "0:8:1:0.5", "many:8:1:0.5", "100:8:1:-0.1"])
def test_a_cell_that_cannot_be_is_refused(words):
    with pytest.raises(InputError, match="expected edges:features:batch:removed"):
        cells(words)


def test_a_cell_of_the_real_size_is_predicted_with_an_interval_and_says_how_far_it_is():
    model = fit_costs(made_up(SEEN, noise=0.02))
    (real, seen) = model.predict(cells("2423370:64:28:0.0083 100000:64:8:0.9")).to_dict("records")
    edges = 2_423_370 * 28
    true = {"mask": edges * (1.05 * 64 + 2) * 1e-9, "filter": edges * (12 + 64 * (1 - 0.0083)) * 1e-9}
    for way, seconds in true.items():
        assert real[f"predicted_{way}_seconds"] == pytest.approx(seconds, rel=0.05)
    assert real["low"] < true["filter"] / true["mask"] < real["high"]
    assert (real["faster"], seen["faster"]) == ("masking", "filtering")
    assert real["extrapolated"] == pytest.approx(edges / 800_000)
    assert seen["extrapolated"] == 1.0


def measured_here(sizes):
    """Return the rows of cells that this process measures."""
    point = resolve(tclab.Point(device="cpu"))
    return pd.DataFrame(rows_of_cells(point, cells(sizes).to_dict("records"), 1))


def test_cells_are_measured_under_the_allocator_that_is_named():
    (row,) = measure_cells(cells("500:4:2:0.5"), rounds=1, allocator="keep_pages").to_dict("records")
    assert row["removed_found"] == measured_here("500:4:2:0.5")["removed_found"][0]  # the same nodes for the same cell
    assert min(row["mask"], row["sum"]) > 0
    with pytest.raises(InputError, match="unknown allocator 'keep_page'; did you mean 'keep_pages'"):
        measure_cells(cells("500:4:2:0.5"), allocator="keep_page")


def test_too_few_cells_fit_nothing():
    with pytest.raises(InputError, match="2 cells were measured, expected at least 6"):
        fit_costs(made_up(SEEN[:2]))


def test_what_is_timed_masks_and_filters_the_same_edges_and_says_which_share(monkeypatch):
    summed = []
    monkeypatch.setattr(cost_model, "_both_ways", lambda view, x: summed.append(view.neighbour_sum("edges", x)))
    some, none = measured_here("500:4:2:0.5,0.0")["removed_found"]
    assert (none, 0.2 < some < 0.8) == (0.0, True)
    assert some * 1000 == pytest.approx(round(some * 1000))  # of 2 samples with 500 edges each
    for mask, filtered in zip(summed[::2], summed[1::2], strict=True):
        torch.testing.assert_close(mask, filtered)


def test_the_share_that_deletions_remove_is_that_of_the_edges_they_touch():
    ring = torch.stack([torch.arange(50), (torch.arange(50) + 1) % 50])
    graph = tclab.CellGraph.from_edges({"ring": ring}, num_nodes=50)
    assert sweeps.predict.removed_share(graph, deleted=1) == pytest.approx(2 / 50)


def test_a_roofline_counts_what_each_kernel_must_do():
    graph = tclab.CellGraph.synthetic(0.01, metabolism=False)
    found = roofline(graph, "physical", Ceilings(1e9, 1e12), batch_size=2).set_index("kernel")
    nodes, edges = graph.num_nodes["gene"], graph.networks["physical"].num_edges
    features = edges * 2 * 64
    assert found.loc["dense", "flop"] == 2 * nodes**2 * 2 * 64
    assert found.loc["node_mask", "flop"] <= 2 * features
    assert found.loc["edge_mask", "flop"] == 2 * features  # times the mask, and added
    assert found.loc["gpu_filter", "flop"] == features  # added
    assert found.loc["edge_mask", "bytes"] > found.loc["gpu_filter", "bytes"] > found.loc["node_mask", "bytes"]
    assert (found["seconds"] > 0).all()
    sums = found.loc["node_mask"]
    assert sums["share"] * sums["seconds"] == pytest.approx(sums["bytes"] / 1e9)  # the slower of the two ceilings
    sums = roofline(graph, "physical", Ceilings(1e9, 1e6), batch_size=2).set_index("kernel").loc["node_mask"]
    assert sums["share"] * sums["seconds"] == pytest.approx(sums["flop"] / 1e6)
    with pytest.raises(InputError, match="physical"):
        roofline(graph, "phisical", Ceilings(1.0, 1.0), batch_size=2)


def faster_in_chart(model):
    """Return what the chart's intervals say about 1 and 10 features where 0.5 % of the edges are removed."""
    chart = lab.charts.break_even_chart({"fit": model}, [1, 10], deleted_share=0.005).to_dict()
    drawn = {row["x"]: row for rows in chart["datasets"].values() for row in rows if row.get("low") is not None}
    ends = [drawn[x][end] for x in drawn for end in ("low", "y", "high")]
    assert all(share is None or 0 <= share <= 1 for share in ends), f"no share of edges is {ends}"
    between = {
        x: ["masking"] * (row["low"] > 0.005) + ["filtering"] * (row["high"] < 0.005) for x, row in drawn.items()
    }
    return ["".join(between.get(x, [])) for x in (1, 10)]


@pytest.mark.parametrize(
    ("alpha", "beta", "gamma", "said"),
    [
        (0.0, 1.0, [1.0, 1.1, 1.2], ["masking", "masking"]),
        (0.0, 1.0, [0.0, 0.0, 0.0], ["filtering", "filtering"]),
        (0.0, 1.0, [0.002, 0.1, 0.2], ["masking", ""]),
        (0.5, 0.0, [1.0, 1.0, 1.0], ["masking", "masking"]),  # what no feature gives back
        (0.5, 0.0, [0.0, 0.5, 1.0], ["", ""]),
        (0.5, 0.0, [0.5, 0.5, 0.5], ["", ""]),  # 0 / 0
    ],
)
def test_the_chart_shows_which_way_is_faster_and_no_more_than_the_interval(alpha, beta, gamma, said):
    costs = {"alpha": alpha, "alpha_width": 0.0, "beta": beta, "delta": 0.004 * (beta > 0)}
    draws = pd.DataFrame({"gamma": gamma, **costs})
    assert faster_in_chart(CostModel(draws.median().to_dict(), draws)) == said
