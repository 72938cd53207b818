"""What more ranks bring: the points, their charts from rows made by hand, and a predicted step."""

from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stage_rows import point_rows
from test_lab import row

from tclab import InputError, case_study, lab
from tclab.sweeps.config import scaling_points
from tclab.sweeps.execution._rank_measurement import RankMeasurement, rows_of_ranks
from tclab.sweeps.predict import Link, predict_step
from tclab.sweeps.store._rows import columns_of, frame, table

HOW = {"scale": 0.02, "networks": 2, "device": "cpu", "steps": 4}


def test_strong_shares_a_batch_and_weak_gives_each_rank_its_own():
    strong = scaling_points("strong", ranks="1,2,4", batch_size=8, **HOW)
    weak = scaling_points("weak", ranks=[4, 1, 2], batch_size=8, **HOW)
    assert {(p.model, p.strategy) for p in strong + weak} == {("hetero_cell", "node_mask"), ("dango", "indices")}
    assert {(p.ranks, p.batch_size) for p in strong} == {(1, 8), (2, 4), (4, 2)}
    assert {(p.ranks, p.batch_size) for p in weak} == {(1, 8), (2, 8), (4, 8)}
    together = scaling_points("strong,weak", ranks="1,2,4", batch_size=8, **HOW)
    assert set(together) == {*strong, *weak}
    assert len(together) == len(set(together)) == 2 * (3 + 3 - 1)
    assert [p.ranks for p in together] == sorted(p.ranks for p in together)


def test_accumulation_takes_a_step_after_as_many_samples():
    points = scaling_points("accumulated", ranks="1,2,4", batch_size=3, models="hetero_cell", **HOW)
    assert {p.ranks * p.batch_size * p.accumulate for p in points} == {12}
    assert [(p.ranks, p.accumulate, p.steps) for p in points] == [
        (1, 4, 16),
        (2, 2, 8),
        (4, 1, 4),
    ]


@pytest.mark.parametrize(
    ("kind", "ranks", "words"),
    [
        ("strong", "1,3", "batch_size is 8, expected one that 3 ranks can share evenly"),
        ("accumulated", "2,3", "expected numbers that divide the largest, 3"),
        ("weak", "1,two", "ranks is 'two', expected a whole number of at least 1"),
        ("weak", "0", "ranks is 0, expected a whole number of at least 1"),
        ("week", "1", "unknown kind of scaling 'week'; did you mean 'weak'"),
    ],
)
def test_ranks_that_cannot_be_are_one_clear_line(kind, ranks, words):
    with pytest.raises(InputError, match=words):
        scaling_points(kind, ranks=ranks, batch_size=8, **HOW)


def step(ranks, seconds, *, accumulate=1, **fields):
    """The row of a step of `ranks`, that takes so many seconds."""
    made = row("node_mask", seconds, ranks=ranks, backend="gloo" if ranks > 1 else None, threads=1, **fields)
    return {**made, "accumulate": accumulate, "samples_per_second": 4 * ranks / seconds, "overheads": ""}


def stages_of(ranks, seconds, parts, *, size=4e6, late=(0.2, 0.8), hidden=0.001):
    """The rows of a point of several ranks: its step, some of its stages, and what each rank adds."""
    whole = step(ranks, seconds, gradient_bytes=size, buckets=1)
    made = [{**whole, "samples_seconds": [seconds] * 8}]
    made += [{**step(ranks, took), "stage": name, "samples_seconds": [took] * 8} for name, took in parts.items()]
    for rank in range(ranks):
        share = {"late_share": late[rank]}
        made.append({**step(ranks, seconds), "stage": "whole", "where": f"rank {rank}", **share})
        made.append({**step(ranks, hidden), "stage": "overlapped", "where": f"rank {rank}"})
    return [{**one, "samples_per_second": None} if one["stage"] != "step" else one for one in made]


@pytest.fixture
def rows():
    two = stages_of(2, 0.125, {"backward": 0.05, "communication": 0.01, "rank_wait": 0.02, "gather": 0.005})
    one = [
        {**step(1, 0.1), "samples_seconds": [0.1] * 8},
        {**step(1, 0.04), "stage": "backward", "samples_seconds": [0.04] * 8},
    ]
    return frame(table([*one, *two]))


def test_scaling_is_against_the_fewest_ranks_the_ideal_and_the_cores(rows):
    found = lab.reports.scaling_table(rows).set_index("ranks")
    assert found["speedup"].tolist() == pytest.approx([1.0, 1.6])
    assert found["efficiency"].tolist() == pytest.approx([1.0, 0.8])
    assert found["ideal"].tolist() == [1, 2]
    assert found["cores_allow"].tolist() == [1, 2]  # two cores, one thread a rank
    wide = rows.assign(threads=2)
    assert lab.reports.scaling_table(wide)["cores_allow"].tolist() == [1, 1]
    assert "cpu · gloo · 1 and 2 ranks · " in str(lab.charts.speed_up(rows, rows).to_dict()["title"])
    assert (found["low"] <= found["speedup"]).all()
    assert (found["speedup"] <= found["high"]).all()


