"""Peak memory of a block of code, on the CPU or a CUDA device."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

from tclab._limits import field_of


def release_memory() -> None:
    """Give the pages of freed memory back to the system, where the C library can (glibc).

    Else the resident set of a process holds what earlier work in it has freed.
    """
    gc.collect()
    with suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class PeakMemory:
    """Measures the peak memory of a `with` block; after it, `bytes` is the peak, or `None` where unknown.

    On CUDA it is the most that torch's allocator had allocated at once (`torch.cuda.max_memory_allocated`). On the CPU
    it is the largest resident set of the process, including what it held before the block; this needs Linux.
    """

    def __init__(self, *, cuda: bool = False) -> None:
        self.cuda = cuda
        self.bytes: int | None = None
        self._reset = False

    def __enter__(self) -> PeakMemory:
        if self.cuda:
            import torch

            torch.cuda.reset_peak_memory_stats()
        else:
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to what is resident now
                self._reset = True
        return self

    def __exit__(self, *exception: object) -> None:
        if self.cuda:
            import torch

            self.bytes = torch.cuda.max_memory_allocated()
        elif self._reset:
            peak = field_of("/proc/self/status", "VmHWM:")
            self.bytes = None if peak is None else int(peak) * 1024
