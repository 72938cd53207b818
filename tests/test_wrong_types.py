"""A value of the wrong type is refused in a sentence that says which one, what was expected, and what is meant."""

import pandas as pd
import pytest
import torch

import tclab
from tclab import InputError, lab, masking, sweeps

GRAPH = tclab.CellGraph.synthetic(0.01)
POINT = tclab.Point(scale=0.01, networks=1, device="cpu")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda _: tclab.run("x"), "point is 'x', expected a tclab.Point"),
        (lambda _: tclab.fits("x"), "point is 'x', expected a tclab.Point"),
        (lambda folder: tclab.sweep(["x"], results=folder), "a point is 'x', expected a tclab.Point"),
        (lambda folder: tclab.sweep(5, results=folder), "points is 5, expected tclab.Points"),
        (lambda _: sweeps.race_points([POINT], budget_seconds=1), "expected a dict, name → tclab.Point"),
        (lambda _: sweeps.race_points({"a": "x"}, budget_seconds=1), r"points\['a'\] is 'x', expected a tclab.Point"),
        (lambda _: tclab.SharedGraph([[0], [1]], 2), "expected a tensor"),
        (lambda _: tclab.view("x", [[0]]), "graph is 'x', expected a tclab.CellGraph"),
        (lambda _: tclab.check(torch.nn.Linear, GRAPH), "Linear makes no model of a graph: .*out_features.*PygModel"),
        (lambda _: tclab.compare(5, 6), "runs is 5, expected rows"),
        (lambda _: tclab.Point(graph=5), "graph is 5, expected 'synthetic', a folder, a file or a tclab.CellGraph"),
        (lambda _: tclab.Point(device="gpu"), "unknown device 'gpu'; did you mean 'cuda'"),
        (lambda _: tclab.Point(strategy=masking.get("dense")), "strategy is <class .*Dense'>, expected a name"),
        (lambda _: tclab.trace.analyze(5), "path is 5, expected a trace file"),
        (lambda _: tclab.trace.analyze("x", rules=["^my_"]), r"rules is \['\^my_'\], expected category → regular"),
        (lambda _: tclab.CellGraph.from_file(5), "path is 5, expected the path of a file"),
        (lambda _: GRAPH.select(5.5), "networks is 5.5, expected how many, or names"),
        (lambda _: lab.charts.race_chart("x", "a"), "a pair is 'x', expected Race.pairs"),
        (lambda _: lab.charts.result_chart("x"), "result is 'x', expected a comparison, a ledger"),
        (lambda _: lab.equivalence(pd.DataFrame({"a": [1]})), "the rows have no column 'stage'"),
    ],
)
def test_a_wrong_type_is_named(call, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence) as raised:
        call(tmp_path)
    assert len(str(raised.value)) < 400
