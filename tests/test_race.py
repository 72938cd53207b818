"""What a race promises: right verdicts, its budget, stop and resume, processes that end, errors in one line.

Most races run on a simulated machine whose clock the arms advance. How often verdicts are right is measured by
`benchmarks/verdicts.py`; here a few seeds stand for it.
"""

import errno
import gc
import json
import os
import re
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path

import pytest
from synthetic_machine import SyntheticMachine, pair_of

from tclab.errors import InputError
from tclab.timing import _race, race, race_cells, read_samples, verdicts_of
from tclab.timing._environment import fingerprint
from tclab.timing._verdict import FASTER, SAME, SLOWER, UNDECIDED


def arms_of(machine, step=0.02, ratio=1.0):
    """Return the arms `a` and `b`, which takes `ratio` times as long."""
    return {"a": machine.arm("a", step), "b": machine.arm("b", step * ratio)}


def interrupted(arms, machine, seconds):
    """Return the arms, of which `a` is interrupted once when so many seconds of the machine are over."""
    call, pending = arms["a"], [True]

    def interrupted_call():
        call()
        if machine.seconds > seconds and pending:
            pending.clear()
            raise KeyboardInterrupt

    return {**arms, "a": interrupted_call}


def raced(seed=1, ratio=1.0, budget=60.0, step=0.02, **settings):
    machine = SyntheticMachine.of_any_kind(seed)
    arms = arms_of(machine, step, ratio)
    return race(arms, budget_seconds=budget, clock=machine.clock, **settings), machine


@pytest.fixture(scope="module")
def result():
    """A race of `a` against `b`, which takes 1.05 times as long."""
    return raced(2, 1.05, budget=30.0)[0]


# ---- verdicts


def test_a_real_difference_is_found_from_both_sides():
    result, _ = raced(1, 1.05)
    assert result.verdict("a", "b") == FASTER
    assert result.verdict("b", "a") == SLOWER
    assert result.ratio == pytest.approx(1 / 1.05, abs=0.02)
    low, high = result.interval
    assert low < result.ratio < high < 1
    other = result.pair("b", "a")
    assert other.ratio == pytest.approx(1 / result.ratio)
    assert other.interval == pytest.approx((1 / high, 1 / low))
    assert f"differences above {100 * other.excluded:.2g}% are excluded" in other.why


def test_the_same_arm_twice_is_the_same():
    assert raced(101)[0].verdict("a", "b") == SAME


def wild(sample):
    return 1e6 if (sample["round"], sample["position"]) == (20, 0) else 1.0


def first_is_slow(sample):
    return 1.2 if sample["position"] == 0 else 1.0


@pytest.mark.parametrize("factor", [wild, first_is_slow])
def test_a_wild_round_and_an_effect_of_the_position_are_no_difference_between_arms(factor):
    machine = SyntheticMachine(5, noise=0.02)
    result = race(arms_of(machine), budget_seconds=60, clock=machine.clock)
    samples = result.samples()
    for sample in samples:
        sample["seconds"] *= factor(sample)
    found = pair_of(samples)
    assert (found.verdict, result.verdict("a", "b")) == (SAME, SAME)
    assert found.ratio == pytest.approx(result.ratio, rel=0.005)
    assert found.floor < 0.01


def test_samples_give_the_same_verdict_again_and_a_result_is_a_line_and_a_sentence_below_it(result):
    samples, pair = json.loads(json.dumps(result.samples())), result.pair("a", "b")
    assert pair_of(samples) == pair
    assert 0 <= pair.p <= pair.q <= 1
    assert pair.margin == max(0.02, pair.floor)
    first, second, *_ = str(result).splitlines()
    assert first == f"a against b: {pair.verdict}, {pair.ratio_text}"
    assert second.startswith("  the 97.5% interval with all 8 parts of the race lies ")
    assert max(map(len, str(result).splitlines())) < 80
    assert f"{result.block_seconds:.1f} of 30 s in blocks" in " ".join(str(result).split())


