"""Where a step's time goes: parts that add up, timelines apart, words where one does not add up."""

import json

import pytest
import vl_convert
from stage_rows import HOST, RUN, WORKER, every_mode, lost, point_rows

from tclab import lab
from tclab.lab.charts._style import STAGE_COLOURS
from tclab.lab.reports import _cells as parts
from tclab.lab.reports._cells import stage_parts
from tclab.sweeps.store._rows import frame, mean_columns, table
from tclab.timing._ledger import STAGES


def framed(made):
    return frame(table(made))


@pytest.fixture
def rows():
    return framed(every_mode())


def drawn(chart):
    assert vl_convert.vegalite_to_png(chart.to_json())[:4] == b"\x89PNG"
    return json.dumps(chart.to_dict(), ensure_ascii=False)


def test_parts_add_up_to_the_whole_on_every_timeline(rows):
    found = stage_parts(rows)
    for (mode, strategy, where), own in found.groupby(["mode", "strategy", "where"]):
        busy = own[own["stage"] != "idle"]
        assert busy["seconds"].sum() == pytest.approx(own["whole_seconds"].iloc[0])
        wanted = HOST[strategy] if where == "host" else WORKER[strategy]
        ran = RUN[mode] if where == "host" else tuple(wanted)
        assert set(busy["stage"]) == set(ran)
        expected = sum(wanted[stage] for stage in ran) / 1e3
        assert busy["seconds"].sum() == pytest.approx(expected, rel=0.15)
    assert set(found["mode"]) == set(RUN)


def test_a_slow_step_is_in_the_mean():
    made = point_rows("node_mask", scatter=0.01, steps=20)
    for one in made:
        if one["where"] == "host":
            samples = one["samples_seconds"] = [*one["samples_seconds"][:-1], 100 * one["samples_seconds"][-1]]
            one |= mean_columns(samples, 1)
    found = stage_parts(framed(made)).query("where == 'host'")
    assert found["seconds"].sum() == pytest.approx(0.02 * 119 / 20, rel=0.05)


def test_a_stage_that_is_not_in_every_step_is_spread_over_all():
    made = point_rows("node_mask", scatter=0)
    for one in made:
        if one["stage"] == "optimizer":
            samples = one["samples_seconds"]
            one["samples_seconds"] = samples[::2]  # every other batch, as with accumulate=2
            one |= mean_columns([took * (place % 2) for place, took in enumerate(samples)], 2)
    found = stage_parts(framed(made)).query("where == 'host'").set_index("stage")["seconds"]
    assert found["optimizer"] == pytest.approx(0.5e-3)
    assert found["forward"] == pytest.approx(6e-3)


def test_rows_with_overheads_and_lost_points_are_left_out():
    made = [*point_rows("node_mask"), *point_rows("node_mask", factor=9, overheads="item_logging")]
    found = stage_parts(framed([*made, lost("edge_mask", "oom", mode="step")]))
    assert set(found["strategy"]) == {"node_mask"}
    assert found.query("where == 'host'")["seconds"].sum() == pytest.approx(0.02, rel=0.2)


def test_every_stage_of_every_timeline_has_a_colour_of_its_own():
    assert {*STAGES, "sample", "collate", "idle"} == set(STAGE_COLOURS)
    assert len(set(STAGE_COLOURS.values())) == len(STAGE_COLOURS)


def test_bars_have_a_panel_for_each_mode_and_a_bar_for_each_timeline_on_one_axis(rows):
    spec = lab.charts.stages(rows).to_dict()
    (found,) = [lines for lines in spec["datasets"].values() if lines]
    assert list(dict.fromkeys(line["panel"] for line in found)) == list(RUN)
    assert {line["bar"].split(" · ")[-1] for line in found} == {"worker", "host"}
    text = drawn(lab.charts.stages(rows))
    assert "cpu · 2 cores · Made Up" in text
    assert "accounted for: 100.0%" in text


def test_a_timeline_that_does_not_add_up_has_words_and_no_bar():
    made = framed(point_rows("edge_mask", accounted=0.9))
    chart = lab.charts.stages(made).to_dict()
    (found,) = [lines for lines in chart["datasets"].values() if lines]
    host = [line for line in found if line["bar"].endswith("host")]
    assert {line["value"] for line in host} == {0.0}
    assert "does not add up: stages add up to 90.0% of its clock" in {line["text"] for line in host}


@pytest.mark.parametrize(("accounted", "whether"), [(None, True), (0.981, True), (1.019, True), (0.979, False)])
def test_the_tolerance_is_two_percent(accounted, whether):
    assert parts.adds_up(accounted) is whether


def test_the_whole_of_a_rank_and_what_its_backward_hides_are_no_stages_of_it():
    host = [one for one in point_rows("node_mask", scatter=0) if one["where"] == "host"]
    sums = {"step": "whole"}
    rank = [dict(one) | {"where": "rank 0", "stage": sums.get(one["stage"], one["stage"])} for one in host]
    hidden = dict(rank[0]) | {"stage": "overlapped"}
    found = stage_parts(framed([*host, *rank, hidden])).groupby("where")["seconds"].sum()
    assert found["rank 0"] == pytest.approx(found["host"])


def test_a_device_has_a_bar_of_its_own():
    made = point_rows("node_mask", where="device", device="cuda", gpu="Made GPU")
    host = [dict(one) | {"where": "host"} for one in made if one["where"] == "device" and one["stage"] != "step"]
    text = drawn(lab.charts.stages(framed([*host, *made])))
    assert "node_mask · device" in text
    assert "node_mask · host" in text
    assert "cuda · Made GPU" in text


def test_findings_carry_the_rows_figures(rows):
    said = lab.findings(rows, "steps")
    assert any("hetero_cell with edge_mask" in s and "data_wait 60%, backward 16%, forward 14%" in s for s in said)
    assert any("Meanwhile a worker of hetero_cell with node_mask makes a batch in 3" in s for s in said)


def test_runs_and_settings_of_one_strategy_are_bars_of_their_own():
    """Three runs of a point, and one by another loop: none adds to another's bar, sentence or verdict."""
    runs = [
        one | {"measured_at": f"2026-01-0{number}T00:00:00"}
        for number in (1, 2, 3)
        for one in point_rows("node_mask", factor=number, scatter=0, loop="plain")
    ]
    rows = framed([*runs, *point_rows("node_mask", factor=5, scatter=0, loop="lightning")])
    found = stage_parts(rows).query("where == 'host' and mode == 'step'")
    step = sum(HOST["node_mask"].values()) / 1e3
    middle, other = 2 * step, 5 * step  # the median run of three
    names = ["hetero_cell · node_mask · loop plain", "hetero_cell · node_mask · loop lightning"]
    assert found.groupby("label", sort=False)["seconds"].sum().to_dict() == pytest.approx(
        dict(zip(names, (middle, other), strict=True))
    )
    said = " ".join(lab.findings(rows, "steps"))
    assert "node_mask, loop plain: a step takes 40 ms of the host's time, backward 40%, forward 30%" in said
    assert "node_mask, loop lightning: a step takes 100 ms" in said
    (one,) = parts.one_point_each(rows).query("stage == 'step'").to_dict("records")
    assert (one["loop"], one["mean_seconds"]) == ("plain", pytest.approx(middle))
