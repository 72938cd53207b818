"""The points that say what more ranks bring: strong and weak scaling, and accumulation in their place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tclab.errors import InputError
from tclab.masking import get as strategy_of
from tclab.models import get as model_of
from tclab.sweeps.config._grid import Listed, grid, listed, single_value, whole
from tclab.sweeps.config._point import Point


def weak_scaling(*, ranks: Listed, batch_size: int, **more: Any) -> list[Point]:
    """Return a point for each number of ranks, each rank with batches of `batch_size`: more samples a step.

    **Arguments:**

    - `more`: as for `grid`, but for `gpus`, `batch_sizes` and `accumulate`; models are run by those strategies that
      serve them.
    """
    return _points([(number, batch_size, 1) for number in _numbers(ranks)], more)


def strong_scaling(*, ranks: Listed, batch_size: int, **more: Any) -> list[Point]:
    """Return a point for each number of ranks, which share batches of `batch_size`: the same samples a step.

    **Raises:** `InputError` for a batch that cannot be shared out evenly.
    """
    numbers = _numbers(ranks)
    for number in numbers:
        if batch_size % number:
            raise InputError(f"batch_size is {batch_size}, expected one that {number} ranks can share evenly")
    return _points([(number, batch_size // number, 1) for number in numbers], more)


def accumulated(*, ranks: Listed, batch_size: int, **more: Any) -> list[Point]:
    """Return points that take an optimizer's step after as many samples, by more ranks or by more batches.

    The most ranks do so after each batch; fewer add up the gradients of several, and exchange them once.

    **Raises:** `InputError` where the most ranks are no multiple of the others.
    """
    numbers = _numbers(ranks)
    for number in numbers:
        if max(numbers) % number:
            raise InputError(f"ranks is {ranks!r}, expected numbers that divide the largest, {max(numbers)}")
    return _points([(number, batch_size, max(numbers) // number) for number in numbers], more)


def by_ranks(*points: Iterable[Point]) -> list[Point]:
    """Return points each once, those of as many ranks together: they are kept warm for one another."""
    every = dict.fromkeys(point for some in points for point in some)
    return sorted(every, key=lambda point: point.ranks)


def _numbers(ranks: Listed) -> list[int]:
    numbers = listed("ranks", ranks)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InputError(f"ranks is {ranks!r}, expected whole numbers from 1 up")
    return sorted(set(numbers))


def _points(choices: list[tuple[int, int, int]], more: dict[str, Any]) -> list[Point]:
    """Return the points of (ranks, batch size, accumulated batches)."""
    for name in ("accumulate", "gpus", "batch_sizes"):
        if name in more:
            raise InputError(f"{name} is {more[name]!r}, expected none: ranks and batch_size decide it")
    steps = whole("steps", single_value("steps", more.get("steps", 8)))
    named = [str(name) for name in listed("strategies", more.get("strategies", "node_mask,indices"))]
    points = []
    for ranks, size, accumulate in choices:
        for model in map(str, listed("models", more.get("models", "hetero_cell,dango"))):
            served = [name for name in named if model_of(model).served_by(strategy_of(name))]
            if served:
                of_the_pair = {"models": model, "strategies": served, "batch_sizes": size, "gpus": ranks}
                fields: dict[str, Any] = {
                    "networks": "all",
                    **more,
                    **of_the_pair,
                    "steps": steps * accumulate,
                    "accumulate": accumulate,
                }
                points += grid(**fields)
    return points
