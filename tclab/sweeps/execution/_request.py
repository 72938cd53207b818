"""The request for a point's rows that goes to another process, and its answer there."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import torch

from tclab._version import __version__
from tclab.errors import InputError
from tclab.message_passing._view import NeedsEdgesError
from tclab.sweeps.config._point import Point
from tclab.sweeps.store._code_fingerprint import import_user_modules, imports_of
from tclab.sweeps.store._rows import columns_of
from tclab.timing import environment

WORKER = "tclab.sweeps.execution._worker"  # the module that answers requests; see there
MEMORY_LIMIT = "TCLAB_MEMORY_BYTES"  # the variable that limits the memory of its process
LONGEST_STATUS = 1000  # characters of an error's first line; a torn message may be megabytes long
RANK_SECRET = "TCLAB_RANK_SECRET"  # the variable with what the ranks of a point sign their texts with
MEASURE = "tclab.sweeps.execution._measure:measure"
# What torch says when there is no memory left on the CPU, where it raises no exception of its own.
_OUT_OF_MEMORY = ("can't allocate memory", "cannot allocate memory", "out of memory", "bad_alloc", "mdb_map_full")


def request_of(point: Point, task: str = MEASURE, **arguments: Any) -> dict[str, Any]:
    """Return the request for a resolved point's rows, as JSON can hold it.

    The task is the "module:function" that returns them; it takes the point, and the arguments by name.

    **Raises:** `InputError` for a strategy or model that no other process could import.
    """
    return {"point": point.to_dict(), **imports_of(point), "task": task, "arguments": arguments}


def rows_of_request(request: dict[str, Any], context: object = None) -> list[dict[str, Any]]:
    """Run the task of a request in this process and return its rows, with where and when it ran.

    A point of one rank that raises an error has one row, with its status; one of several, whose `context` says which
    rank this is, raises it.
    """
    begin = datetime.now(UTC)
    if request["modules"]:
        import_user_modules(request["modules"], request["path"])
    point = Point.from_dict(request["point"])
    try:
        module, function = request["task"].split(":")
        arguments = request["arguments"] if context is None else {**request["arguments"], "context": context}
        rows = getattr(import_module(module), function)(point, **arguments)
    except Exception as error:
        if context is not None:
            raise
        traceback.print_exc()
        rows = [{**columns_of(point), "stage": "step", "status": status_of_error(error)}]
    stamp = {**environment(), "tclab": __version__, "measured_at": begin.isoformat(timespec="milliseconds")}
    return [{**row, **stamp} for row in rows]


def status_of_error(error: BaseException) -> str:
    """Return the status of a point that raised an error: "oom", "skipped: …" or "failed: …", of one short line."""
    first = str(error).strip().partition("\n")[0][:LONGEST_STATUS]
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        words in str(error).lower() for words in _OUT_OF_MEMORY
    ):
        return "oom"
    if isinstance(error, NeedsEdgesError):
        return "skipped: needs edges"
    if isinstance(error, InputError):  # its message is a sentence for the user
        return f"failed: {first}"
    return f"failed: {type(error).__name__}: {first}"
