"""A clock for the ledger that goes on by work, and by being read, and by nothing else on the machine."""

import sys


class Clock:
    def __init__(self, reading=0.0):
        self.now = 1.0
        self.reading = reading  # seconds that a reading of it takes

    def work(self, seconds):
        self.now += seconds

    def read(self):
        self.now += self.reading
        return round(self.now * 1e9)

    def set_in(self, monkeypatch):
        for name in ("perf_counter_ns", "raw_clock_ns"):
            monkeypatch.setattr(sys.modules["tclab.timing.ledger"], name, self.read)
        return self
