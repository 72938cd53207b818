"""Charts of points that differ in settings, machines or commits: nothing is added up, judged or drawn as one."""

import re
from functools import partial

import numpy as np
import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st
from test_compare import rows, step

from tclab import lab
from tclab.lab.charts._style import STAGE_COLOURS, STRATEGY_COLOURS, log_ticks, stage_colours, strategy_colours
from tclab.lab.charts._sweep_charts import SWEEP_CHARTS, sweep_chart
from tclab.lab.reports._comparable_rows import with_labels
from tclab.lab.reports._findings import conclusion
from tclab.timing._verdict import FASTER, SAME, UNDECIDED, Pair


def point(strategy, seconds, **fields):
    """A point's rows: its step, and two stages that make it up."""
    whole = step(strategy, seconds, **fields)
    parts = [
        step(strategy, seconds * share, **fields) | {"stage": stage}
        for stage, share in (("forward", 0.4), ("backward", 0.6))
    ]
    return [whole, *parts]


def both(**fields):
    return [
        one
        for strategy, seconds in (("node_mask", 0.1), ("edge_mask", 0.8))
        for one in point(strategy, seconds, **fields)
    ]


SETTINGS = {
    "two widths": ({"hidden": 32}, {"hidden": 64}),
    "one of the model's own": ({"hidden": None}, {"hidden": 64}),
    "two commits": ({"commit": "a" * 40}, {"commit": "b" * 40 + "+"}),
    "two machines": ({"cpu": "One"}, {"cpu": "Two", "cores": 16, "memory_bytes": 9}),
    "two modes": ({"mode": "step"}, {"mode": "model"}),
    "two sets of networks": ({"network_names": "a,b"}, {"network_names": "a,c"}),
}


def drawn(chart, column):
    """The rows of a chart that have a column."""
    spec = chart if isinstance(chart, dict) else chart.to_dict()
    return [line for data in spec["datasets"].values() for line in data if column in line]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_bar_is_one_point_and_says_which(name):
    one, other = SETTINGS[name]
    made = rows(*both(**one), *both(seed=5, **other))
    spec = lab.charts.throughput(made).to_dict()
    bars = drawn(spec, "samples_per_second")
    assert len(bars) == len({bar["label"] for bar in bars}) == 4
    assert spec["layer"][0]["encoding"]["x"]["stack"] is None


@pytest.mark.parametrize("name", ["two widths", "two commits"])
def test_no_chart_adds_up_points_with_different_settings(name):
    one, other = SETTINGS[name]
    made = rows(*both(**one), *both(seed=5, **other))
    assert len({bar["label"] for bar in drawn(lab.charts.bytes_per_batch(made), "batch_bytes")}) == 4
    parts = drawn(lab.charts.stages(made), "stage")
    assert len(parts) == len({(part["label"], part["stage"]) for part in parts}) == 8
    for chart in (partial(lab.charts.throughput, by="batch_size"), partial(lab.charts.throughput, by="networks")):
        spec = chart(made).to_dict()
        points = drawn(spec, "samples_per_second")
        assert len(points) == len({line["label"] for line in points}) == 4
        assert len({line["line"] for line in points}) == 2  # a dash each, named in a legend
        assert spec["layer"][1]["encoding"]["strokeDash"]["legend"]["title"] is None


def test_a_setting_is_told_where_it_varies_in_few_words():
    def labels(*fields):
        return set(with_labels(rows(*(step(**each) for each in fields)))["label"])

    assert labels({"hidden": 32}) == {"hetero_cell · node_mask"}
    assert labels({"hidden": None}, {"hidden": 64}) == {
        "hetero_cell · node_mask",
        "hetero_cell · node_mask · hidden 64",
    }
    assert labels({"commit": "a" * 40}, {"commit": "a" * 40 + "+"}) == {
        "hetero_cell · node_mask · commit aaaaaaaa", "hetero_cell · node_mask · commit aaaaaaaa+"
    }  # fmt: skip
    assert labels({"cpu": "One", "memory_bytes": 1}, {"cpu": "Two", "memory_bytes": 2}) == {
        "hetero_cell · node_mask · One", "hetero_cell · node_mask · Two"
    }  # fmt: skip
    assert labels({"model": "dango", "loss": "a"}, {"loss": "b"}) == {"dango · node_mask", "hetero_cell · node_mask"}
    lost = step(hidden=64) | {"status": "oom", "median_seconds": None, "commit": None, "cpu": None}
    made = with_labels(rows(step(hidden=32), step("edge_mask", hidden=64), lost))
    assert made["label"].iloc[-1] == "hetero_cell · node_mask · hidden 64"


