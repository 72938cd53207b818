"""The request for a point's rows that goes to another process, and the names that both sides know."""

from __future__ import annotations

from typing import Any

from tclab.sweeps.config._point import Point
from tclab.sweeps.store._code_fingerprint import imports_of

WORKER = "tclab.sweeps.execution._worker"  # the module that answers requests
RANK = "tclab.sweeps.execution._ranks"  # and the one that does so as a rank of torchrun
MEASURE = "tclab.sweeps.execution._measure:measure"
MEMORY_LIMIT = "TCLAB_MEMORY_BYTES"  # the variable that limits the memory of its process
RANK_DEVICE = "TCLAB_RANK_DEVICE"  # the variable with the device of the ranks' points


def request_of(point: Point, task: str = MEASURE, **arguments: Any) -> dict[str, Any]:
    """Return the request for a resolved point's rows, as JSON can hold it.

    The task is the "module:function" that returns them; it takes the point, and the arguments by name.

    **Raises:** `InputError` for a strategy or model that no other process could import.
    """
    return {"point": point.to_dict(), **imports_of(point), "task": task, "arguments": arguments}
