"""One training step, stage by stage: `Step`, which every loop runs and every measurement times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tclab._display import first_of
from tclab.errors import InputError
from tclab.masking import Batch, Strategy
from tclab.message_passing import View
from tclab.models import ModelKind
from tclab.models._losses import Stage
from tclab.timing import Communication
from tclab.training._captured_step import Captured, refusals

Backward = Callable[[Tensor], None]
Update = Callable[[], Any] | None  # the optimizer's step where a framework runs it; None for the optimizer's own

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


_NO_MODEL = ModelKind(  # of one parameter, for loops that need a model
    "none",
    lambda graph, metabolism: nn.ParameterList([nn.Parameter(torch.zeros(()))]),
    {"none": lambda graph: lambda output, targets, *, epoch=0: output},
    forward=lambda model, view: next(model.parameters()) * 0.0,
)


# ---- data-parallel training: `Exchange` of gradients by DistributedDataParallel


@dataclass(frozen=True)
class Exchange:
    """How ranks exchange gradients.

    **Arguments:**

    - `options`: of `DistributedDataParallel`, by its names.
    - `compression`: of gradients, by one of torch's communication hooks: "none", "fp16" or "bf16".
    - `no_sync`: exchange accumulated gradients only in the last of the batches that are accumulated.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    compression: str = "none"
    no_sync: bool = True

    @staticmethod
    def of(ddp: Mapping[str, Any]) -> Exchange:
        """Return the exchange of a point's options, of which DDP takes all but `gather_interval`, which is a loss's."""
        methods = {name: ddp[name] for name in ("compression", "no_sync") if name in ddp}
        others = {name: value for name, value in ddp.items() if name not in {*methods, "gather_interval"}}
        return Exchange(others, **methods)

    def check_gradients(self, model: nn.Module) -> None:
        """Raise for parameters without a gradient: DDP would not exchange the bucket that they are in.

        **Raises:** `InputError`, unless DDP was told to look for them.
        """
        unused = without_gradient(model)
        if unused and not (self.options.get("find_unused_parameters") or self.options.get("static_graph")):
            raise InputError(
                f"{first_of(unused)}: no gradient, and DDP waits for one of every parameter; expected "
                "find_unused_parameters, or static_graph where they have none in any step, among the options of DDP"
            )


class _Forward(nn.Module):
    """A module whose `forward` is the registered model's forward, as DDP needs: it sees that call and no other."""

    def __init__(self, forward: Callable[[Any, View], Any], model: nn.Module) -> None:
        super().__init__()
        self.call = forward
        self.model = model

    def forward(self, view: View) -> Any:
        return self.call(self.model, view)