@pytest.mark.parametrize("view", SWEEP_CHARTS)
def test_a_point_that_was_run_several_times_is_drawn_once(view):
    made = rows(*(one for seed in range(3) for one in both(seed=seed)))
    spec = sweep_chart(made, view).to_dict()
    for column in ("samples_per_second", "mean_seconds", "batch_bytes"):
        lines = drawn(spec, column)
        assert len({(line["label"], line.get("stage")) for line in lines}) == len(lines)
    assert len(made[made["stage"] == "step"]) == 6


def test_a_bar_has_the_word_of_the_verdict_and_none_that_the_conclusion_contradicts():
    lost = step("stored_mask") | {"status": "oom", "median_seconds": None, "samples_seconds": None}
    made = rows(
        step("node_mask", 0.100, seed=1, scatter=0.001),
        step("gpu_mask", 0.105, seed=2),  # the interval reaches across the margin
        step("dense", 0.101, seed=3, scatter=0.001),
        step("edge_mask", 0.110, scatter=0.2, seed=4, n=60),  # quartiles overlap, and it is
        step("khop_1", 0.01, exact=False),
        lost,
    )
    said = {line["label"].split(" · ")[1]: line["word"] for line in drawn(lab.charts.throughput(made), "word")}
    assert said["gpu_mask"] == "undecided"
    assert said["dense"] == "the same"
    assert said["stored_mask"] == "oom"
    assert said["khop_1"] == "inexact"
    assert "node_mask" not in said
    (sentence,) = conclusion(made)
    assert ("undecided" in sentence) == (said.get("edge_mask") == "undecided")
    clear = rows(step("node_mask", 0.1, scatter=0.3, n=400), step("edge_mask", 0.12, scatter=0.3, n=400, seed=8))
    steps = clear.set_index("strategy")
    assert steps.loc["edge_mask", "q1_seconds"] < steps.loc["node_mask", "q3_seconds"]  # quartiles overlap
    assert "node_mask is 1." in conclusion(clear)[0]
    assert drawn(lab.charts.throughput(clear), "word") == []


@pytest.mark.parametrize("seconds", [0.1, 0.101, 0.104, 0.107, 0.112, 0.13, 0.5])
@pytest.mark.parametrize("n", [3, 8, 40])
def test_chart_and_conclusion_never_disagree(seconds, n):
    made = rows(step("node_mask", 0.1, n=n, seed=1), step("edge_mask", seconds, n=n, seed=2))
    (sentence,) = conclusion(made)
    word = [line["word"] for line in drawn(lab.charts.throughput(made), "word")]
    told = "undecided" if "undecided" in sentence else "the same" if "as fast as" in sentence else None
    assert word == ([told] if told else [])


def test_a_race_decides_in_the_chart_as_in_words():
    made = rows(step("node_mask", 0.1, n=3), step("edge_mask", 0.2, n=3))
    assert [line["word"] for line in drawn(lab.charts.throughput(made), "word")] == ["undecided"]
    raced = Pair("node_mask", "edge_mask", FASTER, "", ratio=0.5, interval=(0.4, 0.6))
    assert drawn(lab.charts.throughput(made, pairs=[raced]), "word") == []
    same = Pair("edge_mask", "node_mask", SAME, "", ratio=1.0, interval=(0.99, 1.01))
    assert [line["word"] for line in drawn(lab.charts.throughput(made, pairs=[same]), "word")] == ["the same"]
    open_ = Pair("edge_mask", "node_mask", UNDECIDED, "", ratio=1.0)
    assert [line["word"] for line in drawn(lab.charts.throughput(made, pairs=[open_]), "word")] == ["undecided"]


def test_a_line_over_stages_holds_nine_in_ten_steps():
    made = rows(*both())
    spread = {line["label"]: line for line in drawn(lab.charts.stages(made), "p95")}
    steps = made[made["stage"] == "step"].set_index("strategy")
    for strategy in ("node_mask", "edge_mask"):
        line = spread[f"hetero_cell · {strategy}"]
        assert [line["p5"], line["p95"]] == list(np.quantile(steps.loc[strategy, "samples_seconds"], [0.05, 0.95]))


