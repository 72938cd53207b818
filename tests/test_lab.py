"""The answer, findings and tables of rows that were made by hand, so that every figure in them is known."""

from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
import vl_convert

from tclab import lab
from tclab.lab.charts._style import STAGE_COLOURS, STRATEGY_COLOURS, colours_of
from tclab.lab.reports._findings import answer
from tclab.masking import names
from tclab.sweeps.store._rows import aligned, frame, table


def row(strategy, seconds, **fields):
    spread = fields.pop("spread", 0.1)
    batch = fields.get("batch_size", 4)
    return {
        "graph": "synthetic", "scale": 0.1, "model": "hetero_cell", "strategy": strategy, "batch_size": 4,
        "networks": 9, "mode": "step", "device": "cpu", "ranks": 1, "dtype": "float32", "stage": "step",
        "where": "host", "n": 5, "mean_seconds": seconds,
        "low_seconds": seconds * (1 - spread), "high_seconds": seconds * (1 + spread), "cycle_steps": 1,
        "median_seconds": seconds, "q1_seconds": seconds * (1 - spread),
        "q3_seconds": seconds * (1 + spread), "samples_per_second": batch / seconds, "batch_bytes": 200,
        "host_syncs": 0, "status": "ok", "exact": True, "equivalence": "passed", "equivalence_fp64_error": 1e-13,
        "equivalence_fp32_ratio": 1.0, "equivalence_nodes": 100, "equivalence_edges": 1000,
        "cpu": "Made Up", "cores": 2, **fields,
    }  # fmt: skip


@pytest.fixture
def rows():
    made = []
    for batch in (1, 2, 4):
        for networks in (1, 9):
            at = {"batch_size": batch, "networks": networks}
            made += [
                row("node_mask", 0.01 * batch, **at),
                row("edge_mask", 0.08 * batch, **at, batch_bytes=1_150_000_000),
                row("gpu_mask_loop", 0.1 * batch, **at, host_syncs=27 * batch),
            ]
        made.append(row("indices", 0.005 * batch, model="dango", batch_size=batch, networks=6))
    made.append(row("stored_mask", 1.0) | {"status": "oom", "median_seconds": None, "q1_seconds": None,
                                           "q3_seconds": None, "samples_per_second": None})  # fmt: skip
    for stage, share in (("forward", 0.4), ("backward", 0.5)):
        made.append(row("node_mask", 0.04 * share, stage=stage))
    return frame(table(made))


CHARTS = [
    partial(lab.charts.throughput, by="batch_size"),
    partial(lab.charts.throughput, by="networks"),
    lab.charts.throughput,
    lab.charts.stages,
]


@pytest.mark.parametrize("chart", CHARTS)
def test_charts_of_a_real_run_say_machine_scale_and_batch_and_are_drawn_of_one_point_and_of_none(chart, root):
    """Nine points, three strategies and three batch sizes, as a run of explore.ipynb on two cores kept them."""
    recorded = frame(aligned(pq.read_table(root / "tests" / "recorded_rows.parquet")))
    drawn = chart(recorded)
    machine, sizes, *_ = drawn.to_dict()["title"]["subtitle"]
    assert "2 cores" in machine
    assert sizes.startswith("synthetic, scale 0.")
    assert " · batch " in sizes
    assert all(name in str(drawn.to_dict()) for name in ("node_mask", "edge_mask", "gpu_mask"))
    assert vl_convert.vegalite_to_png(drawn.to_json())[:4] == b"\x89PNG"
    for few in (recorded.head(0), recorded.head(1), recorded[recorded["stage"] == "step"]):
        chart(few).to_dict()


def test_a_strategy_has_one_colour_everywhere():
    assert set(STRATEGY_COLOURS) <= set(names())
    assert len(set(colours_of(names()).values())) == len(names())  # a new strategy has one without a line here


# what is left of a colour for somebody without one kind of cone; Viénot, Brettel and Mollon 1999, linear RGB
WITHOUT_RED = [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]]
WITHOUT_GREEN = [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]]


