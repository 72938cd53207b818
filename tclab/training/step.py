"""One training step, stage by stage: what every loop runs and every clock is put around."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recomputed

from tclab.errors import InputError, unknown
from tclab.masking import Batch, Strategy
from tclab.message_passing import View
from tclab.models import ModelKind, Peers
from tclab.timing import Communication
from tclab.training.ddp import Exchange, check_slices, exchanging, without_gradient
from tclab.training.habits import checked, put_on_loss, put_on_model, read_one_by_one, with_zero_params

Stage = Callable[[str], AbstractContextManager[Any]]

# What each mode runs, beside loading its batches; `fixed_batch` loads one.
MODES = ("data", "empty", "model", "step", "fixed_batch")
WITHOUT_MODEL = ("data", "empty")
_UPDATING = ("empty", "step", "fixed_batch")
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
DTYPES = tuple(_DTYPES)
# AdamW's three ways to go through the parameters
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "plain": {"foreach": False, "fused": False},
}
CLIP = 10.0  # the norm that the original team clipped to in production


def _no_clock(stage: str) -> AbstractContextManager[None]:
    return nullcontext()


def compiled_forward(forward: Callable[[nn.Module, View], Any]) -> Callable[[nn.Module, View], Any]:
    """Return a compiled forward, whose first call is not: what a graph makes once is made then.

    The sizes of sparse matrices are known from their values alone, which a compiler has not. Where no compiled code
    serves one batch after the other it raises: torch would go on uncompiled, and that be timed for what it is not.
    """
    compiled = torch.compile(forward)
    calls: list[None] = []

    def run(model: nn.Module, view: View) -> Any:
        if calls:
            with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
                return compiled(model, view)
        calls.append(None)
        return forward(model, view)

    return run


def _predictions(output: Any) -> Tensor:
    found: Tensor = getattr(output, "predictions", output).detach()
    return found


class _Empty(nn.Module):
    """One number, for loops that must have a model."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(()))


