"""Points that show what more ranks bring: strong and weak scaling, and accumulation in place of ranks."""

from __future__ import annotations

from typing import Any

from tclab.errors import InputError, unknown
from tclab.masking import get as strategy_of
from tclab.models import get as model_of
from tclab.sweeps.config._grid import Listed, grid, listed, single_value, whole
from tclab.sweeps.config._point import Point

SCALING = ("weak", "strong", "accumulated")


def scaling_points(kinds: Listed, *, ranks: Listed, batch_size: int, **more: Any) -> list[Point]:
    """Return a point for each number of ranks, each once; those of as many ranks are together and share warm ranks.

    **Arguments:**

    - `kinds`: one or several of "weak": each rank has batches of `batch_size`, so more ranks take more samples a step;
      "strong": the ranks share batches of `batch_size`, so each step has the same samples; and "accumulated": the
      optimizer steps after as many samples, for which fewer ranks add up the gradients of several batches and exchange
      them once.
    - `ranks`: numbers from 1 up. `batch_size`: of a rank; of all ranks together for "strong".
    - `more`: as for `grid`, but for `gpus`, `batch_sizes` and `accumulate`; models are run by those strategies that
      serve them.

    **Raises:** `InputError` for an unknown kind, a batch that ranks cannot share evenly ("strong"), or ranks that do
    not divide the most ("accumulated").
    """
    numbers = _numbers(ranks)
    points: list[Point] = []
    for kind in listed("kinds", kinds):
        if kind not in SCALING:
            raise unknown("kind of scaling", kind, SCALING)
        for number in numbers:
            if kind == "strong" and batch_size % number:
                raise InputError(f"batch_size is {batch_size}, expected one that {number} ranks can share evenly")
            if kind == "accumulated" and max(numbers) % number:
                raise InputError(f"ranks is {ranks!r}, expected numbers that divide the largest, {max(numbers)}")
            size = batch_size // number if kind == "strong" else batch_size
            points += _points(number, size, max(numbers) // number if kind == "accumulated" else 1, more)
    return sorted(dict.fromkeys(points), key=lambda point: point.ranks)


def _numbers(ranks: Listed) -> list[int]:
    numbers = listed("ranks", ranks)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InputError(f"ranks is {ranks!r}, expected whole numbers from 1 up")
    return sorted(set(numbers))


def _points(ranks: int, size: int, accumulate: int, more: dict[str, Any]) -> list[Point]:
    for name in ("accumulate", "gpus", "batch_sizes"):
        if name in more:
            raise InputError(f"{name} is {more[name]!r}, expected none: ranks and batch_size decide it")
    steps = whole("steps", single_value("steps", more.get("steps", 8)))
    named = [str(name) for name in listed("strategies", more.get("strategies", "node_mask,indices"))]
    points = []
    for model in map(str, listed("models", more.get("models", "hetero_cell,dango"))):
        served = [name for name in named if model_of(model).served_by(strategy_of(name))]
        if served:
            of_the_pair = {"models": model, "strategies": served, "batch_sizes": size, "gpus": ranks}
            of_the_pair |= {"steps": steps * accumulate, "accumulate": accumulate}
            points += grid(**{"networks": "all", **more, **of_the_pair})
    return points
