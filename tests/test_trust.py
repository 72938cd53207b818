"""What a figure's trust rests on, as charts and tables; the same figures made again from the record elsewhere."""

from time import sleep

import pytest
import vl_convert
from synthetic_machine import SyntheticMachine

from tclab import lab
from tclab.lab.reports._tables import pairs_against
from tclab.timing import race, race_cells
from tclab.timing._self_test import SpikeIn, Trial
from tclab.timing._verdict import Pair


@pytest.fixture(scope="module")
def decided():
    machine = SyntheticMachine(3, noise=0.02, memory=0.2)
    arms = {"edge_mask": machine.arm("edge_mask", 0.02), "node_mask": machine.arm("node_mask", 0.01),
            "gpu_filter": machine.arm("gpu_filter", 0.02)}  # fmt: skip
    return race(arms, budget_seconds=60, clock=machine.clock)


def data_of(chart):
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def test_a_race_is_told_against_one_of_its_arms(decided):
    rows = {row["line"]: row for row in data_of(lab.charts.race_chart(decided.pairs, "edge_mask")) if "line" in row}
    assert rows["node_mask"]["text"].endswith("× FASTER")
    assert rows["node_mask"]["value"] == pytest.approx(0.5, rel=0.05)
    assert rows["gpu_filter"]["text"].split(" × ")[1] in ("SAME", "UNDECIDED")
    assert rows["node_mask"]["low"] < rows["node_mask"]["value"] < rows["node_mask"]["high"]
    assert "FASTER" in str(decided)


def test_several_cells_of_a_race_are_lines_by_their_names():
    two = [pair("a", "b", "FASTER", size) for size in ("16", "4")]
    drawn = data_of(lab.charts.race_chart(two, "b", by="samples"))
    assert [row["line"] for row in drawn if "line" in row] == ["a · 16 samples", "a · 4 samples"]
    drawn = data_of(lab.charts.race_chart([*two, Pair("c", "b", "UNDECIDED", "", cell="4")], "b"))
    assert [row["line"] for row in drawn if "line" in row] == ["a · 16", "a · 4", "c · 4"]
    assert [row["text"] for row in drawn if row.get("value", 0) is None] == ["UNDECIDED: no ratio"]


def pair(a, b, verdict, cell=None):
    ratio = {"FASTER": 0.5, "SLOWER": 2.0}.get(verdict, 1.0)
    return Pair(a, b, verdict, "", ratio=ratio, cell=cell)


def test_a_race_without_a_ratio_is_said_with_its_reason_and_drawn():
    races = race_cells({4: lambda: {"a": lambda: sleep(0.05), "b": lambda: sleep(0.05)}}, budget_seconds=0.2)
    chart = lab.charts.race_chart(races.pairs, "b", by="samples", title="Sizes")
    (text,) = [one["text"] for one in data_of(chart)]
    assert "no ratio" in text
    assert races.cells[4].pair("a", "b").why in text
    assert vl_convert.vegalite_to_png(chart.to_json())[:4] == b"\x89PNG"


def test_pairs_are_told_from_the_other_arms_side():
    (told,) = pairs_against([pair("edge_mask", "node_mask", "SLOWER")], "edge_mask")
    assert (told.a, told.verdict, told.ratio) == ("node_mask", "FASTER", 0.5)


def test_spikes_that_came_back_are_told_from_those_that_did_not():
    came_back = [(0.001, 0.00101), (0.002, 0.003), (0.001, 0.0)]  # of what was injected, in seconds
    found = SpikeIn([Trial("forward", *seconds, 10) for seconds in came_back])
    assert str(found).startswith("33% recovered")
    assert [line[0] + line[-1] for line in found._display().lines] == ["forwardyes", "forwardNO", "forwardNO"]
