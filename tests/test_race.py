"""What a race promises: right verdicts, its budget, stop and resume, processes that end, errors in one line.

Most races run on a simulated machine whose clock the arms advance. How often verdicts are right is measured by
`benchmarks/race_verdicts.py`; here a few seeds stand for it, more of them with the marker `slow`.
"""

import errno
import gc
import io
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from clock import Clock
from damage import KINDS, damage
from synthetic_machine import SyntheticMachine, pair_of

from tclab.errors import InputError
from tclab.timing import race, race_cells, read_samples, verdicts_of
from tclab.timing._environment import fingerprint
from tclab.timing._verdict import FASTER, SAME, SLOWER, UNDECIDED
from tclab.timing.races import _race_session


def raced(seed=0, ratio=1.0, budget=60.0, step=0.02, **settings):
    """Race `a` against `b`, which takes `ratio` times as long."""
    machine = SyntheticMachine.of_any_kind(seed)
    arms = {"a": machine.arm("a", step), "b": machine.arm("b", step * ratio)}
    return race(arms, budget_seconds=budget, clock=machine.clock, **settings), machine


@pytest.fixture(scope="module")
def result():
    """A race of `a` against `b`, which takes 1.05 times as long."""
    return raced(6, 1.05, budget=30.0)[0]


def rounds_of(samples):
    """Return round → its arms in order."""
    rounds = {}
    for sample in samples:
        if sample["phase"] == "race":
            rounds.setdefault(sample["round"], []).append((sample["position"], sample["arm"]))
    return {number: [arm for _, arm in sorted(blocks)] for number, blocks in rounds.items()}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_a_real_difference_is_found_from_both_sides(seed):
    result, machine = raced(seed, 1.05)
    assert machine.seconds <= 60.0 + 1.0  # of its budget
    assert result.verdict("a", "b") == FASTER
    assert result.verdict("b", "a") == SLOWER
    assert result.ratio == pytest.approx(1 / 1.05, abs=0.02)
    low, high = result.interval
    assert low < result.ratio < high < 1
    other = result.pair("b", "a")
    assert other.ratio == pytest.approx(1 / result.ratio)
    assert other.interval == pytest.approx((1 / high, 1 / low))


def test_the_same_arm_twice_is_the_same():
    assert raced(101, budget=60.0)[0].verdict("a", "b") == SAME


@pytest.mark.slow
def test_the_same_arm_twice_is_hardly_ever_told_apart():
    verdicts = [raced(seed, budget=20.0)[0].verdict("a", "b") for seed in range(100, 120)]
    assert set(verdicts) <= {SAME, UNDECIDED}  # of 20 one may be expected to be wrong; these are not
    assert SAME in verdicts


@pytest.mark.slow
def test_a_mean_of_the_same_samples_would_be_wrong_often():
    """The series are hard enough for the test above to mean something."""
    wrong = 0
    for seed in range(100, 115):
        samples = raced(seed, budget=20.0)[0].samples()
        means = [
            sum(times) / len(times)
            for times in ([s["seconds"] for s in samples if s["arm"] == arm and s["phase"] == "race"] for arm in "ab")
        ]
        wrong += abs(means[0] / means[1] - 1) > 0.01
    assert wrong >= 5


def test_one_wild_round_decides_nothing():
    machine = SyntheticMachine(3, noise=0.02)
    result = race({n: machine.arm(n, 0.02) for n in "ab"}, budget_seconds=60, clock=machine.clock)
    before = result.pair("a", "b")
    assert before.verdict == SAME
    samples = result.samples()
    wild = [s for s in samples if s["phase"] == "race" and s["arm"] == "a"][20]
    wild["seconds"] *= 1e6
    after = pair_of(samples)
    assert after.verdict == before.verdict
    assert after.ratio == pytest.approx(before.ratio, rel=0.005)


def test_a_drift_that_both_arms_share_cancels():
    machine = SyntheticMachine(0, noise=0.005, drift=2.0, wave=0.0, outliers=0.0)  # three times as slow at the end
    arms = {name: machine.arm(name, 0.02) for name in "ab"}
    result = race(arms, budget_seconds=60, clock=machine.clock)
    assert result.verdict("a", "b") == SAME
    assert result.ratio == pytest.approx(1.0, abs=0.003)


