"""Calls that one background thread makes in turn, each at a bearable rate."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic


@dataclass(frozen=True)
class _Request:
    due: float  # in seconds of the monotonic clock
    delayed: bool
    rest_seconds: float
    number: int  # of the first request that this one stands for


class BackgroundCalls:
    """Makes the calls that are requested one after another in one daemon thread; each must not raise.

    A call that is requested again while it waits for its turn is made once, and a call that is requested while it is
    being made is made once more, so the last request is always served.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[Callable[[], None], _Request] = {}
        self._rested: dict[Callable[[], None], float] = {}  # when a call may be made again
        self._serving: _Request | None = None
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def request(self, call: Callable[[], None], *, after_seconds: float = 0.0, rest_seconds: float = 0.0) -> None:
        """Request a call, in place of an earlier request for it that still waits, and return at once.

        **Arguments:**

        - `after_seconds`: how long the call waits at least.
        - `rest_seconds`: from the end of the call to the next time that it is made, at least.
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

    def cancel(self, call: Callable[[], None]) -> None:
        """Withdraw the request for a call; one that is being made goes on."""
        with self._changed:
            self._waiting.pop(call, None)
            self._changed.notify_all()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until what has been requested so far is done, but for requests of a later time; return whether it is.

        What a call requests itself is waited for too; requests of other threads that come meanwhile, as those of a
        sweep's progress, are not.

        **Arguments:**

        - `timeout_seconds`: how long to wait at most; without limit unless given.
        """
        with self._changed:
            end = next(self._numbers)
            return self._changed.wait_for(lambda: self._done_before(end), timeout_seconds)

    def _done_before(self, number: int) -> bool:
        waiting = [request for request in self._waiting.values() if not request.delayed]
        return all(request.number > number for request in (*waiting, *filter(None, [self._serving])))

    def _due(self, call: Callable[[], None]) -> float:
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
                call()
            finally:
                with self._changed:
                    self._rested[call] = monotonic() + request.rest_seconds
                    self._serving = None
                    self._changed.notify_all()
