"""The ledger: a loop's time, cut at consecutive boundaries, so that stages and `other` add up to the whole."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from tclab._display import Display, Shown, counted, seconds_text
from tclab.errors import InputError
from tclab.timing._environment import conditions, contention, on_cuda

if TYPE_CHECKING:
    import pandas as pd

Item = TypeVar("Item")
Cut = tuple[str, int, Any]  # stage of the time from here to the next cut, nanoseconds, a CUDA event or `None`

# The stages of a training step, in the order in which they run; a loop may have others. `data_wait` is the wait for the
# loader, `gather` the all-gather of every rank's samples for the loss, `rank_wait` the wait for the slowest rank when
# nothing is left to compute, `communication` the exposed exchange of gradients, `loop` what the framework that runs the
# loop does between the stages, and `other` the time in no stage.
STAGES = (
    "data_wait", "transfer", "mask", "forward", "loss", "gather", "backward", "rank_wait", "communication", "clip",
    "optimizer", "log", "loop", "other",
)  # fmt: skip
SUMS = ("step", "batch")  # stages that are the sum of a timeline's others
TOLERANCE = 0.02  # by which an accounted share may differ from 1

Row = tuple[str, int, str, "float | None"]  # timeline, step, stage, seconds

_END: Any = object()
_NOTHING: AbstractContextManager[None] = nullcontext()


class BatchTiming(NamedTuple):
    """The making of one batch. Moments are nanoseconds of `perf_counter_ns`, whose clock processes share."""

    worker: int | None  # number of the loader worker; `None` if the training process made the batch
    begin_ns: int
    end_ns: int
    stages: Mapping[str, int]  # stage → nanoseconds; the remainder is `other`
    wait_ns: int = 0  # that the loop waited for it; 0 of the first, which waits for workers that start
    arrived_ns: int = 0  # when the loop got it; this and the wait are known to `loader_times` alone


def moment(cuda: bool, spare: list[Any] | None = None) -> tuple[int, Any]:
    """Return nanoseconds of the host's clock and, on CUDA, an event on the current stream.

    **Arguments:**

    - `spare`: events that were read; if there is one, it is taken off the list and recorded again.
    """
    if not cuda:
        return perf_counter_ns(), None
    import torch

    event = spare.pop() if spare else torch.cuda.Event(enable_timing=True)
    event.record()
    return perf_counter_ns(), event


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
        timeline = "loading" if timing.worker is None else f"worker {timing.worker}"
        whole = timing.end_ns - timing.begin_ns
        for stage, took in timing.stages.items():
            yield timeline, i, stage, took / 1e9
        yield timeline, i, "other", (whole - sum(timing.stages.values())) / 1e9
        yield timeline, i, "batch", whole / 1e9
        if timing.worker is not None:  # a worker process is idle until the next request
            yield timeline, i, "idle", (timing.begin_ns - ended[timeline]) / 1e9 if timeline in ended else None
        ended[timeline] = timing.end_ns


def raw_clock_ns() -> int:
    """Return nanoseconds of the hardware counter, which network time does not adjust."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


@dataclass(slots=True, eq=False)
class _Stage(AbstractContextManager[None]):
    """The context of one stage; a class, since a generator that is dropped half-way would end its stage."""

    ledger: Ledger
    name: str
    mark: Any = _NOTHING  # in the trace of a profiler

    def __enter__(self) -> None:
        ledger, here = self.ledger, threading.current_thread()
        if here is not ledger._thread and not isinstance(here, threading._DummyThread):
            return
        if ledger._cuts is None:
            raise RuntimeError(f"the stage {self.name!r} was entered outside a step: loop over ledger.steps(loader)")
        if ledger.marks:
            import torch

            # a tenth of the cost of torch.profiler.record_function, which would distort stages of microseconds
            self.mark = torch._C._profiler._RecordFunctionFast(f"ledger: {self.name}")
            self.mark.__enter__()
        ledger._open.append(self)
        ledger._cut(self.name)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        ledger, stages = self.ledger, self.ledger._open
        if self not in stages:  # on another thread, or the step was ended inside it
            return
        ledger._failed |= kind is not None
        ledger._cut(stages[-2].name if len(stages) > 1 else "other")
        stages.pop()  # after the cut: an interrupt between the two leaves a stage open, and so no whole step
        self.mark.__exit__(None, None, None)