def test_an_effect_of_the_position_is_no_difference_between_arms():
    """The first block of each round takes 10 % longer, whichever arm it is."""
    machine = SyntheticMachine(5, noise=0.02)
    samples = race({n: machine.arm(n, 0.02) for n in "ab"}, budget_seconds=60, clock=machine.clock).samples()
    for sample in samples:
        sample["seconds"] *= 1.2 if sample["position"] == 0 else 1.0
    found = pair_of(samples)
    assert found.verdict == SAME
    assert found.independent > 20
    assert found.floor < 0.01


@pytest.mark.parametrize("arms", ["ab", "abc", "abcde"])
def test_every_round_is_a_palindrome_and_every_arm_takes_every_position(arms):
    machine = SyntheticMachine(1)
    made = race({name: machine.arm(name, 0.02) for name in arms}, budget_seconds=20.0, clock=machine.clock)
    rounds = rounds_of(made.samples())
    assert list(rounds) == list(range(len(rounds)))
    assert len(rounds) > 10
    for order in rounds.values():
        assert sorted(order) == sorted(arms * 2)
        assert order == order[::-1]  # a linear drift affects all arms alike
    for first in range(0, len(rounds) - len(arms) + 1, len(arms)):
        for position in range(2 * len(arms)):
            assert sorted(rounds[first + number][position] for number in range(len(arms))) == sorted(arms)


@pytest.mark.parametrize("budget", [2.0, 10.0])
def test_the_budget_is_kept_to(budget):
    result, machine = raced(2, budget=budget)
    a_round = 4 * 0.02 * 1.5 * max(s["calls"] for s in result.samples())
    assert machine.seconds <= budget + a_round
    assert result.samples()[-1]["spent_seconds"] == pytest.approx(machine.seconds, abs=1e-6)


def test_the_looks_are_as_many_as_were_planned_and_share_alpha():
    result, _ = raced(4, budget=30.0, looks=3)
    samples = result.samples()
    assert {s["look"] for s in samples} <= {1, 2, 3}
    spent = {}
    for look in (1, 2, 3):
        at_look = [dict(s, look=look) for s in samples if s["look"] == 1]  # the same blocks, judged at another look
        spent[look] = pair_of(at_look).alpha
    assert sum(spent.values()) == pytest.approx(0.025)  # the other half is for going on
    assert spent[1] < spent[2] < spent[3]
    assert result.pair("a", "b").alpha == spent[max(s["look"] for s in samples)]


def test_an_early_verdict_ends_the_race():
    result, machine = raced(0, 3.0)
    assert result.verdict("a", "b") == FASTER
    assert machine.seconds < 20  # of 60


def test_samples_give_the_same_verdict_again_in_another_process(result):
    samples = json.loads(json.dumps(result.samples()))
    code = "import json, sys, tclab; print(*tclab.timing.verdicts_of(json.load(sys.stdin)).values())"
    there = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(samples), capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == str(result.pair("a", "b"))
    assert list(result.frame()["seconds"]) == [s["seconds"] for s in samples]


def test_each_arm_is_shown_with_its_spread_and_its_numbers(result):
    pair = result.pair("a", "b")
    for spread in (pair.of_a, pair.of_b):
        assert spread.blocks == 2 * pair.kept
        order = [spread.least_seconds, spread.p5_seconds, spread.q1_seconds, spread.median_seconds,
                 spread.q3_seconds, spread.p95_seconds]  # fmt: skip
        assert order == sorted(order)
    assert pair.processes == 1
    assert pair.dropped == 0
    assert 0 <= pair.p <= pair.q <= 1
    assert pair.margin == max(0.01, pair.floor)


def test_a_rule_drops_blocks_of_any_arm_and_too_many_void_the_race():
    few, _ = raced(101, 1.05, discard=lambda sample: sample["round"] % 10 == 3)
    pair = few.pair("a", "b")
    assert pair.verdict == FASTER
    assert 0 < pair.dropped <= 0.2 * (pair.kept + pair.dropped)
    many, _ = raced(7, 1.05, budget=10.0, discard=lambda sample: sample["round"] % 3 == 0)
    assert many.verdict("a", "b") == UNDECIDED
    assert "void: `discard` dropped" in many.pair("a", "b").why


