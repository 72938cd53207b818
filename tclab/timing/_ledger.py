"""The ledger: a loop's time, cut at consecutive boundaries, so that stages and `other` add up to the whole."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dis import opname
from functools import cache
from itertools import pairwise
from statistics import median
from threading import get_ident
from time import perf_counter_ns
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from tclab._display import Display, Shown, seconds_text
from tclab.errors import InputError
from tclab.timing._ledger_rows import (
    QUEUE,
    SUMS,
    TOLERANCE,
    BatchTiming,
    Block,
    Cuts,
    Row,
    accounted_shares,
    accounted_text,
    ledger_rows,
    raw_clock_ns,
)

if TYPE_CHECKING:
    import pandas as pd

Item = TypeVar("Item")

_END: Any = object()
# The instructions at which a loop's frame drops its iterator when it ends by itself, by `break` or by `return`.
_ENDS_LOOP = {"POP_TOP", "FOR_ITER", "END_FOR"}
_YIELDS = {"YIELD_VALUE", "RESUME"}

Spike = Callable[[int], "tuple[str, float] | None"]  # step number → (stage, seconds) of a delay


class _Stage:
    """The context of one stage of a ledger, entered once or more a step."""

    __slots__ = ("ledger", "name")

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.ledger = ledger
        self.name = name

    def __enter__(self) -> None:
        self.ledger._check_step(self.name)
        try:
            if self.ledger.marks:
                self.ledger._mark(self.name)
            self.ledger._open.append(self.name)
            self.ledger._cut(self.name)
        except BaseException:  # an interrupt between two parts of a cut
            self.ledger._broken = True
            raise

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is not None:
                self.ledger._broken = True
            self.ledger._leave()
            if self.ledger._marks:
                self.ledger._marks.pop().__exit__(None, None, None)
        except BaseException:
            self.ledger._broken = True
            raise


class Ledger(Shown):
    """Times every moment of a loop's steps: its stages, and `other` between them.

    `with Ledger() as ledger: for batch in ledger.steps(loader): ...` and, inside the loop,
    `with ledger.stage("forward"): ...`. Each boundary is one cut, which ends the stage before it and begins the one
    after, so no time is left out and none counts twice: a stage inside a stage is taken out of the outer one. On CUDA
    a cut also records an event on the current stream. The ledger synchronises with the device before the first step
    and after the last one, never between.

    Timelines: `host`; `device` on CUDA; `worker 0`, … where batches carry a `BatchTiming`. They overlap, so each is
    accounted for by itself: its stages are compared with the kernel's raw clock, which the cuts do not use.

    **Arguments:**

    - `cuda`: the work runs on a CUDA device; by default decided when the first step begins.
    - `queued`: delay the device behind the host before each step, so that its events contain no launch gaps; the
      timeline is then called `queued`. This slows the step down, so measure the step itself without it.
    - `marks`: also mark each stage, as `ledger: forward`, in the trace of a torch.profiler that is recording.
    - `spike`: step number → (stage, seconds) of a delay to insert, or `None`; for the stage `other`, between the first
      two stages. See `spike_in`.
    """

    def __init__(
        self,
        *,
        cuda: bool | None = None,
        queued: bool = False,
        marks: bool = False,
        spike: Spike | None = None,
    ) -> None:
        self.cuda = cuda
        self.queued = queued
        self.marks = marks
        self._spike = spike
        self._pending: tuple[str, float] | None = None
        self._steps: list[Cuts] = []
        self._cuts: Cuts | None = None  # of the step that is open
        self._open: list[str] = []
        self._thread: int | None = None
        self._batch_timings: list[BatchTiming] = []
        self._workers = 0  # of the loader that `steps` was given
        self.prefetch_factor: int | None = None  # its own
        self._blocks: list[Block] = []
        self._first: int | None = None  # step of the open block
        self._before: Cuts | None = None  # the step before this one in the open block
        self._begin_ns = self._end_ns = 0  # of the open block, by the raw clock
        self._stages: dict[str, _Stage] = {}
        self._marks: list[Any] = []  # of the open stages
        self._broken = False  # an exception left a stage of the open step

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def __len__(self) -> int:
        """Number of completed steps."""
        return len(self._steps)

    def __bool__(self) -> bool:
        return True  # a ledger without steps is not false

    @property
    def current(self) -> str:
        """The stage that the loop is in; `other` between stages and outside steps."""
        return self._open[-1] if self._open else "other"

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
        self.prefetch_factor = getattr(batches, "prefetch_factor", self.prefetch_factor)
        try:
            iterator = iter(batches)
        except TypeError as error:
            raise InputError(f"the batches of ledger.steps are {batches!r}, expected a DataLoader or a list") from error
        try:
            while True:
                self.next_step()
                with self.stage("data_wait"):
                    batch = next(iterator, _END)
                if batch is _END:
                    break
                timing = getattr(batch, "timing", None)
                if isinstance(timing, BatchTiming):
                    self._batch_timings.append(timing)
                self._delay_device()
                held, batch = [batch], None  # only the loop holds the batch, so that it can free it
                try:
                    yield held.pop()
                except GeneratorExit:
                    if _loop_has_ended(sys._getframe().f_back):
                        self._finish_step()
                    raise
                self._finish_step()
        finally:
            self.end()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step, in a loop that does not iterate over `ledger.steps(…)`."""
        self.next_step()
        self._delay_device()
        try:
            yield
            self._finish_step()
        finally:
            self.end()

    def next_step(self) -> None:
        """End the open step, if any, and begin the next with the same cut; for the hooks of a framework's loop."""
        self._finish_step()
        if self._first is None:
            self._begin_block()
        self._cuts, before = Cuts(), self._before
        self._open.clear()
        self._pending = self._spike(len(self._steps)) if self._spike is not None else None
        if before is None:
            self._cut("other")
            self._begin_ns = self._end_ns = raw_clock_ns()
        else:
            self._cuts.owners.append("other")
            self._cuts.host.append(before.host[-1])
            self._cuts.events.extend(before.events[-1:])

    def end(self, *, keep: bool = False) -> None:
        """End the block of steps that `next_step` began.

        **Arguments:**

        - `keep`: complete the open step; by default it is dropped.
        """
        if keep:
            self._finish_step()
        self._drop_step()
        if self._first is not None:
            self._end_block()

    def stage(self, name: str) -> _Stage:
        """Return the context of one stage of the current step.

        **Arguments:**

        - `name`: one of `STAGES`, or any other but "step" and "batch", which are sums of stages.

        **Raises:** `InputError` for such a name; on entry, `RuntimeError` outside a step, or on another thread than
        the step's.
        """
        if name not in self._stages:
            if name in SUMS:
                raise InputError(f"a stage is called {name!r}, which is the sum of all stages; expected another name")
            self._stages[name] = _Stage(self, name)
        return self._stages[name]

    def assign_next(self, name: str) -> None:
        """Assign the time from here to the next cut to a stage; on any thread: a backward may have its own."""
        if self._cuts is not None:
            self._cut(name)

    def reassign(self, step: int, begin_ns: int, end_ns: int, stage: str) -> None:
        """Assign a part of a completed step's host timeline to a stage that is known only afterwards.

        **Arguments:**

        - `step`: number of the step.
        - `begin_ns`, `end_ns`: the part, by `perf_counter_ns`.
        - `stage`: name of the stage.
        """
        self._steps[step].reassign(begin_ns, end_ns, stage)

    # ---- cuts

    def _begin_block(self) -> None:
        if self.cuda is None:
            torch = sys.modules.get("torch")
            self.cuda = bool(torch is not None and torch.cuda.is_initialized())
        self._thread = get_ident()
        self._synchronize()
        self._first, self._before = len(self._steps), None

    def _end_block(self) -> None:
        if self.cuda:
            self._synchronize()
            self._end_ns = raw_clock_ns()
        first, self._first, self._before = self._first, None, None
        assert first is not None
        if len(self._steps) > first:
            self._blocks.append(Block(first, len(self._steps), self._end_ns - self._begin_ns))

    def _synchronize(self) -> None:
        if self.cuda:
            import torch

            torch.cuda.synchronize()

    def _drop_step(self) -> None:
        self._cuts = None
        self._broken = False
        self._open.clear()
        while self._marks:
            self._marks.pop().__exit__(None, None, None)

    def _finish_step(self) -> None:
        """Complete the open step, unless there is none or an exception left one of its stages."""
        cuts = self._cuts
        if cuts is None or self._broken:
            self._drop_step()
            return
        self._cut("")
        self._end_ns = raw_clock_ns()  # at once: a garbage collection between two clocks is time that no stage has
        if cuts.queue is not None:  # the device still sleeps now, so nothing waited for it in between
            cuts.queued = not cuts.events[cuts.queue + 1].query()
        self._steps.append(cuts)
        self._before = cuts
        self._drop_step()

    def _check_step(self, name: str) -> None:
        if self._cuts is None:
            raise RuntimeError(
                "a stage was entered outside a step: loop over ledger.steps(loader), or open ledger.step()"
            )
        if self._thread != get_ident():
            raise RuntimeError(f"stage {name!r} was entered on another thread than its step")

    def _cut(self, owner: str) -> None:
        cuts = self._cuts
        assert cuts is not None
        cuts.owners.append(owner)
        if self.cuda:
            import torch

            event = torch.cuda.Event(enable_timing=True)
            event.record()
            cuts.events.append(event)
        cuts.host.append(perf_counter_ns())

    def _mark(self, name: str) -> None:
        import torch

        # a tenth of the cost of torch.profiler.record_function, which would distort stages of microseconds
        mark = getattr(torch._C._profiler, "_RecordFunctionFast", torch.profiler.record_function)
        context = mark(f"ledger: {name}")
        context.__enter__()
        self._marks.append(context)

    def _leave(self) -> None:
        if self._cuts is None:  # the step was dropped inside this stage
            return
        if self._pending is not None and self._pending[0] == self.current:
            self._delay()  # last in the stage: what follows runs on cold caches and must not count for the stage
        self._open.pop()
        self._cut(self.current)
        if self._pending is not None and self._pending[0] == "other" and not self._open:
            self._delay()

    def _delay_device(self) -> None:
        """Let the device sleep for longer than the host takes to enqueue the step, going by the previous step."""
        if not (self.queued and self.cuda):
            return
        seconds = 0.05
        if self._steps:
            before = self._steps[-1]
            seconds = 0.001 + 2.0 * (before.host[-1] - before.host[before.queue or 0]) / 1e9
        assert self._cuts is not None
        self._cuts.queue = len(self._cuts.owners)
        self._cut(QUEUE)
        device_sleep(seconds)
        self._cut("other")

    def _delay(self) -> None:
        assert self._pending is not None
        until = perf_counter_ns() + int(self._pending[1] * 1e9)
        self._pending = None
        while perf_counter_ns() < until:  # sleeping would overshoot by as much as the delays to be recovered
            pass

    # ---- results

    def rows(self) -> Iterator[Row]:
        """Yield the rows of `frame` as tuples (timeline, step, stage, seconds), without pandas."""
        return ledger_rows(self._steps, self._batch_timings, queued=self.queued)

    def spans(self) -> Iterator[tuple[str, int, int]]:
        """Yield (stage, begin, end) in nanoseconds of `perf_counter_ns`, as `tclab.trace.lay_spans` takes them."""
        for step in self._steps:
            for owner, (begin, end) in zip(step.owners, pairwise(step.host), strict=False):
                yield owner, begin, end

    def frame(self) -> pd.DataFrame:
        """Return one row per timeline, step and stage: `timeline`, `step`, `stage`, `seconds`.

        `seconds` is missing (never 0) where one of `STAGES` did not occur in that step and, on the timeline `queued`,
        where the device caught up with the host. The whole step is the stage `step`.
        """
        import pandas as pd

        rows = pd.DataFrame.from_records(list(self.rows()), columns=["timeline", "step", "stage", "seconds"])
        return rows.astype({"seconds": "Float64"})

    def seconds(self, timeline: str = "host") -> dict[str, list[float]]:
        """Return stage → its seconds in each step that had it, the whole `step` included, without pandas."""
        by_stage: dict[str, list[float]] = {}
        for line, _, stage, seconds in self.rows():
            if line == timeline and seconds is not None:
                by_stage.setdefault(stage, []).append(seconds)
        return by_stage

    @property
    def batch_timings(self) -> tuple[BatchTiming, ...]:
        """The times of making each batch, in the order of arrival."""
        return tuple(self._batch_timings)

    @property
    def workers(self) -> int | None:
        """Number of loader workers, by the loader or by its batches' timings; `None` where neither tells."""
        known = [0 if timing.worker is None else timing.worker + 1 for timing in self._batch_timings]
        return max([self._workers, *known]) if known or self._workers else None

    @property
    def accounted(self) -> dict[str, float | None]:
        """Timeline → the share of its wall time that its stages and `other` account for, over all blocks.

        `None` where the timeline has no wall clock. See `blocks` for single blocks.
        """
        return accounted_shares(self._steps, self._blocks, self._batch_timings, queued=self.queued)

    def blocks(self) -> list[dict[str, float | None]]:
        """Return `accounted` of each block: of each loop over `steps`, or each single `step`."""
        return [accounted_shares(self._steps, [block], [], queued=self.queued) for block in self._blocks]

    def begins(self) -> list[int]:
        """Return the number of the first step of each block."""
        return [block.first for block in self._blocks]

    def adds_up(self, tolerance: float = TOLERANCE) -> bool:
        """Whether the stages of each timeline that has a wall clock add up to it, within `tolerance` of it.

        False without a step: there is nothing that does.
        """
        return bool(self._blocks) and all(
            share is None or abs(share - 1.0) <= tolerance for share in self.accounted.values()
        )

    def _display(self) -> Display:
        """Return each stage's mean over all steps, which add up to the step, and what the timelines account for.

        The median is of the steps that had the stage: of a typical one, which may have waited for nothing. A worker's
        `idle` is in no whole.
        """
        lines = []
        for timeline in dict.fromkeys(row[0] for row in self.rows()):
            stages = self.seconds(timeline)
            parts = {name: seconds for name, seconds in stages.items() if name not in SUMS}
            steps = max(map(len, stages.values()), default=1)
            whole = sum(sum(seconds) for name, seconds in parts.items() if name != "idle")
            for name, seconds in parts.items():
                share = f"{sum(seconds) / whole:.1%}" if whole and name != "idle" else ""
                times = (seconds_text(sum(seconds) / steps), seconds_text(median(seconds)))
                lines.append((timeline, name, *times, share, str(len(seconds))))
        accounted = [accounted_text(timeline, share) for timeline, share in self.accounted.items()]
        return Display(
            f"{len(self)} steps", ("timeline", "stage", "mean", "median", "share", "steps"), lines, accounted
        )


