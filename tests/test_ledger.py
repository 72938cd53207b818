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
from tclab.timing._ledger_rows import STAGES, BatchTiming


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances only by the test's work."""
    return Clock().set_in(monkeypatch)


def test_every_moment_is_on_one_stage_and_what_was_not_seen_is_missing(clock):
    def loader():
        for number in range(3):
            clock.work(0.005)
            yield number

    with Ledger() as ledger:
        for number in ledger.steps(loader()):
            with ledger.stage("forward"):
                clock.work(0.001)
                with ledger.stage("mask"):
                    clock.work(0.004)
                clock.work(0.002)
            clock.work(0.01)
            if number == 1:
                with ledger.stage("loss"):
                    clock.work(0.02)
    frame = ledger.frame()
    assert set(frame.stage) == {*STAGES, "step"}
    seconds = {stage: rows.seconds.tolist() for stage, rows in frame.dropna().groupby("stage")}
    expected = {"data_wait": 0.005, "forward": 0.003, "mask": 0.004, "other": 0.01}
    assert seconds.pop("loss") == pytest.approx([0.02])
    assert seconds.pop("step") == pytest.approx([0.022, 0.042, 0.022])
    assert seconds == {stage: pytest.approx([once] * 3) for stage, once in expected.items()}
    assert ledger.seconds() == {stage: rows.seconds.tolist() for stage, rows in frame.dropna().groupby("stage")}
    assert frame[frame.stage == "loss"].seconds.isna().tolist() == [True, False, True]
    assert ledger.accounted == {"host": pytest.approx(1.0)}
    # means of all steps, and shares, which add up to the wall time; the median is of the steps that had the stage
    assert {line[1]: line[2:] for line in ledger._display().lines} == {
        "data_wait": ("5 ms", "5 ms", "17.4%", "3"),
        "forward": ("3 ms", "3 ms", "10.5%", "3"),
        "mask": ("4 ms", "4 ms", "14.0%", "3"),
        "loss": ("6.67 ms", "20 ms", "23.3%", "1"),
        "other": ("10 ms", "10 ms", "34.9%", "3"),
    }


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


@pytest.mark.clock
def test_it_adds_up_to_a_clock_of_the_callers():
    for _ in range(3):  # the machine may stop the process between two clocks, which is rare and not the ledger's fault
        begin = time.monotonic()
        with Ledger() as ledger:
            for _ in ledger.steps(range(20)):
                with ledger.stage("forward"):
                    time.sleep(0.001)
        outside = time.monotonic() - begin
        assert 0.02 <= sum(ledger.seconds()["step"]) <= outside
        if ledger.adds_up():
            break
    assert set(ledger.accounted) == {"host"}
    assert ledger.adds_up()
    assert f"host accounted for: {ledger.accounted['host']:.1%}" in str(ledger)


def test_what_the_ledger_itself_does_before_its_first_cut_is_no_lost_time(clock):
    def spike(step):
        clock.work(0.001)  # as a garbage collection would

    with Ledger(spike=spike) as ledger:
        for _ in ledger.steps(range(2)):
            clock.work(0.001)
    assert ledger.accounted["host"] == pytest.approx(1.0)


def test_a_ledger_that_lost_time_or_has_no_step_says_that_it_does_not_add_up(clock, monkeypatch):
    lost = [0]  # nanoseconds that the raw clock has and no stage
    monkeypatch.setattr(sys.modules["tclab.timing._ledger"], "raw_clock_ns", lambda: clock.read() + lost[0])
    with Ledger() as ledger:
        for _ in ledger.steps(range(3)):
            clock.work(0.001)
            lost[0] += 250_000
    assert ledger.accounted["host"] == pytest.approx(0.8)
    assert not ledger.adds_up()
    assert "does NOT add up" in str(ledger)
    assert not Ledger().adds_up()
    assert str(Ledger()).startswith("0 steps")


