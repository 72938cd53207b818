"""Calls that one background thread makes in turn, each at a bearable rate, and an estimate that is made so."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from tclab.lab.panel._panel_text import Part, memory_parts
from tclab.sweeps.config._point import Point

_ESTIMATE_SECONDS = 6.0  # the page answers slowly meanwhile: an estimate keeps the interpreter busy


@dataclass(frozen=True)
class _Request:
    due: float  # in seconds of the monotonic clock
    delayed: bool
    rest_seconds: float
    number: int  # of the first request that this one stands for


class BackgroundCalls:
    """Makes the calls that are requested one after another in one daemon thread.

    A call that is requested again while it waits for its turn is made once, and a call that is requested while it is
    being made is made once more, so the last request is always served. `make` makes a call, and must not raise.
    """

    def __init__(self, make: Callable[[Callable[[], Any]], object] = lambda call: call()) -> None:
        self._make = make
        self._changed = threading.Condition()
        self._waiting: dict[Callable[[], Any], _Request] = {}
        self._rested: dict[Callable[[], Any], float] = {}  # when a call may be made again
        self._serving: _Request | None = None
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def request(self, call: Callable[[], Any], *, after_seconds: float = 0.0, rest_seconds: float = 0.0) -> None:
        """Request a call, in place of an earlier request for it that still waits, and return at once.

        It waits `after_seconds` at least; from its end to the next time that it is made, `rest_seconds` pass at least.
        """
        with self._changed:
            # a request stands for the one that it replaces; one that a call makes belongs to that call's own
            before = self._waiting.get(call)
            if before is None and threading.current_thread() is self._thread:
                before = self._serving
            number = next(self._numbers) if before is None else before.number
            self._waiting[call] = _Request(monotonic() + after_seconds, after_seconds > 0, rest_seconds, number)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until what has been requested so far is done, but for requests of a later time; return whether it is.

        What a call requests itself is waited for too; requests of other threads that come meanwhile, as those of a
        sweep's progress, are not.
        """
        with self._changed:
            end = next(self._numbers)
            return self._changed.wait_for(lambda: self._done_before(end), timeout_seconds)

    def _done_before(self, number: int) -> bool:
        waiting = [request for request in self._waiting.values() if not request.delayed]
        return all(request.number > number for request in (*waiting, *filter(None, [self._serving])))

    def _due(self, call: Callable[[], Any]) -> float:
        return max(self._waiting[call].due, self._rested.get(call, 0.0))

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    return
                call = min(self._waiting, key=self._due)
                left = self._due(call) - monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                request = self._serving = self._waiting.pop(call)
            try:
                self._make(call)
            finally:
                with self._changed:
                    if request.rest_seconds:
                        self._rested[call] = monotonic() + request.rest_seconds
                    self._serving = None
                    self._changed.notify_all()


class BackgroundEstimate:
    """Estimates the seconds and the memory of the points that were requested last, never while anything is measured.

    It begins once the points have stayed the same for `after_seconds`. `show` is called with the parts of a line, in a
    thread; with none as soon as the points are others.
    """

    def __init__(self, show: Callable[[Sequence[Part]], None], after_seconds: float) -> None:
        self._show = show
        self._after = after_seconds
        self._calls = BackgroundCalls()
        self._showing = threading.Lock()
        self._stop = threading.Event()

    def request(self, points: Sequence[Point], seconds: Callable[[], str]) -> None:
        """Request the estimate for some points, in place of those of an earlier request.

        `seconds` returns how long they will take, in a sentence; it is shown before memory is estimated.
        """
        self.cancel()
        self._stop = threading.Event()
        self._calls.request(partial(self._estimate, points, seconds, self._stop), after_seconds=self._after)

    def cancel(self) -> None:
        """Withdraw the request and show nothing."""
        self._end()
        self._show(())

    def finish(self, at_most_seconds: float = 1.0) -> None:
        """Withdraw the request, and wait until the cores are free.

        It waits at most `at_most_seconds`, since a user is waiting. The estimate of one point may still run then, but
        ends during the equivalence check and warm-up of the next point, before any step is timed.
        """
        self._end()
        self._calls.wait(at_most_seconds)

    def _end(self) -> None:
        with self._showing:
            self._stop.set()

    def _estimate(self, points: Sequence[Point], seconds: Callable[[], str], stop: threading.Event) -> None:
        parts: list[Part] = []
        for estimate in (
            lambda: [Part(seconds())],
            lambda: memory_parts(points, stop.is_set, seconds=_ESTIMATE_SECONDS),
        ):
            if stop.is_set():
                return
            try:
                parts += estimate()
            except Exception as error:  # what cannot be estimated may still run
                parts.append(Part(f"no estimate: {error}"))
            with self._showing:
                if stop.is_set():
                    return
                self._show(list(parts))
