"""The ranks that run a point together, and what they say to one another."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

_COLLECTIVE = timedelta(minutes=10)  # a rank that waits longer for the gradients of others raises an error
_IDLE = timedelta(days=30)


class Ranks:
    """This process among those that run a point together, or by itself; every method waits for all of them.

    `rank` and `ranks` are its number and how many there are, `local_rank` its place on its machine. Values travel as
    JSON in tensors of bytes: torch's collectives of objects unpickle what they receive. For values ranks wait as long
    as it takes: for the next request, or while rank 0 checks a strategy or fills a store.

    **Arguments:**

    - `device`: of the point. The ranks join in a process group: gloo, and NCCL on CUDA. By itself unless given.
    """

    def __init__(self, device: str | None = None) -> None:
        self.rank, self.ranks, self.local_rank = 0, 1, 0
        if device is None:
            return
        options: dict[str, Any] = {"backend": "gloo"}
        self.local_rank = int(os.environ["LOCAL_RANK"])
        if device == "cuda":
            torch.cuda.set_device(self.local_rank)
            options = {"backend": "cpu:gloo,cuda:nccl", "device_id": torch.device("cuda", self.local_rank)}
        distributed.init_process_group(timeout=_COLLECTIVE, **options)
        self._group = distributed.new_group(backend="gloo", timeout=_IDLE)
        self.rank, self.ranks = distributed.get_rank(), distributed.get_world_size()

    def broadcast(self, make: Callable[[], Any]) -> Any:
        """Return on every rank the value that rank 0 makes; `make` is called there alone."""
        return self.all_gather(make() if self.rank == 0 else None)[0]

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""
        if self.ranks == 1:
            return [value]
        data = json.dumps(value).encode()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.ranks)]
        distributed.all_gather(sizes, torch.tensor([len(data)]), group=self._group)
        most = max(map(int, sizes))
        each = [torch.zeros(most, dtype=torch.uint8) for _ in range(self.ranks)]
        padded = torch.tensor([*data, *bytes(most - len(data))], dtype=torch.uint8)
        distributed.all_gather(each, padded, group=self._group)
        return [json.loads(bytes(one[: int(size)].tolist())) for one, size in zip(each, sizes, strict=True)]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.all_gather(None)


ALONE = Ranks()
