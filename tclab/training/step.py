"""One training step, stage by stage: what every loop runs and every clock is put around."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from tclab.errors import InputError, unknown
from tclab.masking import Batch, Strategy
from tclab.message_passing import View
from tclab.models import ModelKind, Peers
from tclab.timing import Communication
from tclab.training.ddp import Exchange, exchanging, without_gradient
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
        if mode not in WITHOUT_MODEL:
            put_on_model(self.model, self.habits)
            self.loss = kind.loss(strategy.graph, loss)
            put_on_loss(self.loss, self.habits)
            if gather_interval is not None:
                if getattr(self.loss, "gather_interval", None) is None:
                    raise InputError(f"gather_interval is {gather_interval!r}, and this loss gathers at none")
                setattr(self.loss, "gather_interval", gather_interval)  # noqa: B010 (a loss may have none)
        self.exchange = exchange if mode not in WITHOUT_MODEL else None
        self.communication: Communication | None = None
        if self.exchange is not None:
            self._ddp, self.communication = exchanging(kind, self.model, self.exchange)
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
        """
        if self.mode == "data":
            return None
        output = None
        if self.mode == "empty":
            with stage("loss"):
                loss = self.model.get_parameter("number") * 0.0
            with stage("backward"):
                backward(loss)
        else:
            with stage("mask"):
                view = self.strategy.view(moved)
            with self._without_exchange():
                loss, output = self._through(view, moved, stage, backward)
        self._batches += 1
        if self._batches % self.accumulate == 0:
            self._update(stage, update)
        if output is not None and {"item_logging", "print_loss"} & set(self.habits):
            with stage("log"):
                self._log(loss, output, self._targets(moved))
        return loss.detach()

    def _targets(self, batch: Batch) -> Tensor:
        return batch.target.to(torch.float64 if self.dtype == "float64" else torch.float32)

    def _without_exchange(self) -> AbstractContextManager[Any]:
        """Return DDP's `no_sync` for a batch whose gradients are not the last of their sum."""
        more = (self._batches + 1) % self.accumulate
        how = self.exchange
        # a static graph is learned in a first batch that exchanges; the mean of what is equal changes no sum
        if how is None or not how.no_sync or not more or (how.static_graph and self._batches == 0):
            return nullcontext()
        return self._ddp.no_sync()  # type: ignore[operator]

    def _forward(self, view: View) -> Any:
        return self.kind.forward(self.model, view) if self.exchange is None else self._ddp(view)

    def _loss(self, output: Any, batch: Batch, stage: Stage) -> Tensor:
        """Return the loss of a batch, weighted by its samples where other ranks may have another number."""
        targets = self._targets(batch)
        if self.exchange is None:
            return self.loss(output, targets, epoch=self.epoch)
        peers = Peers.here(batch.size)
        peers = Peers(peers.rank, batch.known.get("sizes", peers.sizes), stage)
        if "peers" in signature(self.loss).parameters:
            return self.loss(output, targets, epoch=self.epoch, peers=peers)  # type: ignore[call-arg]
        return self.loss(output, targets, epoch=self.epoch) * peers.share

    def _through(
        self, view: View, moved: Batch, stage: Stage, backward: Callable[[Tensor], None]
    ) -> tuple[Tensor, Any]:
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == "bfloat16")
        with view:  # it closes after the backward, when a strategy may take its buffers back
            with autocast:
                with stage("forward"):
                    output = self._forward(view)
                with stage("loss"):
                    loss = self._loss(output, moved, stage)
                    if "zero_params_loss" in self.habits:
                        loss = with_zero_params(loss, self.model)
            with stage("backward"):
                backward(loss if self.accumulate == 1 else loss / self.accumulate)
        if self.exchange is not None and self._batches == 0:
            self._check_gradients(self.exchange)
        return loss, output

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

    def _log(self, loss: Tensor, output: Any, targets: Tensor) -> None:
        if "item_logging" in self.habits:
            self.logged = read_one_by_one(loss.detach(), output, targets)
        if "print_loss" in self.habits:
            print(f"Loss: {loss}")
