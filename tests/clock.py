"""A clock for the ledger that advances by work and by being read only, whatever else the machine does."""


class Clock:
    def __init__(self, reading=0.0):
        self.now = 1.0
        self.reading = reading  # seconds that a reading of it takes

    def work(self, seconds):
        self.now += seconds

    def nanoseconds(self):
        """Return the time without reading the clock."""
        return round(self.now * 1e9)

    def read(self):
        self.now += self.reading
        return round(self.now * 1e9)

    def set_in(self, monkeypatch):
        """Let every ledger read this clock."""
        for name in ("_ledger.perf_counter_ns", "_ledger.raw_clock_ns", "_self_test.perf_counter_ns"):
            monkeypatch.setattr(f"tclab.timing.{name}", self.read)
        return self