def test_three_arms_have_every_pair_and_adjusted_p():
    machine = SyntheticMachine(1, noise=0.02)
    arms = {**arms_of(machine), "c": machine.arm("c", 0.03)}
    result = race(arms, budget_seconds=60, clock=machine.clock)
    assert result.verdict("c", "a") == SLOWER
    assert result.verdict("b", "c") == FASTER
    assert result.verdict("a", "b") in (SAME, UNDECIDED)
    assert [(p.a, p.b) for p in result.pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert all(p.q >= p.p for p in result.pairs)
    assert result.ratio == result.pair("a", "b").ratio


def test_too_few_rounds_are_undecided_and_not_a_guess():
    machine = SyntheticMachine(0)
    result = race(arms_of(machine, 1.0), budget_seconds=15, clock=machine.clock)
    pair = result.pair("a", "b")
    assert (pair.verdict, pair.interval, pair.ratio) == (UNDECIDED, None, None)
    assert re.fullmatch(r"\d rounds ran, at least 8 are needed: a race of about \d+ s has them", pair.why)
    longer = race(arms_of(machine, 1.0), budget_seconds=pair.needs_seconds, clock=machine.clock)
    assert longer.ratio is not None
    assert "no ratio" in pair.sentence


# ---- blocks and rounds


@pytest.mark.parametrize("arms", ["ab", "abc", "abcde"])
def test_every_round_is_a_palindrome_and_every_arm_takes_every_position(arms):
    machine = SyntheticMachine(1)
    made = race({name: machine.arm(name, 0.02) for name in arms}, budget_seconds=20.0, clock=machine.clock)
    rounds = {}
    for sample in made.samples():
        rounds.setdefault(sample["round"], []).append(sample["arm"])
    assert list(rounds) == list(range(len(rounds)))
    assert len(rounds) > 10
    for order in rounds.values():
        assert sorted(order) == sorted(arms * 2)
        assert order == order[::-1]  # a linear drift affects all arms alike
    for first in range(0, len(rounds) - len(arms) + 1, len(arms)):
        for position in range(2 * len(arms)):
            assert sorted(rounds[first + i][position] for i in range(len(arms))) == sorted(arms)


@pytest.mark.parametrize("budget", [2.0, 60.0])
def test_the_budget_is_kept_to_and_nearly_all_of_it_is_in_blocks(budget):
    result, machine = raced(2, budget=budget)
    spent = result.samples()[-1]["spent_seconds"]
    assert budget * 0.9 <= spent <= budget + 4 * 0.02 * 1.5 * max(s["calls"] for s in result.samples())
    assert result.making_seconds + spent == pytest.approx(machine.seconds, abs=1e-6)
    assert result.block_seconds > 0.9 * spent


def test_blocks_of_arms_of_unlike_speed_are_about_as_long_and_whole_periods():
    machine = SyntheticMachine(1, noise=0.01)
    arms = {"slow": machine.arm("slow", 0.04), "fast": machine.arm("fast", 0.001)}
    for arm in arms.values():
        arm.period = 3
    result = race(arms, budget_seconds=30, clock=machine.clock)
    calls = {s["arm"]: s["calls"] for s in result.samples()}
    assert all(number % 3 == 0 for number in calls.values())
    assert 0.5 < 0.04 * calls["slow"] / (0.001 * calls["fast"]) < 2


def test_blocks_fit_what_an_expensive_step_costs():
    """Steps of 1.9 s in a race of 150 s, in cycles of 6: whole cycles would leave time for two rounds."""
    machine = SyntheticMachine(1, noise=0.01, outliers=0.0)
    arms = arms_of(machine, 1.9, 1.3)
    for arm in arms.values():
        arm.period = 6
    pair = race(arms, budget_seconds=150, clock=machine.clock).pair("a", "b")
    assert pair.kept >= 8
    assert pair.ratio == pytest.approx(1 / 1.3, rel=0.05)
    assert pair.verdict == FASTER
    assert machine.seconds < 150 + 10


def test_what_an_arm_settles_before_a_block_is_not_in_it():
    """A loader's workers go on while another arm runs; `settle` takes what they made."""
    machine = SyntheticMachine(1, noise=0.0, outliers=0.0, drift=0.0, wave=0.0)
    arms, settled = arms_of(machine), []

    def settle():
        settled.append(len(machine.calls))
        machine.seconds += 0.5

    arms["a"].settle = settle
    result = race(arms, budget_seconds=60, clock=machine.clock)
    assert result.ratio == pytest.approx(1, rel=1e-6)
    assert len(settled) >= sum(sample["arm"] == "a" for sample in result.samples())


def test_the_collector_is_off_in_blocks_and_as_it_was_afterwards():
    machine = SyntheticMachine(1)
    seen = []

    def arm():
        seen.append(gc.isenabled())
        machine.arm("x", 0.02)()

    frozen = gc.get_freeze_count()
    made = race({"a": arm, "b": arm}, budget_seconds=5, clock=machine.clock)
    assert not any(seen[-sum(sample["calls"] for sample in made.samples()) :])
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


# ---- early ends, cells


@pytest.mark.parametrize(("ratio", "share"), [(1.1, 1.0), (1.25, 1.0), (3.0, 0.5)])
def test_a_race_runs_its_budget_and_ends_at_half_of_it_where_arms_are_far_apart(ratio, share):
    result, _ = raced(1, ratio)
    assert result.verdict("a", "b") == FASTER
    assert result.samples()[-1]["spent_seconds"] == pytest.approx(60 * share, rel=0.03)


def test_seconds_that_a_cell_leaves_go_to_those_after_it_and_each_has_its_record(tmp_path):
    machine, made = SyntheticMachine(2, noise=0.05, outliers=0.0), []

    def cell(ratio):
        def arms():
            made.append(ratio)
            return arms_of(machine, ratio=ratio)

        return arms

    cells = {("batch", 1): cell(2.0), ("batch", 2): cell(1.02), "three": cell(3.0)}
    how = {"budget_seconds": 120, "clock": machine.clock, "record": tmp_path / "cells"}
    result = race_cells(cells, **how)
    assert made == [2.0, 1.02, 3.0]
    assert result.cells["batch", 1].verdict("a", "b") == FASTER
    assert result.cells["three"].verdict("b", "a") == SLOWER
    spent = [race.spent_seconds for race in result.cells.values()]
    assert spent == pytest.approx([20, 50, 25], rel=0.1)
    samples = read_samples(tmp_path / "cells")
    assert {(pair.cell, pair.verdict) for pair in verdicts_of(samples).values()} == {
        (pair.cell, pair.verdict) for pair in result.pairs
    }
    assert all(pair.q >= pair.p for pair in result.pairs)
    calls = len(machine.calls)
    assert race_cells(cells, **how).pairs == result.pairs
    assert len(machine.calls) == calls


# ---- stopped, killed, resumed


@pytest.mark.parametrize("seconds", [20.0, 30.1])  # the second just before half of its budget
def test_a_race_that_was_interrupted_goes_on_with_its_whole_rounds(tmp_path, seconds):
    machine = SyntheticMachine(8, noise=0.02)
    arms = arms_of(machine, ratio=1.05)
    how = {"budget_seconds": 60.0, "clock": machine.clock, "record": tmp_path / "parts.jsonl"}
    first = race(interrupted(arms, machine, seconds), **how)
    assert first.stopped == "interrupted"
    assert "interrupted" in str(first)
    assert gc.isenabled()
    with how["record"].open("a") as file:
        file.write('{"cell": null, "cut sho')  # as a kill in the middle of a line would leave it
    again = race(arms, **how)
    assert again.samples()[: len(first.samples())] == first.samples()
    rounds = [sample["round"] for sample in again.samples()]
    assert [rounds.count(i) for i in range(max(rounds) + 1)] == [4] * (max(rounds) + 1)
    assert again.samples()[-1]["spent_seconds"] == pytest.approx(60.0, rel=0.02)
    assert (again.stopped, again.verdict("a", "b")) == (None, FASTER)
    assert read_samples(how["record"]) == again.samples()
    calls = len(machine.calls)
    assert race(arms, **how).samples() == again.samples()  # nothing is left to run
    assert len(machine.calls) == calls


def test_another_races_record_is_refused(tmp_path, monkeypatch):
    machine, record = SyntheticMachine(0), tmp_path / "r.jsonl"
    how = {"budget_seconds": 3.0, "clock": machine.clock, "record": record}
    race(arms_of(machine), **how)

    def refused(words, names="ab", **more):
        with pytest.raises(InputError, match=words):
            race({name: machine.arm(name, 0.02) for name in names}, **how | more)

    refused(r"budget_seconds was 3\.0 and is 60\.0", budget_seconds=60.0)
    refused("arms was", names="ac")
    monkeypatch.setattr(_race, "fingerprint", lambda *_, **__: {**fingerprint(), "cpu": "Another"})
    refused("cpu was .* and is 'Another'")
    record.write_text("a,b\n1,2\n")
    refused("damaged, or no record of a race: line 1 is b'a,b")


def test_a_record_that_another_race_writes_is_refused(tmp_path):
    machine = SyntheticMachine(0)
    arms, refused = arms_of(machine), []

    def second():
        arms["a"]()
        if not refused:
            refused.append(True)
            with pytest.raises(InputError, match=r"race\.jsonl is being written by process \d+"):
                race(arms_of(machine), budget_seconds=1.0, record=tmp_path / "race.jsonl")

    race({**arms, "a": second}, budget_seconds=1.0, clock=machine.clock, record=tmp_path / "race.jsonl")
    assert refused
    assert os.listdir(tmp_path) == ["race.jsonl"]


def test_a_damaged_record_is_named(tmp_path):
    record, machine = tmp_path / "r.jsonl", SyntheticMachine(0)
    how = {"budget_seconds": 3.0, "clock": machine.clock, "record": record}
    race(arms_of(machine), **how)
    lines = record.read_bytes().splitlines(keepends=True)
    for damage in (b"\0" * 40, b"[" * 100_000, b"3", b'{"cell": null}'):
        record.write_bytes(b"".join([*lines[:5], damage + b"\n", *lines[6:]]))
        for read in (lambda: read_samples(record), lambda: race(arms_of(machine), **how)):
            with pytest.raises(InputError, match=f"^{record} is damaged, or no record of a race: line 6 is"):
                read()


def test_a_record_that_cannot_be_written_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(InputError, match=r"record is .*taken/race.jsonl', which cannot be written"):
        race({"a": int, "b": int}, budget_seconds=1.0, record=tmp_path / "taken/race.jsonl")
    with pytest.raises(InputError, match="nowhere is no record of a race"):
        read_samples(tmp_path / "nowhere")


def test_a_file_of_another_kind_is_no_record_and_stays_as_it_is(tmp_path):
    (tmp_path / "mine.json").write_text('{"mine": 1}')  # without an end of its line, as a record that was cut short
    with pytest.raises(InputError, match="no record of a race: line 1 is"):
        race({"a": int, "b": int}, budget_seconds=1.0, record=tmp_path / "mine.json")
    assert (tmp_path / "mine.json").read_text() == '{"mine": 1}'


def test_a_disk_that_is_full_costs_a_race_its_record_and_no_block(tmp_path, monkeypatch):
    machine, opened, times = SyntheticMachine(0), Path.open, []

    def full(path, *how, **more):
        times.append("ab" in how)
        if "ab" in how and sum(times) > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, *how, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.warns(UserWarning, match=r"goes on without its record .*race.jsonl: No space left") as warned:
        found = race(arms_of(machine), budget_seconds=10.0, clock=machine.clock, record=tmp_path / "race.jsonl")
    assert len(warned) == 1
    assert found.samples()[-1]["spent_seconds"] > 9
    assert read_samples(tmp_path / "race.jsonl") == found.samples()[: 19 * 4]


# ---- what is typed


@pytest.mark.parametrize(
    ("arms", "settings", "words"),
    [
        ({"a": int}, {}, r"arms are \{'a': <class 'int'>\}, expected at least two"),
        ([int, int], {}, "expected at least two, name → function"),
        ({"a": int, "b": 3}, {}, "arm 'b' is 3, expected a function"),
        ({"a": int, "b": int}, {"budget_seconds": 0}, "budget_seconds is 0, expected a number above 0"),
        ({"a": int, "b": int}, {"margin": 2}, "margin is 2, expected a number above 0, at most 1"),
        ({"a": int, "b": int}, {"processes": 1.5}, "processes is 1.5, expected a whole number, 1 or more"),
        ({"a": int, "b": int}, {"processes": 3}, "expected of a race of several processes 'module:function'"),
        ({"a": "nomodule_x:f", "b": "b:f"}, {"processes": 2}, "No module named 'nomodule_x'"),
        ({"a": "json:nothing", "b": "b:f"}, {"processes": 2}, "'json' has no attribute 'nothing'"),
    ],
)
def test_bad_input_is_told_in_one_line(arms, settings, words):
    with pytest.raises(InputError, match=words) as caught:
        race(arms, **{"budget_seconds": 1.0, **settings})
    assert "\n" not in str(caught.value)


def test_an_unknown_arm_is_named_with_the_nearest(result):
    for a, b, words in (("aa", "b", "unknown arm 'aa'; did you mean 'a'"), ("a", "a", "itself"), ("a", "x", "'x'")):
        with pytest.raises(InputError, match=words):
            result.verdict(a, b)


# ---- fresh processes

FACTORIES = """
import os, time

def note(what):
    print(os.getpid(), what, file=open(os.environ["NOTED"], "a"), flush=True)

def noted(name):
    first = iter([name.upper()])
    def call():
        for what in first:
            note(what)
    note(name + os.environ["TCLAB_RACE_FIRST_PROCESS"])
    time.sleep(0.2)
    return call

def summing(numbers):
    print("an arm may print")
    return lambda: sum(range(int(numbers)))

def broken():
    return lambda: 1 / 0
"""


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """The file in which the arms of a module for fresh processes are noted, as "process what"."""
    (tmp_path / "my_race_arms.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    return tmp_path / "noted"


def alive(noted):
    return [pid for pid in {line.split()[0] for line in noted.read_text().splitlines()} if Path("/proc", pid).exists()]


def test_fresh_processes_take_turns(noted, tmp_path):
    arms = {"quick": "my_race_arms:summing:4000", "slow": "my_race_arms:summing:60000"}
    result = race(arms, budget_seconds=12.0, processes=3, record=tmp_path / "race.jsonl")
    pair = result.pair("quick", "slow")
    assert (pair.verdict, pair.processes) == (FASTER, 3)
    turns = [process for process, _ in groupby(sample["process"] for sample in result.samples())]
    assert turns == [0, 1, 2] * 2  # of the first half, at which the race ends
    assert len({(s["arm"], s["calls"]) for s in result.samples()}) == 2  # one length of blocks for all processes
    assert pair_of(read_samples(tmp_path / "race.jsonl")) == pair


def test_processes_make_their_arms_one_after_another_every_other_in_reverse_and_none_is_left(noted):
    arms = {name: f"my_race_arms:noted:{name}" for name in "ab"}
    found = race(arms, budget_seconds=0.01, processes=4)
    rounds = {(s["process"], s["round"]) for s in found.samples()}
    assert rounds >= {(process, i) for process in range(4) for i in range(2)}  # however short the budget is
    assert found.making_seconds > 4 * 2 * 0.2
    by_process, made = {}, []
    for line in noted.read_text().splitlines():
        process, what = line.split()
        by_process[process] = by_process.get(process, "") + what
        made += [process] * what[0].islower()
    assert made[::2] == made[1::2], "a process made an arm between two of another"
    assert sorted(by_process.values()) == ["a0b0AB", "a1b1AB", "b0a0BA", "b0a0BA"]
    assert alive(noted) == []


def test_a_process_that_breaks_is_told_and_none_is_left(noted):
    arms = {"quick": "my_race_arms:noted:a", "broken": "my_race_arms:broken"}
    with pytest.raises(InputError, match="ended with 1: ZeroDivisionError: division by zero"):
        race(arms, budget_seconds=5, processes=2)
    assert alive(noted) == []


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not condition():
        time.sleep(0.05)
    assert condition()


@pytest.mark.slow
def test_a_killed_race_leaves_no_process_and_goes_on_in_others(noted, tmp_path):
    record = tmp_path / "r.jsonl"
    arms = {name: f"my_race_arms:noted:{name}" for name in "ab"}
    code = f"from tclab.timing import race; race({arms}, budget_seconds=10, processes=2, record={str(record)!r})"
    path = os.pathsep.join([str(tmp_path), *[p for p in sys.path if p]])
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    until(lambda: record.exists() and record.read_bytes().count(b"\n") >= 10)
    assert len(alive(noted)) == 2
    parent.kill()
    parent.wait()
    until(lambda: not alive(noted), 20)
    before = read_samples(record)
    again = race(arms, budget_seconds=10, processes=2, record=record)
    assert again.samples()[: len(before)] == before
    more = again.samples()[len(before) :]
    assert {s["process"] for s in more}.isdisjoint(s["process"] for s in before)  # another process is another process


def test_a_loop_that_is_not_pytorch_can_be_raced_for_real():
    code = """
import sys
from tclab.timing import race
result = race({"short": lambda: sum(range(3000)), "long": lambda: sum(range(9000))}, budget_seconds=2)
print(result.ratio < 1, result.pair("short", "long").kept > 6)
print("torch" in sys.modules, "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False", "False"]
