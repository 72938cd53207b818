"""The ledger's CUDA half on a simulated device: a queue that runs behind the host, and events on it.

No GPU is at hand where this runs; what is simulated is CUDA's order of things (work is enqueued at once and done
later, an event is reached when all before it is done), on a clock that moves only when the test moves it.
"""

import pytest
import torch

from tclab.timing import Ledger
from tclab.timing import _ledger as ledger_module
from tclab.timing import _ledger_rows as accounts


class Device:
    """A host clock, and a stream that is free at `free`; both in seconds."""

    def __init__(self):
        self.host = 0.0
        self.free = 0.0

    def run(self, seconds, launch=0.0001):
        """Enqueue a kernel: the host spends `launch`, the device `seconds` when it gets there."""
        self.host += launch
        self.free = max(self.free, self.host) + seconds

    def synchronize(self):
        self.host = max(self.host, self.free)


@pytest.fixture
def device(monkeypatch):
    made = Device()

    class Event:
        def __init__(self, enable_timing=False):
            self.at = None

        def record(self):
            made.free = max(made.free, made.host)
            self.at = made.free

        def query(self):
            return self.at <= made.host

        def synchronize(self):
            made.host = max(made.host, self.at)

        def elapsed_time(self, other):
            return (other.at - self.at) * 1e3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: made.run(cycles / 1e9))
    monkeypatch.setattr(ledger_module, "perf_counter_ns", lambda: round(made.host * 1e9))
    monkeypatch.setattr(ledger_module, "raw_clock_ns", lambda: round(made.host * 1e9))
    return made


def loop(device, ledger, *, kernels=10, kernel=0.0002, sync=False):
    for _ in ledger.steps(range(4)):
        with ledger.stage("forward"):
            for _ in range(kernels):
                device.run(kernel)
        if sync:
            device.synchronize()
        with ledger.stage("backward"):
            for _ in range(2 * kernels):
                device.run(kernel)


def test_the_device_has_a_timeline_of_its_own_and_both_add_up(device):
    with Ledger(cuda=True) as ledger:
        loop(device, ledger)
    host, gpu = ledger.seconds(), ledger.seconds("device")
    assert host["forward"] == pytest.approx([0.001] * 4)  # enqueueing
    assert gpu["forward"][1:] == pytest.approx([0.002] * 3)
    assert gpu["backward"] == pytest.approx([0.004] * 4)
    assert ledger.accounted["device"] == pytest.approx(1.0, abs=accounts.TOLERANCE)
    # the host is done long before the device: its own timeline alone does not fill the wall clock
    assert ledger.accounted["host"] < 0.9


def test_nothing_waits_for_the_device_inside_a_block(device, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: (waited.append(1), device.synchronize()))
    with Ledger(cuda=True) as ledger:
        loop(device, ledger)
    assert len(waited) == 2  # before the first step and after the last


def test_eager_events_hold_launch_gaps_and_queued_ones_do_not(device):
    small = {"kernels": 10, "kernel": 0.00001}  # a tenth of what it takes to launch one
    with Ledger(cuda=True) as eager:
        loop(device, eager, **small)
    with Ledger(cuda=True, queued=True) as queued:
        loop(device, queued, **small)
    assert eager.seconds("device")["forward"][1:] == pytest.approx([0.001] * 3, rel=0.2)  # launch-bound
    assert queued.seconds("queued")["forward"] == pytest.approx([0.0001] * 4)
    assert queued.seconds("queued")["backward"] == pytest.approx([0.0002] * 4)
    assert "queue" not in set(queued.frame().stage)
    assert eager.seconds("queued") == {}


def test_a_step_that_waits_in_the_middle_gives_no_queued_time(device):
    with Ledger(cuda=True, queued=True) as ledger:
        loop(device, ledger, sync=True)
    frame = ledger.frame()
    assert frame[frame.timeline == "queued"].seconds.isna().all()
    assert frame[frame.timeline == "host"].seconds.notna().any()
