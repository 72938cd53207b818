"""Mask or filter: costs that were put in come out, and what is measured is what it says; kernels against the limits."""

import numpy as np
import pandas as pd
import pytest
import torch

import tclab
from tclab import InputError, sweeps
from tclab.sweeps import predict as cost_model
from tclab.sweeps._point_inputs import resolve
from tclab.sweeps.predict import cells, fit_costs, rows_of_cells

TRUE = {"alpha": 2e-9, "alpha_width": 0.05e-9, "beta": 1e-9, "gamma": 9e-9, "delta": 3e-9}


def made_up(wanted, noise=0.0):
    """Return the rows of cells on a machine whose costs are known."""
    generator = np.random.default_rng(0)
    edges = wanted["edges"] * wanted["batch_size"]
    features = edges * wanted["width"]
    seconds = {
        "mask_seconds": (TRUE["alpha_width"] + TRUE["beta"]) * features + TRUE["alpha"] * edges,
        "sum_seconds": TRUE["beta"] * features * (1 - wanted["removed"]),
        "find_seconds": TRUE["gamma"] * edges,
        "write_seconds": TRUE["delta"] * edges,
    }
    noisy = {n: s * (1 + noise * generator.standard_normal(len(wanted))) for n, s in seconds.items()}
    return wanted.assign(**noisy, busy_percent=None)


SEEN = cells("1000,100000", "8,64", [1, 8], "0.01,0.5,0.9")


def test_costs_that_were_put_in_come_out():
    model = fit_costs(made_up(SEEN))
    assert model.costs.iloc[0].to_dict() == pytest.approx(TRUE, rel=1e-6)
    best, low, high = model.break_even(64)
    assert best == pytest.approx((9 + 3 - 2 - 0.05 * 64) / 64)
    assert low <= best * (1 + 1e-9)
    assert high >= best * (1 - 1e-9)
    pays = "filtering pays where deletions remove more edges than"
    assert f"{pays} 120.00% [120.00%, 120.00%] at 8 features" in " ".join(str(model).split())


def test_a_cell_that_cannot_be_is_refused():
    for sizes, words in (
        (("", 8, 1, 0.5), "edges is ''"),
        ((100, 8, 1, 1.0), "removed is 1.0, expected a share from 0 to below 1"),
        ((0, 8, 1, 0.5), "edges is 0, expected a whole number of at least 1"),
    ):
        with pytest.raises(InputError, match=words):
            cells(*sizes)
    with pytest.raises(InputError, match="2 cells were measured, expected at least 6"):
        fit_costs(made_up(SEEN[:2]))


def test_a_cell_of_the_real_size_is_predicted_with_an_interval_and_says_how_far_it_is():
    model = fit_costs(made_up(SEEN, noise=0.02).assign(busy_percent=78.4))
    assert "the machine was busy: something waited for a processor 78% of the time" in " ".join(str(model).split())
    wanted = pd.concat([cells(2_423_370, 64, 28, 0.0083), cells(100_000, 64, 8, 0.9)])
    real, seen = model.predict(wanted).to_dict("records")
    edges = 2_423_370 * 28
    true = {"mask": edges * (1.05 * 64 + 2) * 1e-9, "filter": edges * (12 + 64 * (1 - 0.0083)) * 1e-9}
    for way, seconds in true.items():
        assert real[f"predicted_{way}_seconds"] == pytest.approx(seconds, rel=0.05)
    assert real["low"] < true["filter"] / true["mask"] < real["high"]
    assert (real["faster"], seen["faster"]) == ("masking", "filtering")
    assert (real["extrapolated"], seen["extrapolated"]) == (pytest.approx(edges / 800_000), 1.0)


def test_what_is_timed_masks_and_filters_the_same_edges_and_says_which_share(monkeypatch):
    summed, both_ways = [], cost_model._both_ways
    monkeypatch.setattr(
        cost_model,
        "_both_ways",
        lambda view, x: summed.append(view.neighbour_sum("edges", x)) or both_ways(view, x),
    )
    wanted = cells(500, 4, 2, "0.5,0.0").to_dict("records")
    some, none = rows_of_cells(resolve(tclab.Point(device="cpu")), wanted, 1)
    assert (none["removed"], 0.2 < some["removed"] < 0.8) == (0.0, True)
    for mask, filtered in zip(summed[::2], summed[1::2], strict=True):
        torch.testing.assert_close(mask, filtered)
    parts = [some[f"{call}_seconds"] for call in ("find", "write", "sum")]
    assert some["filter_seconds"] == pytest.approx(sum(parts))
    assert min(some["mask_seconds"], *parts) > 0
    ring = torch.stack([torch.arange(50), (torch.arange(50) + 1) % 50])
    graph = tclab.CellGraph.from_edges({"ring": ring}, num_nodes=50)
    assert sweeps.predict.removed_share(graph, deleted=1) == pytest.approx(2 / 50)
