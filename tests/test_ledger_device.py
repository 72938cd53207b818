"""The ledger's CUDA half on a simulated device: a queue that runs behind the host, and events on it.

No GPU is at hand where this runs; what is simulated is CUDA's order of things (work is enqueued at once and done
later, an event is reached when all before it is done), on a clock that moves only when the test moves it.
"""

import pytest
import torch
from clock import Clock

from tclab.timing import Ledger


class Device(Clock):
    """The host's clock, and a stream that is free at `free`; both in seconds."""

    free = 0.0
    waited = 0  # times

    def run(self, seconds, launch=0.0001):
        """Enqueue a kernel: the host spends `launch`, the device `seconds` when it gets there."""
        self.work(launch)
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

        def record(self):
            made.free = max(made.free, made.now)
            self.at = made.free

        def elapsed_time(self, other):
            return (other.at - self.at) * 1e3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    return made


def looped(device, *, kernel=0.0002, last=99):
    with Ledger(cuda=True) as ledger:
        for number in ledger.steps(range(4)):
            for stage, launches in (("forward", 10), ("backward", 20)):
                with ledger.stage(stage):
                    for _ in range(launches):
                        device.run(kernel)
            if number == last:
                break
    return ledger


@pytest.mark.parametrize("last", [99, 2])
def test_the_device_has_a_timeline_of_its_own_and_both_add_up(device, last):
    ledger = looped(device, last=last)
    host, gpu = ledger.seconds(), ledger.seconds("device")
    steps = min(4, last)  # one that ends by `break` is none, and its time is in no account
    assert host["forward"] == pytest.approx([0.001] * steps)  # enqueueing
    assert gpu["forward"][1:] == pytest.approx([0.002] * (steps - 1))
    assert gpu["backward"] == pytest.approx([0.004] * steps)
    assert ledger.accounted["device"] == pytest.approx(1.0, abs=0.02)
    # the host is done long before the device: its own timeline alone does not fill the wall clock
    assert ledger.accounted["host"] < 0.9
    assert device.waited == 2  # before the first step and after the last, never inside the block


def test_an_event_pair_holds_the_launch_gap_and_time_is_moved_on_its_timeline(device):
    """Of kernels that take a tenth of what it takes to launch one, the device's timeline shows the launches."""
    ledger = looped(device, kernel=0.00001)
    assert ledger.seconds("device")["forward"][1:] == pytest.approx([0.001] * 3, rel=0.2)
    before = ledger.seconds("device")["backward"][0]
    ledger.move(0, {"communication": 0.001}, out_of="backward")
    seconds = ledger.seconds("device")
    assert (seconds["backward"][0], seconds["communication"]) == (pytest.approx(before - 0.001), [0.001])
    assert "communication" not in ledger.seconds()
