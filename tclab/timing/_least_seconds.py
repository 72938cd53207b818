"""The least time of some calls that take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")


def least_seconds(
    arms: Mapping[T, Callable[[], object]], *, rounds: int = 5, clock: Callable[[], float] = perf_counter
) -> dict[T, float]:
    """Return the least time of each call, in seconds; in turns, as another process may be at work.

    **Arguments:**

    - `rounds`: how often each is called.
    - `clock`: what is read before and after a call, seconds.
    """
    seconds: dict[T, float] = dict.fromkeys(arms, float("inf"))
    for _ in range(rounds):
        for key, call in arms.items():
            begin = clock()
            call()
            seconds[key] = min(seconds[key], clock() - begin)
    return seconds
