"""The rows of a ledger: seconds by timeline, step and stage, and the share of each timeline that they account for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

Cut = tuple[str, int, Any]  # stage of the time from here to the next cut, nanoseconds, a CUDA event or `None`
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


@dataclass(frozen=True)
class Block:
    """Consecutive steps, `first` to `end - 1`, and the raw clock's time around them and an unfinished step."""

    first: int
    end: int
    wall_ns: int
    unfinished: list[Cut]  # what came after the last of them, and is no step; empty for nothing


def stage_seconds(cuts: Sequence[Cut], timeline: str) -> dict[str, float]:
    """Return stage → seconds between the cuts of one step, on the timeline `host` or `device`."""
    seconds: dict[str, float] = {}
    for (stage, begin_ns, begin), (_, end_ns, end) in pairwise(cuts):
        took = (end_ns - begin_ns) / 1e9 if timeline == "host" else begin.elapsed_time(end) / 1e3
        seconds[stage] = seconds.get(stage, 0.0) + took
    return seconds


def step_rows(timeline: str, step: int, seconds: Mapping[str, float]) -> Iterator[Row]:
    """Yield a row for each stage of a step, `None` for those of `STAGES` that it did not have, and their sum `step`."""
    for stage in (*STAGES, *(stage for stage in seconds if stage not in STAGES)):
        yield timeline, step, stage, seconds.get(stage)
    yield timeline, step, "step", sum(seconds.values())


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


def rows_of(
    steps: Sequence[Sequence[Cut]],
    timelines: Sequence[str],
    moved: Mapping[int, Mapping[str, float]],
    batch_timings: Sequence[BatchTiming],
) -> Iterator[Row]:
    """Yield the rows of steps and of batches; `moved` is step → stage → seconds to add on the last timeline."""
    for timeline in timelines:
        for i, cuts in enumerate(steps):
            seconds = stage_seconds(cuts, timeline)
            if timeline == timelines[-1]:
                for stage, more in moved.get(i, {}).items():
                    seconds[stage] = seconds.get(stage, 0.0) + more
            yield from step_rows(timeline, i, seconds)
    yield from batch_rows(batch_timings)


def shares_of(
    steps: Sequence[Sequence[Cut]],
    blocks: Sequence[Block],
    timelines: Sequence[str],
    batch_timings: Sequence[BatchTiming],
) -> dict[str, float]:
    """Return timeline → the share of the raw clock's time that stages add up to; empty without a step.

    It is the time around the steps of each block, without what came after the last of them, and is no step. For
    batches it is the time from the first one's begin to the last one's end, by both clocks, where both were read.
    """
    if not blocks:
        return {}
    shares = {}
    for line in timelines:
        inside = sum(sum(stage_seconds(cuts, line).values()) for one in blocks for cuts in steps[one.first : one.end])
        after = sum(sum(stage_seconds(block.unfinished, line).values()) for block in blocks)
        wall = sum(block.wall_ns for block in blocks) / 1e9 - after
        shares[line] = inside / wall if wall > 0 else 0.0
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
