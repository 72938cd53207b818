"""DistributedDataParallel around a model's own forward, with its axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tclab.errors import InputError, unknown
from tclab.message_passing import View
from tclab.timing import Communication

COMPRESSIONS = ("none", "fp16", "bf16", "powersgd")
BUCKET_MB = 25.0  # what torch takes unless told
_PLAIN_STEPS = 2  # PowerSGD's first steps exchange whole gradients; its least number that keeps errors back


@dataclass(frozen=True)
class Exchange:
    """How ranks exchange gradients; the arguments are DDP's own unless said otherwise.

    **Arguments:**

    - `bucket_cap_mb`: gradients are exchanged in buckets of so many MiB.
    - `find_unused_parameters`: look after each forward for parameters that will get no gradient.
    - `static_graph`: every step is like the first one.
    - `compression`: of gradients on their way, by the hooks that torch ships: "none", "fp16", "bf16", "powersgd"
      (by gloo a bucket at a time, so that nothing of it hides behind the backward).
    - `no_sync`: of gradients that add up over batches, exchange the last sum alone.

    **Raises:** `InputError` for an unknown compression, a bucket of no size, two ways to treat unused parameters.
    """

    bucket_cap_mb: float = BUCKET_MB
    find_unused_parameters: bool = False
    static_graph: bool = False
    compression: str = "none"
    no_sync: bool = True

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise unknown("compression", self.compression, COMPRESSIONS)
        size = self.bucket_cap_mb
        if isinstance(size, bool) or not isinstance(size, (int, float)) or not size > 0:
            raise InputError(f"bucket_cap_mb is {size!r}, expected MiB above 0")
        if self.find_unused_parameters and self.static_graph:
            raise InputError(
                "find_unused_parameters and static_graph are both on, expected one: static finds them too"
            )


class _Forward(nn.Module):
    """A model whose call is what a step asks of it: DDP must see all of the forward, and nothing else."""

    def __init__(self, forward: Callable[[Any, View], Any], model: nn.Module) -> None:
        super().__init__()
        self.call = forward
        self.model = model

    def forward(self, view: View) -> Any:
        return self.call(self.model, view)


def exchanging(
    forward: Callable[[Any, View], Any], model: nn.Module, how: Exchange
) -> tuple[nn.Module, Communication]:
    """Return a model's forward under DDP, in this process's group, and what watches its exchanges."""
    ddp = DistributedDataParallel(
        _Forward(forward, model),
        bucket_cap_mb=how.bucket_cap_mb,
        find_unused_parameters=how.find_unused_parameters,
        static_graph=how.static_graph,
    )
    return ddp, Communication(ddp, hook=_hook(how.compression))


def _hook(compression: str) -> Callable[[Any], Any] | None:
    """Return torch's hook of a compression: from a bucket to the future of its mean; `None` for no compression."""
    if compression == "none":
        return None
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    group: Any = torch.distributed.group.WORLD
    if compression == "powersgd":
        state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=_PLAIN_STEPS)

        def powersgd(bucket: Any) -> Any:
            mean = powerSGD_hook.powerSGD_hook(state, bucket)
            if bucket.buffer().device.type == "cpu" or torch.distributed.get_backend() == "gloo":
                # its second and third exchange begin on gloo's threads, in an order that ranks do not agree on
                mean.wait()
            return mean

        return powersgd
    chosen = default_hooks.fp16_compress_hook if compression == "fp16" else default_hooks.bf16_compress_hook
    return lambda bucket: chosen(group, bucket)


def check_slices(how: Exchange, slices: tuple[int, ...]) -> None:
    """Refuse a first batch after whose slices a static graph would exchange, another number of times on each rank.

    **Arguments:**

    - `slices`: [ranks] of that batch.

    **Raises:** `InputError`, as ranks would wait for exchanges that never come.
    """
    if how.static_graph and len(set(slices)) > 1:
        raise InputError(
            f"static_graph is True, and ranks have {', '.join(map(str, slices))} slices of their first batch; "
            "expected as many on each, or static_graph=False"
        )


def without_gradient(model: nn.Module) -> list[str]:
    """Return the names of parameters that should have a gradient after a backward, and have none."""
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
