"""Calls that one background thread makes in turn, each at a bearable rate."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic


@dataclass(frozen=True)
class _Request:
    due: float  # in seconds of the monotonic clock
    delayed: bool
    rest_seconds: float


class BackgroundCalls:
    """Makes the calls that are requested one after another in one daemon thread; each must not raise.

    A call that is requested again while it waits for its turn is made once, and a call that is requested while it is
    being made is made once more, so the last request is always served.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[Callable[[], None], _Request] = {}
        self._rested: dict[Callable[[], None], float] = {}  # when a call may be made again
        self._busy = False
        self._thread: threading.Thread | None = None

    def request(self, call: Callable[[], None], *, after_seconds: float = 0.0, rest_seconds: float = 0.0) -> None:
        """Request a call, in place of an earlier request for it that still waits, and return at once.

        **Arguments:**

        - `after_seconds`: how long the call waits at least.
        - `rest_seconds`: from the end of the call to the next time that it is made, at least.
        """
        with self._changed:
            self._waiting[call] = _Request(monotonic() + after_seconds, after_seconds > 0, rest_seconds)
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
        """Wait until no call is being made and none is requested but for later; return whether that is so.

        **Arguments:**

        - `timeout_seconds`: how long to wait at most; without limit unless given.
        """
        with self._changed:
            return self._changed.wait_for(self._idle, timeout_seconds)

    def _idle(self) -> bool:
        return not self._busy and all(request.delayed for request in self._waiting.values())

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
                request = self._waiting.pop(call)
                self._busy = True
            try:
                call()
            finally:
                with self._changed:
                    self._rested[call] = monotonic() + request.rest_seconds
                    self._busy = False
                    self._changed.notify_all()
