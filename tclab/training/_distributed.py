"""Data-parallel training: `Exchange` of gradients by DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tclab._display import first_of
from tclab.errors import InputError
from tclab.message_passing import View
from tclab.timing import Communication


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