def test_carry_over_is_seen_and_is_missing_where_no_control_was_run():
    """An arm that takes 20 % longer for its first call after another arm's, as a cold cache makes it."""
    machine = SyntheticMachine(0, noise=0.01, outliers=0.0)
    last = []

    def arm(name):
        plain = machine.arm(name, 0.02)

        def call():
            machine.seconds += 0.004 if last != [name] else 0.0
            last[:] = [name]
            plain()

        return call

    result = race({"a": arm("a"), "b": arm("b")}, budget_seconds=60, clock=machine.clock)
    effect = result.carry_over["a"]
    assert effect.ratio > 1.03
    assert effect.interval[0] > 1.0
    assert effect.controls >= 6
    plain, _ = raced(0, budget=30.0)
    low, high = plain.carry_over["b"].interval
    assert low < 1 < high
    assert raced(0, budget=5.0, isolated=False)[0].carry_over["a"].ratio is None


def test_three_arms_have_every_pair_and_adjusted_p():
    machine = SyntheticMachine(1, noise=0.02)
    arms = {"a": machine.arm("a", 0.02), "b": machine.arm("b", 0.02), "c": machine.arm("c", 0.03)}
    result = race(arms, budget_seconds=60, clock=machine.clock)
    assert result.verdict("c", "a") == SLOWER
    assert result.verdict("b", "c") == FASTER
    assert result.verdict("a", "b") in (SAME, UNDECIDED)
    assert [(p.a, p.b) for p in result.pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert all(p.q >= p.p for p in result.pairs)
    assert result.ratio == result.pair("a", "b").ratio


def test_blocks_of_arms_of_unlike_speed_are_about_as_long_and_whole_periods():
    machine = SyntheticMachine(1, noise=0.01)
    arms = {"slow": machine.arm("slow", 0.04), "fast": machine.arm("fast", 0.001)}
    result = race(arms, budget_seconds=30, period=3, clock=machine.clock)
    calls = {s["arm"]: s["calls"] for s in result.samples()}
    assert all(number % 3 == 0 for number in calls.values())
    assert 0.5 < 0.04 * calls["slow"] / (0.001 * calls["fast"]) < 2


class Loading:
    """An arm whose workers, by a simulated clock, take `batch` seconds for a batch and go on while others run."""

    def __init__(self, clock, batch, *, workers=4, prefetch=4):
        self.clock, self.batch, self.period = clock, batch, workers
        self.free, self.ready, self.asked = [0.0] * workers, [], 0
        for _ in range(workers * prefetch):
            self.request()

    def request(self):
        worker = self.asked % len(self.free)
        self.free[worker] = max(self.clock.now, self.free[worker]) + self.batch
        self.ready.append(self.free[worker])
        self.asked += 1

    def take(self):
        ready = self.ready.pop(0)
        waited = ready > self.clock.now
        self.clock.now = max(self.clock.now, ready)
        self.request()
        return waited

    def __call__(self):
        self.take()
        self.clock.work(0.01)


class Settling(Loading):
    def settle(self):
        while not self.take():
            pass
        self.clock.work(0.01)


def test_an_arms_workers_that_went_on_while_others_ran_make_no_block_shorter():
    ratios = {}
    for kind in (Settling, Loading):
        clock = Clock(reading=1e-6)
        arms = {"slow": kind(clock, 0.4), "fast": kind(clock, 0.2)}
        result = race(arms, budget_seconds=60, clock=clock.read, isolated=False)
        ratios[kind] = result.ratio
        assert {sample["calls"] % 4 for sample in result.samples()} == {0}  # whole cycles of its workers
    assert ratios[Settling] == pytest.approx(2, rel=0.02)
    assert ratios[Loading] < 1.5  # 16 batches lie ready at each block, whoever made them


def test_the_collector_is_off_in_blocks_and_as_it_was_afterwards():
    machine = SyntheticMachine(1)
    seen = []

    def arm():
        seen.append(gc.isenabled())
        machine.arm("x", 0.02)()

    frozen = gc.get_freeze_count()
    result = race({"a": arm, "b": arm}, budget_seconds=5, clock=machine.clock)
    assert sum(seen) == 2  # the calls that warm up
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
    assert "off inside blocks" in result.settings["collector"]


def test_the_device_is_waited_for_at_the_boundaries_of_blocks_alone():
    machine = SyntheticMachine(1, noise=0.01, outliers=0.0)
    events = []

    def arm():
        events.append("call")
        machine.arm("x", 0.002)()

    result = race(
        {"a": arm, "b": arm}, budget_seconds=5, period=3, clock=machine.clock, sync=lambda: events.append("sync")
    )
    calls = max(s["calls"] for s in result.samples())
    assert calls >= 3
    tail = events[-2 * (calls + 2) :]
    assert tail == ["sync", *["call"] * calls, "sync"] * 2


def stopping(machine, seconds):
    return lambda: machine.seconds >= seconds


@pytest.mark.parametrize("seconds", [20.0, *(pytest.param(seconds, marks=pytest.mark.slow) for seconds in (9.0, 47.0))])
def test_a_race_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, seconds):
    """The calls that warm it up again cost nothing here, so all that is measured must be the same."""

    def arms(machine, free):
        def arm(name, step):
            plain = machine.arm(name, step)

            def call():
                if name in free:
                    free.remove(name)
                else:
                    plain()

            return call

        return {"a": arm("a", 0.02), "b": arm("b", 0.02 * 1.015)}

    machine = SyntheticMachine(8)
    whole = race(arms(machine, []), budget_seconds=60.0, clock=machine.clock, record=tmp_path / "whole.jsonl")
    machine = SyntheticMachine(8)
    how = {"budget_seconds": 60.0, "clock": machine.clock, "record": tmp_path / "parts.jsonl"}
    first = race(arms(machine, []), stop=stopping(machine, seconds), **how)
    assert first.stopped == "stop returned true"
    assert 0 < len(first.samples()) < len(whole.samples())
    again = race(arms(machine, ["a", "b"]), **how)
    assert again.stopped is None
    assert again.samples() == whole.samples()
    assert again.pairs == whole.pairs
    kept = read_samples(tmp_path / "parts.jsonl")
    assert kept == again.samples()
    assert pair_of(kept) == again.pair("a", "b")
    calls = len(machine.calls)
    assert race(arms(machine, []), **how).samples() == again.samples()  # nothing is left to run
    assert len(machine.calls) == calls


