"""Points raced against one another: whole steps, in turn, in processes of their own, with a verdict."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from tclab.errors import InputError, require
from tclab.sweeps.config._point import ALLOCATORS, Point
from tclab.sweeps.config._point_inputs import resolved_alone
from tclab.sweeps.execution._measure import Setup, check_equivalence, setup
from tclab.sweeps.store._code_fingerprint import files_of, import_user_modules, imports_of
from tclab.timing import Ledger, race
from tclab.timing._ledger import NullLedger
from tclab.timing._race import Race
from tclab.timing._race_blocks import FIRST_PROCESS, Arm, endless
from tclab.timing._step_means import cycle_of

# Each has two of a race's eight turns. An even number, as every other process makes its arms in reverse order: a small
# step of the arm that is made first took 1 % longer, as its objects lie further apart.
PROCESSES = 4
_BATCHES = 4  # of samples, which the steps of every arm go through again and again
_EPOCH_BATCHES = 10_000  # so that workers start once
_FIRST = 3  # steps of an arm, before the race
_KEEPS_UP = 0.8  # of a step, in which workers that keep up with ease can give a batch
_open = ExitStack()  # the setups of this process's arms


class _Steps:
    """The next step of a point, again and again."""

    def __init__(self, here: Setup) -> None:
        self._here = here
        self._batches = endless(here.loads)
        self._first = Ledger()  # shows whether the steps wait for their workers
        if here.point.workers:
            here.run(self._batches, steps=_FIRST, ledger=self._first)
        self._made = [*self._first.batch_timings]

    def arm(self) -> Arm:
        """Return the arm of a race; only one of the same points and the same code resumes its record."""
        point = self._here.point
        period = cycle_of(point.workers if self._waits() else 0, point.accumulate)
        return Arm(self._next, self._settle, period, identity={"point": point.to_dict(), "files": files_of(point)})

    def _next(self) -> None:
        self._here.run(self._batches, steps=1)

    def _settle(self) -> None:
        """Discard the batches that workers made while other arms ran, where steps usually wait for batches."""
        if self._waits():
            self._made = self._here.drain(self._batches)

    def _waits(self) -> bool:
        """Return whether steps may wait for their workers: unless these keep up with ease, or where nothing tells.

        The shortest of the first steps, without its wait, is what a batch must be made in; of the times that batches
        took a worker the median counts.
        """
        if not self._here.loads_ahead:
            return False
        times = self._first.seconds()
        rest = [step - wait for step, wait in zip(times.get("step", []), times.get("data_wait", []), strict=True)]
        if not self._made or not rest:
            return True
        batch = median(timing.end_ns - timing.begin_ns for timing in self._made) / 1e9
        return batch / self._here.point.workers > _KEEPS_UP * min(rest)


def race_arm(text: str) -> Arm:
    """Return the arm that runs a point's next step. Each process of a race makes its arms with it.

    The first process of a race runs the equivalence check first, for all of them.

    **Arguments:**

    - `text`: JSON: the `point` as a dict, the `points` of all arms, and the `modules` that register their strategies
      and models, where these are a user's own.

    **Raises:** `InputError` for a strategy that does not compute what `subgraph` computes.
    """
    # otherwise the first optimizer imports its 860 modules, and the objects of the first arm lie among theirs
    import torch._dynamo  # noqa: F401

    request = json.loads(text)
    import_user_modules(request["modules"])
    return _arm(Point(**request["point"]), _open, [Point(**fields) for fields in request["points"]])


def _arm(point: Point, opened: ExitStack, points: Collection[Point]) -> Arm:
    if os.environ.get(FIRST_PROCESS) != "0":
        for one in points:  # all of the race before its first arm is made; each is checked once
            check_equivalence(one)
    return _Steps(opened.enter_context(setup(point, _BATCHES * point.batch_size, batches=_EPOCH_BATCHES))).arm()


def _resolved(points: Mapping[str, Point]) -> dict[str, Point]:
    """Return the points of a race as they are run.

    **Raises:** `InputError` for a point that cannot be run, or points that cannot share a process.
    """
    require("points", points, Mapping, "a dict, name → tclab.Point")
    found = {name: resolved_alone(point, "a race", f"points[{name!r}]") for name, point in points.items()}
    for field in ("allocator", "device"):
        values = sorted({getattr(point, field) for point in found.values()})
        if len(values) > 1:
            several = " and ".join(map(repr, values))
            raise InputError(f"{field} is {several}, expected one for all points of a race: they share a process")
    return found


def _factory(point: Point, points: Collection[Point]) -> str:
    """Return what a race's process makes the arm of a point from, one of the `points` of the race."""
    request = {"point": point.to_dict(), "points": [one.to_dict() for one in points], "files": files_of(point)}
    request |= {"modules": imports_of(*points)["modules"]}
    return f"tclab.sweeps.analysis._race_points:race_arm:{json.dumps(request)}"


def race_points(
    points: Mapping[str, Point], *, budget_seconds: float, processes: int | None = PROCESSES, **options: Any
) -> Race:
    """Race whole steps of some points, after the equivalence check of each, and return the verdicts.

    **Arguments:**

    - `points`: name → point; all on one device and with one allocator. Their `steps` and `warmup` are ignored.
    - `budget_seconds`: as for `tclab.timing.race`; the equivalence checks and the setup of the arms are not in it.
    - `processes`: how many fresh processes take turns. Each has its own luck (layout of its memory, placement), and the
      verdict allows for that. With `None` the race runs in this process, and its verdict is of this process alone.
    - `options`: see `tclab.timing.race` (`margin`, `record`).

    **Raises:** `InputError` for a point that cannot be run, or with the last line of a process that died.
    """
    found = _resolved(points)
    if processes is None:
        with ExitStack() as opened:
            arms = {name: _arm(point, opened, found.values()) for name, point in found.items()}
            return race(arms, budget_seconds=budget_seconds, **options)
    variables = ALLOCATORS[next(iter(found.values())).allocator]  # the same for all
    made = {name: _factory(point, found.values()) for name, point in found.items()}
    return race(made, budget_seconds=budget_seconds, processes=processes, environment=variables, **options)


@contextmanager
def loop_of(point: Point, *, steps: int) -> Iterator[Callable[[Any], object]]:
    """Set a point up and yield its loop: a function that takes a ledger and runs `steps` steps under it.

    It is the step that sweeps measure, for `tclab.timing.spike_in`, `receipt` and `tclab.trace.record`. The equivalence
    check is not run.
    """
    point = resolved_alone(point, "a loop")
    with setup(point, _BATCHES * point.batch_size, batches=_EPOCH_BATCHES) as here:
        batches = endless(here.loads)

        def loop(ledger: Ledger | NullLedger) -> object:
            return here.run(batches, steps=steps, ledger=ledger)

        loop(NullLedger())  # the cold start is in no figure
        yield loop
