"""A call that may be asked for at any rate, and is made at a bearable one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic, sleep


class Throttle:
    """Makes a call in a thread of its own, at most so often; after the last request it is made once more.

    **Arguments:**

    - `call`: must not raise; never made twice at a time.
    - `every_seconds`: rest between the end of one call and the next.
    """

    def __init__(self, call: Callable[[], None], every_seconds: float) -> None:
        self._call = call
        self._every = every_seconds
        self._next = 0.0
        self._asked: threading.Thread | None = None
        self._lock = threading.Lock()
        self._busy = threading.Lock()

    def __call__(self) -> None:
        """Ask for the call, and return at once."""
        with self._lock:
            if self._asked is None:
                self._asked = threading.Thread(target=self._go, daemon=True)
                self._asked.start()

    def _go(self) -> None:
        with self._busy:  # and only then the rest: a call that was under way has put it off
            sleep(max(0.0, self._next - monotonic()))
            with self._lock:
                self._asked = None  # what is asked for from here on is another call
            try:
                self._call()
            finally:
                self._next = monotonic() + self._every

    def wait(self) -> None:
        """Wait until nothing is asked for any more."""
        while True:
            with self._lock:
                asked = self._asked
            if asked is None:
                break
            asked.join()
        with self._busy:
            pass
