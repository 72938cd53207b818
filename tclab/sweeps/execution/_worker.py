"""What a process that runs points does: a request for a point's rows in, the rows out; see `_ranks` for torchrun's."""

from __future__ import annotations

import gc
import importlib
import os
import resource
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch

from tclab._child_process import ParentPipe
from tclab._version import __version__
from tclab.errors import InputError
from tclab.message_passing._view import NeedsEdgesError
from tclab.sweeps.config._point import Point
from tclab.sweeps.execution._request import MEMORY_LIMIT
from tclab.sweeps.store._code_fingerprint import import_user_modules
from tclab.sweeps.store._rows import columns_of
from tclab.timing import environment

_LONGEST_STATUS = 1000  # characters of an error's first line; a torn message may be megabytes long
# What torch says when there is no memory left on the CPU, where it raises no exception of its own.
_OUT_OF_MEMORY = ("can't allocate memory", "cannot allocate memory", "out of memory", "bad_alloc", "mdb_map_full")


def rows_of_request(request: dict[str, Any], context: object = None) -> list[dict[str, Any]]:
    """Run the task of a request in this process and return its rows, with where and when it ran.

    A point of one rank that raises an error has one row, with its status; one of several, whose `context` says which
    rank this is, raises it.
    """
    begin = datetime.now(UTC)
    if request["modules"]:
        import_user_modules(request["modules"], request["path"])
    point = Point.from_dict(request["point"])
    arguments = request["arguments"] if context is None else {**request["arguments"], "context": context}
    try:
        rows = resolve_name(request["task"])(point, **arguments)
    except Exception as error:
        if context is not None:
            raise
        traceback.print_exc()
        rows = [{**columns_of(point), "stage": "step", "status": status_of_error(error)}]
    stamp = {**environment(), "tclab": __version__, "measured_at": begin.isoformat(timespec="milliseconds")}
    return [{**row, **stamp} for row in rows]


def status_of_error(error: BaseException) -> str:
    """Return the status of a point that raised an error: "oom", "skipped: …" or "failed: …", of one short line."""
    text = str(error).strip()
    first = text.partition("\n")[0][:_LONGEST_STATUS]
    out_of_memory = any(words in text.lower() for words in _OUT_OF_MEMORY)
    if out_of_memory or isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return "oom"
    if isinstance(error, NeedsEdgesError):
        return "skipped: needs edges"
    if isinstance(error, InputError):  # its message is a sentence for the user
        return f"failed: {first}"
    return f"failed: {type(error).__name__}: {first}"


def limit_memory() -> None:
    """Raise this process's OOM score, and set RLIMIT_DATA where a limit is given.

    Where memory runs out the system then kills this worker, whose point is reported as "oom", and not the notebook or
    sweep that started it.
    """
    with suppress(OSError):  # not Linux, or not allowed: the system chooses as it would
        Path("/proc/self/oom_score_adj").write_text("1000")
    if limit := os.environ.get(MEMORY_LIMIT):
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))


def main() -> None:
    """Serve points until no request follows."""
    parent = ParentPipe()
    limit_memory()
    # while the parent is still at other things; torch_geometric is what the equivalence check's reference needs
    for module in ("tclab.sweeps.execution._measure", "torch_geometric.utils"):
        importlib.import_module(module)
    gc.freeze()  # what is imported is no garbage: each collection before a measurement would look 0.2 s there
    for request in parent.requests():
        parent.send(rows=rows_of_request(request))
