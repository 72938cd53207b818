"""Points that show where a whole training step's time goes: its modes, its overheads, its bytes."""

from __future__ import annotations

from typing import Any

from tclab.errors import InputError
from tclab.masking import get as strategy_of
from tclab.models import get as model_of
from tclab.sweeps.config._grid import Listed, grid, listed
from tclab.sweeps.config._point import Point
from tclab.training._overheads import OVERHEADS, applicable_overheads, validate_overheads
from tclab.training._step import WITHOUT_MODEL

# At least so many steps where there is no model: they are short, and the first batches were made before the clock.
_STEPS_WITHOUT_MODEL = 20
_ORDER = ("step", "fixed_batch", "data", "model", "empty")  # the most useful first: a budget cuts the last ones


def in_each_mode(*, models: Listed, strategies: Listed, collation: str = "lean", **more: Any) -> list[Point]:
    """Return a point for each mode, model and strategy that serves it, mode by mode, `step` first.

    **Arguments:**

    - `collation`: of the strategies that have it; the others keep theirs, "lean".
    - `more`: as for `grid`.
    """
    pairs = _pairs(models, strategies)
    return [
        point
        for mode in _ORDER
        for pair in pairs
        for point in _points(pair, collation, **{**more, "mode": mode, "steps": _steps(mode, more)})
    ]


def over_bytes(*, models: Listed, strategies: Listed, collation: str = "lean", **more: Any) -> list[Point]:
    """Return points in mode `data` over batch sizes, the smallest first; see `in_each_mode`.

    A model that none of the named strategies serves is left out.
    """
    more |= {"mode": "data", "steps": _steps("data", more)}
    named = listed("strategies", strategies)
    pairs = [pair for pair in _pairs(models, strategies) if pair[1] in named]
    points = [point for pair in pairs for point in _points(pair, collation, **more)]
    return sorted(points, key=lambda point: point.batch_size)


def with_each_overhead(
    *,
    models: Listed,
    strategies: Listed,
    overheads: Listed = "all",
    rounds: int = 3,
    seed: int = 0,
    collation: str = "lean",
    **more: Any,
) -> list[Point]:
    """Return each model's points without an overhead and with each that it can take on, round after round.

    A round has a seed of its own, so the same point is run again, and not read; every other round runs in the
    opposite order, so that a machine that grows slower favours no strategy.

    **Arguments:**

    - `overheads`: "all", or names; a model that cannot take one on is run without it.
    - `models`, `strategies`, `collation`: as for `in_each_mode`.
    - `rounds`: how often each is run. `seed`: of the first round.
    - `more`: as for `grid`.

    **Raises:** `InputError` for less than one round, or an unknown overhead, with the nearest name.
    """
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise InputError(f"rounds is {rounds!r}, expected a whole number of at least 1")
    wanted = (
        list(OVERHEADS) if overheads == "all" else list(validate_overheads(map(str, listed("overheads", overheads))))
    )
    points: list[Point] = []
    for number in range(rounds):
        one_round: list[Point] = []
        for pair in _pairs(models, strategies):
            taken = ["none", *(name for name in wanted if name in applicable_overheads(model_of(pair[0])))]
            one_round += _points(pair, collation, **{**more, "overheads": taken, "seed": seed + number})
        points += one_round if number % 2 == 0 else one_round[::-1]
    return points


def _steps(mode: str, more: dict[str, Any]) -> Any:
    steps = more.get("steps", "auto")
    if mode not in WITHOUT_MODEL:
        return steps
    return max(steps, _STEPS_WITHOUT_MODEL) if isinstance(steps, int) else _STEPS_WITHOUT_MODEL


def _pairs(models: Listed, strategies: Listed) -> list[tuple[str, str]]:
    """Return model and strategy wherever one serves the other; a model for which none was named has `indices`."""
    named = [str(name) for name in listed("strategies", strategies)]
    pairs = []
    for model in map(str, listed("models", models)):
        kind = model_of(model)
        served = [name for name in named if kind.served_by(strategy_of(name))]
        # a model that reads masked graphs and is given none has a row that says so
        pairs += [(model, name) for name in served or (named if kind.reads_masked_graph else ["indices"])]
    return pairs


def _points(pair: tuple[str, str], collation: str, **more: Any) -> list[Point]:
    model, strategy = pair
    its_collation = collation if collation in strategy_of(strategy).collations else "lean"
    return grid(**{"networks": "all", **more, "models": model, "strategies": strategy, "collation": its_collation})
