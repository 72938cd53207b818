"""The ledger accounts for every moment, on the right stage, and says so against another clock."""

import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from clock import Clock

from tclab import InputError
from tclab.timing import Ledger, advise
from tclab.timing._ledger import STAGES, BatchTiming


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
                    clock.work(0.001)
                    with ledger.stage("forward"):  # again, in itself
                        clock.work(0.001)
                    clock.work(0.003)
                clock.work(0.001)
            clock.work(0.01)
            if number == 1:
                with ledger.stage("loss"):
                    clock.work(0.02)
    frame = ledger.frame()
    assert set(frame.stage) == {*STAGES, "step"}
    assert ledger.seconds() == {stage: rows.seconds.tolist() for stage, rows in frame.dropna().groupby("stage")}
    assert frame[frame.stage == "loss"].seconds.isna().tolist() == [True, False, True]
    assert ledger.accounted == {"host": pytest.approx(1.0)}
    # means of all steps, and shares, which add up to the wall time; the median is of the steps that had the stage
    assert {" ".join(line.split()) for line in str(ledger).splitlines()[2:]} == {
        "host data_wait 5 ms 5 ms 17.4% 3",
        "host forward 3 ms 3 ms 10.5% 3",
        "host mask 4 ms 4 ms 14.0% 3",
        "host other 10 ms 10 ms 34.9% 3",
        "host loss 6.67 ms 20 ms 23.3% 1",
        "accounted for: host 100.0%",
    }


@pytest.mark.parametrize(
    ("how", "steps"),
    [("to its end", 10), ("break", 2), ("keep", 3), ("in a stage", 2), ("caught", 9)],
)
def test_a_step_is_complete_when_the_next_is_asked_for(how, steps, clock):
    def take(ledger):
        for number in ledger.steps(range(10)):
            with suppress(ValueError) if how == "caught" else ledger.stage("loss"), ledger.stage("forward"):
                clock.work(0.001)
                if number == 2 and how in ("in a stage", "caught"):
                    raise ValueError
            clock.work(0.002)
            if number == 2 and how == "keep":
                ledger.end(keep=True)
            if number == 2 and how in ("break", "keep"):
                break

    with Ledger() as ledger:
        with suppress(ValueError):
            take(ledger)
        assert len(ledger) == steps
        assert (ledger.current, ledger.in_step) == ("other", False)
        assert ledger.adds_up()
        for _ in ledger.steps(range(4)):  # and goes on
            clock.work(0.001)
    assert len(ledger) == steps + 4
    assert len(ledger.begins) == (3 if how == "caught" else 2)
    assert ledger.accounted["host"] == pytest.approx(1.0)
    assert ledger.seconds()["forward"] == pytest.approx([0.001] * steps)


def interrupted_at(number, loop):
    """Run a loop with an interrupt at the n-th line of the ledger's code; return whether it came."""
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_filename != Ledger.__init__.__code__.co_filename:
            return None
        lines += event == "line"
        if event == "line" and lines == number:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            loop()
    finally:
        sys.settrace(before)
    return lines >= number


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
        ledger = Ledger(cuda=False)
        came = interrupted_at(place, lambda ledger=ledger: steps(ledger))
        ledger.end()
        assert ledger.current == "other", place
        assert len(ledger) <= 3
        steps(ledger, 1)
        if caught != "in it":  # where the loop goes on with what follows the stages
            for stage in ("forward", "mask", "backward"):
                assert len(ledger.seconds().get(stage, [])) == len(ledger), (place, stage)
        if not came:
            break
    assert 50 < place < 999


def test_a_ledger_that_lost_time_says_that_it_does_not_add_up_and_gives_no_advice(clock, monkeypatch):
    lost = [0]  # nanoseconds that the raw clock has and no stage
    monkeypatch.setattr("tclab.timing._ledger.raw_clock_ns", lambda: clock.read() + lost[0])
    with Ledger() as ledger:
        for _ in ledger.steps(range(3)):
            clock.work(0.001)
            lost[0] += 250_000
    assert ledger.accounted["host"] == pytest.approx(0.8)
    assert not ledger.adds_up()
    assert "does NOT add up" in str(ledger)
    assert "the ledger does not add up" in advise(ledger).refusal


def test_a_stage_that_is_the_sum_of_others_or_in_no_step_is_refused():
    for name in ("step", "batch"):
        with pytest.raises(InputError, match=f"a stage is called '{name}', which is the sum of all stages"):
            Ledger().stage(name)
    with pytest.raises(RuntimeError, match=r"outside a step: loop over ledger\.steps"), Ledger().stage("forward"):
        pass


