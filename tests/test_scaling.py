"""What more ranks bring: the points, their charts from rows made by hand, and a predicted step."""

import pytest
from stage_rows import row

from tclab import InputError, lab
from tclab.sweeps._measure import RankMeasurement, rows_of_ranks
from tclab.sweeps._rows import columns_of, frame, table
from tclab.sweeps.config import scaling_points

HOW = {"scale": 0.02, "networks": 2, "device": "cpu", "steps": 4}


def test_strong_shares_a_batch_and_weak_gives_each_rank_its_own():
    strong = scaling_points("strong", ranks="1,2,4", batch_size=8, **HOW)
    weak = scaling_points("weak", ranks=[4, 1, 2], batch_size=8, **HOW)
    assert {(p.model, p.strategy) for p in strong + weak} == {("hetero_cell", "node_mask"), ("dango", "indices")}
    assert {(p.ranks, p.batch_size) for p in strong} == {(1, 8), (2, 4), (4, 2)}
    assert {(p.ranks, p.batch_size) for p in weak} == {(1, 8), (2, 8), (4, 8)}
    together = scaling_points("strong,weak", ranks="1,2,4", batch_size=8, **HOW)
    assert set(together) == {*strong, *weak}
    assert [p.ranks for p in together] == sorted(p.ranks for p in together)


def test_ranks_that_cannot_be_are_one_clear_line():
    for kind, ranks, words in (
        ("strong", "1,3", "batch_size is 8, expected one that 3 ranks can share evenly"),
        ("week", "1", "unknown kind of scaling 'week'; did you mean 'weak'"),
    ):
        with pytest.raises(InputError, match=words):
            scaling_points(kind, ranks=ranks, batch_size=8, **HOW)


def step(ranks, seconds, stage="step"):
    """The row of a step of `ranks`, or of one of its stages, that takes so many seconds."""
    made = row("node_mask", seconds, ranks=ranks, backend="gloo" if ranks > 1 else None, threads=1, stage=stage)
    rate = 4 * ranks / seconds if stage == "step" else None
    return {**made, "accumulate": 1, "overheads": "", "samples_per_second": rate, "samples_seconds": [seconds] * 8}


@pytest.fixture
def rows():
    one, two = (step(1, 0.1), step(1, 0.04, "backward")), (step(2, 0.125), step(2, 0.02, "rank_wait"))
    return frame(table([*one, *two]))


def drawn(chart):
    """Return line → x → point of the panel of weak scaling."""
    (found,) = [lines for lines in chart.to_dict()["datasets"].values() if "panel" in lines[0]]
    return {(one["line"], one["x"]): one for one in found if one["panel"].startswith("weak")}


def test_speed_up_is_against_the_fewest_ranks_the_ideal_and_the_cores(rows):
    points = scaling_points("weak", ranks="1,2", batch_size=4, models="hetero_cell", **HOW)
    chart = lab.charts.speed_up(rows, points, points)
    assert "cpu · gloo · 1 and 2 ranks · 2 cores · Made Up" in str(chart.to_dict()["title"])
    text = "Weak scaling: hetero_cell · node_mask has 1.6× the samples/s on 2 ranks, an efficiency of 80%"
    assert text in chart.to_dict()["title"]["text"]
    found = drawn(chart)
    one, two = (found["hetero_cell · node_mask", ranks] for ranks in (1, 2))
    assert (one["y"], two["y"]) == pytest.approx((1.0, 1.6))
    assert two["low"] < two["y"] < two["high"]
    assert (one["text"], two["text"]) == ("", "80%")
    assert (found["ideal", 2]["y"], found["cores allow", 2]["y"]) == (2, 2)  # two cores, one thread a rank
    assert "rank_wait" not in str(lab.charts.stages(rows, points[:1]).to_dict()["datasets"])
    assert drawn(lab.charts.speed_up(rows.assign(threads=2), points, points))["cores allow", 2]["y"] == 1


def test_rows_of_ranks_have_the_rate_of_all_and_the_worst_of_each():
    """Of four batches two make an optimizer step; the median of 0.25 s would give another rate."""
    (point,) = scaling_points("weak", ranks=2, batch_size=4, models="hetero_cell", **HOW, accumulate=2)
    timeline = {"host": {"step": [0.1, 0.6, 0.1, 0.4], "forward": [0.1] * 4}}
    first, second = (
        RankMeasurement(timeline, {}, {"host": share}, {"peak_bytes": peak}, [{}, {}])
        for share, peak in ((1.0, 30), (0.99, 20))
    )
    made = rows_of_ranks(point, columns_of(point), [first, second])
    assert [row["where"] for row in made if row["stage"] == "whole"] == ["rank 0", "rank 1"]
    (step,) = (row for row in made if row["stage"] == "step")
    assert (step["peak_bytes"], step["host_accounted"]) == (30, 0.99)
    assert step["samples_per_second"] == pytest.approx(2 * 4 / 0.3)
