"""The largest batch that a point can be run with, tried in child processes, so that the caller survives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tclab._display import Display, Shown
from tclab._format import bytes_text
from tclab.errors import InputError, require
from tclab.sweeps.config._point import Point
from tclab.sweeps.execution._run import run
from tclab.sweeps.predict._fits import fits

MOST = 4096


@dataclass(frozen=True, repr=False)
class LargestBatch(Shown):
    """The largest batch of a point, and how it was found.

    **Arguments:**

    - `point`: its strategy, model and size, with the largest batch size that ran, or 1 if none did.
    - `size`: the largest that ran; 0 for none. `expected`: the estimate of `fits`.
    - `memory_bytes`: the memory limit of each process.
    - `tried`: batch size → status of its row, in the order tried.
    """

    point: Point
    size: int
    expected: int
    memory_bytes: int
    tried: dict[int, str]

    def _display(self) -> Display:
        point = f"{self.point.model} {self.point.strategy}"
        title = f"{point}: batch {self.size} in {bytes_text(self.memory_bytes)}, expected {self.expected}"
        return Display(title, ("batch", "status"), [(str(size), status) for size, status in self.tried.items()])


def bisected(works: Callable[[int], bool], guess: int, *, most: int) -> int:
    """Return the largest number from 1 to `most` for which something works, 0 where none does.

    From a guess in steps that double, then by halves; what works for a number is taken to work for all below it.
    """
    low, high = 0, most + 1  # works, does not work
    step, size = max(guess // 8, 1), min(max(guess, 1), most)
    while high - low > 1:
        if works(size):
            low = size
        else:
            high = size
        if low and high <= most:
            size = (low + high) // 2
        elif low:
            size, step = min(low + step, most), step * 2
        else:
            size, step = max(high - step, 1), step * 2
    return low


def largest_batch(
    point: Point, *, memory_bytes: int, most: int = MOST, on_try: Callable[[int, str], None] | None = None
) -> LargestBatch:
    """Return the largest batch of a point that runs within a memory, tried in child processes.

    `fits` gives the first guess; each try runs in a new process that may not grow past `memory_bytes`; one that
    does has a row with status `oom`. The limit is on host memory for a CPU point, and on the device's for CUDA.

    **Arguments:**

    - `point`: its batch size is ignored. Three steps are run: cold, audited and timed.
    - `memory_bytes`: of a training process, in all.
    - `most`: no larger batch is tried.
    - `on_try`: called after each try.

    **Raises:** `InputError` for a point that cannot be run whatever its batch.
    """
    require("point", point, Point, "a tclab.Point")
    reason = point.skipped()
    if reason is not None:
        raise InputError(f"this point cannot be run: {reason}")
    tried: dict[int, str] = {}

    def sized(size: int) -> Point:
        return replace(point, batch_size=size, steps=1, warmup=0)

    def works(size: int) -> bool:
        rows = run(sized(size), fresh=True, memory_bytes=memory_bytes)
        tried[size] = str(rows["status"].iloc[0])
        if on_try is not None:
            on_try(size, tried[size])
        return tried[size] == "ok"

    def expected(size: int) -> bool:
        found = fits(sized(size), memory_bytes=memory_bytes)
        return (found.device or found.host) <= (found.device_limit or memory_bytes)

    guess = bisected(expected, 8, most=most)
    size = bisected(works, guess, most=most)
    return LargestBatch(sized(max(size, 1)), size, guess, memory_bytes, tried)
