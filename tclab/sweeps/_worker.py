"""What a process that runs points does, alone or as a rank of torchrun's; and `run_as_rank` for a script.

A worker's command line is `RANKS DEVICE`; its requests come, and its rows go, by the parent's pipe.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pandas as pd
from torch import distributed

from tclab._child_process import ParentPipe
from tclab._limits import out_of_memory
from tclab._version import __version__
from tclab.errors import InputError, require
from tclab.message_passing._view import NeedsEdgesError
from tclab.sweeps._fingerprint import import_user_modules, loaded_code
from tclab.sweeps._point import Point
from tclab.sweeps._point_inputs import resolve
from tclab.sweeps._ranks import ALONE, Ranks
from tclab.sweeps._rows import columns_of, frame, table
from tclab.sweeps._run import request_of
from tclab.timing._environment import environment

_LONGEST_STATUS = 1000  # characters of an error's first line; a torn message may be megabytes long
_NOTICED_SECONDS = 10.0  # in which torchrun has found a rank that is gone
# In an error that another rank's end causes: that rank is the one to name.
_OF_A_PEER = ("connection closed", "connection reset", "connection refused", "broken pipe", "nccl", "gloo")


def main() -> None:
    """Serve points until no request follows: alone, or with the other ranks.

    Rank 0 receives the requests, hands them to the others, and sends the rows; a rank that fails sends how.
    """
    count, device = sys.argv[1:]
    parent, ranks = ParentPipe(), ALONE
    _raise_oom_score()
    try:
        if int(count) > 1:
            ranks = Ranks(device)
        # while the parent is still at other things; torch_geometric is what the equivalence check's reference needs
        for module in ("tclab.sweeps._measure", "torch_geometric.utils"):
            importlib.import_module(module)
        gc.freeze()  # what is imported is no garbage: each collection before a measurement would look 0.2 s there
        while (request := ranks.broadcast(parent.receive)) is not None:
            if request["modules"]:
                import_user_modules(request["modules"], request["path"])
            # now, too: it may die of the point; the others wait, or a message of theirs would be written into this one
            ranks.broadcast(partial(parent.send, code=loaded_code(request["modules"])))
            rows = rows_of_request(request, ranks)
            if ranks.rank == 0:
                parent.send(rows=rows, code=loaded_code(request["modules"]))
    except BaseException as error:
        if int(count) == 1:
            raise
        _fail(parent, error)
    if ranks is not ALONE:
        gc.collect()  # a DDP model that outlives its group may wait for ever as it is freed (pytorch, issue 56297)
        distributed.destroy_process_group()


def _raise_oom_score() -> None:
    """Raise this process's OOM score.

    Where memory runs out the system then kills this worker, whose point is reported as "oom", and not the notebook or
    sweep that started it.
    """
    with suppress(OSError):  # not Linux, or not allowed: the system chooses as it would
        Path("/proc/self/oom_score_adj").write_text("1000")


def rows_of_request(request: dict[str, Any], ranks: Ranks = ALONE) -> list[dict[str, Any]]:
    """Run the task of a request in this process and return its rows, with where and when it ran.

    A point of one rank that raises an error has one row, with its status; one of several raises it.
    """
    begin = datetime.now(UTC)
    point = Point(**request["point"])
    together = {} if ranks is ALONE else {"ranks": ranks}
    try:
        rows = resolve_name(request["task"])(point, **request["arguments"], **together)
    except Exception as error:
        if together:
            raise
        traceback.print_exc()
        rows = [{**columns_of(point), "stage": "step", "status": _status_of(error)}]
    stamp = {**environment(), "tclab": __version__, "measured_at": begin.isoformat(timespec="milliseconds")}
    return [{**row, **stamp} for row in rows]


def _status_of(error: BaseException) -> str:
    """Return the status of a point that raised an error: "oom", "skipped: …" or "failed: …", of one short line."""
    first = str(error).strip().partition("\n")[0][:_LONGEST_STATUS]
    if out_of_memory(error):
        return "oom"
    if isinstance(error, NeedsEdgesError):
        return f"skipped: {first}"
    if isinstance(error, InputError):  # its message is a sentence for the user
        return f"failed: {first}"
    return f"failed: {type(error).__name__}: {first}"


def _fail(parent: ParentPipe, error: BaseException) -> None:
    """Send how this rank failed, and end it: what the others are at cannot be taken up again."""
    traceback.print_exc()
    if any(words in str(error).lower() for words in _OF_A_PEER):
        time.sleep(_NOTICED_SECONDS)  # torchrun names the rank that is gone, and ends this one
    status = _status_of(error)
    if status.startswith("failed"):
        status = f"failed: rank {os.environ['RANK']}: {status.removeprefix('failed: ')}"
    parent.send(failed=status)
    os._exit(1)


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
            "this process is not a rank: torchrun starts a script that calls run_as_rank; see docs/cluster.md"
        )
    point = resolve(replace(point, ranks=int(os.environ["WORLD_SIZE"])))
    if (reason := point.skipped()) is not None:
        raise InputError(f"this setting cannot be run: {reason}")
    ranks = Ranks(point.device)
    rows = rows_of_request(request_of(point), ranks)
    gc.collect()  # as in `main`
    distributed.destroy_process_group()
    return frame(table(rows)) if ranks.rank == 0 else None
