"""Samples lie side by side in groups, and nothing that is computed depends on how many are in one."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tclab
from tclab.message_passing import _row_layout as orders
from tclab.message_passing._row_layout import Order
from tclab.models import HeteroCell


@given(size=st.integers(1, 9), group=st.integers(1, 10), number=st.integers(1, 5))
def test_each_node_of_each_sample_has_one_row(size, group, number):
    order = Order(size, group)
    nodes = torch.arange(number).repeat_interleave(size)
    samples = torch.arange(size).repeat(number)
    rows = order.rows(nodes, samples, number)
    assert sorted(rows.tolist()) == list(range(number * size))
    assert order.lift(torch.arange(number).unsqueeze(1)).squeeze(1)[rows].tolist() == nodes.tolist()
    sample_of = torch.empty_like(rows).index_copy_(0, rows, samples)
    side_by_side = torch.cat(order.grids(sample_of), dim=1)
    assert side_by_side.tolist() == [list(range(size))] * number


@pytest.mark.parametrize(
    ("strategy", "metabolism"),
    [
        *product(["node_mask", "dense", "delta"], ["off"]),
        *product(["node_mask", "delta"], ["used"]),
        pytest.param("dense", "used", marks=pytest.mark.slow),
    ],
)
def test_predictions_and_gradients_are_those_of_any_other_grouping(strategy, metabolism, monkeypatch):
    graph = tclab.CellGraph.synthetic(0.01, seed=1)
    torch.manual_seed(0)
    layers = 1 if metabolism == "used" else 3  # a dense matrix of all reactions is as large as ever
    networks = list(graph.networks)
    model = HeteroCell(graph.num_nodes["gene"], networks, width=4, layers=layers, metabolism=metabolism).double()
    samples = [[b, b + 7] for b in range(6)]
    results = []
    for group in (1, 2, 3, 7):
        monkeypatch.setattr(orders, "GROUP", group)
        model.zero_grad()
        predictions = model(tclab.view(graph, samples, strategy))
        (predictions * torch.linspace(-1, 2, len(samples), dtype=torch.float64)).sum().backward()
        results.append((predictions.detach(), [p.grad.clone() for p in model.parameters()]))
    for found in results[1:]:
        torch.testing.assert_close(found, results[0])
