"""The three hypotheses, and published figures beside measured ones: never surer than the rows."""

import json

import pytest
import vl_convert
from stage_rows import every_mode, lost, point_rows

from tclab import InputError, case_study
from tclab.case_study._hypotheses import FAILS, HOLDS, NOT_MEASURED, UNDECIDED
from tclab.case_study._published import measured_ratios, ratios_of_figures, steps_per_epoch
from tclab.sweeps.store._rows import frame, mean_columns, table


def verdicts(made):
    return {found.name: found for found in case_study.hypotheses(frame(table(made)))}


def test_waiting_for_most_of_a_step_is_the_data_pipeline():
    found = verdicts(every_mode())
    assert found["Data pipeline"].verdict == HOLDS
    said = " ".join(found["Data pipeline"].evidence)
    assert "Judged by hetero_cell with edge_mask, batch 4, 9 networks of 2,423,370 edges." in said
    assert "edge_mask: waiting for the loader and the transfer are 65.0% [65.0%, 65.0%] of a step" in said
    assert "node_mask: waiting for the loader and the transfer are 5.5%" in said
    assert "slower than" in said  # 96 ms of making against 35 ms of the rest
    assert "collating (and replicating) is 9" in said
    assert "A batch of 4 carries 70.9 kB with edge_mask and 232 B with node_mask." in said
    apart = verdicts(point_rows("edge_mask", batch_bytes=70_900, edge_bytes=68_000, mask_bytes=4_000))["Data pipeline"]
    assert "A batch of 4 carries 70.9 kB with edge_mask (64 kB edges, 4,000 B masks)." in apart.evidence
    assert str(found["Data pipeline"]).startswith("Data pipeline: holds here\nThe claim: collation")


def test_waiting_little_is_not_the_data_pipeline():
    found = verdicts(point_rows("node_mask"))["Data pipeline"]
    assert found.verdict == FAILS
    assert any("on a device" in said and "arithmetic, not measured" in said for said in found.evidence)


@pytest.mark.parametrize("steps", [1, 5])
def test_few_steps_decide_nothing(steps):
    found = verdicts(point_rows("edge_mask", steps=steps))
    assert found["Data pipeline"].verdict == UNDECIDED
    assert found["Mask generation"].verdict == UNDECIDED


def test_a_share_on_both_sides_of_half_is_undecided():
    made = point_rows("edge_mask", scatter=0)
    (wait,) = (one for one in made if one["stage"] == "data_wait")
    (step,) = (one for one in made if one["stage"] == "step")
    for number in range(0, 8, 2):
        wait["samples_seconds"][number] -= 0.055
        step["samples_seconds"][number] -= 0.055
    assert verdicts(made)["Data pipeline"].verdict == UNDECIDED


def bursts(*, steps=24, workers=4, made_in=0.4, prefetched=0):
    """Rows of a step of 16 ms that waits for its workers, one long wait in as many steps as there are of them.

    The first `prefetched` steps find batches that were made before them.
    """
    made = point_rows("node_mask", scatter=0, steps=steps, workers=workers, cycle_steps=workers)
    waits = [0.0 if n < prefetched or n % workers else made_in - 0.016 * workers for n in range(steps)]
    for one in made:
        if (one["stage"], one["where"]) == ("data_wait", "host"):
            one["samples_seconds"] = waits
        elif one["stage"] == "step":
            one["samples_seconds"] = [0.016 + wait for wait in waits]
        elif (one["stage"], one["where"]) == ("batch", "worker"):
            one["samples_seconds"] = [made_in] * steps
        one |= mean_columns(one["samples_seconds"], workers)
    return made


@pytest.mark.parametrize("steps", [24, 60])
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_batches_that_come_in_bursts_are_waited_for_however_typical_a_step_without_a_wait_is(workers, steps):
    found = verdicts(bursts(steps=steps, workers=workers))["Data pipeline"]
    assert found.verdict == HOLDS
    said = float(found.evidence[1].split(" transfer are ")[1].split("%")[0]) / 100
    assert said == pytest.approx(1 - 0.016 * workers / 0.4, abs=0.003)  # and 0.1 ms of transfer


