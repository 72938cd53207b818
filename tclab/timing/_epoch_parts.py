"""The parts of an epoch besides its steps: validation, loaders that start, checkpoints, logging."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter_ns

from tclab._display import Display, Shown, seconds_text

STEPS, OTHER = "steps", "other"
LOADER_START = "loader start"  # its processes start, import and make a first batch
LOADER_END = "loader end"
VALIDATION, CHECKPOINT, LOGGING = "validation", "checkpoint", "logging"
FIRST_STEP = "first step"  # what it takes longer than later ones: what is compiled, tuned or allocated once


class PartClock:
    """Adds up a thread's time by part; a part inside a part is taken out of the outer one."""

    def __init__(self) -> None:
        self.nanoseconds: dict[str, int] = {}
        self.times: dict[str, int] = {}
        self._open: list[str] = [OTHER]
        self._at = 0
        self._owner = (0, 0)  # process and thread

    def begin(self) -> None:
        """Begin; other threads, and processes forked from this one, change nothing."""
        self._owner = (os.getpid(), get_ident())
        self._open, self._at = [OTHER], perf_counter_ns()

    def end(self) -> None:
        """Leave all parts."""
        if self._in_owner_thread():
            self._cut()
            self._owner = (0, 0)

    def enter(self, part: str) -> None:
        if self._in_owner_thread():
            self._cut()
            self._open.append(part)
            self.times[part] = self.times.get(part, 0) + 1

    def leave(self, part: str) -> None:
        """Leave a part, and what is still open in it; nothing if it is not open."""
        if self._in_owner_thread() and part in self._open[1:]:
            self._cut()
            while self._open.pop() != part:
                pass

    @contextmanager
    def part(self, part: str) -> Iterator[None]:
        self.enter(part)
        try:
            yield
        finally:
            self.leave(part)

    def _in_owner_thread(self) -> bool:
        return self._owner == (os.getpid(), get_ident())

    def _cut(self) -> None:
        now, part = perf_counter_ns(), self._open[-1]
        self.nanoseconds[part] = self.nanoseconds.get(part, 0) + now - self._at
        self._at = now


@dataclass(frozen=True, repr=False)
class EpochParts(Shown):
    """Where the time of a whole run went: its steps, and all that is no step. The parts add up to the run.

    **Arguments:**

    - `seconds`: part → seconds, each moment in one part.
    - `times`: part → how often it was entered.
    - `steps`: number of steps.
    """

    seconds: dict[str, float]
    times: dict[str, int]
    steps: int

    @property
    def whole_seconds(self) -> float:
        """The run's time."""
        return sum(self.seconds.values())

    def predict(self, steps: int, **times: int) -> float:
        """Return how many seconds an epoch takes: its steps, and each other part as often as it occurs in it.

        **Arguments:**

        - `steps`: number of steps.
        - `times`: how often a part occurs, a blank written as `_`; `loader_start=1, validation=1`. A part that is not
          named does not occur.
        """
        mean = self.seconds.get(STEPS, 0.0) / self.steps if self.steps else 0.0
        whole = steps * mean
        for name, number in times.items():
            part = name.replace("_", " ")
            whole += number * self.seconds.get(part, 0.0) / max(1, self.times.get(part, 0))
        return whole

    def _display(self) -> Display:
        whole = self.whole_seconds or 1.0
        lines = [
            (part, seconds_text(seconds), f"{seconds / whole:.1%}", str(self.times.get(part) or ""))
            for part, seconds in sorted(self.seconds.items(), key=lambda item: -item[1])
        ]
        title = f"{seconds_text(self.whole_seconds)}, of which {self.steps} steps"
        return Display(title, ("part", "time", "share", "times"), lines)
