"""The receipt: what the instrument costs a loop."""

import time

from tclab.timing import Ledger, NoLedger, receipt


def busy(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_a_ledger_costs_microseconds_and_the_receipt_says_how_many():
    def loop(ledger):
        for _ in ledger.steps(range(2)):
            for stage in ("forward", "backward", "optimizer"):
                with ledger.stage(stage):
                    busy(0.001)

    found = receipt(loop, budget_seconds=6.0)
    assert 0.0 < found.cut_seconds < 0.001
    assert found.step_seconds >= 0.003
    assert found.share == found.cut_seconds / found.step_seconds
    assert found.interval[0] <= found.ratio <= found.interval[1]
    assert "µs a step" in str(found)
    assert {sample["arm"] for sample in found.race.samples()} == {"instrumented", "bare"}


def test_a_slow_instrument_does_not_go_unseen(monkeypatch):
    def loop(ledger):
        for _ in ledger.steps(range(2)):
            with ledger.stage("forward"):
                busy(0.001)

    enter = Ledger._enter

    def slow(self, name):
        busy(0.001)
        enter(self, name)

    monkeypatch.setattr(Ledger, "_enter", slow)
    found = receipt(loop, budget_seconds=6.0)
    assert found.cut_seconds > 0.001
    assert found.ratio > 1.5


def test_no_ledger_runs_the_same_loop_and_keeps_nothing():
    ledger = NoLedger()
    assert list(ledger.steps("abc")) == ["a", "b", "c"]
    with ledger.stage("forward"):
        pass
