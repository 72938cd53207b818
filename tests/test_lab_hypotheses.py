"""Hypotheses, published figures beside measured ones, what overheads cost: never surer than the rows."""

import json
import re

import pandas as pd
import pytest
import vl_convert
from stage_rows import every_mode, lost, point_rows

from tclab import InputError, case_study
from tclab.case_study._claims import FAILS, HOLDS, NOT_MEASURED, UNDECIDED
from tclab.sweeps._rows import frame, mean_columns, table


def verdicts(made):
    return {found.name: found for found in case_study.hypotheses(frame(table(made)))}


def test_waiting_for_most_of_a_step_is_the_data_pipeline_and_waiting_little_is_not():
    found = verdicts(every_mode())["Data pipeline"]
    assert found.verdict == HOLDS
    said = " ".join(found.evidence)
    assert "Judged by hetero_cell with edge_mask, batch 4, 9 networks, 8 steps, cpu · 2 cores" in said
    assert "Waiting for the loader and the transfer are 65.0% [65.0%, 65.0%] of a step" in said
    assert "to make a batch, collating is 88.2 ms and making masks 3.92 ms." in said
    assert str(found).startswith("Data pipeline: holds here\nThe claim: collation")
    little = verdicts(point_rows("node_mask", edges=1000))["Data pipeline"]
    assert little.verdict == FAILS
    assert "1,000 edges, far fewer than the real 2.4 million, of which this says nothing." in " ".join(little.evidence)


def test_few_steps_and_a_share_on_both_sides_of_half_are_undecided():
    few = verdicts(point_rows("edge_mask", steps=5))
    assert few["Data pipeline"].verdict == few["Mask generation"].verdict == UNDECIDED
    both = point_rows("edge_mask", scatter=0)
    for one in both:
        if one["stage"] in ("data_wait", "step"):  # every other step waits less
            one["samples_seconds"][::2] = [seconds - 0.055 for seconds in one["samples_seconds"][::2]]
    assert verdicts(both)["Data pipeline"].verdict == UNDECIDED


def test_a_verdict_that_the_workers_contradict_is_refused():
    """Four workers that take 0.4 s for a batch, and steps of 20 ms that do not wait for them."""
    made = point_rows("node_mask", scatter=0, workers=4)
    (batch,) = (one for one in made if (one["stage"], one["where"]) == ("batch", "worker"))
    batch |= mean_columns([0.4] * 8, 1)
    found = verdicts(made)["Data pipeline"]
    assert found.verdict == UNDECIDED
    refused = next(said for said in found.evidence if "refused" in said)
    assert "The verdict “does not hold here” is refused: 4 workers cannot give a batch more often than" in refused


def test_masks_hold_only_where_they_could_fill_half_a_step():
    found = verdicts(point_rows("edge_mask"))["Mask generation"]
    assert found.verdict == FAILS
    assert any("together 5.0%" in said for said in found.evidence)
    slow = point_rows("edge_mask", scatter=0)
    for one in slow:
        if (one["stage"], one["where"]) == ("mask", "host"):
            one["samples_seconds"] = [0.09] * 8
        if one["stage"] == "step":
            one["samples_seconds"] = [0.1] * 8
    assert verdicts(slow)["Mask generation"].verdict == HOLDS


def test_more_steps_an_epoch_is_judged_by_the_batch_sizes_and_communication_is_not_measured_without_ranks():
    found = verdicts(both_models_at(28, 64))
    more, communication = found["DDP, more steps"], found["DDP, communication"]
    assert (more.verdict, communication.verdict) == (HOLDS, NOT_MEASURED)
    assert "batches of 28 and 64 on 4 ranks make 2,374 and 1,039 steps, 2.28 × as many" in more.evidence[0]
    assert "takes 20 × [20, 20] as long as factored DANGO's, an epoch of as many samples 45.7 ×." in more.evidence[1]
    for figure in ("2,374", "1,039", "2.28 ×", "40 ×", "17.5 ×"):
        assert figure in more.evidence[-1]
    assert verdicts(both_models_at(64, 64))["DDP, more steps"].verdict == FAILS
    assert verdicts(point_rows("edge_mask"))["DDP, more steps"].verdict == NOT_MEASURED


def test_ddp_is_judged_where_communication_was_timed():
    made = point_rows("node_mask", scatter=0, ranks=2)
    talk = dict(next(one for one in made if one["stage"] == "forward")) | {"stage": "communication"}
    for samples, verdict in ((0.001, FAILS), (0.019, HOLDS)):
        talk["samples_seconds"] = [samples] * 8
        assert verdicts([*made, talk])["DDP, communication"].verdict == verdict
    assert verdicts(made)["DDP, communication"].verdict == NOT_MEASURED


def test_nothing_measured_is_no_verdict():
    found = verdicts([lost("node_mask", "failed: rank 2 is gone", ranks=4)])
    assert {one.verdict for one in found.values()} == {NOT_MEASURED}
    assert "failed: rank 2 is gone" in found["DDP, communication"].evidence[0]


# ---- published figures


@pytest.fixture
def figures(root):
    return root / "data_samples" / "published_measurements.csv"


