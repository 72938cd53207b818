"""Inside forward and backward: a point's time by copies of the graph, layer, network and part.

Parts are the modules of a model, timed by hooks, and the methods of its view, which a proxy times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import repeat
from types import GeneratorType
from typing import Any, NamedTuple

import pandas as pd
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tclab._display import Display, Shown, counted, seconds_text
from tclab.errors import InputError, require
from tclab.message_passing import View
from tclab.sweeps.config._fields import NumberFrom1, checked
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._measure import may_run
from tclab.sweeps.execution._setup import setup
from tclab.timing import Ledger
from tclab.training._step import Step

STAGES = ("forward", "backward")
_FIRST = 2  # steps that are in no figure
_LAYER = re.compile(r"\b(?:layers|convolutions|convs)\.(\d+)\.?")  # the list of a model's layers
_COMPOSED = ("begin", "neighbour_sums", "convolve", "convolve_sum", "with_wild_type")  # `View` has them call others
_METHODS = ("lift", "neighbour_sum", "complete", "degree", "pool", *_COMPOSED)


@dataclass(frozen=True, repr=False)
class Inside(Shown):
    """Where forward and backward of some points spend their time.

    `frame`: a row for each part of each point: `point`, `copies` ("wild type", "samples", or both where a view computes
    them in one pass), `layer`, `network` (empty where several are computed in one pass), `part`, and the mean seconds
    of a step: `forward`, `backward`, `share` of both together. What is in no part is `the rest`.
    """

    frame: pd.DataFrame

    def by(self, *columns: str) -> pd.DataFrame:
        """Return the sums over all other columns, with a column for each point: `inside.by("layer")`."""
        figures = [*STAGES, "share"]
        points = self.frame.groupby("point", sort=False)
        return pd.concat({name: one.groupby([*columns], sort=False)[figures].sum() for name, one in points}, axis=1)

    def _display(self) -> Display:
        lines = []
        for (point, *names), group in self.frame.groupby(["point", "copies", "layer", "part"], sort=False):
            networks = group["network"].replace("", pd.NA).dropna().nunique()
            part = " · ".join(filter(None, [*map(str, names), counted(networks, "network") if networks else ""]))
            times = [seconds_text(group[stage].sum()) for stage in STAGES]
            lines.append((str(point).partition(" ")[0], part, *times, f"{group['share'].sum():.1%}"))
        points = ", ".join(map(str, dict.fromkeys(self.frame["point"])))
        return Display(f"Inside forward and backward of {points}", ("model", "part", *STAGES, "share"), lines)


def inside(*points: Point, steps: int = 10) -> Inside:
    """Return where the forward and the backward of each point spend their time, part by part.

    Each point runs in this process, after its equivalence check, on one batch that is kept. The parts are calls of the
    model's modules and of its view's methods, and what their gradients take in the backward; a part within another is
    taken out of it, so that parts and rest add up to the stage. A compiled point is run as it is without the compiler,
    which would not see the hooks.

    **Arguments:**

    - `points`: to be compared, say HeteroCell and DANGO, each with a batch size of its own.
    - `steps`: of each.

    **Raises:** `InputError` for a point that cannot run here, or whose strategy is wrong.
    """
    checked("steps", steps, NumberFrom1)
    if not points:
        raise InputError("there are no points, expected at least one")
    return Inside(pd.concat([_frame_of(point, steps) for point in points], ignore_index=True))


def _frame_of(point: Point, steps: int) -> pd.DataFrame:
    require("point", point, Point, "a tclab.Point")
    name = f"{point.model} · {point.strategy} · batch {point.batch_size}"
    point = replace(point, mode="fixed_batch", workers=0, ranks=1, compile=False)
    if (reason := point.skipped()) is not None:
        raise InputError(f"nothing is to be seen inside this point: {reason}")
    point = resolve(point)
    if not may_run(point):
        raise InputError(f"{point.strategy} does not compute what 'subgraph' computes: it is not timed")
    ledger = Ledger(cuda=point.device == "cuda")
    with setup(point, point.batch_size) as here:
        batch = next(here.batches())
        here.run(repeat(batch), steps=_FIRST)
        with timed_parts(here.step, ledger) as parts:
            here.run(repeat(batch), steps=steps, ledger=ledger)
    took: dict[Part, dict[str, float]] = {}
    seconds = ledger.seconds("device" if ledger.cuda else "host")
    for stage, (of, part) in {**parts, **{of: (of, REST) for of in STAGES}}.items():
        took.setdefault(part, dict.fromkeys(STAGES, 0.0))[of] += sum(seconds.get(stage, ())) / len(ledger)
    frame = pd.DataFrame([{"point": name, **part._asdict(), **one} for part, one in took.items()])
    together = frame["forward"] + frame["backward"]
    return frame.assign(share=together / together.sum())


# ---- the parts


class Part(NamedTuple):
    """What is computed, for which copies of the graph, in which layer, along which network; "" where one is unknown."""

    copies: str = ""
    layer: str = ""
    network: str = ""
    part: str = ""


REST = Part(part="the rest")


class PartTimer:
    """Splits the stages `forward` and `backward` of a ledger into the parts that are entered and left.

    In the forward, a part is a call of a module or of a view's method; time within a part that is inside another
    counts for the inner one. In the backward, a part begins with the gradient of its result, and ends with that of what
    it was given. What a checkpoint computes again counts for its part in the backward.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.stages: dict[str, tuple[str, Part]] = {}  # of the ledger → (stage of the step, part)
        self.now = REST  # what time counts for
        self._around: list[Part] = []

    def enter(self, part: Part, given: Any) -> None:
        """Begin a part of the forward; the gradients of the tensors that it is given end it in the backward."""
        self._begin_with_gradients(given, self.now)
        self._around.append(self.now)
        self._begin(part)

    def leave(self, result: Any) -> None:
        """End the part that was entered last; the gradients of the tensors of its result begin it in the backward."""
        self._begin_with_gradients(result, self.now)
        self._begin(self._around.pop())

    def _begin(self, part: Part) -> None:
        self.now = part
        stage = self.ledger.current
        if stage in STAGES:  # what is computed again is within the backward
            name = " · ".join(filter(None, (stage, *part)))
            self.stages[name] = (stage, part)
            self.ledger.assign_next(name)

    def _begin_with_gradients(self, values: Any, part: Part) -> None:
        if self.ledger.current != "forward":
            return
        for tensor in tree_leaves(values):
            # one tensor may be the result of a part and of the one around it, and given to more: the first counts
            if isinstance(tensor, Tensor) and tensor.grad_fn is not None and not hasattr(tensor, "_part"):
                tensor._part = part  # type: ignore[attr-defined]
                tensor.register_hook(lambda grad: self._begin(part))