def test_a_verdict_that_the_workers_contradict_is_refused():
    found = verdicts(bursts(prefetched=24))["Data pipeline"]
    assert found.verdict == UNDECIDED
    refused = next(said for said in found.evidence if "refused" in said)
    assert "the verdict “does not hold here” is refused. 4 workers cannot give a batch more often than" in refused
    late = bursts(made_in=0.4)
    for one in late:
        if (one["stage"], one["where"]) == ("batch", "worker"):
            one |= mean_columns([0.02] * 24, 4)  # they could have kept up
    found = verdicts(late)["Data pipeline"]
    assert found.verdict == UNDECIDED
    assert any("waiting would be 0% of a step, and it is 84%" in said for said in found.evidence)


def against_a_kept_batch(strategy, factor):
    made = [*point_rows(strategy, scatter=0), *point_rows(strategy, "fixed_batch", scatter=0, factor=factor)]
    return " ".join(verdicts(made)["Data pipeline"].evidence)


def test_a_step_that_loads_and_is_faster_than_one_that_does_not_is_no_evidence():
    said = against_a_kept_batch("node_mask", 2.0)
    assert "their ratio is withheld" in said
    assert "× as long as one on a batch that is kept" not in said
    assert "1.05 ×" in against_a_kept_batch("node_mask", 1.0)


def test_a_step_that_takes_more_than_its_waiting_accounts_for_is_doubted():
    assert "node_mask: a step takes 2.11 ×" in (said := against_a_kept_batch("node_mask", 0.5))
    assert "that is kept, more than its waiting (5.5% at most) makes of it: workers or others took the cores" in said
    assert "more than its waiting" not in against_a_kept_batch("edge_mask", 1.0)


def test_masks_hold_only_where_they_could_fill_half_a_step():
    found = verdicts(every_mode())["Mask generation"]
    assert found.verdict == FAILS
    assert any("of a step they can be 5.0%" in said for said in found.evidence)
    assert any(said == "edge_mask: collating takes 22.5 × as long as making masks." for said in found.evidence)
    slow = point_rows("edge_mask", scatter=0)
    for one in slow:
        if (one["stage"], one["where"]) == ("mask", "host"):
            one["samples_seconds"] = [0.09] * 8
        if one["stage"] == "step":
            one["samples_seconds"] = [0.1] * 8
    assert verdicts(slow)["Mask generation"].verdict == HOLDS


def test_a_small_graph_is_said_to_say_nothing_of_the_real_one():
    said = " ".join(verdicts(point_rows("edge_mask", edges=1000))["Data pipeline"].evidence)
    assert "of 1,000 edges, far fewer than the real 2.4 million, of which this says nothing." in said


def test_more_steps_an_epoch_is_judged_by_the_batch_sizes_and_communication_is_not_measured_without_ranks():
    found = verdicts(both_models_at(28, 64))
    more, communication = found["DDP, more steps"], found["DDP, communication"]
    assert (more.verdict, communication.verdict) == (HOLDS, NOT_MEASURED)
    assert "batches of 28 and 64 on 4 ranks an epoch has 2,374 steps and 1,039, 2.28 × as many (" in more.evidence[0]
    assert "a step takes 20 × [20, 20] as long as DANGO's, so an epoch of as many samples 45.7 ×" in more.evidence[1]
    assert more.evidence[1].endswith("the number of steps is the smaller of its two factors.")
    for figure in ("2,374", "1,039", "2.28 ×", "40 ×", "17.5 ×"):
        assert figure in more.evidence[-1]
    unrun = lost("node_mask", "failed: rank 2 is gone", ranks=4)
    assert "failed: rank 2 is gone" in verdicts([unrun])["DDP, communication"].evidence[0]


