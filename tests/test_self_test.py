"""Delays of known length come back from the ledger, one that does not is said not to, and a ledger's cost is seen.

On a clock that advances by work and by being read; benchmarks/ledger_trust.py does the same with a real one.
"""

import random

import pytest
from clock import Clock

from tclab import InputError
from tclab.timing import receipt, spike_in
from tclab.timing._ledger import NullLedger
from tclab.timing._self_test import SpikeIn, Trial


class Interrupted(Clock):
    """Whose work is interrupted now and then."""

    def __init__(self):
        super().__init__(reading=1e-6)
        self.lots = random.Random(0)

    def work(self, seconds):
        super().work(seconds * (1 + abs(self.lots.gauss(0, 0.02))))
        if self.lots.random() < 0.01:
            self.now += 0.004  # somebody else's turn on this core


@pytest.fixture
def loop(monkeypatch):
    clock = Interrupted().set_in(monkeypatch)

    def run(ledger, steps=20):
        for _ in ledger.steps(range(steps)):
            with ledger.stage("forward"):
                clock.work(0.0005)
            with ledger.stage("backward"):
                clock.work(0.001)
            if steps == 10:  # what takes very different times
                clock.work(0.001 * clock.lots.random())

    return run


def test_delays_come_back_on_their_stage_and_with_their_length(loop):
    found = spike_in(loop, stages=("forward", "backward", "other"), seconds=(0.0, 0.001, 0.004), trials=2)
    assert len(found.trials) == 3 * 3 * 2
    assert all(trial.found_stage == trial.stage for trial in found.trials if trial.injected_seconds)
    assert found.share() == 1.0
    for response in found.responses():
        assert response.trials == 4
        assert response.slope == pytest.approx(1.0, abs=0.02)
        assert response.detection_limit_seconds < 0.0002


@pytest.mark.parametrize(
    ("recovered", "found"),
    [({"forward": 0.0019}, 1.0), ({"forward": 0.0, "backward": 0.002}, 0.0), ({"forward": 0.001}, 0.0)],
)
def test_a_delay_on_the_wrong_stage_or_of_another_length_is_not_recovered(recovered, found):
    assert SpikeIn([Trial("forward", 0.002, recovered, dict.fromkeys(recovered, 1e-5), 10)]).share() == found


def test_a_noisy_loop_takes_more_steps_up_to_its_limit(loop):
    def noisy(ledger):
        loop(ledger, 10)

    for most_steps in (20, 100):
        (trial,) = spike_in(noisy, stages=("other",), seconds=(0.0002,), trials=1, most_steps=most_steps).trials
        assert trial.pairs == most_steps / 2
        assert trial.error_seconds["other"] > 0.0


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"stages": []}, InputError, "stages is .*, expected at least one"),
        ({"seconds": []}, InputError, "seconds is .*, expected lengths of delays, one of them above 0"),
        ({"seconds": [0.0]}, InputError, "one of them above 0"),
        ({"seconds": [0.001, -1.0]}, InputError, "expected lengths"),
        ({"seconds": [float("nan")]}, InputError, "expected lengths"),
        ({"trials": 0}, InputError, "trials is 0, expected a whole number"),
        ({"stages": ["mask"]}, ValueError, r"stage 'mask' never ran; the loop's stages are .*forward"),
        ({"loop": 1}, ValueError, "the loop took 1 steps"),
    ],
)
def test_delays_that_there_cannot_be_are_one_clear_line(loop, settings, error, words):
    steps = settings.pop("loop", 20)
    with pytest.raises(error, match=words):
        spike_in(lambda ledger: loop(ledger, steps), **{"stages": ["forward"], **settings})


@pytest.mark.parametrize("reading", [2e-6, 5e-4])  # seconds that a reading of the clock takes, a ledger's only cost
def test_the_receipt_says_what_a_ledger_costs(reading, monkeypatch):
    clock = Clock(reading=reading).set_in(monkeypatch)

    def loop(ledger):
        for _ in ledger.steps(range(2)):
            for stage in ("forward", "backward", "optimizer"):
                with ledger.stage(stage):
                    clock.work(0.001)

    found = receipt(loop, budget_seconds=6.0, clock=clock.nanoseconds)
    # wait and three stages begin and end, so does a step, and the last is followed by one that is dropped
    assert found.cut_seconds == pytest.approx(9 * reading, rel=0.02)
    assert found.step_seconds == pytest.approx(0.003)
    assert found.share == found.cut_seconds / found.step_seconds
    assert found.interval[0] <= found.ratio <= found.interval[1]
    assert found.ratio == pytest.approx(1 + 11 * reading / 0.003, rel=0.1)
    assert f"the ledger's own work is {found.cut_seconds * 1e6:.1f} µs a step" in str(found)
    assert {sample["arm"] for sample in found.race.samples()} == {"instrumented", "bare"}


def test_a_race_of_too_few_rounds_is_said_so(monkeypatch):
    clock = Clock(reading=2e-6).set_in(monkeypatch)

    def loop(ledger):
        for _ in ledger.steps(range(2)):
            clock.work(1.0)

    found = receipt(loop, budget_seconds=1.0, clock=clock.nanoseconds)
    assert found.ratio is None
    assert found.share == pytest.approx(found.cut_seconds, rel=0.01)  # of a step of a second, by the ledger itself
    assert f"{found.share:.3%} of 1e+03 ms; the race had too few rounds" in " ".join(str(found).split())


def test_no_ledger_runs_the_same_loop_and_keeps_nothing():
    ledger = NullLedger()
    assert list(ledger.steps("abc")) == ["a", "b", "c"]
    with ledger.stage("forward"):
        pass
