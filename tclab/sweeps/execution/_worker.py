"""The process that runs points: `python -m tclab.sweeps.execution._worker`, or the same with `rank` under torchrun.

It reads requests from standard input and sends messages to its parent, one line of JSON each (`_child_process`). By
itself it answers a request with `rows`; as a rank see `_rank`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time

from tclab._child_process import ParentPipe
from tclab.sweeps.execution._rank import serve_as_rank
from tclab.sweeps.execution._request import MEMORY_LIMIT, rows_of_request


def end_with_parent() -> None:
    """End this process and its workers when its parent has ended, be it by kill -9; it must lead a session."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def limit_memory() -> None:
    """Be the first that the system kills for memory, and refuse to grow past a limit where one is given."""
    text = os.environ.get(MEMORY_LIMIT)
    limit = int(text) if text else None
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # not Linux, or not allowed: the system chooses as it would
    if limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main() -> None:
    """Serve points until standard input ends."""
    parent = ParentPipe()
    end_with_parent()
    limit_memory()
    if sys.argv[1:] == ["rank"]:
        serve_as_rank(parent)
        return
    # while the parent is still at other things; torch_geometric is what the equivalence check's reference needs
    for module in ("tclab.sweeps.execution._measure", "torch_geometric.utils"):
        importlib.import_module(module)
    for line in sys.stdin:
        parent.send(rows=rows_of_request(json.loads(line)))


if __name__ == "__main__":
    main()
