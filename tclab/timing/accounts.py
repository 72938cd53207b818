"""From the cuts of a ledger to seconds by timeline, step and stage, and to how far each timeline closes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

# The stages of a training step, in the order in which they run. A loop may have stages of its own.
STAGES = (
    "wait",  # for the loader
    "transfer",
    "mask",
    "forward",
    "loss",
    "gather",  # of every rank's samples, for the loss
    "backward",
    "waiting",  # for the slowest rank, when nothing is left to compute
    "communication",
    "clip",
    "optimizer",
    "log",
    "loop",  # what a framework that runs the loop does itself, between the stages
    "other",  # what lies between the stages
)
TOLERANCE = 0.02
QUEUE = "queue"  # owns the time in which the device is put behind the host; in no frame

Row = tuple[str, int, str, "float | None"]  # timeline, step, stage, seconds


@dataclass
class Cuts:
    """One step: from cut `i` to cut `i + 1` the time belongs to `owners[i]`."""

    owners: list[str] = field(default_factory=list)
    host: list[int] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)  # CUDA only, one a cut
    queue: int | None = None  # the cut at which the device was put behind the host
    queued: bool | None = None  # whether it was still behind at the last cut

    def reassign(self, begin: int, end: int, owner: str) -> None:
        """Cut at two more moments, and give what lies between to an owner; of the host's timeline alone."""
        assert not self.events, "events cannot be put in afterwards"
        for at in (begin, end):
            if self.host[0] < at < self.host[-1] and at not in self.host:
                place = bisect_right(self.host, at)
                self.host.insert(place, at)
                self.owners.insert(place, self.owners[place - 1])
        for place, at in enumerate(self.host[:-1]):
            if begin <= at < end:
                self.owners[place] = owner


@dataclass(frozen=True)
class Making:
    """How one batch was made in a worker.

    **Arguments:**

    - `worker`: its number; `None` where the batch was made in the process that trains.
    - `begin_ns`, `end_ns`: `time.perf_counter_ns()` before and after.
    - `stages`: stage → nanoseconds within them; what they leave is `other`.
    - `raw_ns`: `raw_clock_ns()` before and after, for the closure; missing where it was not read.
    """

    worker: int | None
    begin_ns: int
    end_ns: int
    stages: Mapping[str, int]
    raw_ns: tuple[int, int] | None = None


@dataclass(frozen=True)
class Block:
    """Steps that ran one after the other, under one reading of the raw clock.

    **Arguments:**

    - `first`, `end`: its steps are `first` to `end - 1`.
    - `wall_ns`: nanoseconds by the raw clock.
    """

    first: int
    end: int
    wall_ns: int


def _device_seconds(step: Cuts) -> list[float]:
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(step.events)]


def _sums(owners: Sequence[str], seconds: Sequence[float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for owner, took in zip(owners, seconds, strict=False):  # the last owner is nobody
        found[owner] = found.get(owner, 0.0) + took
    return found


def _step_rows(timeline: str, number: int, seconds: Mapping[str, float] | None) -> Iterator[Row]:
    found = {} if seconds is None else seconds
    for stage in STAGES:
        yield timeline, number, stage, found.get(stage)
    for stage, took in found.items():
        if stage not in STAGES:
            yield timeline, number, stage, took
    yield timeline, number, "step", None if seconds is None else sum(found.values())


def _line_of(making: Making) -> str:
    return "loading" if making.worker is None else f"worker {making.worker}"


def _making_rows(made: Sequence[Making]) -> Iterator[Row]:
    ended: dict[str, int] = {}
    for number, making in enumerate(made):
        line = _line_of(making)
        whole = making.end_ns - making.begin_ns
        for stage, took in making.stages.items():
            yield line, number, stage, took / 1e9
        yield line, number, "other", (whole - sum(making.stages.values())) / 1e9
        yield line, number, "batch", whole / 1e9
        if making.worker is not None:  # in its own process it is idle until it is asked for the next batch
            before = ended.get(line)
            yield line, number, "idle", None if before is None else (making.begin_ns - before) / 1e9
        ended[line] = making.end_ns


def rows_of(steps: Sequence[Cuts], made: Sequence[Making], *, queued: bool) -> Iterator[Row]:
    """Yield (timeline, step, stage, seconds) for every timeline; seconds are `None` where nothing was seen.

    The step of a worker's row is the number of the batch, in the order in which batches came; the whole of its
    making is the stage `batch`, and `idle` the time until it was asked for the next.
    """
    for number, step in enumerate(steps):
        host = _sums(step.owners, [(after - before) / 1e9 for before, after in pairwise(step.host)])
        host.pop(QUEUE, None)
        yield from _step_rows("host", number, host)
    for number, step in enumerate(steps):
        if step.events and queued:
            seen = _sums(step.owners, _device_seconds(step)) if step.queued else None
            if seen:  # what the device did before it was put behind the host was not queued
                seen.pop(QUEUE, None)
                seen.pop("wait", None)
            yield from _step_rows("queued", number, seen)
        elif step.events:
            yield from _step_rows("device", number, _sums(step.owners, _device_seconds(step)))
    yield from _making_rows(made)


def closures(
    steps: Sequence[Cuts], blocks: Sequence[Block], made: Sequence[Making], *, queued: bool
) -> dict[str, float | None]:
    """Return timeline → the share of an independently taken wall clock that its stages add up to.

    The host's and the device's clock is the raw one around each block. A worker's is the raw one between its first
    batch and its last; that of batches made in the training process, within its stage `wait`, is the raw one around
    each.
    """
    wall = sum(block.wall_ns for block in blocks) / 1e9
    inside = [step for block in blocks for step in steps[block.first : block.end]]
    if not inside or wall <= 0.0:
        return {}
    found: dict[str, float | None] = {"host": sum(step.host[-1] - step.host[0] for step in inside) / 1e9 / wall}
    if inside[0].events and not queued:
        found["device"] = sum(sum(_device_seconds(step)) for step in inside) / wall
    for line in sorted({_line_of(making) for making in made}):
        own = [making for making in made if _line_of(making) == line]
        clocks = [making.raw_ns for making in own if making.raw_ns is not None]
        if len(clocks) < len(own):
            found[line] = None
        elif own[0].worker is None:  # what lies between batches is not the loading's
            wall_ns = sum(end - begin for begin, end in clocks)
            found[line] = sum(making.end_ns - making.begin_ns for making in own) / wall_ns if wall_ns else None
        else:
            wall_ns = clocks[-1][1] - clocks[0][0]
            found[line] = (own[-1].end_ns - own[0].begin_ns) / wall_ns if wall_ns else None
    return found


def closure_words(timeline: str, share: float | None) -> str:
    """Return how far a timeline closes, as a person reads it."""
    if share is None:
        return f"{timeline}: no clock to close against"
    if abs(share - 1.0) <= TOLERANCE:
        return f"{timeline} closed: {share:.1%}"
    return f"{timeline} does NOT close: its stages add up to {share:.1%} of the wall clock"
