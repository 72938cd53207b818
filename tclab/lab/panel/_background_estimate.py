"""The seconds and memory that points will need, estimated in the background and never while anything is measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tclab.lab.panel._background_calls import BackgroundCalls
from tclab.lab.panel._panel_text import Part, memory_parts
from tclab.sweeps.config._point import Point

_SECONDS = 6.0  # the page answers slowly meanwhile: an estimate keeps the interpreter busy


class BackgroundEstimate:
    """Estimates the seconds and the memory of the points that were requested last, in a thread of its own.

    **Arguments:**

    - `show`: called with the parts of a line, in that thread; with none as soon as the points are others.
    - `after_seconds`: how long the points have to stay the same before an estimate begins.
    """

    def __init__(self, show: Callable[[Sequence[Part]], None], after_seconds: float) -> None:
        self._show = show
        self._after = after_seconds
        self._calls = BackgroundCalls()
        self._showing = threading.Lock()
        self._points: Sequence[Point] = ()
        self._seconds: Callable[[], str] = str
        self._stop = threading.Event()

    def request(self, points: Sequence[Point], seconds: Callable[[], str]) -> None:
        """Request the estimate for some points, in place of those of an earlier request.

        **Arguments:**

        - `seconds`: returns how long they will take, in a sentence; it is shown before memory is estimated.
        """
        self.cancel()
        self._points, self._seconds, self._stop = points, seconds, threading.Event()
        self._calls.request(self._estimate, after_seconds=self._after)

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
        self._calls.cancel(self._estimate)
        with self._showing:
            self._stop.set()

    def _estimate(self) -> None:
        points, seconds, stop = self._points, self._seconds, self._stop
        parts: list[Part] = []
        for estimate in (lambda: [Part(seconds())], lambda: memory_parts(points, stop.is_set, seconds=_SECONDS)):
            try:
                parts += estimate()
            except Exception as error:  # what cannot be estimated may still run
                parts.append(Part(f"no estimate: {error}"))
            with self._showing:
                if stop.is_set():
                    return
                self._show(list(parts))
