"""One training step, stage by stage: what every loop runs and every clock is put around."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from tclab.masking import Batch, Strategy
from tclab.message_passing import View
from tclab.models import ModelKind

Stage = Callable[[str], AbstractContextManager[None]]

MODES = ("data", "model", "step")
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
DTYPES = tuple(_DTYPES)


def _no_clock(stage: str) -> AbstractContextManager[None]:
    return nullcontext()


class Step:
    """Takes a raw batch through transfer, mask, forward, loss, backward and optimizer, as far as the mode says.

    Modes: `data` stops after the transfer; `model` runs up to the backward and frees the gradients; `step` is a
    whole training step with fused AdamW. bfloat16 is autocast over float32 weights, float64 is throughout.

    **Arguments:**

    - `kind`: the model, its forward and its loss.
    - `strategy`: its half that makes views; its graph says the device.
    - `mode`, `dtype`: one of `MODES`, `DTYPES`.
    - `metabolism`: passed to the model.
    - `seed`: of the weights.
    - `stage`: called with each stage's name, returns a context to run it in; a clock, say.
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
    ) -> None:
        self.kind = kind
        self.strategy = strategy
        self.mode = mode
        self.device = strategy.graph.device
        self.dtype = dtype
        torch.manual_seed(seed)
        self.model: nn.Module = kind.build(strategy.graph, metabolism).to(self.device)
        if dtype == "float64":
            self.model.double()
        self.loss = kind.loss(strategy.graph)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def __call__(self, batch: Batch, *, stage: Stage = _no_clock) -> Tensor | None:
        """Run one step on a batch from the loader and return its loss, [] on the device; `None` in mode `data`."""
        with stage("transfer"):
            moved = batch.to(self.device, non_blocking=True)
        if self.mode == "data":
            return None
        with stage("mask"):
            view = self.strategy.view(moved)
        loss = self._through(view, moved.target, stage)
        if self.mode == "step":
            with stage("optimizer"):
                self.optimizer.step()
                self.optimizer.zero_grad()
        else:
            self.optimizer.zero_grad()
        return loss.detach()

    def _through(self, view: View, target: Tensor, stage: Stage) -> Tensor:
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == "bfloat16")
        with view:  # it closes after the backward, when a strategy may take its buffers back
            with autocast:
                with stage("forward"):
                    output = self.kind.forward(self.model, view)
                with stage("loss"):
                    loss: Tensor = self.loss(output, target.to(_DTYPES[self.dtype]))
            with stage("backward"):
                loss.backward()
        return loss
