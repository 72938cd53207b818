"""Let a CUDA device sleep on its stream, so that the host gets ahead of it."""

from __future__ import annotations

from functools import cache

_PROBE = 10_000_000  # cycles: some milliseconds


@cache
def _cycles_per_second(device: int) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(_PROBE)
    end.record()
    end.synchronize()
    return _PROBE / (begin.elapsed_time(end) / 1e3)


def device_sleep(seconds: float) -> None:
    """Enqueue a pause on the current stream; the host goes on. Waits for the device the first time."""
    import torch

    torch.cuda._sleep(int(seconds * _cycles_per_second(torch.cuda.current_device())))
