"""The ranks that take a training step together, for losses that gather over them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Peers:
    """How many samples each rank has in this step, and a way to see theirs.

    DDP takes the mean of the ranks' gradients, so a loss that is a mean over samples must be multiplied by `share`
    for the gradient to be that of all samples together; where all ranks have equally many, `share` is 1.

    **Arguments:**

    - `rank`: this one.
    - `sizes`: samples of each rank. A rank with none still takes part, with a sample that must not count.
    - `stage`: the ledger's; the exchange is timed as the stage `gather`.
    """

    rank: int
    sizes: tuple[int, ...]
    stage: Callable[[str], AbstractContextManager[Any]] = nullcontext

    @staticmethod
    def here(size: int) -> Peers:
        """Return the ranks of this process's group, each with so many samples; this one alone without a group."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return Peers(0, (size,))
        return Peers(distributed.get_rank(), (size,) * distributed.get_world_size())

    @property
    def local_size(self) -> int:
        """How many samples this rank has."""
        return self.sizes[self.rank]

    @property
    def share(self) -> float:
        """This rank's samples over the mean of the ranks'."""
        return len(self.sizes) * self.local_size / max(sum(self.sizes), 1)

    def gather(self, rows: Tensor, *, gradients: bool = False) -> Tensor:
        """Return every rank's rows, one rank after the other; a collective where there are several.

        **Arguments:**

        - `rows`: [n, …], the first `local_size` of them count.
        - `gradients`: let gradients through to this rank's rows, for a loss that every rank computes of all rows.
          They are multiplied by the number of ranks, so that DDP's mean over ranks is the gradient of that loss;
          so no collective is needed in the backward.
        """
        if len(self.sizes) == 1:
            return rows if gradients else rows.detach()
        with self.stage("gather"):
            most = max(self.sizes)
            sent = rows.detach()[: self.local_size]
            padding = sent.new_zeros(most - self.local_size, *sent.shape[1:])
            sent = torch.cat([sent, padding]).contiguous()
            parts = [torch.empty_like(sent) for _ in self.sizes]
            distributed.all_gather(parts, sent)
        found = [part[:size] for part, size in zip(parts, self.sizes, strict=True)]
        if gradients:
            found[self.rank] = _ScaleGradient.apply(rows[: self.local_size], len(self.sizes))
        return torch.cat(found)


class _ScaleGradient(torch.autograd.Function):
    """The same tensor, its gradient multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: int) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None
