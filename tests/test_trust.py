"""What a figure's trust rests on, as charts and tables; the same figures made again from the record elsewhere."""

from time import sleep

import pytest
import vl_convert
from stage_rows import drawn

from tclab import lab
from tclab.timing import race_cells
from tclab.timing._self_test import SpikeIn, Trial
from tclab.timing._verdict import Pair, explain


def pair(a, b, verdict, cell=None):
    ratio = {"FASTER": 0.5, "SLOWER": 2.0}.get(verdict, 1.0)
    return Pair(a, b, verdict, ratio=ratio, interval=(0.9 * ratio, 1.1 * ratio), cell=cell)


def test_a_race_is_told_against_one_of_its_arms_and_a_pair_from_the_other_ones_side():
    pairs = [pair("edge_mask", "node_mask", "SLOWER"), pair("gpu_filter", "edge_mask", "SAME"), pair("a", "b", "SAME")]
    chart = lab.charts.race_chart(pairs, "edge_mask")
    told = {row["line"]: row for row in drawn(chart, "line")}
    verdicts = {line: row["text"].split()[-1] for line, row in told.items()}
    assert verdicts == {"node_mask": "FASTER", "gpu_filter": "SAME"}
    assert [told["node_mask"][end] for end in ("low", "value", "high")] == pytest.approx([0.5 / 1.1, 0.5, 0.5 / 0.9])
    said = "1 of 2 candidates is faster than edge_mask: node_mask takes 0.5× the time"
    assert chart.to_dict()["title"]["text"] == said
    for chosen, said in (
        (pairs[:1], "node_mask is faster than edge_mask: it takes 0.5× the time"),
        (pairs[1:], "gpu_filter is as fast as edge_mask"),
        ([pair("x", "edge_mask", "UNDECIDED")], "x is not told apart from edge_mask"),
        ([pair(name, "edge_mask", "SLOWER") for name in "xy"], "2 of 2 candidates are slower than edge_mask: "),
    ):
        assert lab.charts.race_chart(chosen, "edge_mask").to_dict()["title"]["text"].startswith(said)


def test_several_cells_of_a_race_are_lines_by_their_names():
    two = [pair("a", "b", "FASTER", size) for size in ("16", "4")]
    lines = drawn(lab.charts.race_chart(two, "b", by="samples"), "line")
    assert [row["line"] for row in lines] == ["a · 16 samples", "a · 4 samples"]
    lines = drawn(lab.charts.race_chart([*two, Pair("c", "b", cell="4")], "b"), "line")
    assert [row["line"] for row in lines] == ["a · 16", "a · 4", "c · 4"]
    assert [row["text"] for row in lines if row.get("value", 0) is None] == ["UNDECIDED: no ratio"]


def test_a_race_without_a_ratio_is_said_with_its_reason_and_drawn():
    races = race_cells({4: lambda: {"a": lambda: sleep(0.05), "b": lambda: sleep(0.05)}}, budget_seconds=0.2)
    chart = lab.charts.race_chart(races.pairs, "b", by="samples", title="Sizes")
    (text,) = [one["text"] for one in drawn(chart, "text")]
    assert "no ratio" in text
    assert explain(races.cells[4].pair("a", "b")) in text
    assert vl_convert.vegalite_to_png(chart.to_json())[:4] == b"\x89PNG"


def test_spikes_that_came_back_are_told_from_those_that_did_not():
    came_back = [(0.001, 0.00101), (0.002, 0.003), (0.001, 0.0)]  # of what was injected, in seconds
    found = SpikeIn([Trial("forward", *seconds, 10) for seconds in came_back])
    assert str(found).startswith("33% recovered")
    assert [line[0] + line[-1] for line in found._display().lines] == ["forwardyes", "forwardNO", "forwardNO"]