def test_an_undecided_race_goes_on_with_a_larger_budget_and_spends_what_is_left_of_alpha(tmp_path):
    machine = SyntheticMachine(8, noise=0.03, outliers=0.0)
    how = {"clock": machine.clock, "record": tmp_path}
    arms = {"a": machine.arm("a", 0.02), "b": machine.arm("b", 0.02 * 1.03)}
    first = race(arms, budget_seconds=3.0, **how).pair("a", "b")
    assert first.verdict == UNDECIDED
    alphas = [first.alpha]
    for budget in (6.0, 60.0):
        machine.seconds += 3600.0  # whenever it goes on
        result = race(arms, budget_seconds=budget, **how)
        alphas.append(result.pair("a", "b").alpha)
    assert result.verdict("a", "b") == FASTER
    assert first.needs_rounds
    assert "more rounds may decide" not in str(result)
    assert result.pair("a", "b").kept > first.kept
    assert alphas[0] == pytest.approx(0.01)
    assert alphas[1] == pytest.approx(0.005)
    assert max(s["look"] for s in result.samples()) <= 12
    assert result.samples()[-1]["spent_seconds"] <= 61.0
    assert pair_of(read_samples(tmp_path)) == result.pair("a", "b")
    calls = len(machine.calls)
    assert race(arms, budget_seconds=60.0, **how).pairs == result.pairs  # nothing is left to run
    assert len(machine.calls) == calls
    with pytest.raises(InputError, match=r"budget_seconds was 60\.0 and is 6\.0"):
        race(arms, budget_seconds=6.0, **how)


