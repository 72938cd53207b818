"""What some points hold in memory, found out beside a panel, and never beside a measurement."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tclab.lab.panel_words import weighed
from tclab.sweeps import Point

_SECONDS = 6.0  # the page answers late meanwhile: a step without data keeps the interpreter busy


class Weighing:
    """Says what points hold once nothing else has been asked for a while: to weigh them takes seconds itself.

    **Arguments:**

    - `say`: told the words, in a thread; and an empty text as soon as they are of something else.
    - `after_seconds`: rest before points are weighed.
    """

    def __init__(self, say: Callable[[str], None], after_seconds: float) -> None:
        self._say = say
        self._after = after_seconds
        self._timer: threading.Timer | None = None
        self._stop = threading.Event()
        self._saying = threading.Lock()
        self._busy = threading.Lock()  # held while points are weighed

    def later(self, points: Sequence[Point]) -> None:
        """Ask for some points in place of those that were asked for before."""
        with self._saying:
            self._cancel()
            self._say("")
            self._stop = threading.Event()
            self._timer = threading.Timer(self._after, self._weigh, (points, self._stop))
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        """Have nothing weighed, and nothing said of what was asked for."""
        with self._saying:
            self._cancel()
            self._say("")

    def end(self, at_most_seconds: float = 1.0) -> None:
        """Have nothing more weighed, and wait until nothing is.

        Not longer than so many seconds, since somebody waits: one point is left to be weighed then, beside a child
        that has its gate and its warm-up before any step is timed.
        """
        with self._saying:
            self._cancel()
        if self._busy.acquire(timeout=at_most_seconds):
            self._busy.release()

    def _cancel(self) -> None:
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()

    def _weigh(self, points: Sequence[Point], stop: threading.Event) -> None:
        with self._busy:
            try:
                said = weighed(points, stop.is_set, seconds=_SECONDS)
            except Exception as error:  # what cannot be weighed may still run
                said = f"memory is not known: {error}"
        with self._saying:
            if not stop.is_set():
                self._say(said)