def linear(text):
    """Return a colour's red, green and blue light, 0 to 1."""
    rgb = np.array([int(text[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab_colour(text, seen):
    """Return a colour's CIE L*a*b* coordinates as somebody sees it."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ (
        np.clip(np.array(seen) @ linear(text), 0, 1)
    )
    f = np.cbrt(np.maximum(xyz / [0.9505, 1.0, 1.089], 1e-9))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", [np.eye(3), WITHOUT_RED, WITHOUT_GREEN], ids=["all", "no red", "no green"])
def test_the_strategies_that_matter_stay_apart_for_colour_blind_eyes(seen):
    """Each row and line has its name beside it, too."""
    of = {name: lab_colour(STRATEGY_COLOURS[name], seen) for name in ("edge_mask", "node_mask", "delta", "indices")}
    for name in of:
        for other in of:
            # a just noticeable difference is about 2.3
            assert name == other or np.linalg.norm(of[name] - of[other]) > 10, (name, other)


@pytest.mark.parametrize("colour", [*STRATEGY_COLOURS.values(), *(c for n, c in STAGE_COLOURS.items() if n != "idle")])
def test_a_colour_can_be_told_from_the_ground_of_a_dark_page(colour):
    ground, own = (np.array([0.2126, 0.7152, 0.0722]) @ linear(text) + 0.05 for text in ("#333333", colour))
    assert own / ground > 1.9  # WCAG's contrast; JupyterLab draws charts on this grey in its dark theme


def test_the_answer_is_the_first_finding_and_carries_the_rows_figures(rows):
    said = lab.findings(rows)
    assert said[0].startswith("On cpu · 2 cores · Made Up, at batch 4 with 9 networks, hetero_cell: node_mask ")
    assert (
        "trains on the most samples a second, 100; undecided with edge_mask, gpu_mask_loop. Against edge_mask"
        in said[0]
    )
    assert "A batch carries 200 B, edge_mask's 1.15 GB" in said[0]
    assert said[1] == "1 point (hetero_cell stored_mask, batch 4): oom."


def test_words_on_one_rank_do_not_name_those_of_other_points():
    gloo = {"ranks": 2, "backend": "gloo"}
    many = [row("node_mask", 0.1, **gloo), row("edge_mask", 0.2, **gloo)]
    one = [row("node_mask", 0.2), row("edge_mask", 0.4)]
    assert all("cpu · gloo · 2 ranks" in sentence for sentence in lab.findings(frame(table(many))))
    both = [
        sentence
        for sentence in lab.findings(frame(table([*one, *many])))
        if "fastest" in sentence or "most samples" in sentence
    ]
    assert [("2 ranks" in sentence or "ranks 2" in sentence) for sentence in both] == [False, True], both


def test_words_are_no_surer_than_the_rows():
    close = frame(table([row("node_mask", 0.010, spread=0.3), row("gpu_mask", 0.011, spread=0.3)]))
    said = " ".join(lab.findings(close))
    assert "undecided with gpu_mask" in said
    assert "fastest" not in said
    nothing = frame(table([row("node_mask", 0.01) | {"status": "failed: x"}]))
    assert lab.findings(nothing) == [
        "No point of this sweep was measured, so there is nothing to compare.",
        "1 point (hetero_cell node_mask, batch 4): failed: x.",
    ]


def test_only_rows_that_are_alike_are_compared():
    samples = {"n": 30, "samples_seconds": [0.1 + 0.001 * (i % 5) for i in range(30)]}
    fast = samples | {"samples_seconds": [s / 100 for s in samples["samples_seconds"]]}

    def said(*made):
        return " ".join(answer(frame(table(list(made)))))

    slow_row = row("edge_mask", 0.1, **samples)
    for other in ({"scale": 0.02}, {"graph": "a folder"}, {"dtype": "float64"}, {"perturbations": "1"}, {"hidden": 8},
                  {"layers": 1}, {"workers": 3}, {"commit": "bbb"}, {"cpu": "Other"}, {"ranks": 2},
                  {"network_names": "a,b"}):  # fmt: skip
        assert said(slow_row, row("node_mask", 0.001, **fast, **other)) == ""
    both = [slow_row, row("node_mask", 0.001, **fast)]
    assert "node_mask is the fastest, 4,000 samples a second. It is 100 × [" in said(*both)
    assert said(*both, *({**one, "scale": 1.0} for one in both)).count("scale 1.0: node_mask is the fastest") == 1


def test_the_answer_names_a_loss_only_where_one_model_has_several():
    of_models = [row("node_mask", 0.1, loss="log_cosh"), row("edge_mask", 0.2, loss="log_cosh"),
                 row("indices", 0.1, model="dango", loss="dango")]  # fmt: skip
    assert "loss" not in " ".join(lab.findings(frame(table(of_models))))
    another = [row(name, took, loss="mse") for name, took in (("node_mask", 0.1), ("edge_mask", 0.2))]
    said = answer(frame(table([*of_models, *another])))
    assert [("loss log_cosh" in sentence, "loss mse" in sentence) for sentence in said] == [
        (True, False),
        (False, True),
    ]


def test_a_failed_check_is_said_first():
    rows = frame(table([row("node_mask", 0.01), row("mine", 0.01) | {"status": "wrong", "equivalence": "failed"}]))
    assert lab.findings(rows)[0].startswith("The equivalence check failed for mine")


def test_the_checks_words_count_the_exact_strategies_and_take_no_error_of_an_inexact_one():
    khop = row("khop_1", 0.01, exact=False, equivalence="inexact", equivalence_fp64_error=0.0312)
    both = [row("node_mask", 0.01), row("edge_mask", 0.1, equivalence_fp64_error=2e-13)]
    said = lab.findings(frame(table([*both, khop])))
    assert (
        "2 strategies agree with subgraph (in fp64 to 2e-13 at worst); khop_1 is inexact, error 3e-02 in fp64." in said
    )
    assert "khop_1 is inexact." in lab.findings(frame(table([khop | {"equivalence_fp64_error": None}])))


def test_the_check_has_a_line_a_strategy_the_worst_of_its_points(rows):
    assert set(lab.equivalence(rows)["equivalence"]) == {"passed"}
    lost = {"equivalence": "inexact", "equivalence_fp64_error": 0.1, "status": "oom", "mean_seconds": None}
    inexact = row("khop_1", 0.1, equivalence="inexact", equivalence_fp64_error=0.4)
    found = lab.equivalence(frame(table([row("node_mask", 0.2), inexact, row("khop_2", 1.0) | lost]))).droplevel(
        "model"
    )
    assert found["fp64_error"].tolist() == [1e-13, 0.4, 0.1]
    assert found["seconds"].isna().tolist() == [False, False, True]


def test_the_machines_that_measured_are_told_apart_and_one_that_did_not_is_left_out():
    def on(gpu, **more):
        return row("node_mask", 0.01) | {"torch": "2.13.0", "gpu": gpu} | more

    failed = row("node_mask", 0.01) | {"status": "failed: no", "cpu": None, "cores": None}
    one = lab.machine(frame(table([on("A100", threads=4), on("A100", threads=2), failed])))
    assert one.to_dict() == {0: {"cpu": "Made Up", "cores": "2", "gpu": "A100", "torch": "2.13.0"}}
    two = lab.machine(frame(table([on("A100"), on("H100")])))
    assert two.loc["gpu"].tolist() == ["A100", "H100"]
    assert "torch" in lab.machine().index
    assert lab.machine(frame(table([failed]))).empty
