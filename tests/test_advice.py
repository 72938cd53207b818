"""What to change: from steps whose every second is known, from rows made by hand, and once from runs."""

from types import SimpleNamespace

import numpy as np
import pytest
from clock import Clock
from stage_rows import HOST, lost, point_rows
from test_busy import moments
from test_compare import rows, step, thrice

import tclab
from tclab import InputError, Point, lab, timing
from tclab.message_passing._view import NEEDS_EDGES
from tclab.sweeps import _advise
from tclab.sweeps._rows import frame, table
from tclab.timing._advice import MEASURED, MODEL, ONCE_EACH, Advice, StepTimes, Suggestion, suggestions_from
from tclab.timing._environment import HARDWARE, environment
from tclab.timing._ledger import BatchTiming
from tclab.timing._verdict import FASTER, SLOWER, UNDECIDED, Pair


def account(steps=12, *, scatter=0.01, **stages):
    """Steps of known stages, in seconds."""
    more = {name: stages.pop(name) for name in ("workers", "batch_seconds", "cores", "cycle") if name in stages}
    swing = 1 + scatter * np.random.default_rng(0).standard_normal(steps)
    made = {name: took * swing for name, took in stages.items()}
    return StepTimes("of a test", sum(made.values()), made, **more)


def said(advice):
    return " ".join(str(advice).split())


CHEAPER = "make a batch cheaper, or carry less in it"
PREFETCH = "prefetch further ahead, and keep the workers between epochs: batches come unevenly, or late"
WAITING = {"data_wait": 0.3, "forward": 0.1, "workers": 1, "batch_seconds": 0.39}


@pytest.mark.parametrize(
    ("stages", "change", "ratio", "words"),
    [
        ({"cores": 16}, "load with 4 workers instead of 1", 0.25, "390 ms"),  # the wait is gone, and the rest is left
        ({"cores": 3}, "load with 2 workers instead of 1", 0.195 / 0.4, ": 4 workers could keep up, on 3 cores"),
        ({"cores": 2}, CHEAPER, 0.25, "4 workers could keep up, on 2 cores"),
        ({"cores": 2, "forward": 0.005, "workers": 0, "batch_seconds": 0.3}, CHEAPER, 1 / 61, "on 2 cores"),
        ({"cores": 8, "workers": 0, "batch_seconds": 0.29}, "load with 3 workers instead of none", 0.25, ""),
        ({"cores": 8, "workers": 4}, PREFETCH, 0.25, "4 workers could keep up"),
        ({"cores": 8, "batch_seconds": None}, "make batches ahead: more workers, a deeper prefetch, fewer bytes", 0.25,
         "waits for its batch for 75%"),
    ],
)  # fmt: skip
def test_exposed_loading_asks_for_as_many_workers_as_can_keep_up(stages, change, ratio, words):
    (one,) = suggestions_from(account(24, **{**WAITING, **stages}))[0]
    assert one.change == change
    assert one.ratio == pytest.approx(ratio, rel=0.01)
    assert words in one.why
    predicted = change.startswith("load with")
    assert (one.basis, bool(one.setting)) == ((MODEL, True) if predicted else ("at best", False))


@pytest.mark.parametrize(("margin", "ratios"), [(0.02, [0.8, 0.95]), (0.15, [0.8]), (0.25, [])])
def test_bounds_are_the_share_of_a_stage_and_nothing_below_the_margin_is_called_better(margin, ratios):
    found = suggestions_from(account(forward=0.7, optimizer=0.2, log=0.05, clip=0.01, other=0.04, scatter=0), margin)[0]
    assert [one.ratio for one in found] == pytest.approx(ratios)
    assert all((one.basis, one.interval) == ("at best", pytest.approx((one.ratio, one.ratio))) for one in found)
    faster = rows(*thrice("edge_mask", 1.0), *thrice("node_mask", 0.9))
    assert len(tclab.advise(faster, margin=margin).suggestions) == (margin < 0.1)


def test_a_wait_that_is_not_certain_is_said_with_its_share_and_why_nothing_is_predicted():
    waits = np.array([9.0, *[0.0] * 7])
    found, missing = suggestions_from(StepTimes("x", waits + 1, {"data_wait": waits}, cycle=4))
    assert found == []
    assert "a step waits for its batch 53% of its time, but steps differ, so it may be 0% or 100%" in missing[0]