def lost(strategy, batch, status="oom"):
    return step(strategy, batch_size=batch) | {"status": status, "median_seconds": None, "q1_seconds": None,
                                               "q3_seconds": None, "samples_per_second": None}  # fmt: skip


def test_what_is_lost_at_one_batch_size_is_one_line_of_words_and_every_batch_size_has_a_tick():
    made = rows(
        *(step(name, batch_size=batch) for name in ("node_mask", "edge_mask") for batch in (1, 2)),
        lost("edge_mask", 4), lost("node_mask", 4, "failed: no"), *(lost(name, 8) for name in STRATEGY_COLOURS),
    )  # fmt: skip
    chart = lab.charts.throughput(made, "batch_size").to_dict()
    words = {line["batch_size"]: line["text"] for line in drawn(chart, "text")}
    assert words == {4: "failed: node_mask; oom: edge_mask", 8: f"oom × {len(STRATEGY_COLOURS)}"}
    assert chart["layer"][0]["encoding"]["x"]["axis"]["values"] == [1, 2, 4, 8]
    text = next(layer for layer in chart["layer"] if layer["mark"]["type"] == "text")
    assert text["encoding"]["y"] == {"value": "height"}  # at the axis, whatever the height
    assert sweep_chart(made, "over batch size").to_dict()["height"] != chart["height"]


@given(st.floats(-9, 12), st.floats(0, 6))
def test_a_logarithmic_axis_has_labels_among_the_figures(power, decades):
    low = 10.0**power
    high = low * 10.0**decades
    ticks = log_ticks([high, None, low, float("nan")])
    if high / low < 1 + 1e-9:
        assert len(ticks) == 1
        return
    assert 4 <= len(ticks) <= 14
    assert ticks == sorted(set(ticks))
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)
    if high / low > 1.001:
        assert all(len(f"{tick:.10e}".split("e")[0].rstrip("0")) <= 8 for tick in ticks)  # round numbers


def test_known_labels_of_logarithmic_axes():
    assert log_ticks([0.93, 1.07]) == pytest.approx([0.94, 0.96, 0.98, 1.0, 1.02, 1.04, 1.06])
    assert log_ticks([2, 900]) == [3, 10, 30, 100, 300]
    assert log_ticks([2, 80]) == [2, 5, 10, 20, 50]
    assert log_ticks([1, 1e9]) == [1, 1e3, 1e6, 1e9]
    assert log_ticks([]) == log_ticks([0.0, None, -1.0]) == []
    assert log_ticks([3.14159]) == [3.14]


def test_a_strategy_of_ones_own_keeps_its_colour_whoever_is_beside_it():
    for colours, fixed in ((strategy_colours, STRATEGY_COLOURS), (stage_colours, STAGE_COLOURS)):
        alone = colours(["mine"])["mine"]
        assert alone not in fixed.values() or fixed is STAGE_COLOURS
        assert colours(["yours", "mine", next(iter(fixed))])["mine"] == alone or (
            colours(["yours"])["yours"] == alone  # then one of the two gives way
        )
        many = [f"own_{place}" for place in range(8)]
        assert len({colours(many)[name] for name in many}) == 8
        assert set(colours(many)) >= set(fixed)
        assert len(colours([f"own_{place}" for place in range(20)])) == len(fixed) + 20
    assert np.all([strategy_colours([name])[name] == STRATEGY_COLOURS[name] for name in STRATEGY_COLOURS])


@pytest.mark.parametrize("view", SWEEP_CHARTS)
def test_a_panels_chart_fits_into_its_box_with_its_legend_and_names(view):
    """The box is 610 × 380 pixels: what is outside is not seen."""
    made = rows(*both(), *both(seed=5), *(step(name, 0.1) for name in ("gpu_mask_cached", "gene_mask_cache")))
    for shown in (made, made.head(0)):
        svg = vl_convert.vegalite_to_svg(sweep_chart(shown, view).to_dict())
        width, height = (float(found) for found in re.search(r'width="([\d.]+)" height="([\d.]+)"', svg).groups())
        assert width <= 610
        assert height <= 380


def test_over_edge_types_has_the_batch_size_of_the_other_charts():
    made = rows(*both(batch_size=1), *both(batch_size=16))
    for by in ("strategy", "networks"):
        assert "batch 16" in " ".join(lab.charts.throughput(made, by).to_dict()["title"]["subtitle"])