def distributed_forward(
    forward: Callable[[Any, View], Any], model: nn.Module, exchange: Exchange
) -> tuple[DistributedDataParallel, Communication]:
    """Return a model's forward under DDP in this process's group, and the record of its communication."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    ddp, hook = DistributedDataParallel(_Forward(forward, model), **exchange.options), None
    if exchange.compression != "none":  # bucket → future of its mean
        compress = getattr(default_hooks, f"{exchange.compression}_compress_hook")
        hook = partial(compress, torch.distributed.group.WORLD)
    return ddp, Communication(ddp, hook=hook)


def without_gradient(model: nn.Module) -> list[str]:
    """Return the names of the parameters that require a gradient and have none after a backward."""
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


# ---- the step


class Step:
    """Runs the stages of one training step on a batch from the loader.

    The stages are transfer, mask, forward, loss, backward, clip and optimizer; a stage that the mode leaves out
    is not entered. Mode `empty` measures what the training loop itself costs, and masks that are made on the device.

    With bfloat16 the model runs under autocast with float32 weights; float64 holds for weights, activations and
    targets. Targets are float32 otherwise.

    A batch of several slices (`micro_batch`) runs slice by slice, and its gradients equal those of the whole batch: a
    loss, which must be a mean over samples, is summed over slices, weighted by their share of the samples.

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
    - `compile`: run the model through `torch.compile`, from the second call on; see `compiled_forward`.
    - `capture`: on CUDA, replay the stages after the transfer as CUDA graphs; see `Captured`. They are recorded anew
      where `epoch`, `clip`, an option of the optimizer or `requires_grad` changes, or a state is loaded.
    - `learning_rate`: AdamW's; a tensor, [], where it changes with every batch of a captured step.
    - `gather_interval`: steps between the loss's all-gathers; the loss's default if `None`.
    - `exchange`: how DDP exchanges gradients among the ranks of this process's group; `None` for a single process.
      Views are made outside DDP. The attribute `communication` then records the exchange; mode `data` exchanges
      nothing.

    **Raises:** `InputError` for a loss that the model does not have, or one that does not gather; for a step that
    cannot be captured; in the first step, for parameters without a gradient, for which DDP would wait, and for slices
    where the loss is over the whole batch (it has `over_batch = True`).
    """

    def __init__(
        self, kind: ModelKind, strategy: Strategy, *, mode: str = "step", dtype: str = "float32",
        metabolism: str = "off", seed: int = 0, loss: str | None = None, epoch: int = 0, clip: float | None = CLIP,
        optimizer: str = "fused", accumulate: int = 1, compile: bool = False, capture: bool = False,
        learning_rate: float | Tensor = 1e-4, gather_interval: int | None = None, exchange: Exchange | None = None
    ) -> None:  # fmt: skip
        if mode in WITHOUT_MODEL:
            kind, loss, compile, gather_interval = _NO_MODEL, None, False, None
        self.device = strategy.graph.device
        chosen = {"mode": mode, "compile": compile, "accumulate": accumulate, "metabolism": metabolism}
        chosen["ranks"] = 1 if exchange is None else "several"
        for reason in refusals(type(strategy), self.device.type, chosen) if capture else ():
            raise InputError(reason)
        self.kind = kind
        self.strategy = strategy
        self.mode = mode
        self.dtype = dtype
        self.epoch = epoch
        self.clip = clip
        self.accumulate = accumulate
        self.batches = 0  # that were run
        torch.manual_seed(seed)
        self.model: nn.Module = kind.build(strategy.graph, metabolism)
        self.model.to(self.device, torch.float64 if dtype == "float64" else None)
        self.loss: Callable[..., Tensor] = kind.loss(strategy.graph, loss)
        self.loss_takes_stage = "stage" in signature(self.loss).parameters
        if gather_interval is not None:
            if getattr(self.loss, "gather_interval", None) is None:
                gathers = f"the loss {loss or next(iter(kind.losses))!r} gathers nothing from other ranks"
                raise InputError(f"gather_interval is {gather_interval!r}, and {gathers}; expected None")
            self.loss.gather_interval = gather_interval  # type: ignore[attr-defined]
        forward = compiled_forward(kind.forward) if compile else kind.forward
        self._forward: Callable[[View], Any] = partial(forward, self.model)
        self.exchange = exchange if mode != "data" else None
        self.communication: Communication | None = None
        if self.exchange is not None:
            self._ddp, self.communication = distributed_forward(forward, self.model, self.exchange)
            self._forward = self._ddp
        self.optimizer: torch.optim.Optimizer | None = None
        if mode in _UPDATING:
            options = {**OPTIMIZERS[optimizer], "capturable": capture and self.device.type == "cuda"}
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, **options)
        if capture and getattr(self.loss, "over_batch", False):
            raise InputError("the loss remembers earlier batches, ever more of them; a captured step has a fixed size")
        self._captured = captured = Captured(self._stages, self._facts) if capture else None
        if captured is not None and self.optimizer is not None:  # a loaded state lies in other tensors
            self.optimizer.register_load_state_dict_post_hook(lambda optimizer: captured.forget())

    def __call__(self, batch: Batch, *, stage: Stage = nullcontext) -> Tensor | None:
        """Run one step on a batch from the loader and return what `run` does."""
        return self.run(self.transfer(batch, stage=stage), stage=stage)

    def transfer(self, batch: Batch, *, stage: Stage = nullcontext) -> Batch:
        """Move a batch to the device, as the stage `transfer`; a loop with a transfer hook calls this, then `run`."""
        with stage("transfer"):
            return batch.to(self.device, non_blocking=True)

    def run(
        self, moved: Batch, *, stage: Stage = nullcontext, backward: Backward = Tensor.backward, update: Update = None
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
        if moved.slices and getattr(self.loss, "over_batch", False):
            raise InputError("the loss is over the whole batch, which comes in slices; expected no micro_batch")
        if self._captured is None:
            loss = self._stages(moved, stage, backward, update)
        elif moved.slices or update is not None or backward is not Tensor.backward:
            raise InputError("a captured step takes no slices, and runs the backward and the optimizer itself")
        else:
            loss = self._captured(moved, stage=stage)
        self.batches += 1
        return loss

    def _facts(self) -> Any:
        """Return what a captured step depends on besides its batch."""
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        options = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        weights = [(p.data_ptr(), p.requires_grad) for group in groups for p in group["params"]]
        return self.epoch, self.clip, self.model.training, options, weights

    def _stages(
        self, moved: Batch, stage: Stage, backward: Backward = Tensor.backward, update: Update = None
    ) -> Tensor:
        loss = self._forward_and_backward(moved, stage, backward)
        if (self.batches + 1) % self.accumulate == 0:
            self._update(stage, update)
        return loss.detach()

    def _forward_and_backward(self, batch: Batch, stage: Stage, backward: Backward) -> Tensor:
        """Run forward and backward of each slice, or of the whole batch, and return the loss, []."""
        losses = []
        for i, part in enumerate(batch.parts, start=1):
            with stage("mask"):
                view = self.strategy.view(part)
            # the view closes after the backward, when a strategy may reuse its buffers
            with self._without_exchange(last=i == len(batch.parts)), view:
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == "bfloat16"):
                    with nullcontext() if self.mode == "empty" else stage("forward"):
                        output = self._forward(view)
                    with stage("loss"):
                        loss = self._loss(output, part, stage)
                        loss = loss if part.size == batch.size else loss * (part.size / batch.size)
                with stage("backward"):
                    backward(loss if self.accumulate == 1 else loss / self.accumulate)
            losses.append(loss.detach())
            del output, loss  # frees the slice's activations before the next one
        if self.exchange is not None and self.batches == 0:
            self.exchange.check_gradients(self.model)
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _without_exchange(self, last: bool) -> AbstractContextManager[Any]:
        """Return DDP's `no_sync` where more gradients come before the optimizer's step; `last` is a batch's end."""
        exchange = self.exchange
        # DDP learns a static graph in a first batch that exchanges; averaging equal gradients changes no sum
        if exchange is None or (exchange.options.get("static_graph") and self.batches == 0):
            return nullcontext()
        more_batches = exchange.no_sync and (self.batches + 1) % self.accumulate
        return nullcontext() if last and not more_batches else self._ddp.no_sync()

    def _loss(self, output: Any, batch: Batch, stage: Stage) -> Tensor:
        targets = batch.target.to(torch.float64 if self.dtype == "float64" else torch.float32)
        given = {"stage": stage} if self.loss_takes_stage else {}
        return self.loss(output, targets, epoch=self.epoch, **given)

    def _update(self, stage: Stage, update: Update) -> None:
        """Clip, run the optimizer's step if the mode has one, and free the gradients."""
        if self.optimizer is None:
            with stage("backward"):
                self.model.zero_grad()
            return
        if self.clip is not None and self.mode != "empty":
            with stage("clip"):
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        with stage("optimizer"):
            (update or self.optimizer.step)()
            self.optimizer.zero_grad()