def test_the_exchange_of_a_step_is_told_apart(rows):
    (found,) = lab.reports.exchange_table(rows).to_dict("records")
    assert tuple(found[f"{name}_seconds"] for name in ("communication", "rank_wait", "gather")) == (0.01, 0.02, 0.005)
    assert found["overlapped_seconds"] == pytest.approx(0.001)
    assert found["last"] == "rank 1 (80%)"
    assert found["gradient_bytes"] == 4e6


def test_the_hypothesis_names_the_last_rank_and_keeps_waiting_apart(rows):
    said = " ".join(str(case_study.hypotheses(rows)[3]).split())
    assert said.startswith("DDP, communication: does not hold here")
    assert "Exposed communication is 8.0%" in said
    assert "Waiting for the slowest rank, which is no communication: 16.0%" in said
    assert "all-gathers, with waits: 4.0%" in said
    assert "cpu · gloo · 2 ranks" in said


def test_a_rate_is_of_whole_optimizer_steps_however_many_batches_make_one():
    """Three batches of which one steps: 0.1, 0.1, 0.4 s. The median batch steps nothing."""
    point = scaling_points("weak", ranks=1, batch_size=4, models="hetero_cell", **HOW)[0]
    point = replace(point, accumulate=3)
    optimizer = [None, None, 0.3] * 3
    timeline = {"host": {"step": [0.1, 0.1, 0.4] * 3, "forward": [0.1] * 9, "optimizer": optimizer}}
    measured = RankMeasurement(timeline, {}, {"host": 1.0}, {"peak_bytes": 7}, [{}, {}])
    every = {**columns_of(point), "device": "cpu"}
    made = frame(table(rows_of_ranks(point, every, [measured])))
    (whole,) = made[made["stage"] == "step"].to_dict("records")
    assert whole["median_seconds"] == pytest.approx(0.1)
    assert whole["samples_per_second"] == pytest.approx(4 / 0.2)
    assert (whole["peak_bytes"], whole["host_accounted"]) == (7, 1.0)


def test_rows_of_ranks_have_the_worst_of_each_and_a_mean_of_what_an_exchange_hides():
    """Of four batches two exchange, each hiding 0.1 s."""
    point = replace(scaling_points("weak", ranks=2, batch_size=4, models="hetero_cell", **HOW)[0], ranks=2)
    timeline = {"host": {"step": [0.1, 0.4] * 2, "forward": [0.1] * 4}}
    exchanged = {"step": [1, 3], "overlapped_seconds": [0.1, 0.1], "bytes": [8, 8], "buckets": [1, 1]}
    seen = [
        RankMeasurement(
            timeline, {}, {"host": share}, {"peak_bytes": peak, "store_bytes": None}, [{}, {}],
            exchanged=exchanged, late=1,
        )
        for share, peak in ((1.0, 30), (0.99, 20))
    ]  # fmt: skip
    made = rows_of_ranks(point, columns_of(point), seen)
    assert [(row["mean_seconds"], row["n"]) for row in made if row["stage"] == "overlapped"] == [(0.05, 2)] * 2
    (whole,) = (row for row in made if row["stage"] == "step")
    worst = {"peak_bytes": 30, "store_bytes": None, "host_accounted": 0.99, "gradient_bytes": 8, "buckets": 1}
    assert {name: whole[name] for name in worst} == worst


def test_rows_of_points_are_those_of_the_points(rows):
    (point,) = scaling_points("weak", ranks=2, batch_size=4, models="hetero_cell", **{**HOW, "networks": 9})
    assert set(lab.reports.rows_of_points(rows, [point])["ranks"]) == {2}
    assert len(lab.reports.rows_of_points(rows, [])) == 0


# ---- predicted


def test_a_step_whose_figures_are_known_by_hand():
    """Two buckets of 2 MiB: the second leaves at the end of the backward, so it is all exposed."""
    mebibyte = 2**20
    link = Link(bytes_per_second=mebibyte / 0.01, latency_seconds=0.0)  # 10 ms a MiB
    made = predict_step([0.1], [0.05], gradient_bytes=4 * mebibyte, ranks=2, link=link, bucket_cap_mb=2.0)
    parts = {"compute_seconds": 0.15, "rank_wait_seconds": 0.0, "communication_seconds": 0.02}  # 2 messages of 1 MiB
    assert made == pytest.approx({"step_seconds": 0.17, **parts, "overlapped_seconds": 0.02})
    link = Link(bytes_per_second=1e9, latency_seconds=1e-5)
    made = predict_step([0.0], [0.0], gradient_bytes=4e6, ranks=4, link=link)  # a ring's messages and bytes
    assert made["communication_seconds"] == pytest.approx(6 * (1e-5 + 1e6 / 1e9))
    slow = predict_step([0.1], [0.05], gradient_bytes=0, ranks=4, link=link, slowdown=2.0)
    assert slow["step_seconds"] == pytest.approx(0.3)  # nothing to exchange


