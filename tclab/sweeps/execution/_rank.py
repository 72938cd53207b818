"""One of the ranks that run a point together, which torchrun started.

Rank 0 receives the requests, as a single worker does, and hands them to the others. What ranks send to the parent has
their `rank`: each its `pid` at once, then the number of stages that it `entered` and which one it is `at`, and how it
`failed`; rank 0 the `rows_file` with the rows.
"""

from __future__ import annotations

import faulthandler
import hmac
import json
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pandas as pd
import torch
from torch import distributed

from tclab._child_process import ParentPipe
from tclab.errors import InputError, require
from tclab.sweeps.config._point import Point
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.execution._request import RANK_SECRET, request_of, rows_of_request, status_of_error
from tclab.sweeps.store._rows import frame, table
from tclab.timing import Ledger
from tclab.timing._ledger import NullLedger

# Parts of the messages of errors that another rank's end causes: the failure is not this rank's.
_ERRORS_OF_A_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "timed out",
    "timeout",
    "nccl",
    "gloo",
    "tcpstore",
)
_FOREVER = timedelta(days=30)  # the parent watches over the ranks, and ends those that wait in vain


class SignedStore:
    """The texts that ranks exchange through torchrun's store, which anybody who reaches its port can write to.

    Each is signed, together with its key, by a secret that all ranks have from their parent: a request names modules
    that a rank imports, so that one from elsewhere could run code in it.
    """

    def __init__(self, store: Any, secret: str) -> None:
        self._store = store
        self._secret = secret.encode()

    def _signature(self, key: str, text: bytes) -> bytes:
        return hmac.digest(self._secret, key.encode() + b"\0" + text, "sha256").hex().encode()

    def write(self, key: str, text: str) -> None:
        self._store.set(key, self._signature(key, text.encode()) + text.encode())

    def read(self, key: str) -> str:
        """Wait for a text and return it.

        **Raises:** `RuntimeError` for one that no rank has written.
        """
        self._store.wait([key], _FOREVER)
        signed: bytes = self._store.get(key)
        signature, text = signed[:64], signed[64:]
        if not hmac.compare_digest(signature, self._signature(key, text)):
            raise RuntimeError(f"the text {key!r} in the store of the ranks is not theirs: another process wrote to it")
        return text.decode()


class RankContext:
    """One rank among those that run a point together, and the texts that they exchange through torchrun's store.

    Every method that waits must be called by all of them. `local_rank` is the rank's place on its own node.
    """

    def __init__(self, store: SignedStore, rank: int, ranks: int) -> None:
        self._store = store
        self.rank = rank
        self.local_rank = int(os.environ.get("LOCAL_RANK", rank))
        self.ranks = ranks
        self.entered = 0  # stages so far, for the parent that watches over the ranks
        self.stage = "setting up"
        self._texts = 0

    def _key(self, rank: int) -> str:
        return f"text/{self._texts}/{rank}"

    def broadcast(self, text: Callable[[], str]) -> str:
        """Return on every rank the text that rank 0 makes; `text` is called there alone."""
        self._texts += 1
        if self.rank == 0:
            self._store.write(self._key(0), text())
        return self._store.read(self._key(0))

    def all_gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in their order, once all have called this."""
        self._texts += 1
        self._store.write(self._key(self.rank), text)
        return [self._store.read(self._key(rank)) for rank in range(self.ranks)]

    def barrier(self) -> None:
        self.all_gather("")

    def watched(self, ledger: Ledger | NullLedger | None) -> Any:
        """Return a ledger's two methods as a loop calls them, which note every stage that this rank enters."""
        own = NullLedger() if ledger is None else ledger

        def stage(name: str) -> AbstractContextManager[Any]:
            self.stage = name
            self.entered += 1
            return own.stage(name)

        return SimpleNamespace(steps=own.steps, stage=stage)