def test_equal_batches_make_no_more_steps_and_short_steps_leave_the_number_the_larger_factor():
    assert verdicts(both_models_at(64, 64))["DDP, more steps"].verdict == FAILS
    assert verdicts(point_rows("edge_mask"))["DDP, more steps"].verdict == NOT_MEASURED
    short = both_models_at(28, 64, factor=0.06)
    assert "is the larger of its two factors" in verdicts(short)["DDP, more steps"].evidence[1]


def test_ddp_is_judged_where_communication_was_timed():
    made = point_rows("node_mask", scatter=0, ranks=2)
    talk = dict(next(one for one in made if one["stage"] == "forward")) | {"stage": "communication"}
    for samples, verdict in ((0.001, FAILS), (0.019, HOLDS)):
        talk["samples_seconds"] = [samples] * 8
        assert verdicts([*made, talk])["DDP, communication"].verdict == verdict
    assert verdicts(made)["DDP, communication"].verdict == NOT_MEASURED


def test_nothing_measured_is_no_verdict():
    unrun = lost("edge_mask", "not run: the budget of 1 s was spent")
    assert {found.verdict for found in verdicts([unrun]).values()} == {NOT_MEASURED}


def test_findings_are_the_ratio_of_the_models_and_a_verdict_each():
    rows = frame(table(every_mode(scatter=0)))
    sentences = case_study.findings(rows)
    assert sentences[0].startswith("A step of the hetero model takes, of DANGO's, [95 % interval]: with edge_mask")
    assert "Hypothesis “Data pipeline”: holds here." in sentences
    assert "Hypothesis “DDP, communication”: not measured here." in sentences
    ranks = point_rows("node_mask", scatter=0, ranks=2)
    talk = dict(next(one for one in ranks if one["stage"] == "forward")) | {"stage": "communication"}
    talk["samples_seconds"] = [0.019] * 8
    assert "Hypothesis “DDP, communication”: holds here." in case_study.findings(rows, frame(table([*ranks, talk])))


# ---- published figures


@pytest.fixture
def figures(root):
    return case_study.published_figures(root / "data_samples" / "published_measurements.csv")


def test_every_published_figure_has_its_standing(figures):
    assert len(figures) == 24
    assert set(figures["standing"]) == {"steady", "real training", "expected", "suspect", "artefact", "estimate"}


def test_published_ratios_are_those_that_the_figures_give(figures):
    found = ratios_of_figures(figures)
    by_key = {row["figure"].split(":")[0]: row for _, row in found.iterrows()}
    for key, ratio in {"086a": 56.3, "086b": 19.3, "524": 12.5, "trace": 875, "full_step": 1.58}.items():
        assert by_key[key]["ratio"] == pytest.approx(ratio, rel=0.005)
    assert by_key["epochs"]["ratio"] == pytest.approx(40 * 1039 / 2374)
    assert set(found[found["figure"].str.startswith("086a")]["mode"]) == {"data", "empty"}
    assert by_key["trace"]["standing"] == "artefact"


def test_steps_per_epoch():
    assert (steps_per_epoch(28, 4), steps_per_epoch(64, 4)) == (2374, 1039)
    assert steps_per_epoch(3, 2, samples=13) == 3


def test_measured_ratios_stand_next_to_published_ones(figures):
    rows = frame(table(every_mode(scatter=0)))
    found = measured_ratios(rows).set_index(["mode", "strategy"])["ratio"]
    assert found["step", "edge_mask"] == pytest.approx(100 / 5)
    assert found["step", "node_mask"] == pytest.approx(20 / 5)
    both = case_study.published_ratios(rows, figures).table
    assert list(dict.fromkeys(both["mode"])) == ["data", "empty", "model", "step", "fixed_batch"]
    step = both[both["mode"] == "step"]
    assert step["hetero : dango"].tolist() == ["20 ×", "4 ×", "17.5 ×", "875 ×"]
    assert step["standing"].str.startswith("measured").tolist() == [True, True, False, False]


