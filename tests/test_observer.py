"""The receipt: what the instrument costs a loop."""

import pytest
from clock import Clock

from tclab.timing import receipt
from tclab.timing._ledger import NullLedger

READ = 2e-6  # seconds that a reading of the clock takes, which is all that a ledger costs on the clock below


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances by work and by being read; benchmarks/ledger_trust.py has the cost by a real one."""
    return Clock(reading=READ).set_in(monkeypatch)


def test_the_receipt_says_what_a_ledger_costs(clock):
    def loop(ledger):
        for _ in ledger.steps(range(2)):
            for stage in ("forward", "backward", "optimizer"):
                with ledger.stage(stage):
                    clock.work(0.001)

    found = receipt(loop, budget_seconds=6.0, clock=clock.nanoseconds)
    assert found.cut_seconds == pytest.approx(
        9 * READ, rel=0.01
    )  # wait and three stages begin and end, and the step ends
    assert found.step_seconds == pytest.approx(0.003)
    assert found.share == found.cut_seconds / found.step_seconds
    assert found.interval[0] <= found.ratio <= found.interval[1]
    assert 1.0 < found.ratio < 1.02
    assert "the ledger's own work is 18.1 µs a step" in str(found)
    assert {sample["arm"] for sample in found.race.samples()} == {"instrumented", "bare"}


def test_a_slow_instrument_does_not_go_unseen(clock):
    def loop(ledger):
        for _ in ledger.steps(range(2)):
            with ledger.stage("forward"):
                clock.work(0.001)

    clock.reading = 0.0005  # makes each cut of the ledger cost that much
    found = receipt(loop, budget_seconds=6.0, clock=clock.nanoseconds)
    assert found.cut_seconds > 0.001
    assert found.ratio > 1.5


def test_a_race_of_too_few_rounds_is_said_so(clock):
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