class Timer:
    """What a loop needs of a ledger. This one times nothing: the same loop runs untimed."""

    def steps(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield the batches, a step each."""
        return iter(batches)

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Return the context of one stage of the current step."""
        return _NOTHING


class Ledger(Timer, Shown):
    """Times every moment of a loop's steps: its stages, and `other` between them.

    `with Ledger() as ledger: for batch in ledger.steps(loader): ...` and, inside the loop,
    `with ledger.stage("forward"): ...`. Each boundary is one cut, which ends the stage before it and begins the one
    after, so no time is left out and none counts twice: a stage inside a stage is taken out of the outer one. On CUDA
    a cut also records an event on the current stream. The ledger synchronises with the device before the first step
    and after the last one, never between: a pair of events holds the gaps in which the device waits to be given work.

    Timelines: `host`; `device` on CUDA; `worker 0`, … where batches carry a `BatchTiming`. They overlap, so each adds
    up by itself. The stages of host and device are compared with the kernel's raw clock, which the cuts do not use.

    A step's events are read, and used again, once the device has reached the last of them: a loop of any length holds
    as many as the device is behind. What stays of a step is the seconds of its stages.

    A step is complete when the next batch is asked for. One that an exception leaves inside a stage is none, nor is
    the last one before a `break`, unless `end(keep=True)` comes first. A stage that another thread of the program
    enters, such as one that prefetches, is not of the loop and left out; those of autograd's threads count.

    **Arguments:**

    - `cuda`: the work runs on a CUDA device; by default decided when the first step begins.
    - `marks`: also mark each stage, as `ledger: forward`, in the trace of a torch.profiler that is recording.
    """

    def __init__(self, *, cuda: bool | None = None, marks: bool = False) -> None:
        self.cuda = cuda
        self.marks = marks
        self.muted = False  # stages do nothing: a framework may run a module's own between steps
        self._workers = 0  # of the loader that `steps` was given
        self._steps: list[dict[str, dict[str, float]]] = []  # of each: timeline → stage → seconds, once they are read
        self._unread: deque[tuple[list[Cut], dict[str, dict[str, float]]]] = deque()  # cuts of steps, and their place
        self._spare: list[Any] = []  # CUDA events
        self.at_exit: list[Callable[[], None]] = []  # called as the `with` block ends without an exception
        self.at_step: list[Callable[[int | None], object]] = []  # called with a step's number, `None` if it is dropped
        self.batch_timings: list[BatchTiming] = []  # in the order of arrival
        self.begins: list[int] = []  # the first step of each block: of each loop over `steps`
        self._ended = 0  # steps of all blocks that have ended
        # timeline → seconds of all blocks by the raw clock, without unfinished steps
        self._wall = defaultdict[str, float](float)
        self._cuts: list[Cut] | None = None  # of the open step
        self._begin_ns = 0  # of the open block, by the raw clock
        self._thread = threading.current_thread()  # of the loop
        self._around: list[dict[str, float | None]] = []  # `conditions` before the first block and after the last
        self._open: list[_Stage] = []  # that were entered, innermost last
        self._failed = False  # an exception left a stage of the open step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.end()
        for call in self.at_exit if kind is None else ():
            call()

    def __len__(self) -> int:
        """Number of completed steps."""
        return len(self._steps)

    def __bool__(self) -> bool:
        return True  # a ledger without steps is not false

    @property
    def current(self) -> str:
        """The stage that the loop is in; `other` between stages and outside steps."""
        return self._open[-1].name if self._open else "other"

    @property
    def in_step(self) -> bool:
        """Whether a step is open."""
        return self._cuts is not None

    # ---- the loop

    def steps(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield the batches; a step lasts from the request for its batch to the request for the next.

        The wait for the batch is the stage `data_wait`. A batch whose attribute `timing` is a `BatchTiming` is entered
        on its worker's timeline. The workers of a `torch.utils.data.DataLoader` are part of the loop's cycle.
        """
        self._workers = max(self._workers, getattr(batches, "num_workers", 0))
        iterator = iter(batches)
        try:
            while True:
                self.next_step()
                with self.stage("data_wait"):
                    batch = next(iterator, _END)
                if batch is _END:
                    break
                timing = getattr(batch, "timing", None)
                if isinstance(timing, BatchTiming):
                    self.batch_timings.append(timing)
                held, batch = [batch], None  # only the loop holds the batch, so that it can free it
                yield held.pop()
        finally:
            self.end()

    def next_step(self) -> None:
        """End the open step, if any, and begin the next with the same cut; for the hooks of a framework's loop."""
        if self._failed or self._open:  # a step that is not whole ends its block
            self.end()
        if self._cuts is None:
            if self.cuda is None:
                self.cuda = on_cuda()
            self._around = self._around[:1] or [conditions()]
            self._synchronize()
            self._cuts = []
            self._thread = threading.current_thread()
            self._begin_ns = raw_clock_ns()
            self._cut("other")
        else:
            self._cut("")
            step, self._cuts = self._cuts, [("other", *self._cuts[-1][1:])]
            self._close(step)

    def end(self, *, keep: bool = False) -> None:
        """End the block of steps that `next_step` began.

        **Arguments:**

        - `keep`: complete the open step; by default it is dropped.
        """
        for stage in reversed(self._open):
            stage.mark.__exit__(None, None, None)
        if self._cuts is not None:
            end_ns = raw_clock_ns()  # before the cut, whose tuple may set off a garbage collection between the clocks
            self._cut("")
            cuts, self._cuts = self._cuts, None
            if self.cuda:
                self._synchronize()
                end_ns = raw_clock_ns()
            self._around[1:] = [conditions()]
            keep = keep and not self._failed
            self._close(cuts, keep=keep)
            if len(self._steps) > self._ended:
                self.begins.append(self._ended)
                self._ended = len(self._steps)
                for line in self._timelines:
                    dropped = 0.0 if keep else sum(stage_seconds(cuts, line).values())
                    self._wall[line] += (end_ns - self._begin_ns) / 1e9 - dropped
        self._open.clear()
        self._failed = False

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Return the context of one stage of the current step, which may have it once or more.

        **Arguments:**

        - `name`: one of `STAGES`, or any other but "step" and "batch", which are sums of stages.

        **Raises:** `InputError` for such a name; on entry, `RuntimeError` outside a step.
        """
        if name in SUMS:
            raise InputError(f"a stage is called {name!r}, which is the sum of all stages; expected another name")
        return _NOTHING if self.muted else _Stage(self, name)

    def assign_next(self, name: str) -> None:
        """Assign the time from here to the next cut to a stage; on any thread: a backward may have its own."""
        if self._cuts is not None:
            self._cut(name)

    def move(self, step: int, stages: Mapping[str, float], *, out_of: str) -> None:
        """Move time of a completed step to stages that another clock told apart from it.

        It is moved on the timeline of the device on CUDA, and else on that of the host.

        **Arguments:**

        - `step`: number of the step.
        - `stages`: stage → its seconds.
        - `out_of`: the stage that they are taken from.
        """
        seconds = self._read()[step][self._timelines[-1]]
        for name, more in {**stages, out_of: stages.get(out_of, 0.0) - sum(stages.values())}.items():
            seconds[name] = seconds.get(name, 0.0) + more

    # ---- cuts

    def _synchronize(self) -> None:
        if self.cuda:
            import torch

            torch.cuda.synchronize()

    def _cut(self, owner: str) -> None:
        assert self._cuts is not None
        self._cuts.append((owner, *moment(bool(self.cuda), self._spare)))

    def _close(self, cuts: list[Cut], *, keep: bool = True) -> None:
        if keep:
            self._unread.append((cuts, {}))
            self._steps.append(self._unread[-1][1])
        if self.cuda:  # without events it can wait until the seconds are asked for
            self._read()
        for call in self.at_step:
            call(len(self._steps) - 1 if keep else None)

    def _read(self) -> list[dict[str, dict[str, float]]]:
        """Return each step's seconds, from its cuts once the device has left them behind; their events go back."""
        while self._unread and all(event is None or event.query() for *_, event in reversed(self._unread[0][0])):
            cuts, seconds = self._unread[0]
            seconds |= {line: stage_seconds(cuts, line) for line in self._timelines}
            self._unread.popleft()
            self._spare += [event for *_, event in cuts[:-1] if event is not None]  # the last begins the next step
        return self._steps

    # ---- results

    def rows(self) -> Iterator[Row]:
        """Yield the rows of `frame` as tuples (timeline, step, stage, seconds), without pandas."""
        for timeline in self._timelines:
            for i, step in enumerate(self._read()):
                if timeline in step:
                    yield from step_rows(timeline, i, step[timeline])
        yield from batch_rows(self.batch_timings)

    @property
    def _timelines(self) -> list[str]:
        return ["host", "device"] if self.cuda else ["host"]

    def frame(self) -> pd.DataFrame:
        """Return one row per timeline, step and stage: `timeline`, `step`, `stage`, `seconds`.

        `seconds` is missing (never 0) where one of `STAGES` did not occur in that step. The whole step is the stage
        `step`.
        """
        import pandas as pd

        rows = pd.DataFrame.from_records(list(self.rows()), columns=["timeline", "step", "stage", "seconds"])
        return rows.astype({"seconds": "Float64"})

    def seconds(self, timeline: str = "host") -> dict[str, list[float]]:
        """Return stage → its seconds in each step that had it, the whole `step` included, without pandas."""
        stages: dict[str, list[float]] = {}
        for line, _, stage, seconds in self.rows():
            if line == timeline and seconds is not None:
                stages.setdefault(stage, []).append(seconds)
        return stages

    @property
    def workers(self) -> int | None:
        """Number of loader workers, by the loader or by its batches' timings; `None` where neither tells."""
        known = [0 if timing.worker is None else timing.worker + 1 for timing in self.batch_timings]
        return max([self._workers, *known]) if known or self._workers else None

    @property
    def accounted(self) -> dict[str, float]:
        """Timeline → the share of its wall time, by the raw clock, that its stages and `other` account for.

        The wall time is that of all blocks, without an unfinished step at their end. Empty without a step.
        """
        steps = self._read()[: self._ended]
        inside = {line: sum(sum(step[line].values()) for step in steps) for line in self._wall}
        return {line: inside[line] / wall if wall > 0 else 0.0 for line, wall in self._wall.items()}

    @property
    def busy_percent(self) -> float | None:
        """The percentage of the time in which something waited for a processor, from the first step to the last.

        It is `None` where the machine was not busy, or that is not known.
        """
        return contention(self._around[0], self._around[-1]).busy_percent if self._around else None

    def adds_up(self) -> bool:
        """Whether the stages of each timeline add up to its wall time, within 2 % of it; false without a step."""
        shares = self.accounted.values()
        return bool(shares) and all(abs(share - 1.0) <= TOLERANCE for share in shares)

    def _display(self) -> Display:
        """Return each stage's mean over all steps, which add up to the step, and what the timelines account for.

        The median is of the steps that had the stage: of a typical one, which may have waited for nothing. A worker's
        `idle` is in no whole.
        """
        lines = []
        for timeline in dict.fromkeys(line for line, *_ in self.rows()):
            stages = self.seconds(timeline)
            steps = max(map(len, stages.values()))
            whole = sum(sum(seconds) for name, seconds in stages.items() if name not in (*SUMS, "idle"))
            for name, seconds in stages.items():
                if name not in SUMS:
                    share = f"{sum(seconds) / whole:.1%}" if whole and name != "idle" else ""
                    times = (seconds_text(sum(seconds) / steps), seconds_text(median(seconds)))
                    lines.append((timeline, name, *times, share, str(len(seconds))))
        accounted = ", ".join(f"{timeline} {share:.1%}" for timeline, share in self.accounted.items())
        notes = [f"accounted for: {accounted}"] if accounted else []
        if accounted and not self.adds_up():
            notes.append("it does NOT add up: the stages of a timeline are not its wall time")
        columns = ("timeline", "stage", "mean", "median", "share", "steps")
        return Display(counted(len(self), "step"), columns, lines, notes)