def left_by(how, ledger, clock):
    """Take steps of ten; the third ends in a way of its own."""

    def batches():
        yield from ledger.steps(range(10))

    loop = batches() if "generator" in how else ledger.steps(range(10))
    for number in islice(loop, 3) if how == "islice" else loop:
        with suppress(ValueError) if how == "caught" else ledger.stage("loss"), ledger.stage("forward"):
            clock.work(0.001)
            if number == 2 and how in ("in a stage", "caught"):
                raise ValueError
        clock.work(0.002)
        if number == 2 and how == "keep":
            ledger.end(keep=True)
        if number == 2 and how == "return":
            return number
        if number == 2 and "error" in how:
            raise ValueError
        if number == 2 and how in ("break", "keep", "break of a generator"):
            break
    return None


@pytest.mark.parametrize(
    ("how", "steps"),
    [("to its end", 10), ("break", 2), ("keep", 3), ("return", 2), ("islice", 2), ("break of a generator", 2),
     ("error", 2), ("error of a generator", 2), ("in a stage", 2), ("caught", 9)],
)  # fmt: skip
def test_a_step_is_complete_when_the_next_is_asked_for(how, steps, clock):
    with Ledger() as ledger:
        with suppress(ValueError):
            left_by(how, ledger, clock)
        assert len(ledger) == steps
        assert (ledger.current, ledger.in_step) == ("other", False)
        assert ledger.adds_up()
        for _ in ledger.steps(range(4)):  # and goes on
            clock.work(0.001)
    assert len(ledger) == steps + 4
    assert len(ledger.begins()) == (3 if how == "caught" else 2)
    assert ledger.accounted["host"] == pytest.approx(1.0)
    assert ledger.seconds()["forward"] == pytest.approx([0.001] * steps)


def interrupted_at(number, loop):
    """Run a loop with an interrupt at the n-th line of the ledger's code; return whether it came."""
    left = number

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename != Ledger.__init__.__code__.co_filename:
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
            if caught != "in it":  # where the loop goes on with what follows the stages
                assert {"forward", "mask", "backward"} <= {stage for stage, *_ in step}, place
        inside = [step for block in ledger._blocks for step in range(block.first, block.end)]
        assert inside == sorted(set(inside)), place
        if not came:
            break
    assert 50 < place < 999


def entered_elsewhere(ledger):
    with ledger.step():
        thread = threading.Thread(target=ledger.stage("forward").__enter__)
        found = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading, "excepthook", lambda error: found.append(error.exc_value))
            thread.start()
            thread.join()
        raise found[0]


def entered(name):
    with Ledger(marks=True).stage(name):
        pass


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda: entered("step"), InputError, "a stage is called 'step', which is the sum of all stages"),
        (lambda: entered("batch"), InputError, "a stage is called 'batch', which is the sum of all stages"),
        (lambda: entered("forward"), RuntimeError, r"outside a step: loop over ledger\.steps"),
        (lambda: entered_elsewhere(Ledger()), RuntimeError, "stage 'forward' was entered on another thread than its"),
    ],
)
def test_a_stage_that_no_step_can_have_is_refused(act, error, words):
    with pytest.raises(error, match=words):
        act()


@pytest.mark.parametrize("stage", ["data_wait", "forward", "other", "backward"])
def test_a_delay_comes_back_where_it_was_put(stage, monkeypatch):
    clock = Clock(reading=1e-6).set_in(monkeypatch)
    with Ledger(spike=lambda step: (stage, 0.004) if step % 2 else None) as ledger:
        for _ in ledger.steps(range(6)):
            with ledger.stage("forward"):
                clock.work(0.001)
            with ledger.stage("backward"):
                clock.work(0.001)
    for name, seconds in ledger.seconds().items():
        grown = 0.004 if name in (stage, "step") else 0.0
        assert [late - early for early, late in zip(seconds[::2], seconds[1::2], strict=True)] == pytest.approx(
            [grown] * 3, abs=1e-5
        )