def test_an_interrupt_in_a_round_gives_back_what_there_is_and_drops_that_round(tmp_path):
    machine = SyntheticMachine(3, noise=0.02)
    plain = machine.arm("a", 0.02)
    pending = [True]

    def interrupted():
        plain()
        if machine.seconds > 11 and pending:
            pending.clear()
            raise KeyboardInterrupt

    arms = {"a": interrupted, "b": machine.arm("b", 0.02 * 1.04)}
    how = {"budget_seconds": 60.0, "clock": machine.clock, "record": tmp_path}
    first = race(arms, **how)
    assert first.stopped == "interrupted"
    assert "interrupted" in str(first)
    assert gc.isenabled()
    again = race(arms, **how)
    assert again.pair("a", "b").dropped <= 1
    assert again.verdict("a", "b") == FASTER


@pytest.mark.slow
def test_a_kill_loses_at_most_the_block_under_way(tmp_path):
    record = tmp_path / "race.jsonl"
    code = textwrap.dedent(f"""
        import time
        from tclab.timing import race
        race({{"a": lambda: time.sleep(0.002), "b": lambda: time.sleep(0.002)}}, budget_seconds=60,
             record={str(record)!r})
    """)
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and (not record.exists() or record.read_bytes().count(b'"race"') < 40):
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
    with record.open("a") as file:
        file.write('{"kind": "block", "cut sho')  # as a kill in the middle of a line would leave it
    before = read_samples(record)
    assert sum(s["phase"] == "race" for s in before) >= 40
    arms = {"a": lambda: time.sleep(0.002), "b": lambda: time.sleep(0.002)}
    stop = iter([False] * 5 + [True] * 10**6)
    again = race(arms, budget_seconds=60, record=record, stop=lambda: next(stop))
    assert again.samples()[: len(before)] == before
    assert len(again.samples()) > len(before)
    assert {s["process"] for s in again.samples()} == {0, 1}  # another process is another process
    assert read_samples(record) == again.samples()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budget_seconds": 59.0}, "settings, budget_seconds was 60.0 and is 59.0"),
        ({"period": 2}, "settings, period was 1 and is 2"),
        ({"arms": "ac"}, "cells was"),
    ],
)
def test_another_races_record_is_refused(tmp_path, change, words):
    machine = SyntheticMachine(0)
    stop = iter([False] * 3 + [True] * 100)
    how = {"budget_seconds": 60.0, "clock": machine.clock, "record": tmp_path / "r.jsonl"}
    race({name: machine.arm(name, 0.02) for name in "ab"}, stop=lambda: next(stop), **how)
    names = change.pop("arms", "ab")
    with pytest.raises(InputError, match=words):
        race({name: machine.arm(name, 0.02) for name in names}, **{**how, **change})


def test_another_machines_record_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    machine = SyntheticMachine(0)
    how = {"budget_seconds": 2.0, "clock": machine.clock, "record": path}
    arms = {name: machine.arm(name, 0.02) for name in "ab"}
    race(arms, **how)
    monkeypatch.setattr(_race_session, "fingerprint", lambda *_, **__: {**fingerprint("machine"), "cpu": "Another"})
    path.unlink()
    race(arms, **how)
    monkeypatch.undo()
    with pytest.raises(InputError, match="machine, cpu was 'Another' and is"):
        race(arms, **how)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no record of a race"):
        race(arms, **how)


