"""Delays of known length come back from the ledger, one that does not is said not to, and a ledger's cost is seen.

On a clock that advances by work and by being read; part (e) of `make gpu` does the same with a real one.
"""

import random

import pytest
from clock import Clock

from tclab import InputError
from tclab.timing import receipt, spike_in


@pytest.fixture
def loop(monkeypatch):
    clock, lots = Clock(reading=1e-6).set_in(monkeypatch), random.Random(0)

    def work(seconds):
        clock.work(seconds * (1 + abs(lots.gauss(0, 0.02))))
        clock.work(0.004 * (lots.random() < 0.01))  # somebody else's turn on this core

    def run(ledger):
        for _ in ledger.steps(range(20)):
            with ledger.stage("forward"):
                work(0.0005)
            with ledger.stage("backward"):
                work(0.001)

    return run


def test_delays_come_back_on_their_stage_and_with_their_length(loop):
    found = spike_in(loop, stages=("data_wait", "forward", "backward", "other"), seconds=2 * (0.001, 0.004))
    assert len(found.trials) == 4 * 2 * 2
    assert found.share() == 1.0
    for trial in found.trials:
        assert trial.recovered_seconds == pytest.approx(trial.injected_seconds, rel=0.05)
    assert "100% recovered" in str(found)
    assert str(found).count("yes") == 16


def test_delays_that_there_cannot_be_are_one_clear_line(loop):
    for settings, words in (
        ({"stages": []}, r"stages=\[\].*; expected a stage"),
        ({"seconds": [0.001, float("nan")]}, "expected a stage and delays above 0"),
        ({"stages": ["mask"]}, r"'mask' is in no two steps of the loop, expected a stage such as .*'forward'"),
    ):
        with pytest.raises(InputError, match=words):
            spike_in(loop, **{"stages": ["forward"], **settings})


def test_the_receipt_says_what_a_ledger_costs(monkeypatch):
    reading = 5e-4  # seconds that a reading of the clock takes, a ledger's only cost
    clock = Clock(reading=reading).set_in(monkeypatch)

    def loop(ledger):
        for _ in ledger.steps(range(2)):
            for stage in ("forward", "backward", "optimizer"):
                with ledger.stage(stage):
                    clock.work(0.001)

    found = receipt(loop)
    # wait and three stages begin and end, so does a step, and the last is followed by one that is dropped
    assert found.cut_seconds == pytest.approx(9 * reading, rel=0.02)
    assert found.step_seconds == pytest.approx(0.003 + found.cut_seconds, rel=0.02)
    assert found.share == found.cut_seconds / found.step_seconds
    assert f"{found.cut_seconds * 1e6:.1f} µs a step, {found.share:.3%} of" in " ".join(str(found).split())
