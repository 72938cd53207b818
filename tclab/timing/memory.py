"""The most memory that was in use."""

from __future__ import annotations

from types import TracebackType


def _resident_peak_bytes() -> int | None:
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


class PeakMemory:
    """The most memory in use inside a `with` block, in `bytes`; `None` where the system cannot tell.

    On CUDA what torch's allocator had handed out at once; on the CPU the largest resident set of the process,
    which includes all that it held before. The latter needs Linux.

    **Arguments:**

    - `cuda`: the work runs on a CUDA device.
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
            try:
                with open("/proc/self/clear_refs", "w") as file:
                    file.write("5")  # sets the peak back to what is resident now
                self._reset = True
            except OSError:
                self._reset = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.cuda:
            import torch

            self.bytes = torch.cuda.max_memory_allocated()
        elif self._reset:
            self.bytes = _resident_peak_bytes()
