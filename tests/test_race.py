"""What a race promises: right verdicts, its budget, stop and resume, processes that end, errors in one line.

Most races run on a simulated machine whose clock the arms advance. How often verdicts are right is measured by
`benchmarks/verdicts.py`; here a few seeds stand for it.
"""

import errno
import gc
import json
import os
import sys
from contextlib import nullcontext
from itertools import groupby, pairwise
from math import comb, log, sqrt
from pathlib import Path
from random import Random
from unittest.mock import Mock

import numpy as np
import pytest
from synthetic_machine import SyntheticMachine, pair_of

from tclab.errors import InputError
from tclab.timing import _race, race, race_cells, verdicts_of
from tclab.timing._environment import fingerprint
from tclab.timing._race_blocks import Arm, BlockRunner, read_samples
from tclab.timing._verdict import FASTER, SAME, SLOWER, UNDECIDED, explain, ratio_text

INT = {"a": int, "b": int}


def arms_of(machine, step=0.02, ratio=1.0):
    """Return the arms `a` and `b`, which takes `ratio` times as long."""
    return {"a": machine.arm("a", step), "b": machine.arm("b", step * ratio)}


@pytest.fixture(scope="module")
def result():
    """A race of `a` against `b`, which takes 1.05 times as long."""
    machine = SyntheticMachine.of_any_kind(1)
    return race(arms_of(machine, ratio=1.05), budget_seconds=60, clock=machine.clock)


@pytest.fixture(scope="module")
def of_three():
    """A race of `a`, `b` as fast as it, and `c`, which takes 1.5 times as long."""
    machine = SyntheticMachine(1, noise=0.02)
    arms = {**arms_of(machine), "c": machine.arm("c", 0.03)}
    return race(arms, budget_seconds=60, clock=machine.clock)


# ---- verdicts


def test_a_real_difference_is_found_from_both_sides(result):
    assert result.verdict("a", "b") == FASTER
    assert result.verdict("b", "a") == SLOWER
    pair, other = result.pair("a", "b"), result.pair("b", "a")
    assert pair.ratio == pytest.approx(1 / 1.05, abs=0.02)
    low, high = pair.interval
    assert low < pair.ratio < high < 1
    assert other.ratio == pytest.approx(1 / pair.ratio)
    assert other.interval == pytest.approx((1 / high, 1 / low))
    assert other.excluded == pytest.approx(1 / low - 1)
    assert explain(other) == "valid in this process, unless a disturbance hit only one of them for more than 5 s"


def wild(sample):
    return 1e6 if (sample["round"], sample["position"]) == (20, 0) else 1.0


def first_is_slow(sample):
    return 1.2 if sample["position"] == 0 else 1.0


@pytest.mark.parametrize("factor", [wild, first_is_slow])
def test_a_wild_round_and_an_effect_of_the_position_are_no_difference_between_arms(factor, of_three):
    found = pair_of([{**one, "seconds": one["seconds"] * factor(one)} for one in of_three.samples()])
    assert found.verdict == SAME
    assert found.ratio == pytest.approx(of_three.pairs[0].ratio, rel=0.005)


def test_samples_give_the_same_verdict_again_and_a_result_is_a_line_and_a_sentence_below_it(result):
    samples, pair = json.loads(json.dumps(result.samples())), result.pair("a", "b")
    assert pair_of(samples) == pair
    assert pair.interval == (min(pair.parts), max(pair.parts))
    first, second, *_ = str(result).splitlines()
    assert first == f"a against b: {pair.verdict}, {ratio_text(pair)}"
    assert second.startswith("  valid in this process, unless ")
    assert max(map(len, str(result).splitlines())) < 80
    in_blocks = sum(sample["seconds"] * sample["calls"] for sample in samples)
    assert f"the timed blocks took {in_blocks:.1f} of 60 s" in " ".join(str(result).split())


