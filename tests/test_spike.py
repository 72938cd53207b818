"""Delays of known length come back from the ledger, and one that does not is said not to."""

import random

import pytest
from clock import Clock

from tclab import InputError
from tclab.timing import spike_in

pytestmark = pytest.mark.clock

READ = 1e-6  # seconds that a reading of the clock takes


class Interrupted(Clock):
    """Whose work is interrupted now and then."""

    def __init__(self):
        super().__init__(reading=READ)
        self.lots = random.Random(0)

    def work(self, seconds):
        super().work(seconds * (1 + abs(self.lots.gauss(0, 0.02))))
        if self.lots.random() < 0.01:
            self.now += 0.004  # somebody else's turn on this core


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """One for the ledger and its delays; benchmarks/ledger_trust.py puts them into real steps."""
    return Interrupted().set_in(monkeypatch)


@pytest.fixture
def loop(clock):
    def run(ledger, steps=20):
        for _ in ledger.steps(range(steps)):
            with ledger.stage("forward"):
                clock.work(0.0005)
            with ledger.stage("backward"):
                clock.work(0.001)

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


def test_a_ledger_that_puts_a_delay_on_the_wrong_stage_fails_its_trials(clock):
    def crossed(ledger):
        for _ in ledger.steps(range(20)):
            with ledger.stage("forward"):
                clock.work(0.0005)
                with ledger.stage("backward"):  # what is inside the delayed stage by the user's mistake
                    clock.work(0.001)

    honest = spike_in(crossed, stages=("forward",), seconds=(0.002,), trials=2)
    assert honest.share() == 1.0
    moved = [
        type(trial)(trial.stage, 0.002, {"forward": 0.0, "backward": 0.002}, trial.error_seconds, trial.pairs)
        for trial in honest.trials
    ]
    assert type(honest)(moved).share() == 0.0
    halved = [
        type(trial)(trial.stage, 0.002, {"forward": 0.001}, {"forward": 0.0}, trial.pairs) for trial in honest.trials
    ]
    assert type(honest)(halved).share() == 0.0


def test_a_noisy_loop_takes_more_steps_up_to_its_limit(clock):
    lots = random.Random(0)

    def noisy(ledger):
        for _ in ledger.steps(range(10)):
            with ledger.stage("forward"):
                clock.work(lots.random() * 0.001)

    few = spike_in(noisy, stages=("forward",), seconds=(0.0002,), trials=1, most_steps=20)
    more = spike_in(noisy, stages=("forward",), seconds=(0.0002,), trials=1, most_steps=100)
    assert few.trials[0].pairs == 10
    assert more.trials[0].pairs == 50
    assert more.trials[0].error_seconds["forward"] > 0.0


def test_a_stage_that_never_runs_and_a_loop_of_one_step_are_named(loop):
    with pytest.raises(ValueError, match=r"stage 'mask' never ran; the loop's stages are .*forward"):
        spike_in(loop, stages=("mask",), seconds=(0.001,), trials=1)
    with pytest.raises(ValueError, match="the loop took 1 steps"):
        spike_in(lambda ledger: loop(ledger, 1), stages=("forward",), trials=1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stages": []}, "stages is .*, expected at least one"),
        ({"seconds": []}, "seconds is .*, expected lengths of delays, one of them above 0"),
        ({"seconds": [0.0]}, "one of them above 0"),
        ({"seconds": [0.001, -1.0]}, "expected lengths"),
        ({"seconds": [float("nan")]}, "expected lengths"),
        ({"trials": 0}, "trials is 0, expected a whole number"),
    ],
)
def test_delays_that_there_cannot_be_are_one_clear_line(loop, settings, words):
    with pytest.raises(InputError, match=words):
        spike_in(loop, **{"stages": ["forward"], **settings})
