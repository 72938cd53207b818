"""The points that say where a whole training step's time goes: its modes, the original's habits, its bytes."""

from __future__ import annotations

from typing import Any

from tclab.masking import get as strategy_of
from tclab.models import get as model_of
from tclab.sweeps.grids import Listed, grid, listed
from tclab.sweeps.point import Point
from tclab.training import MODES
from tclab.training.step import WITHOUT_MODEL

# At least so many steps where there is no model: they are short, and the first batches were made before the clock.
_STEPS_WITHOUT_MODEL = 20


def in_each_mode(*, models: Listed, strategies: Listed, collation: str = "lean", **more: Any) -> list[Point]:
    """Return a point for each mode, model and strategy that serves it, mode by mode.

    **Arguments:**

    - `collation`: of the strategies that have it; the others keep theirs, "lean".
    - `more`: as for `grid`.
    """
    pairs = _pairs(models, strategies)
    return [
        point
        for mode in MODES
        for pair in pairs
        for point in _points(pair, collation, **{**more, "mode": mode, "steps": _steps(mode, more)})
    ]


def over_bytes(*, models: Listed, strategies: Listed, collation: str = "lean", **more: Any) -> list[Point]:
    """Return points in mode `data` over batch sizes, the smallest first; see `in_each_mode`."""
    more |= {"mode": "data", "steps": _steps("data", more)}
    found = [point for pair in _pairs(models, strategies) for point in _points(pair, collation, **more)]
    return sorted(found, key=lambda point: point.batch_size)


def with_each_habit(
    *, models: Listed, strategies: Listed, rounds: int = 3, seed: int = 0, collation: str = "lean", **more: Any
) -> list[Point]:
    """Return each model's points without a habit and with each that it can take on, round after round.

    A round has a seed of its own, so the same point is run again, and not read; every other round runs in the
    opposite order, so that a machine that grows slower favours nobody.
    """
    found: list[Point] = []
    pairs = _pairs(models, strategies)
    for number in range(rounds):
        own = [p for pair in pairs for p in _points(pair, collation, habits="all", seed=seed + number, **more)]
        found += own if number % 2 == 0 else own[::-1]
    return found


def _steps(mode: str, more: dict[str, Any]) -> Any:
    steps = more.get("steps", "auto")
    if mode not in WITHOUT_MODEL:
        return steps
    return max(steps, _STEPS_WITHOUT_MODEL) if isinstance(steps, int) else _STEPS_WITHOUT_MODEL


def _pairs(models: Listed, strategies: Listed) -> list[tuple[str, str]]:
    """Return model and strategy wherever one serves the other; a model for which none was named has `indices`."""
    named = [str(name) for name in listed("strategies", strategies)]
    found = []
    for model in map(str, listed("models", models)):
        reads = model_of(model).reads_masked_graph
        own = [name for name in named if strategy_of(name).masks_graph == reads]
        # a model that reads masked graphs and is given none has a row that says so
        found += [(model, name) for name in own or (named if reads else ["indices"])]
    return found


def _points(pair: tuple[str, str], collation: str, **more: Any) -> list[Point]:
    model, strategy = pair
    own = collation if collation in strategy_of(strategy).collations else "lean"
    return grid(**{"networks": "all", **more, "models": model, "strategies": strategy, "collation": own})
