"""The answer, findings, stages and tables of rows that were made by hand, so that every figure in them is known."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import vl_convert
from stage_rows import HOST, RUN, WORKER, drawn, every_mode, lost, point_rows, row

import tclab
from tclab import lab
from tclab.lab.reports._cells import one_point_each, stage_parts
from tclab.lab.reports._findings import answer, axis_sentences
from tclab.sweeps._rows import frame, mean_columns, table


def framed(*made):
    return frame(table(list(made)))


def said(*made):
    return list(lab.findings(framed(*made)))


@pytest.mark.parametrize(
    "chart", [partial(lab.charts.throughput, by="batch_size"), lab.charts.throughput, lab.charts.stages]
)
def test_charts_of_a_real_run_are_drawn_also_of_one_point_and_of_none(chart, root):
    """Nine points, three strategies and three batch sizes, as a run of explore.ipynb on two cores kept them."""
    recorded = tclab.rows(root / "tests" / "recorded_rows.parquet")
    made = chart(recorded)
    assert all(name in str(made.to_dict()) for name in ("node_mask", "edge_mask", "gpu_mask"))
    assert vl_convert.vegalite_to_png(made.to_json())[:4] == b"\x89PNG"
    for few in (recorded.head(0), recorded.head(1), recorded[recorded["stage"] == "step"]):
        chart(few).to_dict()


def test_the_answer_is_the_first_finding_and_carries_the_rows_figures():
    rows = [lost("stored_mask", "oom")]
    for networks in (1, 9):
        rows += [
            row("node_mask", 0.04, networks=networks),
            row("edge_mask", 0.32, networks=networks, batch_bytes=1_150_000_000),
            row("gpu_mask_loop", 0.4, networks=networks, host_syncs=108),
        ]
    first, axis, second, *_ = said(*rows, row("indices", 0.02, model="dango", networks=6))
    assert first.startswith("On cpu · 2 cores · Made Up, at batch 4 with 9 networks, hetero_cell: node_mask ")
    assert (
        "has the highest throughput, 100 samples/s, but it is not certainly faster than edge_mask (no time in "
        "edge_mask: " in first
    )
    assert "A batch of node_mask has 200 B (edge_mask: 1.15 GB)" in first
    assert axis.startswith(
        "hetero_cell: at every number of networks node_mask has the highest throughput: 100 samples/s"
    )
    assert second == "1 setting (hetero_cell stored_mask, batch 4): oom."


def test_words_are_no_surer_than_the_rows():
    close = " ".join(said(row("node_mask", 0.010), row("gpu_mask", 0.011)))
    assert "it is not certainly faster than gpu_mask" in close
    assert "fastest" not in close
    assert said(row("node_mask", 0.01) | {"status": "failed: x"}) == [
        "No setting of this sweep was measured, so there is nothing to compare.",
        "1 setting (hetero_cell node_mask, batch 4): failed: x.",
    ]


def test_only_rows_that_are_alike_are_compared():
    samples = {"n": 30, "samples_seconds": [0.1 + 0.001 * (i % 5) for i in range(30)]}
    fast = samples | {"samples_seconds": [s / 100 for s in samples["samples_seconds"]]}

    def answered(*made):
        return " ".join(answer(framed(*made)))

    slow_row = row("edge_mask", 0.1, **samples)
    for other in ({"scale": 0.02}, {"graph": "a folder"}, {"dtype": "float64"}, {"perturbations": "1"}, {"hidden": 8},
                  {"layers": 1}, {"workers": 3}, {"commit": "bbb"}, {"cpu": "Other"}, {"ranks": 2}, {"loss": "mse"},
                  {"network_names": "a,b"}):  # fmt: skip
        assert answered(slow_row, row("node_mask", 0.001, **fast, **other)) == ""
    both = [slow_row, row("node_mask", 0.001, **fast)]
    assert "In one run each, node_mask had the highest throughput, 4,000 samples/s; edge_mask 99% less." in answered(
        *both
    )
    two = answered(*both, *({**one, "scale": 1.0} for one in both))
    assert two.count("scale 1.0: In one run each, node_mask had the highest throughput") == 1
    often = [{**one, "seed": seed} for one in both for seed in range(3)]
    assert "the fastest: 4,000 samples/s. node_mask is at least 100× as fast as edge_mask" in answered(*often)


def test_of_six_equal_strategies_in_one_run_each_none_is_called_faster():
    """The best of several looks better than it is: in 80 % of such sweeps something was called the fastest."""
    generator = np.random.default_rng(0)
    names = ("node_mask", "edge_mask", "gpu_mask", "delta", "subgraph", "stored_mask")
    for _ in range(5):
        steps = 0.1 * np.exp(0.05 * generator.standard_normal(6)[:, None] + 0.01 * generator.standard_normal((6, 30)))
        made = framed(*(row(name, float(own.mean()), n=30, samples_seconds=own.tolist())
                        for name, own in zip(names, steps, strict=True)))  # fmt: skip
        text = " ".join([*lab.findings(made), str(tclab.advise(made)), str(lab.charts.throughput(made).to_dict())])
        assert "In one run each, " in text
        assert "The best of 6 looks better than it is: set repeats=3, or race " in text
        assert "one run each, which decides nothing" in text
        assert not any(word in text for word in ("is the fastest:", "FASTER", "faster"))


def test_each_axis_has_a_sentence_of_the_rows_that_its_chart_draws():
    seconds = {"node_mask": {1: 0.1, 2: 0.1, 8: 0.1}, "dense": {1: 0.1, 2: 0.15, 8: 0.4}, "edge_mask": {1: 0.1, 8: 0.8}}
    rows = [row(name, took, batch_size=size, samples_seconds=[took] * 8)
            for name, each in seconds.items() for size, took in each.items()]  # fmt: skip
    few = [(name, count) for name in ("node_mask", "dense") for count in (1, 3)]
    rows += [row(name, 0.01 * count, batch_size=8, networks=count) for name, count in few]
    made = framed(*rows, row("khop_1", 0.001, batch_size=8, exact=False), lost("subgraph", "oom"))
    (first,) = axis_sentences(made)
    beside = "dense 75% less; node_mask ran 8× as fast as edge_mask, with one run each."
    assert first == f"In one run each, node_mask had the highest throughput, 80 samples/s; {beside}"
    (sizes,) = axis_sentences(made, "batch_size")
    ahead = "from batch 2 on node_mask has the highest throughput: 80 samples/s, 8× edge_mask's 10 at batch 8"
    assert sizes == f"At batch 1 all 3 strategies are level; {ahead}, one run each."
    (counts,) = axis_sentences(made, "networks")
    level = "At 1 network and 3 networks node_mask and dense are level"
    assert counts.startswith(f"{level}; at 9 networks node_mask has the highest throughput: 80 ")
    assert [*lab.findings(made)][1:3] == [sizes, counts]
    assert first.partition(";")[0] in lab.findings(made)[0]
    for by, sentence in (("strategy", first), ("batch_size", sizes), ("networks", counts)):
        title = lab.charts.throughput(made, by).to_dict()["title"]["text"]
        assert " ".join(" ".join(title).split()) == sentence
    lone = framed(row("node_mask", 0.1))
    assert axis_sentences(lone) == ["node_mask alone was measured: 40 samples/s, one run each."]

    def by_size(*ways):
        every = [row(name, took, batch_size=size, **more) for name, took, more in ways for size in (2, 4)]
        return axis_sentences(framed(*every), "batch_size")

    (level,) = by_size(("node_mask", 0.1, {}), ("edge_mask", 0.101, {}))
    ends = "40 samples/s, 39.6 with edge_mask at batch 4, one run each."
    assert level == f"At every batch size node_mask and edge_mask are level: {ends}"
    stalled = {"low_seconds": 0.07, "high_seconds": 1.0}  # one of its steps took 2.4 s
    (ahead,) = by_size(("node_mask", 0.1, {}), ("edge_mask", 0.2, {}), ("gpu_mask_loop", 0.5, stalled))
    assert ahead.startswith("At every batch size node_mask has the highest throughput: 40 samples/s")
    thrice = framed(*(row("node_mask", 0.1, seed=seed) for seed in range(3)))
    assert axis_sentences(thrice) == ["node_mask alone was measured: 40 samples/s."]
    alone = "Measured at 9 networks alone; a line over the number of networks needs others: networks 1,3,9."
    assert axis_sentences(lone, "networks") == [alone]
    # however many settings there are, and whether or not others are still to be run
    cut = framed(row("node_mask", 0.1, contention="9.0 s"), row("dense", 0.2, hidden=16),
                 lost("node_mask", "not run: the budget of 9 s was spent"))  # fmt: skip
    assert axis_sentences(cut, "networks") == [alone]
    busy = axis_sentences(framed(*({**one, "contention": "9.0 s"} for one in rows)), "batch_size")
    why = "Other programs used the CPU, so no strategy is named the fastest: measure again on a quiet machine."
    assert busy == [why]
    one_busy = framed(*({**one, "contention": "9 s" if one["batch_size"] == 2 and one["mean_seconds"] > 0.1 else None}
                        for one in rows))  # fmt: skip
    (sizes,) = axis_sentences(one_busy, "batch_size")  # at batch 2 nothing is left to compare node_mask with
    assert sizes.startswith(
        "At batch 1 all 3 strategies are level; at batch 8 node_mask has the highest throughput: 80"
    )
    assert sizes.endswith("; left out, as other programs used the CPU: dense at batch 2.")
    title = lab.charts.throughput(one_busy, "batch_size").to_dict()["title"]
    assert title["subtitle"][-1] == "left out, as other programs used the CPU: dense at batch 2"


def test_the_title_of_a_chart_has_two_lines_and_a_model_without_a_line_no_panel():
    names = [f"{name}_of_a_long_name_that_somebody_gave_it" for name in "abcde"]
    made = [row(name, took + 0.1 * i, batch_size=size) for size, took in ((1, 0.2), (2, 0.3), (4, 0.4))
            for i, name in enumerate(names[size // 2 :])]  # fmt: skip
    made = framed(*made, row("indices", 0.01, model="dango", batch_size=8, networks=6))
    for by in ("strategy", "batch_size", "networks"):
        chart = lab.charts.throughput(made, by).to_dict()
        assert isinstance(chart["title"]["text"], str) or len(chart["title"]["text"]) <= 2
        assert vl_convert.vegalite_to_png(chart)
    lines = lab.charts.throughput(made, "batch_size")
    assert "dango" not in str(lines.to_dict())
    assert "batch 1 to 4, 9 networks" in lines.to_dict()["title"]["subtitle"][1]


def test_the_answer_and_its_chart_are_of_the_same_cell():
    """A setting that was run at another size has an answer of its own, and its bar says the size."""
    wide = [row(name, took, hidden=16) for name, took in (("node_mask", 0.1), ("dense", 0.2), ("edge_mask", 0.3))]
    other = [row(name, took, hidden=32, batch_size=2) for name, took in (("node_mask", 0.2), ("edge_mask", 0.1))]
    made = framed(*wide, *other)
    two = ("node_mask", "edge_mask")
    of_both = {"hidden 16 · batch 4": (*two, "dense"), "hidden 32 · batch 2": two}
    dots = drawn(lab.charts.throughput(made), "sure")
    assert {dot["line"] for dot in dots} == {f"{name} · {size}" for size, names in of_both.items() for name in names}
    for sentences in (answer(made), axis_sentences(made)):
        for one, setting in zip(sentences, ("hidden 16", "hidden 32"), strict=True):
            assert one.partition(": ")[0].endswith(f"hetero_cell, {setting}")


def test_the_check_is_said_once_and_no_error_of_an_inexact_strategy_counts():
    right, near = row("node_mask", 0.01), row("edge_mask", 0.1, equivalence_fp64_error=2e-13)
    wrong = row("mine", 0.01, status="wrong: in float64, 2 of 9 predictions are off", equivalence="failed")
    reference = row("subgraph", 0.2)  # which is in no count of those that agree with it
    told = said(right, wrong, reference)
    assert [one for one in told if "mine" in one] == [
        "1 setting (hetero_cell mine, batch 4): wrong: in float64, 2 of 9 predictions are off."
    ]
    assert (
        "1 strategy agrees with subgraph, the reference, on a part of the graph (largest error in fp64: 1e-13)." in told
    )
    alike = {"equivalence_fp64_error": 0.0, "equivalence_left_out": "edge weights are not passed on to a PyG model"}
    (exactly,) = (one for one in said(*(row(name, 0.01, **alike) for name in ("a", "b"))) if "agree" in one)
    assert exactly.endswith("on a part of the graph (in fp64 exactly); edge weights are not passed on to a PyG model.")
    owned = row("mine", 0.01, equivalence_full_size="not compared: memory ran out")
    assert "mine, on all of it, too: not compared: memory ran out." in " ".join(said(right, owned))
    khop = row("khop_1", 0.01, exact=False, equivalence="inexact", equivalence_fp64_error=0.0312)
    agree = "2 strategies agree with subgraph, the reference, on a part of the graph (largest error in fp64: 2e-13)"
    assert f"{agree}; khop_1 is inexact, error 3e-02 in fp64." in said(right, near, khop)
    assert "khop_1 is inexact." in said(khop | {"equivalence_fp64_error": None})
    untimed = row("khop_2", 1.0, equivalence="inexact", equivalence_fp64_error=0.1, status="oom", mean_seconds=None)
    found = lab.equivalence(framed(right, khop, untimed)).droplevel("model")
    assert found["equivalence"].tolist() == ["passed", "inexact", "inexact"]
    assert found["fp64_error"].tolist() == [1e-13, 0.0312, 0.1]
    assert found["seconds"].isna().tolist() == [False, False, True]


def test_the_machines_that_measured_are_told_apart_and_one_that_did_not_is_left_out():
    def on(gpu, **more):
        return row("node_mask", 0.01, torch="2.13.0", gpu=gpu, **more)

    failed = row("node_mask", 0.01, status="failed: no", cpu=None, cores=None)
    one = lab.machine(framed(on("A100", threads=4), on("A100", threads=2), failed))
    assert one.to_dict() == {"machine 1": {"cpu": "Made Up", "cores": "2", "gpu": "A100", "torch": "2.13.0"}}
    assert lab.machine(framed(on("A100"), on("H100"))).loc["gpu"].tolist() == ["A100", "H100"]
    assert "torch" in lab.machine().index
    assert lab.machine(framed(failed)).empty


# ---- where a step's time goes: parts that add up, timelines apart, words where one does not add up


@pytest.fixture
def rows():
    return framed(*every_mode())


def test_parts_add_up_to_the_whole_on_every_timeline(rows):
    overheads = framed(*point_rows("node_mask", factor=9, overheads="item_logging"))
    found = stage_parts(pd.concat([rows, overheads, framed(lost("edge_mask", "oom"))]))  # which are left out
    for (mode, strategy, where), own in found.groupby(["mode", "strategy", "where"]):
        busy = own[own["stage"] != "idle"]
        assert busy["seconds"].sum() == pytest.approx(own["whole_seconds"].iloc[0])
        wanted = HOST[strategy] if where == "host" else WORKER[strategy]
        ran = RUN[mode] if where == "host" else tuple(wanted)
        assert set(busy["stage"]) == set(ran)
        assert busy["seconds"].sum() == pytest.approx(sum(wanted[stage] for stage in ran) / 1e3, rel=0.15)
    assert set(found["mode"]) == set(RUN)


def test_means_are_over_all_steps_also_those_that_lack_the_stage():
    made = point_rows("node_mask", scatter=0, steps=20)
    for one in made:
        if one["stage"] == "optimizer":  # every other batch, as with accumulate=2
            samples = one["samples_seconds"]
            one["samples_seconds"] = samples[::2]
            one |= mean_columns([took * (place % 2) for place, took in enumerate(samples)], 2)
    found = stage_parts(framed(*made)).query("where == 'host'").set_index("stage")["seconds"]
    assert found["optimizer"] == pytest.approx(0.5e-3)
    assert found["backward"] == pytest.approx(8e-3)


def test_bars_have_a_panel_for_each_mode_and_a_bar_for_each_timeline_on_one_axis(rows):
    chart = lab.charts.stages(rows)
    found = drawn(chart, "part")
    assert list(dict.fromkeys(line["panel"] for line in found)) == list(RUN)
    assert {line["bar"].split(" · ")[-1] for line in found} == {"worker", "host"}
    assert "accounted for: 100.0%" in str(chart.to_dict())
    fast, slow = chart.to_dict()["title"]["text"]  # what the chart shows, not what it is of
    assert fast.startswith("dango with indices: a step takes 4")
    assert " of the host's time, backward 4" in fast
    assert slow.startswith("hetero_cell with edge_mask: a step takes ")
    steps = [line for line in lab.findings(rows, "steps") if "a step takes" in line]
    assert [fast, slow] == [steps[0], steps[-1]]


def test_a_timeline_that_does_not_add_up_has_words_and_no_bar():
    made = framed(*point_rows("edge_mask", accounted=0.979))  # two percent are tolerated
    host = [line for line in drawn(lab.charts.stages(made), "part") if line["bar"].endswith("host")]
    assert {line["value"] for line in host} == {0.0}
    assert "does not add up: stages add up to 97.9% of its clock" in {line["text"] for line in host}
    near = lab.charts.stages(framed(*point_rows("edge_mask", accounted=1.019))).to_dict()
    assert "does not add up" not in str(near)
    assert near["title"]["text"][0].startswith("hetero_cell with edge_mask: a step takes 98 ms")


def test_the_whole_of_a_rank_and_what_its_backward_hides_are_no_stages_of_it():
    host = [one for one in point_rows("node_mask", scatter=0) if one["where"] == "host"]
    sums = {"step": "whole"}
    rank = [dict(one) | {"where": "rank 0", "stage": sums.get(one["stage"], one["stage"])} for one in host]
    hidden = dict(rank[0]) | {"stage": "overlapped"}
    found = stage_parts(framed(*host, *rank, hidden)).groupby("where")["seconds"].sum()
    assert found["rank 0"] == pytest.approx(found["host"])


def test_runs_and_settings_of_one_strategy_are_bars_of_their_own():
    """Three runs of a point, and one by another loop: none adds to another's bar, sentence or verdict."""
    runs = [
        one | {"measured_at": f"2026-01-0{number}T00:00:00"}
        for number in (1, 2, 3)
        for one in point_rows("node_mask", factor=number, scatter=0, loop="plain")
    ]
    rows = framed(*runs, *point_rows("node_mask", factor=5, scatter=0, loop="lightning"))
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
    assert "Meanwhile a worker of hetero_cell with node_mask, loop plain makes a batch in" in said
    (one,) = one_point_each(rows).query("stage == 'step'").to_dict("records")
    assert (one["loop"], one["mean_seconds"]) == ("plain", pytest.approx(middle))


def test_a_sweep_whose_points_without_a_time_are_not_repeated_is_done(tmp_path):
    skipped, counts = tclab.Point(scale=0.01, model="dango", strategy="node_mask"), []
    sweep = lab.LiveSweep([skipped], results=tmp_path / "rows", repeats=3)
    sweep.start().join()
    assert "run again" not in sweep.status()
    tclab.sweep(
        [skipped], results=tmp_path / "others", repeats=3, progress=lambda now: counts.append((now.done, now.total))
    )
    assert counts == [(1, 1)]
