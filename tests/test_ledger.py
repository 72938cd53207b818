"""The ledger accounts for every moment, on the right stage, and says so against another clock."""

import sys
import threading
import time
from contextlib import suppress
from itertools import islice

import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from tclab import InputError
from tclab.timing import Ledger
from tclab.timing._ledger_rows import STAGES, BatchTiming, raw_clock_ns


def busy(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def values(ledger, stage, timeline="host"):
    frame = ledger.frame()
    return frame[(frame.timeline == timeline) & (frame.stage == stage)].seconds


def test_every_moment_is_on_one_stage():
    with Ledger() as ledger:
        for _ in ledger.steps(range(5)):
            with ledger.stage("forward"):
                busy(0.002)
            busy(0.001)
            with ledger.stage("backward"):
                busy(0.003)
    assert len(ledger) == 5
    assert (values(ledger, "forward") >= 0.002).all()
    assert (values(ledger, "backward") >= 0.003).all()
    assert (values(ledger, "other") >= 0.001).all()
    frame = ledger.frame()
    for _, step in frame.groupby("step"):
        whole = step[step.stage == "step"].seconds.item()
        assert step[step.stage != "step"].seconds.sum() == pytest.approx(whole, abs=1e-8)


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances only by the test's work."""
    return Clock().set_in(monkeypatch)


def test_a_stage_inside_a_stage_is_taken_out_of_the_outer_one(clock):
    ledger = Ledger()
    with ledger.step(), ledger.stage("forward"):
        clock.work(0.001)
        with ledger.stage("mask"):
            clock.work(0.004)
        clock.work(0.002)
    assert values(ledger, "mask").item() == pytest.approx(0.004)
    assert values(ledger, "forward").item() == pytest.approx(0.003)
    assert ledger.accounted == {"host": pytest.approx(1.0)}


def test_a_stage_that_was_not_seen_is_missing_and_not_zero():
    with Ledger() as ledger:
        for number in ledger.steps(range(2)):
            if number == 1:
                with ledger.stage("loss"):
                    pass
    assert values(ledger, "transfer").isna().all()
    assert values(ledger, "loss").isna().tolist() == [True, False]
    assert "transfer" not in ledger.seconds()
    assert len(ledger.seconds()["loss"]) == 1
    assert set(STAGES) | {"step"} == set(ledger.frame().stage)


def test_waiting_for_the_loader_is_a_stage():
    def loader():
        for number in range(3):
            time.sleep(0.005)
            yield number

    with Ledger() as ledger:
        found = list(ledger.steps(loader()))
    assert found == [0, 1, 2]
    assert (values(ledger, "data_wait") >= 0.005).all()


@pytest.mark.clock
def test_it_adds_up_to_a_clock_of_the_callers():
    for _ in range(3):  # the machine may stop the process between two clocks, which is rare and not the ledger's fault
        begin = time.monotonic()
        with Ledger() as ledger:
            for _ in ledger.steps(range(20)):
                with ledger.stage("forward"):
                    busy(0.001)
                busy(0.0005)
        outside = time.monotonic() - begin
        assert sum(ledger.seconds()["step"]) <= outside
        assert set(ledger.accounted) == {"host"}
        assert len(ledger.blocks()) == 1
        if ledger.adds_up():
            break
    assert ledger.adds_up()
    assert f"host accounted for: {ledger.accounted['host']:.1%}" in str(ledger)


def test_what_the_ledger_itself_does_before_its_first_cut_is_no_lost_time(clock):
    def spike(step):
        clock.work(0.001)  # as a garbage collection would

    with Ledger(spike=spike) as ledger:
        for _ in ledger.steps(range(2)):
            clock.work(0.001)
    assert ledger.accounted["host"] == pytest.approx(1.0)


def test_a_ledger_that_lost_time_says_that_it_does_not_add_up(clock, monkeypatch):
    lost = [0]  # nanoseconds that the raw clock has and no stage
    monkeypatch.setattr(sys.modules["tclab.timing._ledger"], "raw_clock_ns", lambda: clock.read() + lost[0])
    with Ledger() as ledger:
        for _ in ledger.steps(range(3)):
            clock.work(0.001)
            lost[0] += 250_000
    assert ledger.accounted["host"] == pytest.approx(0.8)
    assert not ledger.adds_up()
    assert "does NOT add up" in str(ledger)


def test_a_break_ends_its_step_and_an_exception_does_not(clock):
    with Ledger() as ledger:
        for number in ledger.steps(range(10)):
            with ledger.stage("forward"):
                pass
            if number == 2:
                break
    assert len(ledger) == 3

    def step_that_fails(ledger):
        for number in ledger.steps(range(10)):
            with ledger.stage("forward"):
                busy(0.001)
                if number == 2:
                    raise ValueError("no")

    with Ledger() as ledger:
        with pytest.raises(ValueError, match="no"):
            step_that_fails(ledger)
        for _ in ledger.steps(range(4)):  # and goes on
            clock.work(0.001)
    assert len(ledger) == 6
    assert ledger.adds_up()


def loop_left_by(how, ledger):
    """Take three of ten steps, the third of which ends in a way of its own, between its stages."""

    def batches():
        yield from ledger.steps(range(10))

    if how == "islice":
        for _ in islice(ledger.steps(range(10)), 3):
            pass
        return None
    for number in batches() if "generator" in how else ledger.steps(range(10)):
        with ledger.stage("forward"):
            pass
        if number == 2:
            if "error" in how:
                int("no number")
            if how == "return":
                return number
            break
    return None


@pytest.mark.parametrize("how", ["break", "return", "islice", "break of a generator", "error", "error of a generator"])
def test_a_loop_that_is_left_between_stages_completes_its_step_unless_by_an_exception(how):
    with Ledger() as ledger:
        with suppress(ValueError):
            loop_left_by(how, ledger)
        assert len(ledger) == (2 if "error" in how else 3)
        assert ledger.current == "other"


def interrupted_at(number, loop):
    """Run a loop with an interrupt at the n-th line of the ledger's code; return whether it came."""
    left = number

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename != Ledger.steps.__code__.co_filename:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        loop()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return left <= 0


@pytest.mark.parametrize("caught", ["outside the loop", "in it"])
def test_an_interrupt_anywhere_in_the_ledger_leaves_whole_steps_and_no_open_stage(caught):
    def steps(ledger, number=3):
        for _ in ledger.steps(range(number)):
            with suppress(KeyboardInterrupt if caught == "in it" else ()):
                with ledger.stage("forward"), ledger.stage("mask"):
                    pass
                with ledger.stage("backward"):
                    pass

    for place in range(1, 1000):
        ledger = Ledger(cuda=False, marks=True)
        came = interrupted_at(place, lambda ledger=ledger: steps(ledger))
        ledger.end()
        assert (ledger.current, ledger._marks) == ("other", []), place
        assert len(ledger) <= 3
        steps(ledger, 1)
        for step in ledger._steps:
            assert len(step.owners) == len(step.host), place
            if caught != "in it":  # where the loop goes on with what follows the stages
                assert {"forward", "mask", "backward"} <= set(step.owners), place
        inside = [step for block in ledger._blocks for step in range(block.first, block.end)]
        assert inside == sorted(set(inside)), place
        if not came:
            break
    assert 50 < place < 999


def test_a_ledger_without_steps_adds_up_to_nothing_and_says_so():
    ledger = Ledger()
    assert not ledger.adds_up()
    assert str(ledger).startswith("0 steps")


@pytest.mark.parametrize("name", ["step", "batch"])
def test_a_stage_cannot_be_called_like_the_sum_of_all(name):
    with pytest.raises(InputError, match=f"a stage is called '{name}', which is the sum of all stages"):
        Ledger().stage(name)


def test_a_stage_outside_a_step_and_on_another_thread_are_refused():
    ledger = Ledger(marks=True)
    with pytest.raises(RuntimeError, match=r"outside a step: loop over ledger\.steps"), ledger.stage("forward"):
        pass
    assert (ledger.current, ledger._marks) == ("other", [])
    found = []

    def elsewhere():
        try:
            with ledger.stage("forward"):
                pass
        except RuntimeError as error:
            found.append(str(error))

    with ledger.step():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert found == ["stage 'forward' was entered on another thread than its step"]


@given(st.recursive(st.sampled_from("abc"), lambda inner: st.lists(inner, max_size=4), max_leaves=12))
def test_any_tree_of_stages_adds_up(tree):
    def walk(node):
        for child in node if isinstance(node, list) else []:
            with ledger.stage(child if isinstance(child, str) else "list"):
                walk(child)

    ledger = Ledger()
    for _ in ledger.steps(range(2)):
        walk(tree)
    frame = ledger.frame()
    whole = frame[frame.stage == "step"].seconds
    parts = frame[frame.stage != "step"].groupby("step").seconds.sum()
    assert parts.tolist() == pytest.approx(whole.tolist(), abs=1e-8)
    assert (frame.seconds.dropna() >= 0).all()


@pytest.mark.parametrize("stage", ["data_wait", "forward", "other", "backward"])
@pytest.mark.clock
def test_a_delay_comes_back_where_it_was_put(stage):
    with Ledger(spike=lambda step: (stage, 0.004) if step % 2 else None) as ledger:
        for _ in ledger.steps(range(6)):
            with ledger.stage("forward"):
                pass
            with ledger.stage("backward"):
                pass
    spiked = ledger.frame()[lambda frame: frame.step % 2 == 1]
    for _, step in spiked.groupby("step"):
        assert step[step.stage == stage].seconds.item() >= 0.004
    elsewhere = spiked[~spiked.stage.isin([stage, "step"])].groupby("stage").seconds.min().dropna()
    assert (elsewhere < 0.004).all()


def test_a_step_without_a_loader_and_a_loop_that_is_not_torchs():
    ledger = Ledger()
    for _ in range(3):
        with ledger.step(), ledger.stage("forward"):
            sum(range(1000))
    assert len(ledger) == 3
    assert len(ledger.blocks()) == 3


def making(worker, begin, **stages):
    raw = (begin + 7, begin + 7 + 10_000)
    return BatchTiming(worker, begin, begin + 10_000, stages, raw)


def test_workers_have_timelines_of_their_own(clock):
    class Batch:
        def __init__(self, making):
            self.timing = making

    made = [making(number % 2, 20_000 * number, sample=6_000, collate=3_000) for number in range(4)]
    with Ledger() as ledger:
        for _ in ledger.steps([Batch(m) for m in made]):
            clock.work(0.001)
    frame = ledger.frame()
    first = frame[frame.timeline == "worker 0"]
    assert first[first.stage == "sample"].seconds.tolist() == [6e-6, 6e-6]
    assert first[first.stage == "other"].seconds.tolist() == pytest.approx([1e-6, 1e-6])
    idle = first[first.stage == "idle"].seconds
    assert idle.isna().tolist() == [True, False]  # nobody knows how long it waited for its first
    assert idle.iloc[1] == pytest.approx(30e-6)
    assert ledger.accounted["worker 0"] == pytest.approx(1.0)
    assert ledger.adds_up()


@pytest.mark.clock
def test_batches_made_in_this_process_are_within_its_wait():
    def loader():
        for _ in range(3):
            begin = time.perf_counter_ns()
            busy(0.003)
            took = time.perf_counter_ns() - begin
            batch = type("Batch", (), {})()
            # the second clock's reading is made up: a machine that stops us between two clocks is no fault of ours
            batch.timing = BatchTiming(None, begin, begin + took, {"sample": took}, (7, 7 + took))
            yield batch

    with Ledger() as ledger:
        list(ledger.steps(loader()))
    assert ledger.accounted["loading"] == pytest.approx(1.0)
    assert sum(ledger.seconds("loading")["batch"]) <= sum(ledger.seconds()["data_wait"])
    assert "idle" not in ledger.seconds("loading")


def test_a_batch_whose_stages_leave_time_out_does_not_add_up():
    batch = type("Batch", (), {})()
    batch.timing = BatchTiming(None, 0, 10_000, {"sample": 10_000}, (7, 7 + 12_000))
    with Ledger() as ledger:
        list(ledger.steps([batch]))
    assert ledger.accounted["loading"] == pytest.approx(10 / 12)
    assert not ledger.adds_up()


def test_a_worker_whose_clock_was_not_read_has_no_closure(clock):
    batch = type("Batch", (), {})()
    batch.timing = BatchTiming(0, 0, 10, {"sample": 5})
    with Ledger() as ledger:
        for _ in ledger.steps([batch]):
            clock.work(0.001)
    assert ledger.accounted["worker 0"] is None
    assert "worker 0: no wall clock to compare with" in str(ledger)
    assert ledger.adds_up()


def test_the_second_clock_runs():
    begin = raw_clock_ns()
    busy(0.001)
    assert raw_clock_ns() - begin >= 900_000
