"""A second clock, to hold the first one against."""

from __future__ import annotations

import time

_RAW = getattr(time, "CLOCK_MONOTONIC_RAW", None)


def raw_clock_ns() -> int:
    """Return nanoseconds of the hardware's own count, which network time does not steer; Linux and macOS.

    Elsewhere `time.monotonic_ns()`.
    """
    return time.monotonic_ns() if _RAW is None else time.clock_gettime_ns(_RAW)