def serve_as_rank(parent: ParentPipe) -> None:
    """Serve points with the other ranks until no request follows."""
    rank = int(os.environ["RANK"])
    send = partial(parent.send, rank=rank)  # all ranks send through one pipe
    send(pid=os.getpid())
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # writes where a rank that hangs is at
    context: RankContext | None = None
    store, number = _connect_to_store(), 0
    while request := _next_request(parent, number, store, rank):
        number += 1
        try:
            if context is None:
                context = RankContext(store, rank, int(os.environ["WORLD_SIZE"]))
                _join(context, request["point"]["device"])
                threading.Thread(target=_report_stage, args=(context, send), daemon=True).start()
            context.entered, context.stage = 0, "setting up"
            rows = rows_of_request(request, context)
        except BaseException as error:
            traceback.print_exc()
            send(failed=status_of_error(error), peer=_caused_by_a_peer(error))
            os._exit(1)  # what the others are at cannot be taken up again
        if rank == 0:  # in a file: the rows are too long for a line that others might write into
            with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
                json.dump(rows, file)
            send(rows_file=file.name)
    if distributed.is_initialized():
        distributed.destroy_process_group()


def run_as_rank(point: Point) -> pd.DataFrame | None:
    """Run a point as one of the ranks that a torchrun of the caller's has started, on one machine or several.

    **Arguments:**

    - `point`: the same on every rank; its `ranks` are as many as torchrun has started.

    Returns the rows on rank 0, and `None` on the others.

    **Raises:** `InputError` for a process that torchrun has not started, or a point that cannot be run.
    """
    require("point", point, Point, "a tclab.Point")
    if "WORLD_SIZE" not in os.environ:
        raise InputError(
            "this process is no rank: torchrun starts a script that calls run_as_rank; see docs/cluster.md"
        )
    context = RankContext(_connect_to_store(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    point = resolve(replace(point, ranks=context.ranks))
    if (reason := point.skipped()) is not None:
        raise InputError(f"this point cannot be run: {reason}")
    _join(context, point.device)
    rows = rows_of_request(request_of(point), context)
    distributed.destroy_process_group()
    return frame(table(rows)) if context.rank == 0 else None


def _report_stage(context: RankContext, send: Callable[..., None]) -> None:
    """Send once a second which stage this rank is at, where that has changed."""
    before = -1
    while True:
        if context.entered != before:
            before = context.entered
            send(entered=before, at=context.stage)
        time.sleep(1.0)


def _join(context: RankContext, device: str) -> None:
    """Join the other ranks in a process group for a device: gloo, and NCCL on CUDA."""
    options: dict[str, Any] = {"backend": "gloo"}
    if device == "cuda":
        torch.cuda.set_device(context.local_rank)
        options = {"backend": "cpu:gloo,cuda:nccl", "device_id": torch.device("cuda", context.local_rank)}
    # the parent finds a rank that hangs; a collective's own limit would name those that wait for it
    distributed.init_process_group(timeout=timedelta(days=1), **options)


def _next_request(parent: ParentPipe, number: int, store: SignedStore, rank: int) -> dict[str, Any] | None:
    """Return the next request on every rank; `None` when none follows."""
    if rank == 0:
        request = parent.receive()
        store.write(f"request/{number}", json.dumps(request))
        return request
    read: dict[str, Any] | None = json.loads(store.read(f"request/{number}"))
    return read


def _caused_by_a_peer(error: BaseException) -> bool:
    words = str(error).lower()
    known = getattr(distributed, "DistError", ())
    return isinstance(error, known) or (isinstance(error, RuntimeError) and any(w in words for w in _ERRORS_OF_A_PEER))


def _connect_to_store() -> SignedStore:
    """Return a second connection to torchrun's store: one that waits would hold up the process group."""
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = distributed.TCPStore(*where, is_master=False, timeout=timedelta(minutes=5))  # type: ignore[attr-defined]
    return SignedStore(store, os.environ.pop(RANK_SECRET, ""))