CHANGING = np.linspace(1.0, 3.0, 60)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (account(steps=5, data_wait=0.5, forward=0.1),
         "5 steps were timed, at least 6 are needed; 83% of their time was waiting for batches"),
        (account(steps=7, data_wait=0.3, cycle=4), "7 steps were timed, at least 8 are needed"),
        (StepTimes("x", CHANGING, {"data_wait": CHANGING - 0.1}),
         "the steps were not steady (from 2.25 s to 2.76 s, which the last 15 of 60 steps took); run more warm-up"),
    ],
)  # fmt: skip
def test_no_advice_where_the_evidence_is_thin(steps, words):
    assert words in steps.refusal()
    said = " ".join(str(Advice("x", (), refusal=steps.refusal())).split())
    assert said.startswith(f"What to change, x: no advice yet: {words}")
    assert "no change is known" not in said
    measured = Advice("x", (Suggestion("another", "it ran", 0.5, None, MEASURED),), refusal=steps.refusal())
    assert f"still open: {words}" in " ".join(str(measured).split())


def test_batches_that_were_made_before_say_nothing_of_the_loader():
    found, missing = suggestions_from(account(24, data_wait=0.0, forward=0.016, workers=4, batch_seconds=0.4, cores=16))
    assert found == []
    assert "4 workers cannot give a batch more often than every 100 ms: steps of 16 ms used batches" in missing[0]


# ---- around a loop of one's own


def test_the_start_of_a_passs_workers_is_no_wait_that_a_cheaper_batch_would_spare(monkeypatch):
    clock = Clock().set_in(monkeypatch)

    class Loader:
        num_workers = 1

        def __iter__(self):
            for took in (2.0, *[0.0] * 7):
                begin = clock.read()
                clock.work(took)
                yield SimpleNamespace(timing=BatchTiming(0, begin, clock.read(), {"collate": 1}))

    with timing.Ledger() as ledger:
        for _ in range(3):
            for _ in ledger.steps(Loader()):
                with ledger.stage("forward"):
                    clock.work(0.01)
    advice = timing.advise(ledger)
    assert advice.subject == "from 21 steps of this loop, without 3 that waited for workers to start"
    assert not advice.suggestions


def test_rows_of_ranks_that_wait_for_one_another_say_so():
    made = point_rows("node_mask", ranks=2, backend="gloo")
    whole = next(row for row in made if (row["stage"], row["where"]) == ("step", "host"))
    late = [0.2 * seconds for seconds in whole["samples_seconds"]]
    made.append({**made[0], "stage": "rank_wait", "samples_seconds": late, "median_seconds": float(np.median(late))})
    found = tclab.advise(frame(table(made)))
    (one,) = [one for one in found.suggestions if one.change == "give every rank as much to do"]
    assert one.ratio == pytest.approx(0.8)


# ---- from rows


def test_settings_that_were_run_are_ranked_by_what_the_rows_give():
    made = rows(
        *thrice("edge_mask", 1.0, batch_bytes=10**9),
        *thrice("node_mask", 0.1, batch_bytes=200),
        *thrice("gpu_mask", 0.5),
        *thrice("dense", 0.2, equivalence="failed"),
        *thrice("khop_1", 0.01, equivalence="inexact"),
        *thrice("subgraph", 0.985),
        *thrice("edge_mask", 0.9, allocator="keep_pages"),
        *thrice("edge_mask", 0.5, batch_size=1),
        *thrice("edge_mask", 0.4, networks=1, network_names="a"),
    )
    advice = tclab.advise(made)
    assert advice.subject == "from 30 steps of hetero_cell with edge_mask, batch 4, 2 networks"
    assert [one.change for one in advice.suggestions] == [
        "node_mask instead of edge_mask", "gpu_mask instead of edge_mask", "allocator keep_pages instead of none"
    ]  # fmt: skip
    best = advice.suggestions[0]
    assert best.interval[0] < 0.1 < best.interval[1] < 0.12
    assert (best.ratio, best.basis) == (pytest.approx(0.1, rel=0.02), "from separate runs")
    assert best.why == "From 3 and 3 runs. The batch shrinks from 1 GB to 200 B."
    assert "What to change, from 30 steps of hetero_cell with edge_mask" in str(advice)
    assert tclab.advise(made, now="node_mask").suggestions == ()
    with pytest.raises(InputError, match="unknown strategy of these rows 'edgemask'; did you mean 'edge_mask'"):
        tclab.advise(made, now="edgemask")


