"""Points that answer one question: where a step's time goes, what overheads and bytes cost, what more ranks bring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tclab.errors import InputError, unknown
from tclab.masking import get as strategy_of
from tclab.models import get as model_of
from tclab.sweeps.config._fields import NumberFrom1, checked
from tclab.sweeps.config._grid import Listed, grid, listed, sizes_of
from tclab.sweeps.config._overhead_names import OVERHEADS, applicable_overheads, validate_overheads
from tclab.sweeps.config._point import Point
from tclab.training._step import WITHOUT_MODEL

# At least so many steps where there is no model: they are short, and the first batches were made before the clock.
_STEPS_WITHOUT_MODEL = 20
_CYCLES = 6  # of workers, as many as a verdict needs steps
_ORDER = ("step", "fixed_batch", "data", "model", "empty")  # the most useful first: a budget cuts the last ones
SCALING = ("weak", "strong", "accumulated")


def in_each_mode(*, models: Listed, strategies: Listed, collation: str = "lean", **more: Any) -> list[Point]:
    """Return a point for each mode, model and strategy that serves it, mode by mode, `step` first.

    With several workers a point has at least six steps for each, and so in `over_bytes` and `scaling_points`: batches
    come in bursts, and an interval, which a verdict needs, is of whole cycles of the workers.

    **Arguments:**

    - `collation`: of the strategies that have it; the others keep theirs, "lean".
    - `more`: as for `grid`.
    """
    pairs = _pairs(models, strategies)
    return [point for mode in _ORDER for pair in pairs for point in _points(pair, collation, **{**more, "mode": mode})]


def over_bytes(*, models: Listed, strategies: Listed, collation: str = "lean", **more: Any) -> list[Point]:
    """Return points in mode `data` over batch sizes, the smallest first; see `in_each_mode`.

    A model that none of the named strategies serves is left out.
    """
    pairs = _pairs(models, strategies, served=True)
    points = [point for pair in pairs for point in _points(pair, collation, **{**more, "mode": "data"})]
    return sorted(points, key=lambda point: point.batch_size)


def with_each_overhead(
    *, models: Listed, strategies: Listed, overheads: Listed = "all", rounds: int = 3, seed: int = 0, **more: Any
) -> list[Point]:
    """Return each model's points without an overhead and with each that it can take on, round after round.

    A round has a seed of its own, so the same point is run again, and not read; every other round runs in the
    opposite order, so that a machine that grows slower favours no strategy.

    **Arguments:**

    - `overheads`: "all", or names; a model that cannot take one on is run without it.
    - `models`, `strategies`: as for `in_each_mode`.
    - `rounds`: how often each is run. `seed`: of the first round.
    - `more`: as for `grid`.

    **Raises:** `InputError` for less than one round, or an unknown overhead, with the nearest name.
    """
    wanted = OVERHEADS if overheads == "all" else validate_overheads(map(str, listed("overheads", overheads)))
    points: list[Point] = []
    for i in range(checked("rounds", rounds, NumberFrom1)):
        one_round: list[Point] = []
        for pair in _pairs(models, strategies):
            taken = ["none", *(name for name in wanted if name in applicable_overheads(pair[0]))]
            one_round += _points(pair, "lean", **{**more, "overheads": taken, "seed": seed + i})
        points += one_round if i % 2 == 0 else one_round[::-1]
    return points


def scaling_points(kinds: Listed, *, ranks: Listed, batch_size: Listed, **more: Any) -> list[Point]:
    """Return a point for each number of ranks, each once; those of as many ranks are together and share warm ranks.

    **Arguments:**

    - `kinds`: one or several of "weak": each rank has batches of `batch_size`, so more ranks take more samples a step;
      "strong": the ranks share batches of `batch_size`, so each step has the same samples; and "accumulated": the
      optimizer steps after as many samples, for which fewer ranks add up the gradients of several batches and exchange
      them once.
    - `ranks`: numbers from 1 up.
    - `batch_size`: of a rank; of all ranks together for "strong". "hetero_cell:28,dango:64" is one for each model.
    - `more`: as for `grid`, but for `gpus`, `batch_sizes` and `accumulate`; models are run by those strategies that
      serve them.

    **Raises:** `InputError` for an unknown kind, a batch that ranks cannot share evenly ("strong"), or ranks that do
    not divide the most ("accumulated").
    """
    for name in ("accumulate", "gpus", "batch_sizes"):
        if name in more:
            raise InputError(f"{name} is {more[name]!r}, expected none: ranks and batch_size decide it")
    numbers = [checked("ranks", number, NumberFrom1) for number in listed("ranks", ranks)]
    pairs = _pairs(more.pop("models", "hetero_cell,dango"), more.pop("strategies", "node_mask,indices"), served=True)
    steps = _single("steps", listed("steps", more.pop("steps", 8)))
    points: list[Point] = []
    for kind in listed("kinds", kinds):
        if kind not in SCALING:
            raise unknown("kind of scaling", kind, SCALING)
        for number in numbers:
            if kind == "accumulated" and max(numbers) % number:
                raise InputError(f"ranks is {ranks!r}, expected numbers that divide the largest, {max(numbers)}")
            accumulate = max(numbers) // number if kind == "accumulated" else 1
            for pair in pairs:
                size = _single("batch_size", sizes_of("batch_size", batch_size, pair[0]))
                if kind == "strong" and size % number:
                    raise InputError(f"batch_size is {size}, expected one that {number} ranks can share evenly")
                own = {"batch_sizes": size // number if kind == "strong" else size, "gpus": number}
                own |= {"steps": steps * accumulate, "accumulate": accumulate}
                points += _points(pair, "lean", **{**more, **own})
    return sorted(dict.fromkeys(points), key=lambda point: point.ranks)


def _single(name: str, values: list[Any]) -> int:
    """Return the only value of a parameter that is no axis here, a whole number."""
    if len(values) != 1:
        raise InputError(f"{name} is {values!r}, expected one value")
    number: int = checked(name, values[0], NumberFrom1)
    return number


def _pairs(models: Listed, strategies: Listed, *, served: bool = False) -> list[tuple[str, str]]:
    """Return model and strategy wherever one serves the other.

    A model for which none was named has `indices`, unless only what is `served` is wanted.
    """
    named = [str(name) for name in listed("strategies", strategies)]
    pairs = []
    for model in map(str, listed("models", models)):
        kind = model_of(model)
        serving = [name for name in named if kind.served_by(strategy_of(name))]
        if not serving and not served:  # a model that reads masked graphs and is given none has a row that says so
            serving = named if kind.reads_masked_graph else ["indices"]
        pairs += [(model, name) for name in serving]
    return pairs


def _points(pair: tuple[str, str], collation: str, **more: Any) -> list[Point]:
    """Return the points of a model with a strategy, with steps enough: see `in_each_mode`."""
    model, strategy = pair
    its_collation = collation if collation in strategy_of(strategy).collations else "lean"
    points = grid(**{"networks": "all", **more, "models": model, "strategies": strategy, "collation": its_collation})
    return [replace(point, steps=max(point.steps, _least_steps(point))) for point in points]


def _least_steps(point: Point) -> int:
    least = _STEPS_WITHOUT_MODEL if point.mode in WITHOUT_MODEL else 1
    return least if point.workers < 2 or point.mode == "fixed_batch" else max(least, _CYCLES * point.workers)