def test_three_arms_have_every_pair(of_three):
    assert of_three.verdict("c", "a") == SLOWER
    assert of_three.verdict("b", "c") == FASTER
    assert of_three.verdict("a", "b") in (SAME, UNDECIDED)
    assert [(p.a, p.b) for p in of_three.pairs] == [("a", "b"), ("a", "c"), ("b", "c")]


def samples_of(ratios, process=lambda turn: 0):
    """Return the samples of a race of a round a turn, given the time of `a` over that of `b` in each."""
    return [
        {"process": process(turn), "round": turn, "turn": turn, "position": i, "arm": arm, "calls": 1, "period": 1,
         "seconds": ratio if arm == "a" else 1.0, "spent_seconds": turn + 1.0}
        for turn, ratio in enumerate(ratios) for i, arm in enumerate("abba")
    ]  # fmt: skip


APART = [1.01, 1.08, 1.05, 1.04, 1.06, 1.05, 1.04, 1.05]  # one part is not beyond the margin
ALIKE = [0.995, 1.029, 1.005, 0.99, 1.015, 1.0, 1.01, 1.005]
EDGE = [1.0, 1.04, 1.02, 1.02, 1.02, 1.02, 1.02, 1.02]


@pytest.mark.parametrize(
    ("ratios", "verdict", "interval", "times"),
    [
        (APART, UNDECIDED, (1.01, 1.08), (log(1.05 / 1.01) / log(1.05 / 1.02)) ** 2),
        (ALIKE, UNDECIDED, (0.99, 1.029), (log(sqrt(1.029 * 1.015) / 1.005) / log(1.02 / 1.005)) ** 2),
        ([min(ratio, 1.024) for ratio in ALIKE], SAME, (sqrt(0.99 * 0.995), sqrt(1.024 * 1.015)), None),
        ([ratio + 0.011 for ratio in APART], SLOWER, (1.021, 1.091), None),
        (EDGE, UNDECIDED, (1.0, 1.04), None),
    ],
)
def test_a_verdict_is_by_the_outermost_parts_and_an_open_one_names_the_length_of_a_race_that_may_decide(
    ratios, verdict, interval, times
):
    pair = pair_of(samples_of(ratios))
    assert (pair.verdict, pair.interval) == (verdict, pytest.approx(interval))
    assert pair.parts == pytest.approx(ratios)
    if times:
        assert pair.needs_seconds == pytest.approx(2 * 8 * times)
        said = f"the interval crosses ±2 %; a race of about {pair.needs_seconds:.2g} s may decide"
        assert explain(pair) == said
    assert (explain(pair) == "the interval crosses ±2 %; a race 100 times as long would not decide") == (ratios == EDGE)
    if verdict == SAME:
        assert explain(pair).startswith("any difference is below 1.9 %; valid in this process, unless a disturbance")


