"""What a process that runs points does, by itself or, with the argument `rank`, as one of those of torchrun.

It receives requests from its parent and sends messages there (`_child_process`). By itself it answers a request with
`rows`; as a rank see `_rank`.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from tclab._child_process import ParentPipe
from tclab.sweeps.execution._rank import serve_as_rank
from tclab.sweeps.execution._request import MEMORY_LIMIT, rows_of_request


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
    if sys.argv[1:] == ["rank"]:
        serve_as_rank(parent)
        return
    # while the parent is still at other things; torch_geometric is what the equivalence check's reference needs
    for module in ("tclab.sweeps.execution._measure", "torch_geometric.utils"):
        importlib.import_module(module)
    gc.freeze()  # what is imported is no garbage: each collection before a measurement would look 0.2 s there
    for request in parent.requests():
        parent.send(rows=rows_of_request(request))
