"""Marks that models and views set inside a step's stages, by which a ledger splits its forward and its backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

if TYPE_CHECKING:
    from torch import Tensor

    from tclab.timing._ledger import Ledger


class Part(NamedTuple):
    """What a mark names: which copies of the graph, which layer and network, and what is computed there.

    Each is empty where it does not apply.
    """

    copies: str = ""
    layer: str = ""
    network: str = ""
    part: str = ""


class _Watch:
    """The ledger that marks split, and the parts that they named: the ledger's stage → (stage of the step, part)."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.parts: dict[str, tuple[str, Part]] = {}
        self.scope = Part()
        self._last: ref[Tensor] | None = None

    def stage(self, stage: str, part: Part) -> str:
        name = " · ".join(filter(None, (stage, *part)))
        self.parts[name] = (stage, part)
        return name

    def reached(self, part: Part, x: Tensor) -> bool:
        """Assign the time since the last mark to a part; return whether the gradient of `x` begins its backward.

        It does not where `x` is the end of the part before, too: this one did nothing.
        """
        stage = self.ledger.current
        if stage in ("forward", "backward"):  # a layer computed again is within the backward
            self.ledger.assign_previous(self.stage(stage, part), goes_on=stage == "backward")
        again = self._last is not None and self._last() is x
        self._last = ref(x)
        return not again

    def entered(self, part: Part) -> None:
        if self.ledger.owner == "backward":  # the first gradient: no operation ran, autograd counted its graph's nodes
            self.ledger.assign_previous(self.stage("backward", Part(part="start of autograd")), goes_on=True)
        self.ledger.assign_next(self.stage("backward", part))


_watch: _Watch | None = None


@contextmanager
def watched(ledger: Ledger) -> Iterator[dict[str, tuple[str, Part]]]:
    """Have marks split the stages of a ledger while this is open; yields its stage → (stage of the step, part).

    One ledger at a time in a process.
    """
    global _watch
    assert _watch is None, "marks split one ledger at a time"
    _watch = _Watch(ledger)
    try:
        yield _watch.parts
    finally:
        _watch = None


@contextmanager
def _scoped(watch: _Watch, names: dict[str, str]) -> Iterator[None]:
    before, watch.scope = watch.scope, watch.scope._replace(**names)
    try:
        yield
    finally:
        watch.scope = before


def mark_scope(**names: str) -> AbstractContextManager[None]:
    """Return a context whose marks have these fields of `Part`: `copies`, `layer`."""
    return nullcontext() if _watch is None else _scoped(_watch, names)


def mark(part: str, x: Tensor, network: str = "") -> Tensor:
    """Return `x` as it is, the end of a part of a model: what came since the last mark belongs to this part.

    So does, in the backward, what comes after the gradient of `x`, up to that of an earlier mark. Nothing happens
    unless a ledger is watched.
    """
    if _watch is None:
        return x
    return _marked(_watch, _watch.scope._replace(part=part, network=network), x)


def _marked(watch: _Watch, part: Part, x: Tensor) -> Tensor:
    import torch

    if torch.compiler.is_compiling():
        return x
    if watch.reached(part, x) and x.requires_grad and torch.is_grad_enabled():

        def entered(_: Any) -> None:
            if _watch is watch:
                watch.entered(part)

        x.register_hook(entered)
    return x