def test_a_part_that_an_interrupt_cut_and_records_without_turns_are_parts_too():
    samples = samples_of([*APART, *APART], process=lambda turn: int(turn > 9))
    for one in samples:
        one["turn"] = min(one["turn"] // 2, 7)
    pair = pair_of(samples)
    assert len(pair.parts) == 8
    early = [{key: value for key, value in one.items() if key != "turn"} for one in samples]  # as version 5 began
    assert len(pair_of(early).parts) == 8
    few = pair_of(samples_of(APART[:3]))
    assert (few.verdict, few.ratio, few.needs_seconds) == (UNDECIDED, None, pytest.approx(2 * 8))
    assert explain(few) == "3 rounds ran, at least 8 are needed: a race of about 16 s may decide"


def test_processes_that_differ_ask_for_more_of_them_and_not_for_more_seconds():
    lucky = [1.0, 1.05, 0.96, 1.01, 1.002, 1.052, 0.963, 1.012]
    pair = pair_of(samples_of(lucky, process=lambda turn: turn % 4))
    assert (pair.differ, pair.needs_seconds, pair.processes) == (True, None, 4)
    assert "the 4 processes differ from one another, so a longer race will not help: use more" in explain(pair)


@pytest.mark.parametrize(("ratio", "noise"), [(1.0, 0.03), (1.04, 0.03), (1.1, 0.1)])
def test_a_race_of_the_length_that_was_named_nearly_always_decides(ratio, noise):
    generator, named, decided = np.random.default_rng(0), 0, 0

    def pair(seconds):
        noises = noise * sqrt(8 / seconds) * generator.standard_normal(8)
        return pair_of(samples_of(ratio * np.exp(noises)))

    for _ in range(60):
        if needs := pair(8.0).needs_seconds:
            named += 1
            decided += pair(needs).verdict != UNDECIDED
    assert named >= 30
    assert decided >= 0.75 * named


# ---- orders and turns


def orders(samples):
    """The arms of each round in order."""
    return ["".join(one["arm"] for one in blocks) for _, blocks in groupby(samples, lambda one: one["round"])]


def test_orders_differ_between_races_are_balanced_in_each_turn_and_turns_are_consecutive():
    raced = []
    for _ in range(2):
        machine = SyntheticMachine(1)
        samples = race(arms_of(machine, 1.0), budget_seconds=320, clock=machine.clock).samples()
        turns = [list(turn) for _, turn in groupby(samples, lambda one: one["turn"])]
        assert [turn[0]["turn"] for turn in turns] == list(range(8))
        for turn in turns:
            made = orders(turn)
            assert abs(made.count("abba") - made.count("baab")) <= 1
        raced.append(orders(samples))
        assert raced[-1][0] == "abba"  # arms first appear as they were given
    assert raced[0] != raced[1]


@pytest.mark.parametrize(("arms", "least"), [(2, 8), (3, 8), (4, 9), (12, 12)])
def test_more_comparisons_take_more_parts(arms, least):
    machine = SyntheticMachine(1, noise=0.01)
    found = race({f"a{i}": machine.arm(f"a{i}", 0.02) for i in range(arms)}, budget_seconds=60, clock=machine.clock)
    assert {len(pair.parts) for pair in found.pairs} == {least}
    assert 2 * comb(arms, 2) / 2**least <= 0.05


@pytest.mark.parametrize(("budget", "rounds"), [(60, 15), (36, 8), (30, 7)])
def test_rounds_that_only_just_fit_fill_every_turn_and_what_cannot_decide_is_said_before(budget, rounds):
    machine = SyntheticMachine(1, noise=0.0, drift=0.0, wave=0.0, outliers=0.0)
    words = (
        f"{budget} s have room for about {rounds - 1} rounds of 4 s, and a verdict needs 8, so it will decide nothing"
    )
    cannot = pytest.warns(UserWarning, match=words) if rounds < 8 else nullcontext()
    with cannot as warned:
        found = race(arms_of(machine, 1.0, 1.001), budget_seconds=budget, clock=machine.clock)
    pair = found.pairs[0]
    assert abs(pair.kept - rounds) <= 1
    assert pair.verdict == (SAME if rounds >= 8 else UNDECIDED)
    if rounds < 8:
        offered = int(str(warned[0].message).partition("A race of about ")[2].split()[0])
        assert race(arms_of(machine, 1.0, 1.001), budget_seconds=offered, clock=machine.clock).verdict("a", "b") == SAME


# ---- blocks, rounds and the budget


@pytest.mark.parametrize(("budget", "ratio"), [(2, 1), (60, 1), (60, 1.25), (60, 3)])
def test_a_race_keeps_to_its_budget(budget, ratio):
    machine = SyntheticMachine(2, outliers=0.0)
    result = race(arms_of(machine, ratio=ratio), budget_seconds=budget, clock=machine.clock)
    spent = result.samples()[-1]["spent_seconds"]
    block = 0.02 * ratio * max(sample["calls"] for sample in result.samples())
    assert budget * 0.9 <= spent <= budget + 6 * block
    assert result.making_seconds + spent == pytest.approx(machine.seconds, abs=1e-6)
    assert sum(sample["seconds"] * sample["calls"] for sample in result.samples()) > 0.9 * spent
    assert result.stopped is None
    assert ratio == 1 or result.verdict("a", "b") == FASTER


def test_blocks_fit_what_a_step_costs_and_are_about_as_long_and_whole_periods():
    """Steps of 1.9 s in a race of 150 s, in cycles of 6: whole cycles would leave time for two rounds."""
    machine = SyntheticMachine(1, noise=0.01, outliers=0.0, drift=0.0, wave=0.0)
    arms = {name: Arm(call, period=6) for name, call in arms_of(machine, 1.9, 1.3).items()}
    pair = race(arms, budget_seconds=150, clock=machine.clock).pair("a", "b")
    assert (pair.verdict, pair.kept >= 8, machine.seconds < 160) == (FASTER, True, True)
    assert pair.ratio == pytest.approx(1 / 1.3, rel=0.05)
    period, needs = pair.period
    assert (period, 1.5 < needs / (16 * 4 * 6 * 1.9 * 1.3) < 2.5) == (6, True)  # sixteen rounds of four blocks
    assert "work repeats every 6 calls, but blocks had fewer; a race of about" in explain(pair)
    whole = race(arms, budget_seconds=needs, clock=machine.clock)
    assert {sample["calls"] % 6 for sample in whole.samples()} == {0}
    assert "period" not in explain(whole.pairs[0])
    with pytest.warns(UserWarning, match="and a verdict needs 8"):
        few = race(arms, budget_seconds=20, clock=machine.clock).pairs[0]
    assert "rounds ran, at least 8 are needed" in explain(few)
    arms = {"a": Arm(machine.arm("a", 0.04), period=3), "b": Arm(machine.arm("b", 0.001), period=3)}
    calls = {s["arm"]: s["calls"] for s in race(arms, budget_seconds=30, clock=machine.clock).samples()}
    assert calls["a"] % 3 == calls["b"] % 3 == 0
    assert 0.5 < 0.04 * calls["a"] / (0.001 * calls["b"]) < 2
    short = race(arms_of(machine, 1e-4), budget_seconds=1, clock=machine.clock).samples()  # long enough for the clock
    assert 0.0025 < min(sample["calls"] * 1e-4 for sample in short) < 0.01


def test_a_loader_and_a_step_are_an_arm_and_what_its_workers_made_ahead_is_dropped_before_each_block():
    machine, given, taken = SyntheticMachine(1, noise=0.0, outliers=0.0, drift=0.0, wave=0.0), [], []

    class Loader:
        def __iter__(self):
            for i in range(5):
                machine.seconds += 0.01
                given.append((self, i))
                yield self, i

    def step_of(name):
        arm = machine.arm(name, 0.02)
        return lambda batch: (taken.append(batch), arm())

    ahead, alone = Loader(), Loader()
    ahead.num_workers, ahead.prefetch_factor = 2, 3
    pairs = {"ahead": (ahead, step_of("ahead")), "alone": (alone, step_of("alone"))}
    result = race(pairs, budget_seconds=60, clock=machine.clock)
    assert result.pairs[0].ratio == pytest.approx(1, rel=1e-6)  # what is dropped is outside the clock
    assert {(s["arm"], s["period"], s["calls"] % s["period"]) for s in result.samples()} == {
        ("ahead", 2, 0), ("alone", 1, 0)
    }  # fmt: skip
    of_alone = [[batch for batch in batches if batch[0] is alone] for batches in (given, taken)]
    assert of_alone[0] == of_alone[1]  # nothing of a loader without workers
    dropped = [len([batch for batch in batches if batch[0] is ahead]) for batches in (given, taken)]
    assert dropped[0] - dropped[1] >= 2 * 3 * sum(sample["arm"] == "ahead" for sample in result.samples())


@pytest.mark.parametrize(("length", "seconds", "verdict"), [(8, 60, SAME), (None, 20, UNDECIDED)])
def test_equal_loaders_whose_epochs_begin_at_different_places_of_their_blocks_are_not_told_apart(
    length, seconds, verdict
):
    """Where epochs begin in blocks was drawn once, when loaders are made: equal ones were told to be 12 times apart."""

    class Loader:
        num_workers, prefetch_factor = 1, 2  # dropped before each block
        skipped = 0

        def __iter__(self):
            machine.seconds += 0.2  # its worker starts
            yield from range(self.skipped, 8)
            self.skipped = 0

        if length:
            __len__ = lambda self: length  # noqa: E731

    verdicts, draw = [], Random(0)
    for seed in range(6):
        machine, arms = SyntheticMachine(seed, noise=0.02, outliers=0.0), {}
        for name in "ab":
            loader, step = Loader(), machine.arm(name, 0.02)
            loader.skipped = draw.randrange(8)
            arms[name] = loader, lambda batch, step=step: step()
        verdicts.append(race(arms, budget_seconds=seconds, clock=machine.clock).verdict("a", "b"))
    assert verdicts.count(verdict) >= 5
    assert not {FASTER, SLOWER}.intersection(verdicts)


def test_an_arm_collects_its_own_garbage_in_its_blocks_and_no_other_does():
    """With the collector off in blocks, what makes cycles was FASTER than what does not."""
    now, collected = [""], []

    def cyclic():
        now[0] = "a"
        for _ in range(2000):
            cycle = []
            cycle.append(cycle)

    def noted(phase, info):
        if phase == "stop" and info["collected"] and info["generation"] < 2:
            collected.append(now[0])

    runner = BlockRunner({"a": cyclic, "b": lambda: now.__setitem__(0, "b")}, 0)
    runner.make()
    gc.callbacks.append(noted)
    list(runner.rounds(0, {"a": 1, "b": 1}, turn=0, first=0, least=3, round_seconds=0.0))
    gc.callbacks.remove(noted)
    assert set(collected) == {"a"}


def test_a_process_at_rest_keeps_no_cached_memory_of_the_gpu_that_it_shares(monkeypatch):
    """Four processes of four arms on one GPU: each kept what its arms had needed in turn, and the third got no more."""
    cuda = Mock()

    def done():
        names = [name for name, *_ in cuda.method_calls if not name.startswith("is_")]
        cuda.reset_mock()
        return names

    monkeypatch.setitem(sys.modules, "torch", Mock(cuda=cuda))
    runner = BlockRunner({"a": lambda: cuda.call()}, 0)
    runner.make()
    assert done() == ["call", "synchronize", "empty_cache"]
    rounds = runner.rounds(0, {"a": 1}, turn=0, first=0, least=1, round_seconds=0.0)
    assert [sample["arm"] for sample in next(rounds)] == ["a", "a"]
    assert done() == ["call", *2 * ["synchronize", "call", "synchronize"]]  # the first, unmeasured, allocates anew
    rounds.close()
    assert done() == ["empty_cache"]


def test_cells_share_the_budget_and_verdicts_allow_for_the_comparisons_of_all_cells():
    machine, made = SyntheticMachine(2, noise=0.05, outliers=0.0), []

    def cell(ratio):
        return lambda: made.append(ratio) or arms_of(machine, ratio=ratio)

    cells = {("batch", 1): cell(2.0), ("batch", 2): cell(1.02), "three": cell(3.0)}
    result = race_cells(cells, budget_seconds=120, clock=machine.clock)
    assert made == [2.0, 1.02, 3.0]
    assert result.cells["batch", 1].verdict("a", "b") == FASTER
    assert result.cells["three"].verdict("b", "a") == SLOWER
    assert result.stopped is None
    assert [race.spent_seconds for race in result.cells.values()] == pytest.approx([40, 40, 40], rel=0.1)
    assert {pair.cell for pair in result.pairs} == {str(name) for name in cells}
    assert {pair.least for pair in result.pairs} == {8}
    many = race_cells({i: arms_of(machine) for i in range(12)}, budget_seconds=120, clock=machine.clock)
    assert {(pair.least, len(pair.parts)) for pair in many.pairs} == {(10, 10)}


# ---- stopped, killed, resumed


def test_a_race_that_was_interrupted_goes_on_with_its_whole_rounds(tmp_path):
    machine, pending = SyntheticMachine(8, noise=0.02), [True]
    arms = arms_of(machine, ratio=1.05)

    def interrupted():
        arms["a"]()
        if machine.seconds > 30.1 and pending:  # just before half of its budget
            pending.clear()
            raise KeyboardInterrupt

    how = {"budget_seconds": 60.0, "clock": machine.clock, "record": tmp_path / "parts.jsonl"}
    first = race({**arms, "a": interrupted}, **how)
    assert first.stopped == "interrupted"
    assert "interrupted" in str(first)
    assert gc.isenabled()
    with how["record"].open("a") as file:
        file.write('{"round": 7, "cut sho')  # as a kill in the middle of a line would leave it
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


def test_another_races_record_and_a_damaged_one_are_refused(tmp_path, monkeypatch):
    machine, record = SyntheticMachine(0), tmp_path / "race.jsonl"

    def again(names="ab", budget_seconds=3.0):
        arms = {name: machine.arm(name, 0.02) for name in names}
        return race(arms, budget_seconds=budget_seconds, clock=machine.clock, record=record)

    def refused(words, **more):
        with pytest.raises(InputError, match=words):
            again(**more)

    again()

    refused(r"budget_seconds was 3\.0 and is 60\.0", budget_seconds=60.0)
    refused("arms was", names="ac")
    lines = record.read_bytes().splitlines(keepends=True)
    for damage in (b"\0" * 40, b"[" * 100_000, b"3", b'{"round": 7}'):
        record.write_bytes(b"".join([*lines[:5], damage + b"\n", *lines[6:]]))
        words = f"^{record} is damaged, or no record of a race: line 6 is"
        refused(words)
        with pytest.raises(InputError, match=words):
            verdicts_of(record)
    record.write_bytes(b"".join(lines))
    monkeypatch.setattr(_race, "fingerprint", lambda *_, **__: {**fingerprint(), "cpu": "Another"})
    refused("cpu was .* and is 'Another'")


def test_a_record_that_another_race_writes_is_refused(tmp_path):
    machine = SyntheticMachine(0)
    arms, refused, how = arms_of(machine), [], {"budget_seconds": 1.0, "record": tmp_path / "race.jsonl"}

    def second():
        arms["a"]()
        if not refused:
            refused.append(True)
            with pytest.raises(InputError, match=r"race\.jsonl is being written by process \d+"):
                race(arms_of(machine), **how)

    race({**arms, "a": second}, clock=machine.clock, **how)
    assert refused
    assert os.listdir(tmp_path) == ["race.jsonl"]


def test_a_record_that_cannot_be_written_or_is_another_kind_of_file_is_refused_and_stays_as_it_is(tmp_path):
    (tmp_path / "mine").write_text('{"mine": 1}')  # without an end of its line, as a record that was cut short
    for name, words in (("mine/race.jsonl", "which cannot be written"), ("mine", "no record of a race: line 1 is")):
        with pytest.raises(InputError, match=words):
            race(INT, budget_seconds=1.0, record=tmp_path / name)
    assert (tmp_path / "mine").read_text() == '{"mine": 1}'
    with pytest.raises(InputError, match="nowhere is not a record of a race"):
        verdicts_of(str(tmp_path / "nowhere"))


def test_a_disk_that_is_full_costs_a_race_its_record_and_no_block(tmp_path, monkeypatch):
    machine, opened, times = SyntheticMachine(0), Path.open, []

    def full(path, *how, **more):
        times.append("ab" in how)
        if "ab" in how and sum(times) > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, *how, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.warns(UserWarning, match=r"continues without its record .*race.jsonl: No space left") as warned:
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
        ({"a": int, "b": (print, [1])}, {}, r"arm 'b' is .*, expected a function, a pair \(loader, step\) or 'module:"),
        ({"a": int, "b": ([], print)}, {}, r"\[\] yields no batch, expected a loader that yields some in each epoch"),
        ({"a": int, "b": (iter([1]), id)}, {}, "list_iterator object at .* yields no batch"),
        ({"a": int, "b": ([1], id)}, {"processes": 2}, "expected of a race of several processes 'module:function'"),
        (INT, {"budget_seconds": 0}, "budget_seconds is 0, expected a number above 0"),
        (INT, {"margin": 2}, "margin is 2, expected a number above 0, at most 1"),
        (INT, {"processes": 1.5}, "processes is 1.5, expected a whole number, 1 or more"),
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
import os

class Loader(list):
    num_workers = 2

def summing(text):
    name, numbers = text.split(",")
    noted = f"{os.getpid()} {name}{os.environ['TCLAB_RACE_FIRST_PROCESS']}"
    print(noted, file=open(os.environ["NOTED"], "a"), flush=True)
    print("an arm may print")
    return Loader([int(numbers)]), lambda batch: sum(range(batch))

def broken():
    return lambda: 1 / 0
"""
ARMS = {name: f"my_race_arms:summing:{name},{numbers}" for name, numbers in (("a", 4_000), ("b", 60_000))}


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """A function that returns "process what" of the arms that were made, of the module `my_race_arms`."""
    (tmp_path / "my_race_arms.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    return lambda: [line.split() for line in (tmp_path / "noted").read_text().splitlines()]


def alive(noted):
    return [process for process in {process for process, _ in noted()} if Path("/proc", process).exists()]


def test_fresh_processes_make_their_arms_one_after_another_take_turns_and_none_is_left(noted, tmp_path):
    result = race(ARMS, budget_seconds=6.0, processes=3, record=tmp_path / "race.jsonl")
    pair = result.pair("a", "b")
    assert pair.verdict not in (SLOWER, SAME)  # on a busy machine it may be open
    assert pair.processes == 3
    turns = [process for process, _ in groupby(sample["process"] for sample in result.samples())]
    assert set(turns) == {0, 1, 2}
    spent = [0.0, *sorted({sample["spent_seconds"] for sample in result.samples()})]
    paused = max(later - earlier for earlier, later in pairwise(spent)) > 1.0  # a turn is half a second
    assert len(turns) > 3 or paused
    assert {(s["period"], s["calls"] % 2) for s in result.samples()} == {(2, 0)}  # of a factory's loader and step
    assert len({(s["arm"], s["calls"]) for s in result.samples()}) == 2  # one length of blocks for all processes
    assert pair_of(read_samples(tmp_path / "race.jsonl")) == pair
    processes, made = zip(*noted(), strict=True)
    assert processes[::2] == processes[1::2], "a process made an arm between two of another"
    orders = [one + other for one, other in zip(made[::2], made[1::2], strict=True)]
    assert sorted(orders) == ["a0b0", "a1b1", "b0a0"]  # every other in reverse
    assert alive(noted) == []


def test_a_process_that_breaks_is_told_and_none_is_left(noted):
    with pytest.raises(InputError, match="ended with 1: ZeroDivisionError: division by zero"):
        race({**ARMS, "broken": "my_race_arms:broken"}, budget_seconds=5, processes=2)
    assert alive(noted) == []