def test_rows_of_another_machine_or_of_unsteady_steps_are_no_evidence():
    here = thrice("edge_mask", 1.0)
    assert len(tclab.advise(rows(*here, step("node_mask", 0.1))).suggestions) == 1
    for other in ({"cpu": "Other"}, {"gpu": "H200"}, {"commit": "bbb"}, {"torch": "2.11"}):
        advice = tclab.advise(rows(*here, step("node_mask", 0.1, **other)))
        assert advice.suggestions == ()
        assert "what 1 setting of another machine, code or OMP_NUM_THREADS would say here" in advice.missing
    changing = [one for name in ("delta", "node_mask") for one in thrice(name, 0.5, steady="not steady")]
    unsteady = tclab.advise(rows(*here, *changing))
    assert unsteady.suggestions == ()
    assert tclab.advise(rows(step(status="oom"))).refusal == "no point in mode step was measured"
    assert all("still changing: warm up longer" in one.why for one in unsteady.unsure)
    changes = "delta instead of edge_mask, node_mask instead of edge_mask"
    assert f"still open: whether there is a gain from {changes}:" in " ".join(str(unsteady).split())


def test_rows_of_another_number_of_threads_are_left_out_and_the_newest_count():
    early = [step("edge_mask", 2.0, threads=2, measured_at="1"), step("node_mask", 0.1, threads=2, measured_at="2")]
    late = [step("edge_mask", 1.0, seed=1, threads=1, measured_at="3"), step("node_mask", 0.5, threads=1, seed=2)]
    for made in ([*early, *late], [*late, *early]):
        advice = tclab.advise(rows(*made))
        (one,) = advice.suggestions
        assert one.ratio == pytest.approx(0.5, rel=0.05)
        assert "what 2 settings of another machine, code or OMP_NUM_THREADS would say here" in advice.missing


def test_runs_that_differ_too_much_from_one_another_predict_nothing():
    now = [step("edge_mask", 1.0 * factor, seed=i) | {"seed": 0} for i, factor in enumerate((1, 1.5))]
    advice = tclab.advise(rows(*now, *(step("node_mask", 0.09, seed=i) | {"seed": 0} for i in (3, 4))))
    assert advice.suggestions == ()
    (one,) = advice.unsure
    assert (one.ratio, one.interval, one.why) == (None, None, "the runs differ too much from one another")
    assert "gain from node_mask instead of edge_mask: the runs differ too much from one another" in said(advice)
    assert one.sentence.startswith("node_mask instead of edge_mask: no prediction. ")


def test_single_runs_are_told_as_that_and_are_worth_a_race_and_never_called_faster():
    advice = tclab.advise(rows(step("edge_mask", 1.0), step("node_mask", 0.62, seed=1), step("delta", 0.97, seed=2)))
    (one,) = advice.suggestions
    assert (one.basis, one.interval) == (ONCE_EACH, None)
    assert one.sentence.startswith("node_mask instead of edge_mask: measured 0.62")
    assert "× the time of a step (one run each). One run cannot show run-to-run variation." in one.sentence
    assert "gain from delta instead of edge_mask: one run each; run-to-run variation is not known" in said(advice)
    assert "faster" not in said(advice).lower()


def test_a_strategy_that_was_measured_alone_is_named_and_what_to_race_it_against():
    assert "edge_mask alone was measured; race it against node_mask and delta" in said(
        tclab.advise(rows(step("edge_mask")))
    )
    assert "race it against delta and gpu_mask" in tclab.advise(rows(step("node_mask"))).refusal
    assert tclab.advise(rows(step("indices", model="dango"))).refusal == ""


