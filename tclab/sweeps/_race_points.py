"""Points raced against one another: whole steps, in turn, in processes of their own, with a verdict."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import repeat, takewhile
from typing import Any

import pandas as pd
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tclab.errors import InputError, require
from tclab.message_passing import View
from tclab.sweeps._fields import AtLeast1, checked
from tclab.sweeps._fingerprint import code_of, import_user_modules, imports_of
from tclab.sweeps._measure import check_equivalence, setup
from tclab.sweeps._point import ALLOCATORS, Point
from tclab.sweeps._point_inputs import file_stamps, resolved_alone
from tclab.timing import Ledger, race
from tclab.timing._ledger import Timer
from tclab.timing._loader_arm import Arm, endless, loader_arm
from tclab.timing._race import Race
from tclab.timing._race_blocks import FIRST_PROCESS
from tclab.timing._step_means import cycle_of

# Each has two of a race's eight turns. An even number, as every other process makes its arms in reverse order: a small
# step of the arm that is made first took 1 % longer, as its objects lie further apart.
PROCESSES = 4
_BATCHES = 4  # of samples, which the steps of every arm go through again and again
_EPOCH_BATCHES = 10_000  # so that workers start once
_FIRST = 3  # steps that are in no figure of what is inside
_open = ExitStack()  # the setups of this process's arms


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
    here = opened.enter_context(setup(point, _BATCHES * point.batch_size, batches=_EPOCH_BATCHES))
    loads = [next(here.batches())] if point.mode == "fixed_batch" else here.loads
    arm = loader_arm(loads, lambda batch: here.run([batch], steps=1))
    # only a race of the same points and the same code resumes its record
    identity = {"point": point.to_dict(), "code": code_of(point), "files": file_stamps(point)}
    return arm._replace(period=cycle_of(arm.period, point.accumulate), identity=identity)


def _resolved(points: Mapping[str, Point], *, here: bool) -> dict[str, Point]:
    """Return the points of a race as they are run, `here` in this process.

    **Raises:** `InputError` for a point that cannot be run, or points that cannot share a process.
    """
    require("points", points, Mapping, "a dict, name → tclab.Point")
    found = {name: resolved_alone(one, "a race", f"points[{name!r}]", here=here) for name, one in points.items()}
    for field in ("allocator", "device"):
        values = sorted({getattr(point, field) for point in found.values()})
        if len(values) > 1:
            raise InputError(f"{field} is {' and '.join(map(repr, values))}, expected one: they share a process")
    if any(point.loop == "lightning" for point in found.values()):
        raise InputError("loop is 'lightning', which starts a Trainer for each step of a race; expected 'plain'")
    return found


def _factory(point: Point, points: Collection[Point]) -> str:
    """Return what a race's process makes the arm of a point from, one of the `points` of the race."""
    request = {"point": point.to_dict(), "points": [one.to_dict() for one in points], "files": file_stamps(point)}
    request |= {"modules": imports_of(*points)["modules"], "code": code_of(*points)}
    return f"tclab.sweeps._race_points:race_arm:{json.dumps(request)}"


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
    found = _resolved(points, here=processes is None)
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
    point = resolved_alone(point, "a loop", here=True)
    with setup(point, _BATCHES * point.batch_size, batches=_EPOCH_BATCHES) as here:
        batches = endless(here.loads)

        def loop(ledger: Timer) -> object:
            return here.run(batches, steps=steps, ledger=ledger)

        loop(Timer())  # the cold start is in no figure
        yield loop


# ---- inside forward and backward: modules of a model and methods of its view, whose calls are replaced meanwhile

STAGES = ["forward", "backward"]
REST = "the rest"  # what is in no part
# of a view, where its class does not have them from `View`, whose own call others
_METHODS = {"lift", "neighbour_sum", "neighbour_sums", "degree", "pool", "begin", "convolve", "complete"}


def inside(*points: Point, steps: int = 10) -> pd.DataFrame:
    """Return where the forward and the backward of each point spend their time, a row for each part.

    Columns: `point`, `part`, mean seconds of a step in `forward` and `backward`, and `share`, of both together. A part
    is a module of the model, "layers.convolutions" (those of one list are one part), or a method of its view,
    "view.neighbour_sum"; what is in none is "the rest". A part within another is taken out of it, so that all rows of a
    point add up to the two stages.

    Each point runs in this process, after its equivalence check, on one batch that is kept. A compiled point is run as
    it is without the compiler, which would not see the parts. On CUDA HeteroCell's networks run one after the other
    here, since their modules are watched; in a sweep they run at once.

    **Arguments:**

    - `points`: to be compared, say HeteroCell and DANGO, each with a batch size of its own.
    - `steps`: of each.

    **Raises:** `InputError` for a point that cannot run here, or whose strategy is wrong.
    """
    checked("steps", steps, AtLeast1)
    if not points:
        raise InputError("there are no settings, expected at least one")
    return pd.concat([_frame_of(point, steps) for point in points], ignore_index=True)