def test_a_step_without_a_loader_is_a_block_and_one_thread_may_assign_anothers_time(clock):
    ledger = Ledger()
    ledger.assign_next("early")  # in no step, and so nothing
    for _ in range(3):
        with ledger.step(), ledger.stage("backward"):
            clock.work(0.001)
            thread = threading.Thread(target=ledger.assign_next, args=["layer 1"])
            thread.start()
            thread.join()
            clock.work(0.002)
    assert len(ledger.begins()) == len(ledger) == 3
    assert ledger.seconds()["layer 1"] == pytest.approx([0.002] * 3)
    assert [span[0] for span in ledger.spans()][:4] == ["other", "backward", "layer 1", "other"]


def test_time_that_another_clock_told_apart_is_moved_and_none_is_lost(clock):
    with Ledger() as ledger:
        for _ in ledger.steps(range(2)):
            with ledger.stage("backward"):
                clock.work(0.01)
    ledger.move(1, {"rank_wait": 0.002, "communication": 0.003}, out_of="backward")
    seconds = ledger.seconds()
    assert seconds["backward"] == pytest.approx([0.01, 0.005])
    assert (seconds["rank_wait"], seconds["communication"]) == ([0.002], [0.003])
    assert seconds["step"] == pytest.approx([0.01, 0.01])
    assert ledger.adds_up()
    ledger.move(0, {"rank_wait": 0.002, "backward": 0.003}, out_of="backward")  # a stage of the user's may be called so
    assert ledger.seconds()["backward"] == pytest.approx([0.008, 0.005])


def timed(clock, *timings):
    """Return a ledger of steps of 1 ms on batches with these timings."""
    batches = [type("Batch", (), {"timing": timing})() for timing in timings]
    with Ledger() as ledger:
        for _ in ledger.steps(batches):
            clock.work(0.001)
    return ledger


def test_workers_have_timelines_of_their_own(clock):
    made = [
        BatchTiming(number % 2, begin, begin + 10_000, {"sample": 6_000, "collate": 3_000}, (begin + 7, begin + 10_007))
        for number, begin in enumerate(range(0, 80_000, 20_000))
    ]
    ledger = timed(clock, *made)
    frame = ledger.frame()
    first = frame[frame.timeline == "worker 0"]
    assert first[first.stage == "sample"].seconds.tolist() == [6e-6, 6e-6]
    assert first[first.stage == "other"].seconds.tolist() == pytest.approx([1e-6, 1e-6])
    idle = first[first.stage == "idle"].seconds
    assert idle.isna().tolist() == [True, False]  # nobody knows how long it waited for its first
    assert idle.iloc[1] == pytest.approx(30e-6)
    assert ledger.workers == 2
    assert ledger.adds_up()
    assert "idle" not in timed(clock, BatchTiming(None, 0, 10, {})).seconds("loading")


@pytest.mark.parametrize(
    ("timing", "share", "adds_up"),
    [
        (BatchTiming(0, 0, 10_000, {"sample": 10_000}, (7, 10_007)), 1.0, True),
        (BatchTiming(None, 0, 10_000, {"sample": 10_000}, (7, 10_007)), 1.0, True),
        (BatchTiming(None, 0, 10_000, {"sample": 10_000}, (7, 12_007)), 10 / 12, False),  # leaves time out
        (BatchTiming(0, 0, 10_000, {"sample": 5_000}), None, True),  # no second clock was read
    ],
)
def test_batches_add_up_to_a_clock_of_their_own_or_say_that_there_is_none(timing, share, adds_up, clock):
    ledger = timed(clock, timing)
    assert ledger.accounted[timing.timeline] == (None if share is None else pytest.approx(share))
    assert ledger.adds_up() == adds_up
    assert (f"{timing.timeline}: no wall clock to compare with" in str(ledger)) == (share is None)