def test_a_damaged_record_is_named_and_none_reads_back_as_other_samples(tmp_path):
    """A byte changed, noise, a stretch of nothing, lines exchanged, a figure that is another."""
    path, machine, draw = tmp_path / "r.jsonl", SyntheticMachine(0), random.Random(0)
    how = {"budget_seconds": 3.0, "clock": machine.clock, "record": path}
    race({name: machine.arm(name, 0.02) for name in "ab"}, **how)
    whole, samples, refused = path.read_bytes(), read_samples(path), 0
    lines = whole.splitlines(keepends=True)
    for number in range(150):
        data, at, length = bytearray(whole), draw.randrange(len(whole)), draw.randrange(1, 64)
        if number % 5 < KINDS:
            damage(data, at, length, number % 5, draw)
        elif number % 5 == 3:
            place = draw.randrange(len(lines))
            data = b"".join([*lines[:place], b"[" * draw.choice([1, 100_000]), *lines[place:]])
        else:
            place = data.index(b'"seconds": 0.', data.index(b'"block"')) + 13
            data[place] = ord("1") + (data[place] - ord("1") + 1) % 9
        path.write_bytes(data)
        try:
            read = read_samples(path)
        except InputError:
            refused += 1
            with pytest.raises(InputError, match=f"^{path} is (damaged: line|no record of a race: line 1)"):
                race({name: machine.arm(name, 0.02) for name in "ab"}, **how)
        else:
            assert read == samples[: len(read)], number
    assert refused > 120


@pytest.mark.parametrize("place", ["\0", "a\0b", 3, "taken/race.jsonl"])
def test_a_record_that_cannot_be_written_is_refused_before_anything_runs(tmp_path, place):
    (tmp_path / "taken").write_text("a file")
    place = tmp_path / place if isinstance(place, str) and place.startswith("taken") else place
    with pytest.raises(InputError, match=r"record is .*expected a file or folder that can be written"):
        race({"a": int, "b": int}, budget_seconds=1.0, record=place)
    with pytest.raises(InputError, match="no record that can be read"):
        read_samples(tmp_path / "nowhere")


def test_a_disk_that_is_full_costs_a_race_its_record_and_no_block(tmp_path, monkeypatch):
    machine, written = SyntheticMachine(0), []

    class Full(io.BytesIO):
        name = "race.jsonl"

        def write(self, data):
            written.append(data)
            if len(written) > 20:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *how, **more: Full() if "ab" in how else opened(path, *how, **more))
    with pytest.warns(UserWarning, match=r"goes on without its record race.jsonl: No space left") as warned:
        found = race(
            {name: machine.arm(name, 0.02) for name in "ab"},
            budget_seconds=10.0,
            clock=machine.clock,
            record=tmp_path / "race.jsonl",
        )
    assert len(warned) == 1
    assert len(written) == 21
    assert len(found.samples()) > 21
    assert found.stopped is None


@pytest.mark.parametrize(
    ("arms", "settings", "words"),
    [
        ({"a": int, "b": int}, {"budget_seconds": 10**400}, "expected a number above 0"),
        ({"a": int}, {}, r"arms are 1 \(a\), expected at least two"),
        ({}, {}, "arms are 0"),
        ({"a": int, "b": 3}, {}, "arm 'b' is 3, expected a function"),
        ({"a": int, "b": int}, {"budget_seconds": 0}, "budget_seconds is 0, expected a number above 0"),
        ({"a": int, "b": int}, {"budget_seconds": -1.0}, "budget_seconds is -1.0"),
        ({"a": int, "b": int}, {"budget_seconds": float("nan")}, "budget_seconds is nan"),
        ({"a": int, "b": int}, {"period": 0}, "period is 0, expected a whole number, 1 or more"),
        ({"a": int, "b": int}, {"looks": 1.5}, "looks is 1.5"),
        ({"a": int, "b": int}, {"processes": 3}, "cannot be sent to another process.*'module:function'"),
        ({"a": "nomodule_x:f", "b": "b:f"}, {"processes": 2}, "No module named 'nomodule_x'"),
        ({"a": "json:nothing", "b": "b:f"}, {"processes": 2}, "module 'json' has no 'nothing'"),
        ({"a": "json", "b": "b:f"}, {}, "arm 'json', expected 'module:function'"),
    ],
)
def test_bad_input_is_told_in_one_line(arms, settings, words):
    with pytest.raises(InputError, match=words) as caught:
        race(arms, **{"budget_seconds": 1.0, **settings})
    assert "\n" not in str(caught.value)


def test_an_unknown_arm_is_named_with_the_nearest(result):
    with pytest.raises(InputError, match="unknown arm 'aa'; did you mean 'a'"):
        result.verdict("aa", "b")
    with pytest.raises(InputError, match="itself"):
        result.verdict("a", "a")
    with pytest.raises(InputError, match="unknown arm 'x'"):
        result.verdict("a", "x")


