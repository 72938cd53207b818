"""The ranks of a point: what they say to one another, how they serve points, and `run_as_rank` for a script."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pandas as pd
import torch
from torch import distributed

from tclab._child_process import ParentPipe
from tclab.errors import InputError, require
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._request import RANK_DEVICE, request_of
from tclab.sweeps.execution._worker import limit_memory, rows_of_request, status_of_error
from tclab.sweeps.store._rows import frame, table

_COLLECTIVE = timedelta(minutes=10)  # a rank that waits longer for the gradients of others raises an error
_IDLE = timedelta(days=30)
_NOTICED_SECONDS = 10.0  # in which torchrun has found a rank that is gone
# In an error that another rank's end causes: that rank is the one to name.
_OF_A_PEER = ("connection closed", "connection reset", "connection refused", "broken pipe", "nccl", "gloo")


class Ranks:
    """This rank among those that run a point together; every method waits for all of them.

    `local_rank` is its place on its machine. `group` is the process group that texts go through.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank = distributed.get_rank()
        self.ranks = distributed.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))

    def broadcast(self, text: Callable[[], str]) -> str:
        """Return on every rank the text that rank 0 makes; `text` is called there alone."""
        return self.all_gather(text() if self.rank == 0 else "")[0]

    def all_gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in their order."""
        data = text.encode()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.ranks)]
        distributed.all_gather(sizes, torch.tensor([len(data)]), group=self._group)
        most = max(map(int, sizes))
        each = [torch.zeros(most, dtype=torch.uint8) for _ in range(self.ranks)]
        distributed.all_gather(each, _padded(data, most), group=self._group)
        return [bytes(one[: int(size)].tolist()).decode() for one, size in zip(each, sizes, strict=True)]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.all_gather("")


# Texts travel as tensors of bytes: torch's collectives of objects unpickle what they receive.


def _padded(data: bytes, size: int) -> torch.Tensor:
    return torch.tensor([*data, *bytes(size - len(data))], dtype=torch.uint8)


def _join(device: str) -> Any:
    """Join the other ranks in a process group for a device: gloo, and NCCL on CUDA; return the group for texts.

    In that ranks wait as long as it takes: for the next request, or while rank 0 checks a strategy or fills a store.
    """
    options: dict[str, Any] = {"backend": "gloo"}
    if device == "cuda":
        place = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(place)
        options = {"backend": "cpu:gloo,cuda:nccl", "device_id": torch.device("cuda", place)}
    distributed.init_process_group(timeout=_COLLECTIVE, **options)
    return distributed.new_group(backend="gloo", timeout=_IDLE)


def main() -> None:
    """Serve points with the other ranks until no request follows.

    Rank 0 receives the requests and hands them to the others. Each rank sends its `pid` at once, and how it `failed`;
    rank 0 the `rows`.
    """
    parent = ParentPipe()
    limit_memory()
    rank = int(os.environ["RANK"])
    parent.send(rank=rank, pid=os.getpid())
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # writes where a rank that hangs is at
    try:
        ranks = Ranks(_join(os.environ[RANK_DEVICE]))
        while True:
            request = json.loads(ranks.broadcast(lambda: json.dumps(parent.receive())))
            if request is None:
                break
            rows = rows_of_request(request, ranks)
            if rank == 0:
                parent.send(rows=rows)
    except BaseException as error:
        traceback.print_exc()
        if any(words in str(error).lower() for words in _OF_A_PEER):
            time.sleep(_NOTICED_SECONDS)  # torchrun names the rank that is gone, and ends this one
        parent.send(failed=_named(rank, error))
        os._exit(1)  # what the others are at cannot be taken up again
    distributed.destroy_process_group()


def _named(rank: int, error: BaseException) -> str:
    status = status_of_error(error)
    if status == "oom":
        return f"failed: rank {rank} ran out of memory: {str(error).strip().partition(chr(10))[0][:300]}"
    return status if status.startswith("skipped") else f"failed: rank {rank}: {status.removeprefix('failed: ')}"


def run_as_rank(point: Point) -> pd.DataFrame | None:
    """Run a point as one of the ranks that a torchrun of the caller's has started, on one machine or several.

    **Arguments:**

    - `point`: the same on every rank; whatever its `ranks`, it has as many as torchrun has started.

    Returns the rows on rank 0, and `None` on the others.

    **Raises:** `InputError` for a process that torchrun has not started, or a point that cannot be run.
    """
    require("point", point, Point, "a tclab.Point")
    if "WORLD_SIZE" not in os.environ:
        raise InputError(
            "this process is no rank: torchrun starts a script that calls run_as_rank; see docs/cluster.md"
        )
    point = resolve(replace(point, ranks=int(os.environ["WORLD_SIZE"])))
    if (reason := point.skipped()) is not None:
        raise InputError(f"this point cannot be run: {reason}")
    ranks = Ranks(_join(point.device))
    rows = rows_of_request(request_of(point), ranks)
    distributed.destroy_process_group()
    return frame(table(rows)) if ranks.rank == 0 else None
