"""Several runs side by side on one device: what they bring together, what each loses, and what the rows say of it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import vl_convert
from test_lab import row

import tclab
from tclab import InputError, Point, lab, sweeps
from tclab.sweeps.execution._rank_measurement import RankMeasurement, rows_of_ranks
from tclab.sweeps.store._rows import columns_of, frame, table

SMALL = Point(scale=0.05, networks=3, batch_size=4, workers=0, steps=4, warmup=1, device="cpu")


def test_runs_and_ranks_are_not_asked_for_together():
    with pytest.raises(InputError, match="ranks is 2 and runs is 3, expected one of them to be 1"):
        Point(ranks=2, runs=3)
    assert [point.runs for point in tclab.grid(runs="1,2,3", batch_sizes=1, models="dango", networks=1)] == [1, 2, 3]


def test_what_is_of_one_process_alone_takes_no_runs(tmp_path):
    beside = replace(SMALL, runs=2)
    with pytest.raises(InputError, match="2 runs asked for, and a race is of one process"):
        sweeps.race_points({"one": SMALL, "two": beside}, budget_seconds=1)
    with pytest.raises(InputError, match="2 runs asked for, and an epoch is of one process"):
        sweeps.run_epoch(beside, steps=4, record=tmp_path)


def test_memory_is_that_of_all_runs():
    one, three = tclab.fits(SMALL), tclab.fits(replace(SMALL, runs=3))
    assert one.host == three.host
    limit = int(2.5 * one.host)
    assert tclab.fits(SMALL, memory_bytes=limit).refusal is None
    assert tclab.fits(replace(SMALL, runs=2), memory_bytes=limit).refusal is None
    assert "of host memory, and there are" in tclab.fits(replace(SMALL, runs=3), memory_bytes=limit).refusal
    assert "one of 3 runs side by side" in str(three)


def measured(seconds, peak):
    return RankMeasurement(
        timelines={"host": {"step": seconds, "forward": [0.5 * took for took in seconds]}},
        exchanged=None, late=None, demands={}, accounted={"host": 1.0}, first_step_seconds=1.0, batch_bytes=10,
        edge_bytes=0, peak_bytes=peak, conditions=[],
    )  # fmt: skip


def test_rows_of_runs_are_of_all_together_and_of_each():
    point = replace(SMALL, runs=2)
    rows = frame(table(rows_of_ranks(point, columns_of(point), [measured([0.1] * 8, 100), measured([0.4] * 8, 300)])))
    step = rows[rows["stage"] == "step"].iloc[0]
    assert step["samples_per_second"] == pytest.approx(4 / 0.1 + 4 / 0.4)
    assert (step["mean_seconds"], step["peak_bytes"], step["device_sharing"]) == (pytest.approx(0.25), 400, "cores")
    each = rows[rows["stage"] == "whole"].set_index("where")
    assert each["samples_per_second"].to_dict() == {"run 0": pytest.approx(40), "run 1": pytest.approx(10)}
    assert each["peak_bytes"].to_dict() == {"run 0": 100, "run 1": 300}
    assert rows["backend"].isna().all()


@pytest.fixture
def rows():
    """One run makes 40 samples a second; two 76, three 84 and four 84.2, within their interval."""
    made = []
    generator = np.random.default_rng(2)
    for runs, together, spread in ((1, 40, 0.02), (2, 76, 0.02), (3, 84, 0.02), (4, 84.2, 0.02)):
        seconds = 4 * runs / together
        samples = (seconds * (1 + 0.01 * generator.standard_normal(40))).tolist()
        point = replace(SMALL, networks=2, scale=0.02, steps=40, runs=runs)
        of_all = {**columns_of(point), "network_names": "physical,tflink"}
        more = {"samples_per_second": together, "peak_bytes": 600_000_000 * runs, "samples_seconds": samples}
        shared = {"device_sharing": None if runs == 1 else "cores", "n": 40}
        made.append(row(seconds=seconds, **of_all, **shared, spread=spread) | more)
        if runs > 1:
            made += [
                row(seconds=seconds * (1 + 0.1 * run), **of_all, where=f"run {run}") | {"stage": "whole"}
                for run in range(runs)
            ]
    return frame(table(made))


def test_the_fewest_runs_that_bring_the_most_are_best(rows):
    found = lab.reports.scaling_table(rows, "runs").set_index("runs")
    assert found["gain"].tolist() == pytest.approx([1, 1.9, 2.1, 2.105])
    assert found["slowdown"].tolist() == pytest.approx([1, 2 / 1.9, 3 / 2.1, 4 / 2.105])
    assert found.loc[3, "slowest"] == pytest.approx(1.2 * 3 / 2.1)
    assert found.index[found["best"]].tolist() == [3]
    assert found.loc[3, "peak_bytes"] == 1_800_000_000
    (said,) = lab.findings(rows, "runs")
    assert said in lab.findings(rows)
    assert "3 runs on this device, each with its share of the cores, bring 2.10 × the samples a second" in said
    assert "a step of each takes 1.43 × as long (the slowest 1.71 ×); together they hold 1.8 GB. By `fits` they" in said
    chart = lab.charts.scaling_chart(rows, "runs")
    assert vl_convert.vegalite_to_png(chart.to_json())[:4] == b"\x89PNG"
    data = [one for rows in chart.to_dict()["datasets"].values() for one in rows]
    assert {one["runs"]: one["best"] for one in data} == {1: False, 2: False, 3: True, 4: False}
    assert "each × 1.43 slower; 1.8 GB" in {one["text"] for one in data if one["runs"] == 3}.pop()
    assert lab.reports.scaling_table(rows[rows["runs"] == 1], "runs").empty
    assert "No number of runs" in json.dumps(lab.charts.scaling_chart(rows[rows["runs"] == 1], "runs").to_dict())


def test_more_runs_are_advised_with_what_they_bring(rows):
    found = {one.setting.get("runs"): one for one in tclab.advise(rows).suggestions if "runs" in one.setting}
    assert set(found) == {2, 3, 4}
    assert found[2].change == "2 runs on this device, which bring 1.90 × the samples a second of 1"
    assert found[2].ratio == pytest.approx(1 / 1.9, rel=0.01)
    assert "each of them is slower than it is alone" in found[2].why


@pytest.mark.slow
def test_runs_train_side_by_side_and_each_has_its_rows():
    """What they bring against processes started by hand, `benchmarks/runs_by_hand.py` prints."""
    rows = tclab.run(replace(SMALL, runs=2))
    assert set(rows["status"]) == {"ok"}
    each, step = rows[rows["stage"] == "whole"], rows[rows["stage"] == "step"]
    assert each["where"].nunique() == len(each) == 2
    assert (each["n"] == SMALL.steps).all()
    bring = (SMALL.batch_size / each["mean_seconds"]).sum()
    assert step["samples_per_second"].item() == pytest.approx(bring)