def _loop_has_ended(frame: FrameType | None) -> bool:
    """Return whether a loop whose generator is being closed has ended, and was not left by an exception.

    Python closes it in the frame of the loop, at the instruction that drops the iterator or at the one that raised;
    nothing else tells, as the exception is put aside meanwhile. A generator around it is closed by its own loop.
    """
    while frame is not None:
        instruction = opname[frame.f_code.co_code[frame.f_lasti]]
        if instruction not in _YIELDS:
            return instruction in _ENDS_LOOP
        frame = frame.f_back
    return False


_PROBE_CYCLES = 10_000_000  # some milliseconds


@cache
def _cycles_per_second(device: int) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(_PROBE_CYCLES)
    end.record()
    end.synchronize()
    return _PROBE_CYCLES / (begin.elapsed_time(end) / 1e3)


def device_sleep(seconds: float) -> None:
    """Enqueue a pause on the current CUDA stream; the host continues. The first call waits for the device."""
    import torch

    torch.cuda._sleep(int(seconds * _cycles_per_second(torch.cuda.current_device())))


class NullLedger:
    """A no-op stand-in for `Ledger`: the same loop runs untimed."""

    _nothing: AbstractContextManager[None] = nullcontext()

    def steps(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Return an iterator of the batches."""
        return iter(batches)

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return self._nothing