def test_too_few_rounds_are_undecided_and_not_a_guess():
    machine = SyntheticMachine(0)
    result = race({n: machine.arm(n, 1.0) for n in "ab"}, budget_seconds=15, clock=machine.clock)
    pair = result.pair("a", "b")
    assert pair.verdict == UNDECIDED
    assert "at least 6 are needed" in pair.why
    assert pair.interval is None
    assert pair.ratio is None
    assert "no ratio" in pair.sentence
    assert "more rounds may decide: budget_seconds=75 (--budget-seconds 75)" in " ".join(str(result).split())


def test_blocks_and_floor_fit_what_an_expensive_step_costs():
    """Steps of 1.9 s in a race of 150 s, in cycles of 6: whole cycles would leave time for two rounds."""
    machine = SyntheticMachine(1, noise=0.01)
    arms = {"a": machine.arm("a", 1.9), "b": machine.arm("b", 1.9 * 1.3)}
    result = race(arms, budget_seconds=150, period=6, clock=machine.clock)
    pair = result.pair("a", "b")
    assert pair.kept >= 8
    low, high = pair.interval
    assert low < 1 / 1.3 < high
    assert pair.verdict == FASTER
    assert "a takes 0.7" in pair.sentence
    assert "× the time of b" in pair.sentence
    assert pair.why.endswith(", in this process")
    assert machine.seconds < 150 + 10


FACTORIES = """
import os, time
def quick():
    print("an arm may print")
    return lambda: sum(range(4000))
def slow():
    return lambda: sum(range(60000))
def noted(name):
    def note(what):
        print(os.getpid(), what, file=open(os.environ["NOTED"], "a"), flush=True)
    first = iter([name.upper()])
    def call():
        for what in first:
            note(what)
    note(name)
    time.sleep(0.2)
    return call
def long():
    return lambda: time.sleep(0.05)
def broken():
    def call():
        raise RuntimeError("this arm breaks")
    return call
"""


@pytest.fixture
def factories(tmp_path, monkeypatch):
    (tmp_path / "my_race_arms.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)


def children():
    found = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if line.split()[0] == str(os.getpid()) and "_race_process" in line]


def test_fresh_processes_take_turns_and_none_is_left(factories, tmp_path):
    arms = {"quick": "my_race_arms:quick", "slow": "my_race_arms:slow"}
    how = {"budget_seconds": 12.0, "processes": 3, "record": tmp_path / "race.jsonl"}
    result = race(arms, **how)
    pair = result.pair("quick", "slow")
    assert pair.verdict == FASTER
    assert pair.processes == 3
    assert {s["process"] for s in result.samples()} == {0, 1, 2}
    assert len({(s["arm"], s["calls"]) for s in result.samples()}) == 2  # one length of blocks for all processes
    assert pair_of(read_samples(tmp_path / "race.jsonl")) == pair
    assert children() == []


def test_processes_that_took_the_whole_budget_to_start_still_run_some_rounds(factories):
    arms = {"quick": "my_race_arms:quick", "slow": "my_race_arms:slow"}
    result = race(arms, budget_seconds=0.01, processes=2)
    rounds = {(s["process"], s["round"]) for s in result.samples() if s["phase"] == "race"}
    assert rounds == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert result.pair("quick", "slow").verdict == UNDECIDED
    assert children() == []


def test_no_process_spends_the_time_of_expensive_steps_on_a_floor_that_does_not_fit(factories):
    result = race({"a": "my_race_arms:long", "b": "my_race_arms:long"}, budget_seconds=1.5, processes=3)
    assert {s["process"] for s in result.samples()} == {0, 1, 2}
    assert {s["phase"] for s in result.samples()} == {"race"}


