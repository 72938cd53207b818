"""The rows of a ledger: seconds by timeline, step and stage, and the share of each timeline that they account for."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

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
QUEUE = "queue"  # owns the time in which the device is delayed behind the host; not in `frame`

Row = tuple[str, int, str, "float | None"]  # timeline, step, stage, seconds


@dataclass
class Cuts:
    """The cuts of one step: the time from cut `i` to cut `i + 1` belongs to the stage `owners[i]`."""

    owners: list[str] = field(default_factory=list)
    host: list[int] = field(default_factory=list)  # nanoseconds, one a cut
    events: list[Any] = field(default_factory=list)  # CUDA only, one a cut
    queue: int | None = None  # the cut at which the device was delayed
    queued: bool | None = None  # whether the device was still behind at the last cut

    def reassign(self, begin: int, end: int, owner: str) -> None:
        """Cut at two more moments and assign the time between them to a stage; on the host's timeline only."""
        assert not self.events, "events cannot be inserted afterwards"
        for at in (begin, end):
            if self.host[0] < at < self.host[-1] and at not in self.host:
                place = bisect_right(self.host, at)
                self.host.insert(place, at)
                self.owners.insert(place, self.owners[place - 1])
        for place, at in enumerate(self.host[:-1]):
            if begin <= at < end:
                self.owners[place] = owner


@dataclass(frozen=True)
class BatchTiming:
    """The times of making one batch; `None` is what was not read."""

    worker: int | None  # number of the loader worker; `None` if the training process made the batch
    begin_ns: int  # `time.perf_counter_ns()` before and after
    end_ns: int
    stages: Mapping[str, int]  # stage → nanoseconds; the remainder is `other`
    raw_ns: tuple[int, int] | None = None  # `raw_clock_ns()` before and after, for the accounted share
    cpu_ns: int | None = None  # processor time; less than the whole where the worker waited for a disk or for a core


@dataclass(frozen=True)
class Block:
    """Consecutive steps, `first` to `end - 1`, with one reading of the raw clock around them."""

    first: int
    end: int
    wall_ns: int


def _device_seconds(step: Cuts) -> list[float]:
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(step.events)]


def _sums(owners: Sequence[str], seconds: Sequence[float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for owner, took in zip(owners, seconds, strict=False):  # the last owner has no time
        sums[owner] = sums.get(owner, 0.0) + took
    return sums


def _step_rows(timeline: str, number: int, seconds: Mapping[str, float] | None) -> Iterator[Row]:
    measured = {} if seconds is None else seconds
    for stage in STAGES:
        yield timeline, number, stage, measured.get(stage)
    for stage, took in measured.items():
        if stage not in STAGES:
            yield timeline, number, stage, took
    yield timeline, number, "step", None if seconds is None else sum(measured.values())


def _timeline_of(timing: BatchTiming) -> str:
    return "loading" if timing.worker is None else f"worker {timing.worker}"


def _batch_rows(batch_timings: Sequence[BatchTiming]) -> Iterator[Row]:
    ended: dict[str, int] = {}
    for number, timing in enumerate(batch_timings):
        line = _timeline_of(timing)
        whole = timing.end_ns - timing.begin_ns
        for stage, took in timing.stages.items():
            yield line, number, stage, took / 1e9
        yield line, number, "other", (whole - sum(timing.stages.values())) / 1e9
        yield line, number, "batch", whole / 1e9
        if timing.worker is not None:  # a worker process is idle until the next request
            before = ended.get(line)
            yield line, number, "idle", None if before is None else (timing.begin_ns - before) / 1e9
        ended[line] = timing.end_ns


def ledger_rows(steps: Sequence[Cuts], batch_timings: Sequence[BatchTiming], *, queued: bool) -> Iterator[Row]:
    """Yield (timeline, step, stage, seconds) of every timeline; seconds are `None` where a stage did not occur.

    In a worker's row, the step is the number of the batch in the order of arrival, the stage `batch` is the whole time
    of making it, and `idle` the time from the worker's previous batch to this one.
    """
    for number, step in enumerate(steps):
        host = _sums(step.owners, [(after - before) / 1e9 for before, after in pairwise(step.host)])
        host.pop(QUEUE, None)
        yield from _step_rows("host", number, host)
    for number, step in enumerate(steps):
        if step.events and queued:
            queued_seconds = _sums(step.owners, _device_seconds(step)) if step.queued else None
            if queued_seconds:  # the device's work before the delay was not queued
                queued_seconds.pop(QUEUE, None)
                queued_seconds.pop("data_wait", None)
            yield from _step_rows("queued", number, queued_seconds)
        elif step.events:
            yield from _step_rows("device", number, _sums(step.owners, _device_seconds(step)))
    yield from _batch_rows(batch_timings)


def accounted_shares(
    steps: Sequence[Cuts], blocks: Sequence[Block], batch_timings: Sequence[BatchTiming], *, queued: bool
) -> dict[str, float | None]:
    """Return timeline → the share of an independently measured wall time that its stages add up to.

    For host and device the wall time is the raw clock's around each block; for a worker, from its first batch to its
    last; for batches that the training process makes, within its stage `data_wait`, around each of them.
    """
    wall = sum(block.wall_ns for block in blocks) / 1e9
    inside = [step for block in blocks for step in steps[block.first : block.end]]
    if not inside or wall <= 0.0:
        return {}
    shares: dict[str, float | None] = {"host": sum(step.host[-1] - step.host[0] for step in inside) / 1e9 / wall}
    if inside[0].events and not queued:
        shares["device"] = sum(sum(_device_seconds(step)) for step in inside) / wall
    for line in sorted({_timeline_of(timing) for timing in batch_timings}):
        timings = [timing for timing in batch_timings if _timeline_of(timing) == line]
        clocks = [timing.raw_ns for timing in timings if timing.raw_ns is not None]
        if len(clocks) < len(timings):
            shares[line] = None
        elif timings[0].worker is None:  # the time between batches is not loading
            wall_ns = sum(end - begin for begin, end in clocks)
            shares[line] = sum(timing.end_ns - timing.begin_ns for timing in timings) / wall_ns if wall_ns else None
        else:
            wall_ns = clocks[-1][1] - clocks[0][0]
            shares[line] = (timings[-1].end_ns - timings[0].begin_ns) / wall_ns if wall_ns else None
    return shares


def accounted_text(timeline: str, share: float | None) -> str:
    """Return a timeline's accounted share in words."""
    if share is None:
        return f"{timeline}: no wall clock to compare with"
    if abs(share - 1.0) <= TOLERANCE:
        return f"{timeline} accounted for: {share:.1%}"
    return f"{timeline} does NOT add up: its stages are {share:.1%} of the wall time"


def raw_clock_ns() -> int:
    """Return nanoseconds of the hardware counter, which network time does not adjust."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