class TimedView:
    """A view whose methods are parts. Those that `View` makes of others call these, so that each is one by itself."""

    def __init__(self, view: View, timer: PartTimer, copies: str) -> None:
        self._view = view
        self._timer = timer
        self.copies = copies

    def __getattr__(self, name: str) -> Any:
        if name in _COMPOSED and getattr(type(self._view), name) is getattr(View, name):
            return getattr(View, name).__get__(self)
        value = getattr(self._view, name)
        if name == "wild_type":
            return TimedView(value, self._timer, "wild type")
        if name == "with_wild_type":
            return lambda: [TimedView(view, self._timer, "wild type and samples") for view in value()]
        if name not in _METHODS:
            return value

        def call(*given: Any, **options: Any) -> Any:
            network = given[0] if given and isinstance(given[0], str) else ""
            part = Part(self.copies, self._timer.now.layer, network, name.replace("_", " "))
            self._timer.enter(part, given)
            result = value(*given, **options)
            lazy = isinstance(result, GeneratorType)
            self._timer.leave(None if lazy else result)
            return self._each(result, part, given[0]) if lazy else result

        return call

    def _each(self, results: Iterator[Any], part: Part, networks: list[str]) -> Iterator[Any]:
        """Yield what a method yields for one network after the other, each a part."""
        for network in networks:
            self._timer.enter(part._replace(network=network), None)
            result = next(results)
            self._timer.leave(result)
            yield result

    def __enter__(self) -> TimedView:
        self._view.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._view.close()


@contextmanager
def timed_parts(step: Step, ledger: Ledger) -> Iterator[dict[str, tuple[str, Part]]]:
    """Split a step's forward and backward in a ledger into parts while this is open.

    Yields, as they come, the ledger's stages → (stage of the step, part). A module's layer is told by its place in a
    list of modules that is called `layers`, `convolutions` or `convs`, its network by an attribute `network`.
    """
    timer = PartTimer(ledger)
    handles = [handle for path, module in _parts_of(step.model) for handle in _hooks(timer, path, module)]
    view_of = step.strategy.view

    def view(batch: Any) -> Any:
        timer.now = REST  # a forward begins
        return TimedView(view_of(batch), timer, "samples")

    step.strategy.view = view  # type: ignore[method-assign]
    try:
        yield timer.stages
    finally:
        del step.strategy.view  # the instance's, which shadows the class's
        for handle in handles:
            handle.remove()


def _parts_of(model: nn.Module, path: str = "", depth: int = 0) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that are parts, with their paths: the model's own, and in these all that are not torch's."""
    for name, module in model.named_children():
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):  # which is never called
            yield from _parts_of(module, f"{path}{name}.", depth)
            continue
        of_torch = type(module).__module__.startswith("torch.")
        if depth == 0 or not of_torch:
            yield f"{path}{name}", module
        if depth == 0 and not of_torch:
            yield from _parts_of(module, f"{path}{name}.", depth + 1)


def _hooks(timer: PartTimer, path: str, module: nn.Module) -> list[Any]:
    found = _LAYER.search(path)
    layer = f"layer {int(found[1]) + 1}" if found else ""
    network = str(getattr(module, "network", ""))
    # modules of one list are one part: without its index, nothing is left of a layer's own name
    name = re.sub(r"\.?\d+$", "", _LAYER.sub("", path, count=1)) or type(module).__name__.strip("_")

    def before(_: nn.Module, given: Any) -> None:
        copies = next((one.copies for one in given if isinstance(one, TimedView)), timer.now.copies)
        timer.enter(Part(copies, layer or timer.now.layer, network, name), given)

    def after(_: nn.Module, given: Any, result: Any) -> None:
        timer.leave(result)

    return [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
