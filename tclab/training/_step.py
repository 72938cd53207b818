"""One training step, stage by stage: `Step`, which every loop runs and every measurement times."""

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
from tclab.models import ModelKind
from tclab.models._gathered_ranks import Peers
from tclab.timing import Communication
from tclab.timing._layer_marks import mark
from tclab.training._distributed import Exchange, distributed_forward, without_gradient
from tclab.training._overheads import (
    LOGGING,
    apply_to_loss,
    apply_to_model,
    read_one_by_one,
    validate_overheads,
    with_zero_params,
)

Stage = Callable[[str], AbstractContextManager[Any]]

# What a step runs after loading a batch; see `Step`. `fixed_batch` loads a single batch.
MODES = {
    "data": "transfer only; there is no model",
    "empty": "transfer and mask, then the loop itself: a model of one parameter that does not depend on the batch",
    "model": "transfer, mask, forward, loss and backward; there is no optimizer",
    "step": "every stage",
    "fixed_batch": "every stage, on one batch that the loop repeats",
}
WITHOUT_MODEL = ("data", "empty")
_UPDATING = ("empty", "step", "fixed_batch")
DTYPES = ("float32", "float64", "bfloat16")
# AdamW's three implementations of the parameter update
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "plain": {"foreach": False, "fused": False},
}
CLIP = 10.0  # gradient norm that the case study's production training clips to


def compiled_forward(forward: Callable[[nn.Module, View], Any]) -> Callable[[nn.Module, View], Any]:
    """Compile `forward`, (model, view) → output, running the first call eagerly: sparse matrices are built in it.

    Their sizes depend on data, which the compiler does not have. Where torch reaches its limit of recompilations, the
    compiled forward raises instead of continuing eagerly: an eager step would be timed as a compiled one.
    """
    compiled = torch.compile(forward)
    first_call = True

    def run(model: nn.Module, view: View) -> Any:
        nonlocal first_call
        if first_call:
            first_call = False
            return forward(model, view)
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            return compiled(model, view)

    return run


def _predictions(output: Any) -> Tensor:
    predictions: Tensor = getattr(output, "predictions", output).detach()
    return predictions


def _gathers(loss: Any) -> bool:
    return getattr(loss, "gather_interval", None) is not None