def test_what_a_users_model_may_not_be_able_to_run_is_not_suggested():
    own = [{**row, "model": "my_gin"} for row in point_rows("edge_mask", cores=8, edge_bytes=70_000)]
    names = ("node_mask", "delta", "delta")
    skipped = [lost(name, f"skipped: {NEEDS_EDGES}") | {"model": "my_gin"} for name in names]
    for made, what in ((own, "node_mask"), ([*own, *skipped], "node_mask, delta")):
        advice = tclab.advise(frame(table(made)))
        assert not any("strategy" in one.setting for one in advice.suggestions)
        assert f"still open: what {what} would save: not run, and cannot be where the model needs" in said(advice)
        assert said(advice).count("SharedGINConv for GINConv") == 1
    assert "edge_mask alone was measured; race it against gpu_mask" in advice.refusal


def test_of_many_settings_that_are_alike_none_is_suggested():
    alike = [one for i in range(3, 23) for one in thrice("edge_mask", 1.0, seed=i, loader=f"prefetch_factor:{i}")]
    now, better = thrice("edge_mask", 1.0), thrice("edge_mask", 0.8, optimizer="plain")
    for made in ((*now, *better), (*now, *better, *alike)):
        (one,) = tclab.advise(rows(*made)).suggestions
        assert one.setting == {"optimizer": "plain"}
    assert tclab.advise(rows(*now, *alike)).suggestions == ()


def test_another_batch_size_is_told_for_a_sample():
    advice = tclab.advise(rows(*thrice("node_mask", 0.4), *thrice("node_mask", 0.05, batch_size=2)))
    (one,) = advice.suggestions
    assert one.change == "batch size 2 instead of 4"
    assert one.ratio == pytest.approx(0.25, rel=0.02)  # 25 ms a sample and not 100
    assert "Training with another batch size gives another model." in one.why


def test_overheads_are_no_change_that_is_worth_making():
    slow = [step("node_mask", 0.2, seed=i, overheads="item_logging") for i in range(2)]
    assert tclab.advise(rows(*slow, step("node_mask", 0.1))).suggestions == ()


def test_the_stages_of_rows_suggest_workers_and_fewer_bytes():
    made = frame(table(point_rows("edge_mask", cores=8, edge_bytes=70_000)))
    limited = frame(table(point_rows("edge_mask", cores=16, cpu_limit_cores=2.0)))
    assert "could keep up, on 2 cores" in str(tclab.advise(limited))
    found = {one.change: one for one in tclab.advise(made).suggestions}
    whole = sum(HOST["edge_mask"].values())
    workers = found["load with 3 workers instead of 1"]
    assert workers.ratio == pytest.approx(1 - HOST["edge_mask"]["data_wait"] / whole, rel=0.02)
    bytes_ = found["node_mask instead of edge_mask"]
    assert bytes_.ratio == pytest.approx(1 - 65 / whole, rel=0.02)
    assert "70,000 of a batch's 70,900 bytes" in bytes_.why
    both = frame(table([*point_rows("edge_mask", cores=8, edge_bytes=70_000), *point_rows("node_mask", cores=8)]))
    (measured,) = [one for one in tclab.advise(both).suggestions if "node_mask" in one.change]
    assert measured.basis == "once each"  # what was run stands in for what was reckoned


def beside(percent):
    """The columns of a row of one thread whose steps waited for a processor for so much of ten seconds."""
    return {"threads": 1, "workers": 0, "conditions": moments(percent)}


def test_equal_strategies_are_not_told_apart_by_another_process_beside_the_first():
    made = rows(step("edge_mask", 0.9, **beside(60)), step("node_mask", 0.1, seed=1, **beside(1)))
    advice = tclab.advise(made)
    assert advice.suggestions == ()
    assert advice.busy.startswith("1 of 2 runs shared the CPU with other programs")
    assert "instead of edge_mask: other programs used the CPU while the present point ran" in said(advice)
    (pair,) = tclab.compare(made[made["strategy"] == "edge_mask"], made[made["strategy"] == "node_mask"]).pairs
    assert pair.verdict == UNDECIDED
    chart = lab.charts.throughput(made).to_dict()
    for text in (*lab.findings(made), str(advice), str(made), str(chart), str(pair)):
        assert "faster" not in text.lower()


