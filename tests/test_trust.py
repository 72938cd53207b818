"""What a figure's trust rests on, as charts and tables; the same figures made again from the record elsewhere."""

import json
import os
import subprocess
import sys
import textwrap
from time import sleep

import pandas as pd
import pytest
import vl_convert
from synthetic_machine import SyntheticMachine

import tclab
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
    found = chart.to_dict()
    return [row for rows in found["datasets"].values() for row in rows]


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
    assert [row["line"] for row in drawn if "line" in row] == ["16 samples", "4 samples"]
    drawn = data_of(lab.charts.race_chart([*two, pair("c", "b", "SLOWER", "4")], "b"))
    assert [row["line"] for row in drawn if "line" in row] == ["a · 16", "a · 4", "c · 4"]


def pair(a, b, verdict, cell=None):
    ratio = {"FASTER": 0.5, "SLOWER": 2.0}.get(verdict, 1.0)
    return Pair(a, b, verdict, "", ratio=ratio, cell=cell)


def test_a_race_without_a_ratio_is_said_with_its_reason_and_drawn():
    races = race_cells({4: lambda: {"a": lambda: sleep(0.05), "b": lambda: sleep(0.05)}}, budget_seconds=0.2)
    for chart in (
        lab.charts.race_chart(races.pairs, "b", by="samples", title="Sizes"),
        lab.charts.race_chart(races.pairs, "b"),
    ):
        (text,) = [one["text"] for one in data_of(chart)]
        assert "no ratio" in text
        assert races.cells[4].pair("a", "b").why in text
        assert vl_convert.vegalite_to_png(chart.to_json())[:4] == b"\x89PNG"


def test_pairs_are_told_from_the_other_arms_side():
    (told,) = pairs_against([pair("edge_mask", "node_mask", "SLOWER")], "edge_mask")
    assert (told.a, told.verdict, told.ratio) == ("node_mask", "FASTER", 0.5)


def trial(stage, injected, back):
    return Trial(stage, injected, back, 10)


def test_spikes_that_came_back_are_told_from_those_that_did_not():
    found = SpikeIn([trial("forward", 0.001, 0.00101), trial("forward", 0.002, 0.003), trial("forward", 0.001, 0.0)])
    assert str(found).startswith("33% recovered")
    assert [line[0] + line[-1] for line in found._display().lines] == ["forwardyes", "forwardNO", "forwardNO"]


ELSEWHERE = """
    import json, sys
    from tclab import lab, sweeps, timing
    from tclab.sweeps.store import _row_files as results
    results._machine = lambda _: {"cpu": "another machine"}
    folder = sys.argv[1]
    rows = results.Results(folder + "/rows").frame()
    pairs = list(timing.verdicts_of(timing.read_samples(folder + "/race.jsonl")).values())
    drawn = [lab.charts.stages(rows), lab.charts.race_chart(pairs, "edge_mask")]
    print(json.dumps([*(chart.to_dict() for chart in drawn), lab.findings(rows), [str(pair) for pair in pairs]]))
"""


@pytest.mark.slow
def test_every_figure_is_made_again_from_the_record_on_another_machine(tmp_path, root):
    points = [
        tclab.Point(scale=0.01, networks=1, steps=3, strategy=strategy, device="cpu")
        for strategy in ("edge_mask", "node_mask")
    ]
    rows = tclab.sweep(points, results=tmp_path / "rows")
    machine = SyntheticMachine(5)
    arms = {name: machine.arm(name, 0.01) for name in ("edge_mask", "node_mask")}
    raced = race_cells({"one": arms}, budget_seconds=20, clock=machine.clock, record=tmp_path / "race.jsonl")
    drawn = [lab.charts.stages(rows), lab.charts.race_chart(raced.pairs, "edge_mask")]
    here = [*(chart.to_dict() for chart in drawn), lab.findings(rows), [str(pair) for pair in raced.pairs]]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "2"}
    there = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ELSEWHERE), str(tmp_path)],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    shown = json.loads(there.stdout)
    assert shown[1:] == json.loads(json.dumps(here))[1:]

    def lines(chart):
        return sorted(json.dumps(row, sort_keys=True) for data in chart["datasets"].values() for row in data)

    assert lines(shown[0]) == lines(json.loads(json.dumps(here[0])))


def test_medians_of_rows_are_those_of_their_raw_samples(tmp_path):
    rows = tclab.run(tclab.Point(scale=0.01, networks=1, steps=5, device="cpu"))
    for _, row in rows.iterrows():
        assert row["median_seconds"] == pytest.approx(pd.Series(row["samples_seconds"]).median())
        assert row["n"] == len(row["samples_seconds"])