class _Empty(nn.Module):
    """A model of one parameter, for loops that need a model."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(()))


def _forward_of_empty(model: nn.Module, view: View) -> Tensor:
    return model.get_parameter("number") * 0.0


class Step:
    """Runs the stages of one training step on a batch from the loader.

    The stages are transfer, mask, forward, loss, backward, clip, optimizer and log; a stage that the mode leaves out
    is not entered. Mode `empty` measures what the training loop itself costs, and masks that are made on the device.

    With bfloat16 the model runs under autocast with float32 weights; float64 holds for weights, activations and
    targets. Targets are float32 otherwise.

    A batch of several slices (`micro_batch`) runs slice by slice, and its gradients equal those of the whole batch: a
    loss that is a mean over samples is summed over slices, weighted by their share of the samples. A loss over the
    whole batch (one with the attribute `over_batch`) takes the outputs of all slices, whose activations are recomputed
    in the backward.

    **Arguments:**

    - `kind`: the registered model: how it is built, its forward and its losses.
    - `strategy`: makes the views; its graph decides the device.
    - `mode`, `dtype`, `optimizer`: from `MODES`, `DTYPES` and `OPTIMIZERS`, all of which are AdamW.
    - `metabolism`: passed to the model.
    - `seed`: seed of the weights.
    - `loss`: name of one of the model's losses; the model's first by default.
    - `epoch`: the epoch that the loss's schedule is at; an attribute that a training loop sets as it goes.
    - `clip`: norm that gradients are clipped to; `None` for no clipping.
    - `accumulate`: number of batches whose gradients are averaged before one clip and optimizer step.
    - `overheads`: names from `OVERHEADS`.
    - `log_every`: batches from one log to the next, of the overheads that log; each batch by default.
    - `checkpoint`: switch on the model's activation checkpointing.
    - `compile`: run the model through `torch.compile`, from the second call on; see `compiled_forward`.
    - `learning_rate`: AdamW's.
    - `gather_interval`: steps between the loss's all-gathers; the loss's default if `None`.
    - `exchange`: how DDP exchanges gradients among the ranks of this process's group; `None` for a single process.
      Views are made outside DDP. The attribute `communication` then records the exchange; mode `data` exchanges
      nothing.

    **Raises:** `InputError` for an unknown name, with the nearest one, or a number out of range; in the first step,
    for parameters without a gradient, for which DDP would wait.
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
        overheads: Iterable[str] = (),
        log_every: int | None = None,
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
        self.overheads = validate_overheads(overheads)
        self.log_every = log_every or 1
        torch.manual_seed(seed)
        self.model: nn.Module = _Empty() if mode in WITHOUT_MODEL else kind.build(strategy.graph, metabolism)
        self.model.to(self.device, torch.float64 if dtype == "float64" else None)
        forward = kind.forward
        if mode in WITHOUT_MODEL:
            forward = _forward_of_empty
        elif compile:
            forward = compiled_forward(forward)
        self._forward: Callable[[View], Any] = partial(forward, self.model)
        if mode not in WITHOUT_MODEL:
            if checkpoint:
                if not kind.checkpoints:
                    raise InputError(f"checkpoint is True, and {kind.name} has no activation checkpointing")
                self.model.checkpoint = True  # type: ignore[assignment]
            apply_to_model(self.model, self.overheads)
            self.loss = kind.loss(strategy.graph, loss)
            apply_to_loss(self.loss, self.overheads)
            self._loss_takes_peers = "peers" in signature(self.loss).parameters
            if gather_interval is not None:
                if not _gathers(self.loss):
                    able = [name for name in kind.losses if _gathers(kind.loss(strategy.graph, name))]
                    named = loss or next(iter(kind.losses))
                    raise InputError(
                        f"gather_interval is {gather_interval!r}, and the loss {named!r} gathers nothing from other "
                        f"ranks; {', '.join(map(repr, able)) or 'no loss'} of {kind.name} does"
                    )
                setattr(self.loss, "gather_interval", gather_interval)  # noqa: B010 (a loss may have none)
        self.exchange = exchange if mode != "data" else None
        self.communication: Communication | None = None
        if self.exchange is not None:
            self._ddp, self.communication = distributed_forward(forward, self.model, self.exchange)
            self._forward = self._ddp
        self.optimizer: torch.optim.Optimizer | None = None
        if mode in _UPDATING:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, **OPTIMIZERS[optimizer])
        self.logged: dict[str, float] = {}
        self._batches = 0

    def __call__(self, batch: Batch, *, stage: Stage = nullcontext) -> Tensor | None:
        """Run one step on a batch from the loader, on the CPU, and return what `run` does."""
        return self.run(self.transfer(batch, stage=stage), stage=stage)

    def transfer(self, batch: Batch, *, stage: Stage = nullcontext) -> Batch:
        """Move a batch to the device, as the stage `transfer`; a loop with a transfer hook calls this, then `run`."""
        with stage("transfer"):
            return batch.to(self.device, non_blocking=True)

    def run(
        self,
        moved: Batch,
        *,
        stage: Stage = nullcontext,
        backward: Callable[[Tensor], None] = Tensor.backward,
        update: Callable[[], Any] | None = None,
    ) -> Tensor | None:
        """Run the stages after the transfer and return the loss, [] on the device; `None` in mode `data`.

        **Arguments:**

        - `moved`: the batch on the device.
        - `stage`: name → the context that the stage runs in, such as `Ledger.stage`.
        - `backward`: runs the backward of a loss, where a framework has its own way (Lightning's `manual_backward`).
        - `update`: runs the optimizer's step, where a framework has its own way.
        """
        if self.mode == "data":
            return None
        predictions = None
        if self.mode == "empty":
            loss = self._without_model(moved, stage, backward)
        else:
            joint_loss = bool(moved.slices) and getattr(self.loss, "over_batch", False)
            forward_backward = self._all_slices if joint_loss else self._slice_by_slice
            loss, predictions = forward_backward(moved, stage, backward)
        self._batches += 1
        if self._batches % self.accumulate == 0:
            self._update(stage, update)
        due = LOGGING & set(self.overheads) and self._batches % self.log_every == 0
        if predictions is not None and due:
            with stage("log"):
                self._log(loss, predictions, self._targets(moved))
        return loss.detach()

    def _targets(self, batch: Batch) -> Tensor:
        return batch.target.to(torch.float64 if self.dtype == "float64" else torch.float32)

    def _without_exchange(self, last: bool) -> AbstractContextManager[Any]:
        """Return DDP's `no_sync` where more gradients come before the optimizer's step; `last` is a batch's end."""
        exchange = self.exchange
        # DDP learns a static graph in a first batch that exchanges; averaging equal gradients changes no sum
        if exchange is None or (exchange.static_graph and self._batches == 0):
            return nullcontext()
        more_batches = exchange.no_sync and (self._batches + 1) % self.accumulate
        if last and not more_batches:
            return nullcontext()
        return self._ddp.no_sync()  # type: ignore[operator]

    def _without_model(self, batch: Batch, stage: Stage, backward: Callable[[Tensor], None]) -> Tensor:
        """Make and drop the view of each slice, or of the whole batch, then run loss and backward of one parameter."""
        for part in batch.parts:
            with stage("mask"):
                view = self.strategy.view(part)
            view.close()
        with self._without_exchange(last=True):
            with stage("loss"):
                loss: Tensor = self._forward(view)
            with stage("backward"):
                backward(loss)
        return loss

    def _slice_by_slice(self, batch: Batch, stage: Stage, backward: Callable[[Tensor], None]) -> tuple[Tensor, Tensor]:
        """Run forward and backward of each slice, or of the whole batch; return the loss, [], and predictions, [B]."""
        losses, predictions = [], []
        for number, part in enumerate(batch.parts, start=1):
            with stage("mask"):
                view = self.strategy.view(part)
            # the view closes after the backward, when a strategy may reuse its buffers
            with self._without_exchange(last=number == len(batch.parts)), view:
                with self._autocast():
                    with stage("forward"):
                        output = self._forward(view)
                    with stage("loss"):
                        loss = self._loss(output, part, stage)
                        loss = loss if part.size == batch.size else loss * (part.size / batch.size)
                        loss = mark("loss", loss)
                with stage("backward"):
                    backward(loss if self.accumulate == 1 else loss / self.accumulate)
            losses.append(loss.detach())
            predictions.append(_predictions(output))
            del output, loss  # frees the slice's activations before the next one
        if self.exchange is not None and self._batches == 0:
            self._check_gradients(self.exchange)
        if len(losses) == 1:
            return losses[0], predictions[0]
        return torch.stack(losses).sum(), torch.cat(predictions)

    def _all_slices(self, batch: Batch, stage: Stage, backward: Callable[[Tensor], None]) -> tuple[Tensor, Tensor]:
        """Run forward and backward for a loss over the whole batch, keeping only each slice's output in between.

        The backward recomputes each slice's activations (`torch.utils.checkpoint`).
        """
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
                loss = mark("loss", self._loss(output, batch, stage))
            with stage("backward"):
                backward(loss if self.accumulate == 1 else loss / self.accumulate)
        return loss, _predictions(output)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == "bfloat16")

    def _loss(self, output: Any, batch: Batch, stage: Stage) -> Tensor:
        given: dict[str, Any] = {"epoch": self.epoch}
        if self.exchange is not None and self._loss_takes_peers:
            given["peers"] = Peers.here(stage)
        loss = self.loss(output, self._targets(batch), **given)
        return with_zero_params(loss, self.model) if "zero_params_loss" in self.overheads else loss

    def _check_gradients(self, exchange: Exchange) -> None:
        """Raise for parameters without a gradient: DDP would not exchange the bucket that they are in."""
        unused = without_gradient(self.model)
        if unused and not (exchange.find_unused_parameters or exchange.static_graph):
            names = ", ".join(unused[:3]) + (f" and {len(unused) - 3} more" if len(unused) > 3 else "")
            raise InputError(
                f"{names}: no gradient, and DDP waits for one of every parameter; expected "
                "find_unused_parameters=True, or static_graph=True where they have none in any step"
            )

    def _update(self, stage: Stage, update: Callable[[], Any] | None) -> None:
        """Clip, run the optimizer's step if the mode has one, and free the gradients."""
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
        if "item_logging" in self.overheads:
            self.logged = read_one_by_one(loss.detach(), predictions, targets)
        if "print_loss" in self.overheads:
            print(f"Loss: {loss}")