def test_the_chart_of_ratios_names_every_standing(figures):
    rows = frame(table(every_mode()))
    chart = case_study.published_ratios(rows, figures).chart()
    assert vl_convert.vegalite_to_png(chart.to_json())[:4] == b"\x89PNG"
    text = json.dumps(chart.to_dict())
    for words in ("086a, steady", "epochs, real training", "trace, artefact", "full_step, suspect", "in seconds"):
        assert words in text
    nothing = frame(table([lost("edge_mask", "oom")]))
    assert vl_convert.vegalite_to_png(case_study.published_ratios(nothing, figures).chart().to_json())[:4] == b"\x89PNG"


def test_a_file_that_is_no_table_of_figures_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected a CSV file of published figures"):
        case_study.published_figures(tmp_path / "nowhere.csv")
    (tmp_path / "other.csv").write_text("key,value\na,1\n")
    with pytest.raises(InputError, match="has no column 'model'"):
        case_study.published_figures(tmp_path / "other.csv")


# ---- the closing table


def both_models_at(hetero, dango, **more):
    return [*point_rows("edge_mask", scatter=0, batch_size=hetero, **more),
            *point_rows("indices", scatter=0, batch_size=dango)]  # fmt: skip


def both_models(**more):
    return frame(table([*point_rows("edge_mask", scatter=0, batch_size=28, **more),
                        *point_rows("node_mask", scatter=0, batch_size=28),
                        *point_rows("indices", scatter=0, batch_size=64)]))  # fmt: skip


def test_components_add_up_to_the_step_and_stand_beside_the_published_ones(figures):
    made = case_study.component_table(both_models(), figures).table
    assert made.loc[("step", "all"), "hetero s"] == pytest.approx(0.1)
    for side, whole in (("hetero s", 0.1), ("DANGO s", 0.005)):
        assert made.loc["step"][side].iloc[:-1].sum() == pytest.approx(whole)
    assert made.loc["step"]["share"].iloc[:-1].sum() == pytest.approx(1)
    assert made.loc[("step", "forward and loss"), "hetero : dango"] == pytest.approx(15 / 1.7)
    assert made.loc[("step", "forward and loss"), "published s"] == 0.374
    assert made.loc[("making a batch", "collation"), "share"] == pytest.approx(90 / 96)
    assert made.loc[("making a batch", "collation"), "published share"] == pytest.approx(0.05 / 1.087)
    assert made.loc["making a batch"]["hetero s"].iloc[:-1].sum() == pytest.approx(0.096)
    other = case_study.component_table(both_models(), figures, strategy="node_mask").table
    assert other.loc[("step", "all"), "hetero s"] == pytest.approx(0.02)


def test_the_published_share_of_masks_is_refuted_where_collation_is_longer(figures):
    said = " ".join(str(case_study.component_table(both_models(), figures)).split())
    assert "(edge_mask, batch 28) takes 20 × as long as one of dango (batch 64)" in said
    assert "making masks 4 ms and collating 90 ms" in said
    assert "that masks are the greater part is refuted here, with edge_mask and 2,423,370 edges" in said
    few = str(case_study.component_table(both_models(steps=2), figures))
    assert "is undecided here" in " ".join(few.split())


def test_a_table_of_one_model_says_so_and_one_of_a_strategy_that_was_not_run_is_refused(figures):
    rows = both_models()
    one = case_study.component_table(rows[rows["model"] != "dango"], figures)  # a budget may leave the other out
    assert one.table.empty
    assert "the rows hold no step of dango" in " ".join(str(one).split())
    with pytest.raises(InputError, match="strategy is 'delta', and the rows have edge_mask, node_mask"):
        case_study.component_table(rows, figures, strategy="delta")