def test_batches_have_timelines_of_their_own(clock):
    made = [BatchTiming(n % 2, 20_000 * n, 20_000 * n + 10_000, {"sample": 6_000, "collate": 3_000}) for n in range(4)]
    made.append(BatchTiming(None, 0, 10_000, {"sample": 10_000}))
    with Ledger() as ledger:
        for _ in ledger.steps([SimpleNamespace(timing=timing) for timing in made]):
            clock.work(0.001)
    frame = ledger.frame()
    first = frame[frame.timeline == "worker 0"]
    assert first[first.stage == "sample"].seconds.tolist() == [6e-6, 6e-6]
    assert first[first.stage == "other"].seconds.tolist() == pytest.approx([1e-6, 1e-6])
    idle = first[first.stage == "idle"].seconds
    assert idle.isna().tolist() == [True, False]  # nobody knows how long it waited for its first
    assert idle.iloc[1] == pytest.approx(30e-6)
    assert "idle" not in ledger.seconds("loading")
    assert ledger.workers == 2
    assert ledger.accounted == {"host": 1.0}


# ---- its CUDA half on a simulated device
#
# No GPU is at hand where this runs; what is simulated is CUDA's order of things (work is enqueued at once and done
# later, an event is reached when all before it is done), on a clock that moves only when the test moves it.


class Device(Clock):
    """The host's clock, and a stream that is free at `free`; both in seconds."""

    free = 0.0
    waited = 0  # times
    events = 0  # that were made

    def run(self, seconds):
        """Enqueue a kernel: the host spends 0.1 ms, the device `seconds` when it gets there."""
        self.work(0.0001)
        self.free = max(self.free, self.now) + seconds

    def synchronize(self):
        self.now = max(self.now, self.free)
        self.waited += 1


@pytest.fixture
def device(monkeypatch):
    made = Device().set_in(monkeypatch)

    class Event:
        def __init__(self, enable_timing=False):
            self.at = None
            made.events += 1

        def query(self):
            return self.at <= made.now

        def record(self):
            made.free = max(made.free, made.now)
            self.at = made.free

        def elapsed_time(self, other):
            assert max(self.at, other.at) <= made.now, "the device is not there yet"
            return (other.at - self.at) * 1e3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    return made


def looped(device, last):
    with Ledger(cuda=True) as ledger:
        for number in ledger.steps(range(4)):
            for stage, launches in (("forward", 10), ("backward", 20)):
                with ledger.stage(stage):
                    for _ in range(launches):
                        device.run(0.0002)
            if number == last:
                break
    return ledger


@pytest.mark.parametrize("last", [99, 2])
def test_the_device_has_a_timeline_of_its_own_and_both_add_up(device, last):
    ledger = looped(device, last)
    host, gpu = ledger.seconds(), ledger.seconds("device")
    steps = min(4, last)  # one that ends by `break` is none, and its time is in no account
    assert host["forward"] == pytest.approx([0.001] * steps)  # enqueueing
    assert gpu["forward"][1:] == pytest.approx([0.002] * (steps - 1))
    assert gpu["backward"] == pytest.approx([0.004] * steps)
    assert ledger.accounted["device"] == pytest.approx(1.0, abs=0.02)
    # the host is done long before the device: its own timeline alone does not fill the wall clock
    assert ledger.accounted["host"] < 0.9
    assert device.waited == 2  # before the first step and after the last, never inside the block
    ledger.move(0, {"communication": 0.001}, out_of="backward")  # on the timeline of the device alone
    moved = ledger.seconds("device")
    assert (moved["backward"][0], moved["communication"]) == (pytest.approx(0.003), [0.001])
    assert "communication" not in ledger.seconds()


def test_a_thousand_steps_hold_as_many_events_as_the_device_is_behind(device):
    with Ledger(cuda=True) as ledger:
        for number in ledger.steps(range(1000)):
            with ledger.stage("forward"):
                device.run(0.001 * (1 + number % 7))
            if number % 5 == 4:  # as a queue that is full holds the host back
                device.work(max(0.0, device.free - device.now))
    assert device.events < 60
    assert device.waited == 2
    expected = [0.001 * (1 + number % 7) for number in range(1000)]
    seconds = ledger.seconds("device")
    assert [min(each) for each in zip(seconds["forward"], expected, strict=True)] == pytest.approx(expected)
    assert sum(seconds["step"]) == pytest.approx(device.now - 1, rel=0.01)
    assert ledger.accounted["device"] == pytest.approx(1.0, abs=0.02)


def test_what_is_to_be_called_at_the_end_is_called_unless_an_exception_ends_the_block():
    called = []
    with Ledger() as ledger:
        ledger.at_exit.append(lambda: called.append("ended"))
    with suppress(ValueError), Ledger() as ledger:
        ledger.at_exit.append(lambda: called.append("failed"))
        raise ValueError
    assert called == ["ended"]
