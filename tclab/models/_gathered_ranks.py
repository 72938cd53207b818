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
    """The ranks, each with as many samples as the others, and a way to see theirs."""

    rank: int = 0  # this one
    ranks: int = 1
    stage: Callable[[str], AbstractContextManager[Any]] = nullcontext  # the ledger's; the exchange is its `gather`

    @staticmethod
    def here(stage: Callable[[str], AbstractContextManager[Any]] = nullcontext) -> Peers:
        """Return the ranks of this process's group; this one alone without a group."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return Peers(stage=stage)
        return Peers(distributed.get_rank(), distributed.get_world_size(), stage)

    def gather(self, rows: Tensor, *, gradients: bool = False) -> Tensor:
        """Return every rank's rows, one rank after the other; a collective where there are several.

        **Arguments:**

        - `rows`: [n, …]
        - `gradients`: let gradients through to this rank's rows, for a loss that every rank computes of all rows.
          They are multiplied by the number of ranks, so that DDP's mean over ranks is the gradient of that loss;
          so no collective is needed in the backward.
        """
        if self.ranks == 1:
            return rows if gradients else rows.detach()
        with self.stage("gather"):
            sent = rows.detach().contiguous()
            parts = [torch.empty_like(sent) for _ in range(self.ranks)]
            distributed.all_gather(parts, sent)
        if gradients and rows.requires_grad:
            own = rows.view_as(rows)
            own.register_hook(lambda grad: grad * self.ranks)
            parts[self.rank] = own
        return torch.cat(parts)
