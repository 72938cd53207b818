"""Where the time of each step went, cut at consecutive boundaries, so that the parts add up to the whole."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from threading import get_ident
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from tclab.timing.accounts import QUEUE, TOLERANCE, Block, Cuts, Making, Row, closure_words, closures, rows_of
from tclab.timing.device_sleep import device_sleep
from tclab.timing.raw_clock import raw_clock_ns

if TYPE_CHECKING:
    import pandas as pd

Item = TypeVar("Item")

_END: Any = object()

Spike = Callable[[int], "tuple[str, float] | None"]


class _Stage:
    __slots__ = ("ledger", "name")

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.ledger = ledger
        self.name = name

    def __enter__(self) -> None:
        if self.ledger.marks:
            self.ledger._mark(self.name)
        self.ledger._enter(self.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.ledger._broken = True
        self.ledger._leave()
        if self.ledger.marks:
            self.ledger._marks.pop().__exit__(None, None, None)


class Ledger:
    """Accounts for every moment of a loop's steps: its stages, and `other` between them.

    `with Ledger() as ledger: for batch in ledger.steps(loader): ...` and, inside,
    `with ledger.stage("forward"): ...`. Each boundary is one cut, which ends what came before it and begins what
    comes after, so nothing is left out and nothing counts twice: a stage inside a stage is taken out of the
    outer one. On CUDA a cut is also an event on the current stream. The device is waited for before the first
    step and after the last one, never between.

    Timelines: `host`; `device` on CUDA; `worker 0`, … where batches tell how they were made (`made`). They
    overlap, so each closes by itself, against the kernel's raw clock, which the cuts do not use.

    **Arguments:**

    - `cuda`: the work runs on a CUDA device; found out when the first step begins unless given.
    - `queued`: put the device behind the host before each step, so that its events hold no launch gaps; the
      timeline is then called `queued`. The step itself becomes slower: measure it apart.
    - `marks`: also mark each stage, as `ledger: forward`, in the trace of a torch.profiler that is recording.
    - `spike`: step number → (stage, seconds) of a delay to put there, or `None`; the stage `other` puts it
      between the first two stages. See `spike_in`.
    """

    def __init__(
        self, *, cuda: bool | None = None, queued: bool = False, marks: bool = False, spike: Spike | None = None
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
        self._made: list[Making] = []
        self._blocks: list[Block] = []
        self._first: int | None = None  # step of the open block
        self._before: Cuts | None = None  # the step before this one in the open block
        self._begin_ns = self._end_ns = 0  # of the open block, by the raw clock
        self._stages: dict[str, _Stage] = {}
        self._marks: list[Any] = []  # of the stages that are open
        self._broken = False  # an exception went through a stage of the open step

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def __len__(self) -> int:
        """How many steps were taken to their end."""
        return len(self._steps)

    def __bool__(self) -> bool:
        return True  # one without steps is a ledger too

    @property
    def current(self) -> str:
        """The stage that the loop is in now; `other` between stages and outside steps."""
        return self._open[-1] if self._open else "other"

    # ---- the loop

    def steps(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield batch after batch; each is a step, from asking for the batch to asking for the next.

        Waiting for the batch is the stage `wait`. A batch with an attribute `making` (a `Making`) is entered on its
        worker's timeline.
        """
        iterator = iter(batches)
        try:
            while True:
                self.next_step()
                with self.stage("wait"):
                    batch = next(iterator, _END)
                if batch is _END:
                    break
                making = getattr(batch, "making", None)
                if isinstance(making, Making):
                    self.made(making)
                self._put_behind()
                held, batch = [batch], None  # so that the loop alone holds it, and can let it go
                try:
                    yield held.pop()
                finally:  # a `break` ends its step too, an exception does not
                    self._finish_step()
        finally:
            self.end()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run one step of a loop that asks for its batches in another way than `for batch in ledger.steps(…)`."""
        self.next_step()
        self._put_behind()
        try:
            yield
            self._finish_step()
        finally:
            self.end()

    def next_step(self) -> None:
        """End the step before, if one is open, and begin the next with the same cut; for loops run by others."""
        self._finish_step()
        if self._first is None:
            self._begin_block()
        self._cuts, before = Cuts(), self._before
        self._open.clear()
        self._pending = self._spike(len(self._steps)) if self._spike is not None else None
        if before is None:
            self._cut("other")
        else:
            self._cuts.owners.append("other")
            self._cuts.host.append(before.host[-1])
            self._cuts.events.extend(before.events[-1:])

    def end(self, *, keep: bool = False) -> None:
        """End the block that `next_step` began; the open step counts with `keep`, and is dropped without."""
        if keep:
            self._finish_step()
        self._drop_step()
        if self._first is not None:
            self._end_block()

    def stage(self, name: str) -> _Stage:
        """Return the context of one stage of the current step.

        **Raises:** `RuntimeError` when it is entered outside a step, or on another thread than the step.
        """
        if name not in self._stages:
            self._stages[name] = _Stage(self, name)
        return self._stages[name]

    def made(self, making: Making) -> None:
        """Enter on its worker's timeline how a batch was made."""
        self._made.append(making)

    def reassign(self, step: int, begin_ns: int, end_ns: int, stage: str) -> None:
        """Give a stretch of a finished step's host timeline to a stage that was known only afterwards."""
        self._steps[step].reassign(begin_ns, end_ns, stage)

    # ---- cuts

    def _begin_block(self) -> None:
        if self.cuda is None:
            torch = sys.modules.get("torch")
            self.cuda = bool(torch is not None and torch.cuda.is_initialized())
        self._thread = get_ident()
        self._synchronize()
        self._first, self._before = len(self._steps), None
        self._begin_ns = self._end_ns = raw_clock_ns()

    def _end_block(self) -> None:
        if self.cuda:
            self._synchronize()
            self._end_ns = raw_clock_ns()
        assert self._first is not None
        if len(self._steps) > self._first:
            self._blocks.append(Block(self._first, len(self._steps), self._end_ns - self._begin_ns))
        self._first = self._before = None

    def _synchronize(self) -> None:
        if self.cuda:
            import torch

            torch.cuda.synchronize()

    def _drop_step(self) -> None:
        self._cuts = None
        self._broken = False
        self._open.clear()

    def _finish_step(self) -> None:
        """End the open step, unless there is none or an exception went through one of its stages."""
        cuts = self._cuts
        if cuts is None or self._broken:
            self._drop_step()
            return
        self._cut("")
        if cuts.queue is not None:  # still asleep now, so that nothing was waited for in between
            cuts.queued = not cuts.events[cuts.queue + 1].query()
        self._steps.append(cuts)
        self._before = cuts
        self._drop_step()
        self._end_ns = raw_clock_ns()

    def _cut(self, owner: str) -> None:
        cuts = self._cuts
        if cuts is None:
            raise RuntimeError(
                "a stage was entered outside a step: loop over ledger.steps(loader), or open ledger.step()"
            )
        cuts.owners.append(owner)
        if self.cuda:
            import torch

            event = torch.cuda.Event(enable_timing=True)
            event.record()
            cuts.events.append(event)
        cuts.host.append(perf_counter_ns())

    def _mark(self, name: str) -> None:
        import torch

        # a tenth of the cost of torch.profiler.record_function, which would show in stages of microseconds
        mark = getattr(torch._C._profiler, "_RecordFunctionFast", torch.profiler.record_function)
        context = mark(f"ledger: {name}")
        context.__enter__()
        self._marks.append(context)

    def _enter(self, name: str) -> None:
        if self._thread != get_ident() and self._cuts is not None:
            raise RuntimeError(f"stage {name!r} was entered on another thread than its step")
        self._open.append(name)
        self._cut(name)

    def _leave(self) -> None:
        if self._cuts is None:  # the step was broken off inside this stage
            return
        if self._pending is not None and self._pending[0] == self.current:
            self._delay()  # last, for what follows a pause runs on cold caches: that is no time of this stage
        self._open.pop()
        self._cut(self.current)
        if self._pending is not None and self._pending[0] == "other" and not self._open:
            self._delay()

    def _put_behind(self) -> None:
        """Let the device sleep for longer than the host takes to enqueue the step, as the step before it did."""
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
        while perf_counter_ns() < until:  # sleeping would overshoot by what is to be found
            pass

    # ---- what was found

    def rows(self) -> Iterator[Row]:
        """Yield (timeline, step, stage, seconds), as `frame` holds them, without pandas."""
        return rows_of(self._steps, self._made, queued=self.queued)

    def spans(self) -> Iterator[tuple[str, int, int]]:
        """Yield (stage, begin, end) in nanoseconds of `perf_counter_ns`, as `tclab.trace.lay_spans` takes them."""
        for step in self._steps:
            for owner, (begin, end) in zip(step.owners, pairwise(step.host), strict=False):
                yield owner, begin, end

    def frame(self) -> pd.DataFrame:
        """Return one row per timeline, step and stage: `timeline`, `step`, `stage`, `seconds`.

        `seconds` is missing (never 0) where a stage of the list `STAGES` was not seen in that step, and, on the
        timeline `queued`, where the device caught up with the host. The step itself is the stage `step`.
        """
        import pandas as pd

        made = pd.DataFrame.from_records(list(self.rows()), columns=["timeline", "step", "stage", "seconds"])
        return made.astype({"seconds": "Float64"})

    def seconds(self, timeline: str = "host") -> dict[str, list[float]]:
        """Return stage → its seconds in each step that had it, `step` among them, without pandas."""
        found: dict[str, list[float]] = {}
        for line, _, stage, seconds in self.rows():
            if line == timeline and seconds is not None:
                found.setdefault(stage, []).append(seconds)
        return found

    @property
    def closure(self) -> dict[str, float | None]:
        """Timeline → the share of its wall clock that its stages and `other` account for, block after block.

        The whole ledger's; see `blocks` for single ones. Missing where the timeline has no clock of its own.
        """
        return closures(self._steps, self._blocks, self._made, queued=self.queued)

    def blocks(self) -> list[dict[str, float | None]]:
        """Return `closure` for each block by itself: each loop over `steps`, or each single `step`."""
        return [closures(self._steps, [block], [], queued=self.queued) for block in self._blocks]

    def closed(self, tolerance: float = TOLERANCE) -> bool:
        """Whether each timeline that has a clock accounts for all of it but `tolerance`."""
        return all(share is None or abs(share - 1.0) <= tolerance for share in self.closure.values())

    def __str__(self) -> str:
        """How far it closes, in one line a timeline."""
        return "\n".join(closure_words(timeline, share) for timeline, share in self.closure.items())