class Step:
    """Takes a raw batch through the stages of a training step, as far as the mode says.

    The stages are transfer, mask, forward, loss, backward, clip, optimizer and log; one that does not run is not
    entered. Modes:

    - `data`: the transfer alone. There is no model.
    - `empty`: the transfer, and a loss, backward and optimizer step of one number that has nothing to do with
      the batch: what a loop costs that has a model of no size. There is no other model.
    - `model`: transfer, mask, forward, loss and backward; the gradients are freed. There is no optimizer.
    - `step`: everything.
    - `fixed_batch`: everything, on one batch that the loop runs over and over.

    bfloat16 is autocast over float32 weights, float64 is throughout. The loss of a batch is made from float32
    targets, or float64 ones.

    **Arguments:**

    - `kind`: the model, its forward and its losses.
    - `strategy`: its half that makes views; its graph says the device.
    - `mode`, `dtype`: one of `MODES`, `DTYPES`.
    - `metabolism`: passed to the model.
    - `seed`: of the weights.
    - `loss`: the name of one of the model's losses; its first unless given.
    - `epoch`: what the loss's schedule is at; set it as training goes on.
    - `clip`: the norm that gradients are clipped to; `None` leaves them.
    - `optimizer`: one of `OPTIMIZERS`, all of them AdamW.
    - `accumulate`: batches whose gradients are added up, each an equal part, before one clip and optimizer step.
    - `habits`: see `tclab.training.habits`.
    - `gather_interval`: passes between the loss's all-gathers; the loss's own unless given.
    - `exchange`: how the ranks of this process's group exchange gradients, by DDP; a step of one process unless
      given. Views are made outside of it. `communication` then watches; mode `empty` exchanges nothing.
    - `checkpoint`: switch on the model's `checkpoint`.
    - `compile`: run the model through `torch.compile`, from the second pass on.

    A batch that comes in slices is gone through slice by slice, and the gradients are those of the whole batch:
    a mean over samples is the slices' means, each weighted by its share. A loss over the batch (one that has
    `over_batch`) is made from the outputs of all slices, each of which is computed again in the backward.

    **Raises:** `InputError` for an unknown name, with the nearest one, or a number that cannot be; in the first
    step, for parameters that get no gradient, which DDP would wait for.
    """

    def __init__(
        self,
        kind: ModelKind,
        strategy: Strategy,
        *,
        mode: str = "step",
        dtype: str = "float32",
        metabolism: str = "off",
        seed: int = 0,
        loss: str | None = None,
        epoch: int = 0,
        clip: float | None = CLIP,
        optimizer: str = "fused",
        accumulate: int = 1,
        habits: Iterable[str] = (),
        checkpoint: bool = False,
        compile: bool = False,
        learning_rate: float = 1e-4,
        gather_interval: int | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        for what, value, known in (
            ("mode", mode, MODES),
            ("dtype", dtype, DTYPES),
            ("optimizer", optimizer, OPTIMIZERS),
        ):
            if value not in known:
                raise unknown(what, value, known)
        if clip is not None and not clip > 0:
            raise InputError(f"clip is {clip!r}, expected a norm above 0, or None for no clipping")
        if accumulate < 1:
            raise InputError(f"accumulate is {accumulate!r}, expected 1 or more batches")
        self.kind = kind
        self.strategy = strategy
        self.mode = mode
        self.device = strategy.graph.device
        self.dtype = dtype
        self.epoch = epoch
        self.clip = clip
        self.accumulate = accumulate
        self.habits = checked(habits)
        torch.manual_seed(seed)
        self.model: nn.Module = _Empty() if mode in WITHOUT_MODEL else kind.build(strategy.graph, metabolism)
        self.model.to(self.device, torch.float64 if dtype == "float64" else None)
        forward = compiled_forward(kind.forward) if compile else kind.forward
        self._forward: Callable[[View], Any] = partial(forward, self.model)
        if mode not in WITHOUT_MODEL:
            if checkpoint:
                if not kind.checkpoints:
                    raise InputError(f"checkpoint is True, and {kind.name} has no activation checkpointing")
                self.model.checkpoint = True  # type: ignore[assignment]
            put_on_model(self.model, self.habits)
            self.loss = kind.loss(strategy.graph, loss)
            put_on_loss(self.loss, self.habits)
            self._loss_takes_peers = "peers" in signature(self.loss).parameters
            if gather_interval is not None:
                if getattr(self.loss, "gather_interval", None) is None:
                    raise InputError(f"gather_interval is {gather_interval!r}, and this loss gathers at none")
                setattr(self.loss, "gather_interval", gather_interval)  # noqa: B010 (a loss may have none)
        self.exchange = exchange if mode not in WITHOUT_MODEL else None
        self.communication: Communication | None = None
        if self.exchange is not None:
            self._ddp, self.communication = exchanging(forward, self.model, self.exchange)
            self._forward = self._ddp
        self.optimizer: torch.optim.Optimizer | None = None
        if mode in _UPDATING:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, **OPTIMIZERS[optimizer])
        self.logged: dict[str, float] = {}
        self._batches = 0

    def __call__(self, batch: Batch, *, stage: Stage = _no_clock) -> Tensor | None:
        """Run one step on a batch from the loader and return its loss, [] on the device; `None` in mode `data`."""
        return self.run(self.transfer(batch, stage=stage), stage=stage)

    def transfer(self, batch: Batch, *, stage: Stage = _no_clock) -> Batch:
        """Return a raw batch moved to the device; a loop that has a transfer of its own calls this, then `run`."""
        with stage("transfer"):
            return batch.to(self.device, non_blocking=True)

    def run(
        self,
        moved: Batch,
        *,
        stage: Stage = _no_clock,
        backward: Callable[[Tensor], None] = Tensor.backward,
        update: Callable[[], Any] | None = None,
    ) -> Tensor | None:
        """Run all that follows the transfer and return the loss, or `None` in mode `data`.

        **Arguments:**

        - `moved`: on the device.
        - `backward`, `update`: a loop's own ways to run the backward and the optimizer's step, where it has them.
        - `stage`: name → the context that the stage runs in; a ledger's, or none.
        """
        if self.mode == "data":
            return None
        predictions = None
        if self.mode == "empty":
            with stage("loss"):
                loss = self.model.get_parameter("number") * 0.0
            with stage("backward"):
                backward(loss)
        else:
            gathered = bool(moved.slices) and getattr(self.loss, "over_batch", False)
            go = self._gathered if gathered else self._in_turn
            loss, predictions = go(moved, stage, backward)
        self._batches += 1
        if self._batches % self.accumulate == 0:
            self._update(stage, update)
        if predictions is not None and {"item_logging", "print_loss"} & set(self.habits):
            with stage("log"):
                self._log(loss, predictions, self._targets(moved))
        return loss.detach()

    def _targets(self, batch: Batch) -> Tensor:
        return batch.target.to(torch.float64 if self.dtype == "float64" else torch.float32)

    def _without_exchange(self, last: bool) -> AbstractContextManager[Any]:
        """Return DDP's `no_sync` for gradients that are not the last of their sum: of an earlier batch or slice."""
        how = self.exchange
        # a static graph is learned in a first batch that exchanges; the mean of what is equal changes no sum
        if how is None or (how.static_graph and self._batches == 0):
            return nullcontext()
        more = how.no_sync and (self._batches + 1) % self.accumulate
        if last and not more:
            return nullcontext()
        return self._ddp.no_sync()  # type: ignore[operator]

    def _in_turn(self, batch: Batch, stage: Stage, backward: Callable[[Tensor], None]) -> tuple[Tensor, Tensor]:
        """Go through a batch's slices, or the batch as one, and return the loss and the predictions."""
        losses, predictions = [], []
        sizes = batch.parts[0].known.get("sizes")
        if self.exchange is not None and self._batches == 0:
            check_slices(self.exchange, batch.parts[0].known.get("slices", ()))
        for number, part in enumerate(batch.parts, start=1):
            with stage("mask"):
                view = self.strategy.view(part)
            # the view closes after the backward, when a strategy may take its buffers back
            with self._without_exchange(last=number == len(batch.parts)), view:
                with self._autocast():
                    with stage("forward"):
                        output = self._forward(view)
                    with stage("loss"):
                        loss = self._loss(output, part, sizes, stage)
                        loss = loss if part.size == batch.size else loss * (part.size / batch.size)
                with stage("backward"):
                    backward(loss if self.accumulate == 1 else loss / self.accumulate)
            losses.append(loss.detach())
            predictions.append(_predictions(output))
            del output, loss  # what they keep must be gone before the next slice
        if self.exchange is not None and self._batches == 0:
            self._check_gradients(self.exchange)
        if len(losses) == 1:
            return losses[0], predictions[0]
        return torch.stack(losses).sum(), torch.cat(predictions)

    def _gathered(self, batch: Batch, stage: Stage, backward: Callable[[Tensor], None]) -> tuple[Tensor, Tensor]:
        """As `_in_turn` for a loss over the batch: nothing of a slice but its output is kept for the backward."""
        if self.strategy.one_view:
            raise InputError(
                f"{self.strategy.name} has one view at a time, and a loss over the batch needs those of all slices"
            )
        if self.exchange is not None:
            raise InputError("ranks train together, and slices of a loss over the batch are not exchanged by DDP")
        with ExitStack() as views, self._autocast():
            outputs = []
            for part in batch.slices:
                with stage("mask"):
                    view = views.enter_context(self.strategy.view(part))
                with stage("forward"):
                    outputs.append(recomputed(self._forward, view, use_reentrant=False))
            with stage("loss"):
                output = outputs[0]._make(map(torch.cat, zip(*outputs, strict=True)))
                loss = self._loss(output, batch, None, stage)
            with stage("backward"):
                backward(loss if self.accumulate == 1 else loss / self.accumulate)
        return loss, _predictions(output)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == "bfloat16")

    def _loss(self, output: Any, batch: Batch, sizes: tuple[int, ...] | None, stage: Stage) -> Tensor:
        """Return the loss of a batch, weighted by its samples where other ranks may have another number."""
        targets = self._targets(batch)
        if self.exchange is None:
            loss = self.loss(output, targets, epoch=self.epoch)
        else:
            peers = Peers.here(batch.size)
            peers = Peers(peers.rank, sizes or peers.sizes, stage)
            if self._loss_takes_peers:
                loss = self.loss(output, targets, epoch=self.epoch, peers=peers)  # type: ignore[call-arg]
            else:
                loss = self.loss(output, targets, epoch=self.epoch) * peers.share
        return with_zero_params(loss, self.model) if "zero_params_loss" in self.habits else loss

    def _check_gradients(self, how: Exchange) -> None:
        """Refuse parameters without a gradient: DDP would leave others of their bucket unexchanged."""
        unused = without_gradient(self.model)
        if unused and not (how.find_unused_parameters or how.static_graph):
            names = ", ".join(unused[:3]) + (f" and {len(unused) - 3} more" if len(unused) > 3 else "")
            raise InputError(
                f"{names}: no gradient, and DDP waits for one of every parameter; expected "
                "find_unused_parameters=True, or static_graph=True where it is so in every step"
            )

    def _update(self, stage: Stage, update: Callable[[], Any] | None) -> None:
        """Clip and step, where the mode has an optimizer, and free the gradients."""
        if self.mode not in _UPDATING:
            with stage("backward"):
                self.model.zero_grad()
            return
        assert self.optimizer is not None
        if self.clip is not None and self.mode != "empty":
            with stage("clip"):
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        with stage("optimizer"):
            (update or self.optimizer.step)()
            self.optimizer.zero_grad()

    def _log(self, loss: Tensor, predictions: Tensor, targets: Tensor) -> None:
        if "item_logging" in self.habits:
            self.logged = read_one_by_one(loss.detach(), predictions, targets)
        if "print_loss" in self.habits:
            print(f"Loss: {loss}")
