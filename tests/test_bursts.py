"""A loader that binds: batches of several workers come in bursts, and every figure of a run tells the same truth."""

import itertools
import time

import pytest
from stage_rows import drawn

import tclab
from tclab import Point, case_study, lab
from tclab.lab.reports._cells import stage_parts
from tclab.masking import get, register
from tclab.sweeps import _measure, race_points
from tclab.sweeps._measure import measure
from tclab.sweeps._point_inputs import resolve
from tclab.sweeps._rows import frame, table
from tclab.timing._environment import conditions

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
SLEEP = 0.25  # seconds that a worker takes for a batch, long beside the rest of a step on a busy machine, too
BATCH = 2


@pytest.fixture(scope="module")
def slow():
    """Name of a strategy whose workers sleep, so that they need no core and stay in phase."""

    class Sleeps(get("node_mask")):
        def encode(self, places, removed):
            time.sleep(self.seconds)
            return super().encode(places, removed)

    for name, seconds in (("slow_of_a_test", SLEEP), ("half_of_a_test", SLEEP / 2)):
        register(type("Slow", (Sleeps,), {"name": name, "seconds": seconds}))
    return "slow_of_a_test"


def rows_of(strategy, **fields):
    small = {"scale": 0.01, "networks": 1, "batch_size": BATCH, "device": "cpu", "model": "hetero_cell"}
    return frame(table(measure(resolve(Point(**{**small, "strategy": strategy, **fields})))))


@pytest.fixture(scope="module")
def rows(slow):
    """Rows of 13 steps with two workers: six whole cycles, and a step that fills none."""
    return rows_of(slow, workers=2, steps=13)


@pytest.mark.clock
def test_the_mean_step_is_as_long_as_its_workers_take(rows):
    host = rows[rows["where"] == "host"].set_index("stage")
    step = host.loc["step"]
    assert step["cycle_steps"] == 2
    assert step["low_seconds"] <= step["mean_seconds"] <= step["high_seconds"]
    made = rows[(rows["stage"] == "batch") & (rows["where"] == "worker")].iloc[0]
    # a pause of the machine makes it less
    assert 0.1 * BATCH * 2 / SLEEP < step["samples_per_second"] < 1.05 * BATCH * 2 / SLEEP
    assert made["mean_seconds"] >= SLEEP


@pytest.mark.clock
def test_batches_made_before_the_clock_are_no_throughput(slow):
    """32 batches lie ready after the first step, more than are timed: none of them is."""
    rows = rows_of(slow, workers=8, loader="prefetch_factor:4", steps=16, mode="data")
    step = rows[rows["stage"] == "step"].iloc[0]
    assert 0.1 * BATCH * 8 / SLEEP < step["samples_per_second"] < 1.05 * BATCH * 8 / SLEEP


@pytest.mark.clock
def test_a_pause_before_the_clock_leaves_no_batches_made_ahead_in_the_figures(slow, monkeypatch):
    """Meanwhile the workers fill their queue, from which all timed steps could take; so they do in two further pauses:
    when that queue of eight is empty, and after the step that follows."""
    steps, run, batches = itertools.count(), _measure.Setup.run, _measure.Setup.batches

    def received_late(here):
        for number, batch in enumerate(batches(here)):
            if number == 10:  # after the cold start, one of warm-up, and the queue's eight
                time.sleep(6 * SLEEP)
            yield batch

    def and_pause(here, given, **how):
        run(here, given, **how)
        if isinstance(given, list) and next(steps) == 1:  # the cold start is the first of one step
            time.sleep(6 * SLEEP)

    monkeypatch.setattr(_measure.Setup, "batches", received_late)
    monkeypatch.setattr(_measure.Setup, "run", and_pause)
    monkeypatch.setattr(_measure, "conditions", lambda: time.sleep(6 * SLEEP) or conditions())
    rows = rows_of(slow, workers=2, loader="prefetch_factor:4", steps=6, warmup=1, mode="data")
    assert rows[rows["stage"] == "step"].iloc[0]["samples_per_second"] < 1.05 * BATCH * 2 / SLEEP


def test_stages_times_steps_are_the_wall_time_in_every_chart_and_table(rows):
    host = rows[rows["where"] == "host"].set_index("stage")
    steps, wall = 12, sum(host.loc["step", "samples_seconds"][-12:])  # of the whole cycles
    assert host["mean_seconds"].drop("step").sum() * steps == pytest.approx(wall)
    assert steps * BATCH / host.loc["step", "samples_per_second"] == pytest.approx(wall)
    parts = stage_parts(rows).query("where == 'host'")
    assert parts["seconds"].sum() * steps == pytest.approx(wall)
    on_host = [line["value"] for line in drawn(lab.charts.stages(rows), "bar") if line["bar"].endswith("host")]
    assert sum(on_host) / 1e3 * steps == pytest.approx(wall)  # drawn in ms
    (rate,) = {one["value"] for one in drawn(lab.charts.throughput(rows), "sure")}
    assert steps * BATCH / rate == pytest.approx(wall)
    found = case_study.hypotheses(rows)[0]
    waiting = host.loc[["data_wait", "transfer"], "mean_seconds"].sum() / host.loc["step", "mean_seconds"]
    assert f"are {waiting:.1%} [" in " ".join(found.evidence)
    advice = tclab.advise(rows.assign(cores=16))
    wait = host.loc["data_wait", "mean_seconds"] / host.loc["step", "mean_seconds"]
    for one in advice.suggestions:  # none of the wait where a pause of the machine made it uncertain
        assert "waits for its batch" not in one.why or f"waits for its batch for {wait:.0%} [" in one.why


@pytest.mark.slow
@pytest.mark.clock
def test_a_race_does_not_let_an_arms_workers_fill_up(slow):
    arms = {name: Point(scale=0.01, networks=1, batch_size=BATCH, device="cpu", strategy=name, workers=4)
            for name in (slow, "half_of_a_test")}  # fmt: skip
    race = race_points(arms, budget_seconds=24, processes=None)
    assert race.verdict(*arms) in ("SLOWER", "UNDECIDED")  # a busy machine may leave too few rounds
    if race.verdict(*arms) == "SLOWER":
        assert 1.5 < race.pairs[0].ratio < 2.7
