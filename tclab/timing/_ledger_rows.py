"""The stages of a ledger, and the rows of the batches that loader workers made."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# The stages of a training step, in the order in which they run. A loop may have others.
STAGES = (
    "data_wait",  # wait for the loader
    "transfer",
    "mask",
    "forward",
    "loss",
    "gather",  # all-gather of every rank's samples, for the loss
    "backward",
    "rank_wait",  # wait for the slowest rank, when nothing is left to compute
    "communication",  # exposed exchange of gradients
    "clip",
    "optimizer",
    "log",
    "loop",  # what the framework that runs the loop does between the stages
    "other",  # time in no stage
)
SUMS = ("step", "batch")  # stages that are the sum of a timeline's others
TOLERANCE = 0.02  # by which an accounted share may differ from 1

Row = tuple[str, int, str, "float | None"]  # timeline, step, stage, seconds


@dataclass(frozen=True)
class BatchTiming:
    """The times of making one batch; `None` is what was not read."""

    worker: int | None  # number of the loader worker; `None` if the training process made the batch
    begin_ns: int  # `time.perf_counter_ns()` before and after
    end_ns: int
    stages: Mapping[str, int]  # stage → nanoseconds; the remainder is `other`
    raw_ns: tuple[int, int] | None = None  # `raw_clock_ns()` before and after, for the accounted share
    cpu_ns: int | None = None  # processor time; less than the whole where the worker waited for a disk or for a core

    @property
    def timeline(self) -> str:
        """Name of the timeline that it is on."""
        return "loading" if self.worker is None else f"worker {self.worker}"


def batch_rows(batch_timings: Sequence[BatchTiming]) -> Iterator[Row]:
    """Yield the rows of loader workers and of batches that the training process makes.

    The step is the number of the batch in the order of arrival, the stage `batch` is the whole time of making it, and
    `idle` the time from the worker's previous batch to this one.
    """
    ended: dict[str, int] = {}
    for i, timing in enumerate(batch_timings):
        timeline, whole = timing.timeline, timing.end_ns - timing.begin_ns
        for stage, took in timing.stages.items():
            yield timeline, i, stage, took / 1e9
        yield timeline, i, "other", (whole - sum(timing.stages.values())) / 1e9
        yield timeline, i, "batch", whole / 1e9
        if timing.worker is not None:  # a worker process is idle until the next request
            yield timeline, i, "idle", (timing.begin_ns - ended[timeline]) / 1e9 if timeline in ended else None
        ended[timeline] = timing.end_ns


def batch_shares(batch_timings: Sequence[BatchTiming]) -> dict[str, float]:
    """Return timeline → time from its first batch's begin to its last one's end, divided by the raw clock's for it.

    It is of batches for which both clocks were read.
    """
    shares = {}
    begins: dict[str, tuple[int, int]] = {}  # timeline → both clocks at its first batch
    for timing in batch_timings:
        if timing.raw_ns is not None:
            raw_begin_ns, raw_end_ns = timing.raw_ns
            begin_ns, raw_ns = begins.setdefault(timing.timeline, (timing.begin_ns, raw_begin_ns))
            shares[timing.timeline] = (timing.end_ns - begin_ns) / max(raw_end_ns - raw_ns, 1)
    return shares


def raw_clock_ns() -> int:
    """Return nanoseconds of the hardware counter, which network time does not adjust."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