def _frame_of(point: Point, steps: int) -> pd.DataFrame:
    require("point", point, Point, "a tclab.Point")
    name = f"{point.model} · {point.strategy} · batch {point.batch_size}"
    alone = replace(point, mode="fixed_batch", workers=0, ranks=1, compile=False, capture=False)
    point = resolved_alone(alone, "inside", here=True)
    check_equivalence(point)
    ledger = Ledger(cuda=point.device == "cuda")
    with setup(point, point.batch_size) as here:
        batch = next(here.batches())
        here.run(repeat(batch), steps=_FIRST)
        with timed_parts(here.step.model, ledger):
            here.run(repeat(batch), steps=steps, ledger=ledger)
    stages = ledger.seconds("device" if ledger.cuda else "host").items()
    parts = [(*stage.partition(": ")[::2], sum(seconds) / len(ledger)) for stage, seconds in stages]
    frame = pd.DataFrame(parts, columns=["stage", "part", "seconds"]).replace({"part": {"": REST}})
    frame = frame.pivot_table("seconds", "part", "stage", fill_value=0.0, sort=False).reindex(columns=STAGES)
    frame = frame[frame.sum(axis=1) > 0].reset_index().assign(point=name)
    return frame[["point", "part", *STAGES]].assign(share=frame[STAGES].sum(axis=1) / frame[STAGES].sum().sum())


class _PartTimer:
    """Splits the stages `forward` and `backward` of a ledger into the parts that are called.

    The ledger's stage of a part is "forward: layers.0". Time within a part that is inside another counts for the inner
    one. In the backward, a part begins with the gradient of its result, and ends with that of what it was given. What a
    checkpoint computes again counts for its part in the backward.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.around = [REST]  # the part that is computed, behind those that it is in

    def timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method whose calls are a part; of what a generator makes each item is a call of its own."""

        def call(*given: Any, **options: Any) -> Any:
            self._watch(given, self.around[-1])
            self.around.append(part)
            self._begin(part)
            result = method(*given, **options)
            self._watch(result, self.around.pop())
            self._begin(self.around[-1])
            if not isinstance(result, Iterator):
                return result
            return takewhile(lambda item: item is not None, map(self.timed(part, partial(next, result)), repeat(None)))

        return call

    def _begin(self, part: str) -> None:
        self.around[-1], stage = part, self._ledger.current
        if stage in STAGES:  # what is computed again is within the backward
            self._ledger.assign_next(f"{stage}: {part}")

    def _watch(self, values: Any, part: str) -> None:
        """Let a part of the backward begin with the gradients of some values of the forward."""
        for tensor in tree_leaves(values) if self._ledger.current == "forward" else ():
            # one tensor may be the result of a part and of the one around it, and given to more: the first counts
            if isinstance(tensor, Tensor) and tensor.grad_fn is not None and not hasattr(tensor, "_part"):
                tensor._part = part  # type: ignore[attr-defined]
                tensor.register_hook(lambda grad: self._begin(part))


@contextmanager
def timed_parts(model: nn.Module, ledger: Ledger) -> Iterator[None]:
    """Split a model's forward and backward in a ledger into parts while this is open, as `_PartTimer` has them."""
    timer = _PartTimer(ledger)
    with ExitStack() as opened:
        opened.enter_context(model.register_forward_pre_hook(lambda *_: timer.around.__setitem__(slice(None), [REST])))
        for name, module in model.named_modules():
            path = re.sub(r"\.\d+\b", "", name)  # modules of one list are one part
            deep = path.count(".") == 1 and not type(module).__module__.startswith("torch.")
            if name and not isinstance(module, (nn.ModuleList, nn.ModuleDict)) and ("." not in path or deep):
                opened.callback(vars(module).pop, "forward")
                module.forward = timer.timed(path, module.forward)
        for kind in _kinds_of(View):
            for name in _METHODS & vars(kind).keys():
                opened.callback(setattr, kind, name, vars(kind)[name])
                setattr(kind, name, timer.timed(f"view.{name}", vars(kind)[name]))
        yield


def _kinds_of(kind: type[Any]) -> set[type[Any]]:
    """Return the classes that are made of one."""
    return {each for one in kind.__subclasses__() for each in (one, *_kinds_of(one))}
