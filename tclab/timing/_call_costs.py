"""What a call costs: its least time beside other calls, and the peak of memory around it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import TypeVar

from tclab._limits import field_of

T = TypeVar("T")


def least_seconds(
    arms: Mapping[T, Callable[[], object]], *, rounds: int = 5, clock: Callable[[], float] = perf_counter
) -> dict[T, float]:
    """Return the least time of each call, in seconds; in turns, as another process may be at work.

    **Arguments:**

    - `rounds`: how often each is called.
    - `clock`: what is read before and after a call, seconds.
    """
    seconds: dict[T, float] = dict.fromkeys(arms, float("inf"))
    for _ in range(rounds):
        for key, call in arms.items():
            begin = clock()
            call()
            seconds[key] = min(seconds[key], clock() - begin)
    return seconds


def release_memory() -> None:
    """Give the pages of freed memory back to the system, where the C library can (glibc).

    Else the resident set of a process holds what earlier work in it has freed.
    """
    gc.collect()
    with suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak_memory(*, cuda: bool) -> bool:
    """Begin to measure the peak of memory anew, and return whether that can be done here: on the CPU it needs Linux."""
    if cuda:
        import torch

        torch.cuda.reset_peak_memory_stats()
        return True
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to what is resident now
        return True
    return False


def peak_memory_bytes(*, cuda: bool) -> int | None:
    """Return the peak of memory since `reset_peak_memory`; `None` where unknown.

    On CUDA it is the most that torch's allocator had allocated at once (`torch.cuda.max_memory_allocated`). On the CPU
    it is the largest resident set of the process, including what it held before.
    """
    if cuda:
        import torch

        return torch.cuda.max_memory_allocated()
    peak = field_of("/proc/self/status", "VmHWM:")
    return None if peak is None else int(peak) * 1024