def test_the_point_that_was_disturbed_and_still_took_less_time_is_faster():
    made = rows(step("edge_mask", 0.9, **beside(1)), step("node_mask", 0.1, seed=1, **beside(60)))
    (one,) = tclab.advise(made).suggestions
    assert (one.setting, one.basis) == ({"strategy": "node_mask"}, ONCE_EACH)
    assert tclab.advise(made).busy
    often = [*thrice("edge_mask", 0.9, **beside(1)), *thrice("node_mask", 0.1, **beside(60))]
    assert [one.basis for one in tclab.advise(rows(*often)).suggestions] == [MEASURED]


def test_no_prediction_leads_on_a_busy_machine(monkeypatch):
    quiet = [{**row, **beside(1)} for row in point_rows("edge_mask", cores=8, edge_bytes=70_000)]
    busy = [{**row, **beside(60)} for row in quiet]
    plain, disturbed = (tclab.advise(frame(table(made))) for made in (quiet, busy))
    assert plain.busy == ""
    assert "1. load with 3 workers" in str(plain)
    assert [one.change for one in disturbed.suggestions] == [one.change for one in plain.suggestions]
    assert disturbed.busy in " ".join(str(disturbed).split()).partition("1. load with 3 workers")[0]
    monkeypatch.setattr(_advise, "others_now", lambda: "other programs keep 1.0 of 2 cores busy now")
    of_this_machine = {name: environment()[name] for name in HARDWARE}  # which is busy by now
    here = frame(table(quiet)).assign(**of_this_machine)
    assert "keep 1.0 of 2 cores busy now" in str(tclab.advise(here)).partition("1. ")[0]
    with timing.Ledger() as ledger:
        list(ledger.steps(range(8)))
    assert tclab.advise(ledger).busy == "other programs keep 1.0 of 2 cores busy now"


@pytest.mark.slow
def test_the_change_that_rows_of_a_run_suggest_is_measured(tmp_path):
    how = {"scale": 0.02, "networks": 2, "batch_size": 4, "steps": 8, "workers": 0, "device": "cpu"}
    made = tclab.sweep([Point(strategy=name, **how) for name in ("edge_mask", "node_mask")], results=tmp_path)
    # the steps' seconds are made: those of a busy machine may tell nothing, and then there would be no advice
    slow = [row["strategy"] == "edge_mask" for row in made.to_dict("records")]
    made["samples_seconds"] = [[(1.0 if own else 0.5) + 0.001 * i for i in (0, 3, 1, 2, 3, 0, 2, 1)] for own in slow]
    made["steady"], made["contention"] = "steady", None
    advice = tclab.advise(made[made["stage"] == "step"], now="edge_mask")
    (able,) = [one for one in advice.suggestions if one.setting.get("strategy") == "node_mask"]
    assert able.ratio == pytest.approx(0.5, rel=0.01)
    (done,) = [one for one in advice.measure(budget_seconds=4, processes=None).suggestions if one.measured]
    assert (done.measured.a, done.measured.b) == ("changed", "now")


def test_what_is_listed_first_is_raced_first_and_then_what_is_still_open(capsys):
    budgets = []

    def race_of(verdict):
        def race(budget_seconds, progress):
            assert progress
            budgets.append(budget_seconds)
            return Pair("changed", "now", verdict, ratio=0.5)

        return race

    def fails(**_):
        raise InputError("no such device")

    faster = race_of(FASTER)
    every = {"one": race_of(SLOWER), "two": fails, "three": None, "four": faster, "five": faster}
    made = [Suggestion(name, "they were disturbed", 0.5, None, MEASURED, race=race) for name, race in every.items()]
    advice = Advice("of a test", tuple(made[:3]), unsure=tuple(made[3:]))
    assert "still open: whether there is a gain from four, five: they were disturbed" in str(advice)
    done = advice.measure(budget_seconds=45)
    assert budgets == [15, 15]  # three races of 15 s, of which one failed
    assert capsys.readouterr().err == "3 races in 45 s; making the candidates of each comes on top\n"
    assert [one.change for one in done.suggestions] == ["four", "two", "three", "one"]
    assert [one.change for one in done.suggestions if one.measured] == ["four", "one"]
    assert [one.change for one in done.unsure] == ["five"]
    assert done.missing == ("what 'two' gives when it runs: no such device",)
    assert "--measure" in str(advice)
    assert "--measure" not in str(done)
