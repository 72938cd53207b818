"""The process that runs points: JSON lines in, JSON lines out; started as `python -m tclab.sweeps.child`."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tclab.sweeps.point import Point

# What torch says when there is no memory left on the CPU, where it raises no exception of its own.
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "out of memory",
    "bad_alloc",
    "mdb_map_full",
)


def end_with_parent() -> None:
    """Have this process and its workers end when its parent has gone, be it by kill -9; it leads a session."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def limit_memory() -> None:
    """Be the first that the system kills for memory, and refuse to grow past a limit where one is given."""
    text = os.environ.get("TCLAB_MEMORY_BYTES")
    limit = int(text) if text else None
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # not Linux, or not allowed: the system chooses as it would
    if limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def answers() -> TextIO:
    """Return where answers go: standard output; what a model or a worker prints goes with the errors instead."""
    found: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return found


def failed(error: BaseException) -> str:
    """Return the status of a point that raised something: "oom", "skipped: …" or "failed: …"."""
    import torch

    text = str(error).strip().splitlines()
    first = text[0] if text else ""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        words in str(error).lower() for words in _OUT_OF_MEMORY
    ):
        return "oom"
    from tclab.errors import InputError
    from tclab.message_passing import NeedsEdgesError

    if isinstance(error, NeedsEdgesError):
        return "skipped: needs edges"
    if isinstance(error, InputError):  # made to be read
        return f"failed: {first}"
    return f"failed: {type(error).__name__}: {first}"


def prepared(request: dict[str, Any]) -> tuple[Point, dict[str, Any]]:
    """Return a request's point, all that it needs imported, and the columns that say where and when it was run."""
    from tclab import __version__
    from tclab.sweeps.own_code import import_own
    from tclab.sweeps.point import Point
    from tclab.timing import environment

    import_own(request["modules"], request["path"])
    stamp = {
        **environment(),
        "tclab": __version__,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return Point.from_dict(request["point"]), stamp


def _rows(request: dict[str, Any]) -> list[dict[str, Any]]:
    point, stamp = prepared(request)
    from tclab.sweeps.epoch import predicted_and_measured
    from tclab.sweeps.measure import measure
    from tclab.sweeps.rows import columns_of

    try:
        rows = [predicted_and_measured(point, **request["epoch"])] if "epoch" in request else measure(point)
    except Exception as error:
        traceback.print_exc()
        rows = [{**columns_of(point), "stage": "step", "status": failed(error)}]
    return [{**row, **stamp} for row in rows]


def main() -> None:
    """Serve points until standard input ends."""
    end_with_parent()
    out = answers()
    limit_memory()
    # while the parent is still at other things; torch_geometric is what the gate's reference needs
    for module in ("tclab.sweeps.measure", "torch_geometric.utils"):
        importlib.import_module(module)
    for line in sys.stdin:
        out.write(json.dumps(_rows(json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