def test_measured_ratios_stand_next_to_published_ones(figures):
    rows = frame(table(every_mode(scatter=0)))
    both = case_study.published_ratios(rows, figures)
    assert list(dict.fromkeys(both["mode"])) == ["data", "empty", "model", "step", "fixed_batch"]
    step = both[both["mode"] == "step"].set_index("figure")["ratio"]
    assert step.to_dict() == pytest.approx({"edge_mask": 20, "node_mask": 4, "epochs": 17.5, "trace": 875}, rel=1e-2)
    chart = case_study.ratios_chart(both, rows)
    assert vl_convert.vegalite_to_png(chart.to_json())[:4] == b"\x89PNG"
    text = json.dumps(chart.to_dict(), ensure_ascii=False)
    for words in ("published 086a, steady", "epochs, real training", "trace, artefact", "hollow: published"):
        assert words in text
    said = ["A step of the hetero model takes 20× as long as DANGO's with edge_mask;", "published: 1.58× to 875×"]
    assert chart.to_dict()["title"]["text"] == said
    nothing = frame(table([lost("edge_mask", "oom")]))
    chart = case_study.ratios_chart(case_study.published_ratios(nothing, figures), nothing)
    assert chart.to_dict()["title"]["text"] == ["No step of both models was measured here;", said[1]]


def test_the_chart_of_mistakes_names_the_largest_error():
    wrong, right = {"12.5: readings": 0.05, "875: nested": 2.0}, {"12.5: readings": 0.8, "875: nested": 1.5}
    chart = case_study.artefacts_chart(wrong, right, frame(table(point_rows("node_mask"))))
    assert (
        chart.to_dict()["title"]["text"] == "The largest of 2 errors turns a ratio of 0.8× into 0.05× (12.5: readings)"
    )


def test_a_file_that_is_no_table_of_figures_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.csv: no such file .*published figures"):
        case_study.published_ratios(frame(), tmp_path / "nowhere.csv")
    (tmp_path / "other.csv").write_text("key,value\na,1\n")
    with pytest.raises(InputError, match=r"other\.csv: .*columns expected but not found.*model"):
        case_study.component_table(frame(), tmp_path / "other.csv")


# ---- the closing table


def both_models_at(hetero, dango, **more):
    return [*point_rows("edge_mask", scatter=0, batch_size=hetero, **more),
            *point_rows("indices", scatter=0, batch_size=dango)]  # fmt: skip


def test_components_stand_beside_the_published_ones(figures):
    both = [*both_models_at(28, 64), *point_rows("node_mask", scatter=0, batch_size=28)]
    made = case_study.component_table(frame(table(both)), figures)
    host = made.loc["host"]
    assert (host["hetero_cell"].sum(), host["dango"].sum()) == pytest.approx((0.1, 0.005))
    assert host.loc["forward"].tolist() == pytest.approx([0.014, 0.0015, 0.374])
    assert made.loc[("worker", "collate"), "published"] == 0.05
    assert made["published"].notna().sum() == 4
    alone = frame(table(point_rows("edge_mask", scatter=0)))  # a budget may leave a model out
    assert list(case_study.component_table(alone, figures)) == ["hetero_cell", "published"]
    assert case_study.component_table(alone.head(0), figures).empty


# ---- what overheads cost: intervals, verdicts


def rounds_of(overhead, factor, number, drift=0.0, steps=12):
    """Rounds of a point without an overhead and one with it, which takes `factor` times as long, give or take."""
    made = []
    for seed in range(number):
        swing = 1 + drift * (-1) ** seed
        made += point_rows("node_mask", seed=seed, steps=steps, scatter=0.01)
        made += point_rows("node_mask", seed=seed, steps=steps, scatter=0.01, factor=factor * swing, overheads=overhead)
    return made


def costs(made):
    return case_study.overhead_costs(frame(table(made))).set_index("overhead")


@pytest.mark.parametrize(
    ("factor", "rounds", "drift", "verdict"),
    [(1.5, 4, 0.0, "costs"), (0.5, 4, 0.0, "saves"), (1.1, 3, 0.3, "undecided"), (3.0, 1, 0.0, "undecided")],
)
def test_an_overhead_has_its_ratio_and_a_verdict_where_rounds_agree(factor, rounds, drift, verdict):
    made = rounds_of("isnan_checks", factor, rounds, drift)
    alone = point_rows("node_mask", seed=9, factor=50, overheads="isnan_checks")  # without a step to compare with
    found = costs([*made, *alone]).loc["isnan_checks"]
    assert (found["verdict"], found["rounds"]) == (verdict, rounds)
    assert found["ratio"] == pytest.approx(factor, rel=0.01 + drift)
    assert pd.isna(found["low"]) == (rounds == 1)
    assert bool(found["low"] < 1 < found["high"]) == (drift > 0)


def test_the_chart_says_what_is_undecided():
    rows = frame(table([*rounds_of("isnan_checks", 1.5, 3), *rounds_of("item_logging", 1.0, 3, drift=0.2)]))
    rows = rows.drop_duplicates(["seed", "overheads", "stage", "where"])
    chart = case_study.overheads_chart(case_study.overhead_costs(rows), rows)
    text = json.dumps(chart.to_dict(), ensure_ascii=False)
    assert re.search(r"1\.(49|50|51) × costs", text)
    assert "× undecided" in text
    assert "rounds: 3; " in text
    assert re.search(r"1 of 2 overheads certainly cost time, up to 1\.\d\d× the time of a step without it", text)
    nothing = frame(table([lost("node_mask", "not run: the budget of 1 s was spent")]))
    assert "No overhead was measured" in str(
        case_study.overheads_chart(case_study.overhead_costs(nothing), nothing).to_dict()
    )