def test_ranks_wait_for_the_slowest_of_them():
    """Of steps of 1 and 3 s the slower of two ranks takes 3 s in three of four steps."""
    made = predict_step([1.0, 1.0], [0.0, 2.0], gradient_bytes=0, ranks=2, link=Link(1e9, 0))
    assert (made["compute_seconds"], made["rank_wait_seconds"]) == (2.0, pytest.approx(0.5))


def test_batches_that_come_in_bursts_are_in_the_mean_and_not_in_a_typical_step(rows):
    made = predict_step([0.1] * 4, [0.7, 0, 0, 0], gradient_bytes=0, ranks=1, link=Link(1e9, 0))
    assert made["step_seconds"] == pytest.approx(0.275)
    bursts = rows.assign(cycle_steps=3)  # the last six of eight steps are two whole cycles
    steps = (bursts["stage"] == "step") & (bursts["ranks"] == 2)
    bursts.loc[steps, "samples_seconds"] = bursts[steps]["samples_seconds"].map(
        lambda _: [9, 9, *[0.725, 0.125, 0.125] * 2]
    )
    found = lab.reports.predicted_steps(bursts, Link(4e8, 0.0), ranks=[2])
    assert found["compute_seconds"].tolist() == pytest.approx([0.29])


@given(
    st.lists(st.floats(0.001, 1), min_size=1, max_size=8),
    st.integers(1, 64),
    st.just(0.0) | st.floats(1, 1e8),
    st.floats(1e6, 1e12),
    st.floats(0, 1e-3),
)
def test_parts_add_up_and_a_better_link_is_never_slower(steps, ranks, size, speed, latency):
    half = [0.5 * seconds for seconds in steps]

    def made(link):
        return predict_step(half, half, gradient_bytes=size, ranks=ranks, link=link)

    one = made(Link(speed, latency))
    whole, *parts, hidden = one.values()
    assert whole == pytest.approx(sum(parts))
    assert min(*parts, hidden + 1e-12) >= 0
    assert made(Link(2 * speed, latency / 2))["step_seconds"] <= whole + 1e-12
    if ranks == 1:
        assert parts[1:] == pytest.approx([0.0, 0.0], abs=1e-12)
    if len(set(steps)) == 1:
        assert one["rank_wait_seconds"] == pytest.approx(0.0, abs=1e-12)


def test_bad_figures_are_one_clear_line():
    with pytest.raises(InputError, match="is no link"):
        predict_step([0.1], [0.1], gradient_bytes=1, ranks=2, link=Link(0, 1e-5))
    with pytest.raises(InputError, match="ranks is 0"):
        predict_step([0.1], [0.1], gradient_bytes=1, ranks=0, link=Link(1e9, 0))


def test_steps_at_more_ranks_are_made_of_those_that_were_measured(rows):
    found = lab.reports.predicted_steps(rows, Link(4e8, 0.0), ranks=[8, 512]).set_index("ranks")
    assert found.index.tolist() == [2, 8, 512]
    assert found["compute_seconds"].tolist() == pytest.approx([0.09] * 3)  # of two ranks, without what they exchanged
    assert found["rank_wait_seconds"].tolist() == pytest.approx([0.0] * 3, abs=1e-12)
    assert found["measured_seconds"].isna().tolist() == [False, True, True]
    assert (found["measured_seconds"][2], found["ratio"][2]) == pytest.approx((0.125, (0.09 + 0.01) / 0.125))
    assert found["communication_seconds"][8] == pytest.approx(14 * 4e6 / 8 / 4e8)
    assert found["steps an epoch"].tolist() == [-(-265_851 // n) for n in (8, 32, 2048)]
    assert found["epoch_seconds"][8] == pytest.approx(found["step_seconds"][8] * found["steps an epoch"][8])
    capped = lab.reports.predicted_steps(rows.assign(ddp="bucket_cap_mb:1.0"), Link(4e8, 0.0), ranks=[8]).set_index(
        "ranks"
    )
    assert found["overlapped_seconds"][8] == 0.0 < capped["overlapped_seconds"][8]  # in the buckets that were measured
    four = frame(table(stages_of(4, 0.25, {"backward": 0.1}, late=(0.25,) * 4)))
    both = lab.reports.predicted_steps(pd.concat([rows, four]), Link(4e8, 0.0), ranks=[4, 8]).set_index("ranks")
    # four shared two cores; eight would not
    assert both["compute_seconds"].tolist() == pytest.approx([0.09, 0.18, 0.09])
    alone = rows[rows["ranks"] == 1]
    assert lab.reports.predicted_steps(alone, Link(1e9, 0.0), ranks=[8]).empty  # what is exchanged is not known


def test_points_that_differ_in_one_setting_alone_have_a_line_each(rows):
    two = rows[rows["ranks"] == 2]
    both = pd.concat([two.assign(accumulate=1), two.assign(accumulate=5, mean_seconds=two["mean_seconds"] / 2)])
    found = lab.reports.exchange_table(both).set_index("accumulate")
    assert found["gather_seconds"].tolist() == [0.005, 0.0025]


def test_stage_rows_of_one_rank_have_no_exchange():
    assert lab.reports.exchange_table(frame(table(point_rows("node_mask", ranks=1)))).empty
