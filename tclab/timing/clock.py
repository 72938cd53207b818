"""A clock for the stages of a step: the host's on a CPU, events on the stream on CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any


class StageClock:
    """Times steps and the stages within them, without ever waiting for a device inside a step.

    On CUDA each boundary is an event on the current stream, read when `seconds` is called, so a stage's time
    includes gaps in which the device waited for its next kernel. Stages that are the host's alone
    (`host=True`) are read from `perf_counter_ns` everywhere.

    **Arguments:**

    - `cuda`: the work runs on a CUDA device.
    """

    def __init__(self, *, cuda: bool = False) -> None:
        self.cuda = cuda
        self._steps: list[list[tuple[str, Any, Any]]] = []

    def _now(self, host: bool) -> Any:
        if self.cuda and not host:
            import torch

            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return perf_counter_ns()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step; it is the stage called `step`."""
        self._steps.append([])
        with self.stage("step"):
            yield

    @contextmanager
    def stage(self, name: str, *, host: bool = False) -> Iterator[None]:
        """Time one stage of the current step."""
        begin = self._now(host)
        yield
        self._steps[-1].append((name, begin, self._now(host)))

    def seconds(self) -> dict[str, list[float]]:
        """Return stage → its seconds in each step that had it; on CUDA this waits for the device."""
        if self.cuda:
            import torch

            torch.cuda.synchronize()
        found: dict[str, list[float]] = {}
        for stages in self._steps:
            for name, begin, end in stages:
                took = (end - begin) / 1e9 if isinstance(begin, int) else begin.elapsed_time(end) / 1e3
                found.setdefault(name, []).append(took)
        return found
