"""Inside forward and backward: the seconds of each part of a point's model and view.

Parts are the modules of a model, timed by hooks, and the methods of its view, which are replaced meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import repeat
from typing import Any

import pandas as pd
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tclab.errors import InputError, require
from tclab.message_passing import View
from tclab.sweeps.config._fields import AtLeast1, checked
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolved_alone
from tclab.sweeps.execution._measure import check_equivalence, setup
from tclab.timing import Ledger

STAGES = ("forward", "backward")
REST = "the rest"  # what is in no part
_FIRST = 2  # steps that are in no figure
# of a view, where its class does not have them from `View`, whose own call others
_METHODS = {"lift", "neighbour_sum", "neighbour_sums", "degree", "pool", "begin", "convolve", "complete"}


def inside(*points: Point, steps: int = 10) -> pd.DataFrame:
    """Return where the forward and the backward of each point spend their time, a row for each part.

    Columns: `point`, `part`, mean seconds of a step in `forward` and `backward`, and `share`, of both together. A part
    is a module of the model, "layers.convolutions" (those of one list are one part), or a method of its view,
    "view.neighbour_sum"; what is in none is "the rest". A part within another is taken out of it, so that all rows of a
    point add up to the two stages.

    Each point runs in this process, after its equivalence check, on one batch that is kept. A compiled point is run as
    it is without the compiler, which would not see the hooks.

    **Arguments:**

    - `points`: to be compared, say HeteroCell and DANGO, each with a batch size of its own.
    - `steps`: of each.

    **Raises:** `InputError` for a point that cannot run here, or whose strategy is wrong.
    """
    checked("steps", steps, AtLeast1)
    if not points:
        raise InputError("there are no points, expected at least one")
    return pd.concat([_frame_of(point, steps) for point in points], ignore_index=True)


def _frame_of(point: Point, steps: int) -> pd.DataFrame:
    require("point", point, Point, "a tclab.Point")
    name = f"{point.model} · {point.strategy} · batch {point.batch_size}"
    point = resolved_alone(replace(point, mode="fixed_batch", workers=0, ranks=1, compile=False), "inside")
    check_equivalence(point)
    ledger = Ledger(cuda=point.device == "cuda")
    with setup(point, point.batch_size) as here:
        batch = next(here.batches())
        here.run(repeat(batch), steps=_FIRST)
        with timed_parts(here.step.model, ledger):
            here.run(repeat(batch), steps=steps, ledger=ledger)
    took: dict[str, dict[str, float]] = {}
    for stage, seconds in ledger.seconds("device" if ledger.cuda else "host").items():
        of, _, part = stage.partition(": ")
        if of in STAGES:
            took.setdefault(part or REST, dict.fromkeys(STAGES, 0.0))[of] += sum(seconds) / len(ledger)
    frame = pd.DataFrame([{"point": name, "part": part, **one} for part, one in took.items()])
    together = frame["forward"] + frame["backward"]
    return frame.assign(share=together / together.sum())


# ---- the parts


class _PartTimer:
    """Splits the stages `forward` and `backward` of a ledger into the parts that are entered and left.

    The ledger's stage of a part is "forward: layers.0". In the forward, a part is a call of a module or of a view's
    method; time within a part that is inside another counts for the inner one. In the backward, a part begins with the
    gradient of its result, and ends with that of what it was given. What a checkpoint computes again counts for its
    part in the backward.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.restart()

    def restart(self) -> None:
        """Begin a forward: nothing is entered yet."""
        self._around = [REST]  # the part that goes on, and those that were entered in it, innermost last

    def enter(self, part: str, given: Any) -> None:
        """Begin a part of the forward; the gradients of the tensors that it is given end it in the backward."""
        self._begin_with_gradients(given, self._around[-1])
        self._around.append(part)
        self._begin(part)

    def leave(self, result: Any) -> None:
        """End the part that was entered last; the gradients of the tensors of its result begin it in the backward."""
        self._begin_with_gradients(result, self._around.pop())
        self._begin(self._around[-1])

    def _begin(self, part: str) -> None:
        stage = self._ledger.current
        if stage in STAGES:  # what is computed again is within the backward
            self._ledger.assign_next(f"{stage}: {part}")

    def _begin_with_gradients(self, values: Any, part: str) -> None:
        if self._ledger.current != "forward":
            return
        for tensor in tree_leaves(values):
            # one tensor may be the result of a part and of the one around it, and given to more: the first counts
            if isinstance(tensor, Tensor) and tensor.grad_fn is not None and not hasattr(tensor, "_part"):
                tensor._part = part  # type: ignore[attr-defined]
                tensor.register_hook(lambda grad: self._go_on(part))

    def _go_on(self, part: str) -> None:
        self._around[-1] = part
        self._begin(part)

    def timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of a view whose calls are a part."""

        def call(view: View, *given: Any, **options: Any) -> Any:
            self.enter(part, given)
            result = method(view, *given, **options)
            self.leave(result)
            return self._each(part, result) if isinstance(result, Iterator) else result

        return call

    def _each(self, part: str, items: Iterator[Tensor]) -> Iterator[Tensor]:
        """Yield what a generator makes, each item as a call of its own."""
        while True:
            self.enter(part, ())
            item = next(items, None)
            self.leave(item)
            if item is None:
                return
            yield item


@contextmanager
def timed_parts(model: nn.Module, ledger: Ledger) -> Iterator[None]:
    """Split a model's forward and backward in a ledger into parts while this is open, as `_PartTimer` has them."""
    timer = _PartTimer(ledger)
    with ExitStack() as opened:
        opened.enter_context(model.register_forward_pre_hook(lambda *_: timer.restart()))
        for path, module in _parts_of(model):
            opened.enter_context(module.register_forward_pre_hook(lambda _, given, path=path: timer.enter(path, given)))
            opened.enter_context(module.register_forward_hook(lambda _, given, result: timer.leave(result)))
        for kind in _kinds_of(View):
            for name in _METHODS & vars(kind).keys():
                opened.callback(setattr, kind, name, vars(kind)[name])
                setattr(kind, name, timer.timed(f"view.{name}", vars(kind)[name]))
        yield


def _kinds_of(kind: type[Any]) -> set[type[Any]]:
    """Return the classes that are made of one."""
    return {each for one in kind.__subclasses__() for each in (one, *_kinds_of(one))}


def _parts_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that are parts, with their paths: the model's own, and in these all that are not torch's.

    Those of one list have one path, without their numbers.
    """
    for name, module in model.named_modules():
        path = re.sub(r"\.\d+\b", "", name)
        called = not isinstance(module, (nn.ModuleList, nn.ModuleDict))
        own = path.count(".") == 1 and not type(module).__module__.startswith("torch.")
        if name and called and ("." not in path or own):
            yield path, module
