"""The answer, findings and tables of rows that were made by hand, so that every figure in them is known."""

from functools import partial

import pyarrow.parquet as pq
import pytest
import vl_convert

from tclab import lab
from tclab.lab.reports._findings import answer
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


LOST = {"median_seconds": None, "q1_seconds": None, "q3_seconds": None, "samples_per_second": None}


def framed(*made):
    return frame(table(list(made)))


def said(*made):
    return list(lab.findings(framed(*made)))


@pytest.mark.parametrize(
    "chart",
    [
        partial(lab.charts.throughput, by="batch_size"),
        lab.charts.throughput,
        lab.charts.stages,
    ],
)
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


def test_the_answer_is_the_first_finding_and_carries_the_rows_figures():
    rows = [row("stored_mask", 1.0) | LOST | {"status": "oom"}]
    for networks in (1, 9):
        rows += [
            row("node_mask", 0.04, networks=networks),
            row("edge_mask", 0.32, networks=networks, batch_bytes=1_150_000_000),
            row("gpu_mask_loop", 0.4, networks=networks, host_syncs=108),
        ]
    first, second, *_ = said(*rows, row("indices", 0.02, model="dango", networks=6))
    assert first.startswith("On cpu · 2 cores · Made Up, at batch 4 with 9 networks, hetero_cell: node_mask ")
    assert (
        "trains on the most samples a second, 100; undecided with edge_mask (no time in edge_mask: ok), gpu_mask_loop ("
        in first
    )
    assert "A batch carries 200 B, edge_mask's 1.15 GB" in first
    assert second == "1 point (hetero_cell stored_mask, batch 4): oom."


def test_a_sentence_names_the_ranks_of_its_own_points_alone():
    gloo = {"ranks": 2, "backend": "gloo"}
    many = [row("node_mask", 0.1, **gloo), row("edge_mask", 0.2, **gloo)]
    assert all("cpu · gloo · 2 ranks" in sentence for sentence in said(*many))
    both = [one for one in said(row("node_mask", 0.2), row("edge_mask", 0.4), *many) if "most samples" in one]
    assert [("2 ranks" in one or "ranks 2" in one) for one in both] == [False, True], both


def test_words_are_no_surer_than_the_rows():
    close = " ".join(said(row("node_mask", 0.010, spread=0.3), row("gpu_mask", 0.011, spread=0.3)))
    assert "undecided with gpu_mask" in close
    assert "fastest" not in close
    assert said(row("node_mask", 0.01) | {"status": "failed: x"}) == [
        "No point of this sweep was measured, so there is nothing to compare.",
        "1 point (hetero_cell node_mask, batch 4): failed: x.",
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
    assert "node_mask is the fastest, 4,000 samples a second. It is 100 × [" in answered(*both)
    two = answered(*both, *({**one, "scale": 1.0} for one in both))
    assert two.count("scale 1.0: node_mask is the fastest") == 1


def test_the_check_is_said_once_and_no_error_of_an_inexact_strategy_counts():
    right, near = row("node_mask", 0.01), row("edge_mask", 0.1, equivalence_fp64_error=2e-13)
    wrong = row("mine", 0.01, status="wrong: in float64, 2 of 9 predictions are off", equivalence="failed")
    reference = row("subgraph", 0.2)  # which is in no count of those that agree with it
    told = said(right, wrong, reference)
    assert [one for one in told if "mine" in one] == [
        "1 point (hetero_cell mine, batch 4): wrong: in float64, 2 of 9 predictions are off."
    ]
    assert "1 strategy agrees with subgraph, the reference, on a part of the graph (in fp64 to 1e-13 at worst)." in told
    owned = row("mine", 0.01, equivalence_full_size="not compared: memory ran out")
    assert "mine, on all of it, too: not compared: memory ran out." in " ".join(said(right, owned))
    khop = row("khop_1", 0.01, exact=False, equivalence="inexact", equivalence_fp64_error=0.0312)
    agree = "2 strategies agree with subgraph, the reference, on a part of the graph (in fp64 to 2e-13 at worst)"
    assert f"{agree}; khop_1 is inexact, error 3e-02 in fp64." in said(right, near, khop)
    assert "khop_1 is inexact." in said(khop | {"equivalence_fp64_error": None})
    lost = row("khop_2", 1.0, equivalence="inexact", equivalence_fp64_error=0.1, status="oom", mean_seconds=None)
    found = lab.equivalence(framed(right, khop, lost)).droplevel("model")
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