def test_processes_make_their_arms_one_after_another_every_other_in_reverse(factories, tmp_path):
    arms = {name: f"my_race_arms:noted:{name}" for name in "ab"}
    race(arms, budget_seconds=0.01, processes=4, environment={"NOTED": str(tmp_path / "noted")})
    noted, made = {}, []
    for line in (tmp_path / "noted").read_text().splitlines():
        process, what = line.split()
        noted[process] = noted.get(process, "") + what
        made += [process] * what.islower()
    assert made[::2] == made[1::2], "a process made an arm between two of another"
    assert sorted(noted.values()) == ["abAB", "abAB", "baBA", "baBA"]


def test_a_process_that_breaks_is_told_and_none_is_left(factories):
    arms = {"quick": "my_race_arms:quick", "broken": "my_race_arms:broken"}
    with pytest.raises(InputError, match="ended with 1: RuntimeError: this arm breaks"):
        race(arms, budget_seconds=5, processes=2)
    assert children() == []


@pytest.mark.slow
def test_a_killed_race_leaves_no_process(factories, tmp_path):
    code = "from tclab.timing import race; race({'a': 'my_race_arms:quick', 'b': 'my_race_arms:quick'}, " \
           f"budget_seconds=60, processes=2, record={str(tmp_path / 'r.jsonl')!r})"  # fmt: skip
    path = os.pathsep.join([str(tmp_path), *[p for p in sys.path if p]])
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    record = tmp_path / "r.jsonl"
    until = time.monotonic() + 60
    while time.monotonic() < until and (not record.exists() or record.read_bytes().count(b'"race"') < 10):
        time.sleep(0.05)
    found = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    own = [int(x.split()[0]) for x in found.splitlines() if x.split()[1] == str(parent.pid)]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert len(own) == 2
    until = time.monotonic() + 20
    while time.monotonic() < until and any(os.path.exists(f"/proc/{pid}") for pid in own):
        time.sleep(0.1)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in own)


@pytest.mark.slow
def test_seconds_go_to_the_cells_that_are_undecided():
    machine = SyntheticMachine(2, noise=0.05)
    made = []

    def cell(ratio):
        def arms():
            made.append(ratio)
            return {"a": machine.arm("a", 0.02), "b": machine.arm("b", 0.02 * ratio)}

        return arms

    cells = {("batch", 1): cell(2.0), ("batch", 2): cell(1.013), "three": cell(3.0)}
    result = race_cells(cells, budget_seconds=120, clock=machine.clock)
    assert result.cells["batch", 1].verdict("a", "b") == FASTER
    assert result.cells["three"].verdict("b", "a") == SLOWER
    spent = {cell: race.block_seconds for cell, race in result.cells.items()}
    assert spent["batch", 2] > 1.5 * spent["three"]
    assert machine.seconds < 125
    assert len(result.frame()) == 3
    pairs = verdicts_of(result.samples())
    assert [pair.verdict for pair in result.pairs] == [pair.verdict for pair in pairs.values()]
    assert all(pair.q >= pair.p for pair in result.pairs)


@pytest.mark.slow
def test_cells_are_stopped_and_go_on(tmp_path):
    machine = SyntheticMachine(2, noise=0.05)
    cells = {
        name: {"a": machine.arm("a", 0.02), "b": machine.arm("b", 0.02 * ratio)}
        for name, ratio in (("far", 1.5), ("near", 1.01))
    }
    how = {"budget_seconds": 60.0, "clock": machine.clock, "record": tmp_path}
    first = race_cells(cells, stop=stopping(machine, 30.0), **how)
    assert first.stopped == "stop returned true"
    again = race_cells(cells, **how)
    assert again.cells["far"].verdict("a", "b") == FASTER
    assert again.cells["near"].pair("a", "b").kept > first.cells["near"].pair("a", "b").kept
    looks = [line for line in (tmp_path / "race.jsonl").read_text().splitlines() if '"look", "cell"' in line]
    assert len(looks) == len(set(looks)) <= 8


def test_a_loop_that_is_not_pytorch_can_be_raced_for_real():
    code = """
        import sys
        from tclab.timing import race
        result = race({"short": lambda: sum(range(3000)), "long": lambda: sum(range(9000))}, budget_seconds=2)
        print(result.ratio < 1, result.pair("short", "long").kept > 6)
        print("torch" in sys.modules, "pandas" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False", "False"]
