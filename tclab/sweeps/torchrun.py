"""The ranks that train together, started by torchrun."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tclab.errors import InputError
from tclab.timing.environment import usable_cores


def command(
    ranks: int,
    *,
    nodes: int = 1,
    node: int = 0,
    endpoint: str | None = None,
    logs: str | Path | None = None,
    module: str = "tclab.sweeps.rank",
    arguments: Sequence[str] = (),
) -> list[str]:
    """Return the command that starts ranks on this machine, alone or as one of several.

    torchrun gives each rank its number, and ends all of them when one has failed. Rank 0 is on node 0: it reads
    requests from standard input and answers on standard output.

    **Arguments:**

    - `ranks`: on each node.
    - `nodes`, `node`: how many, and which of them this one is, from 0 up.
    - `endpoint`: "host:port" of node 0, where they meet, the same on all; one node by itself finds a free port.
    - `logs`: a folder for what each rank says on standard error; said aloud unless given.
    - `module`, `arguments`: what each rank runs.

    **Raises:** `InputError` for several nodes without an endpoint, or a node that cannot be.
    """
    line = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--max-restarts=0"]
    if nodes == 1:
        line.append("--standalone")
    else:
        host, _, port = (endpoint or "").rpartition(":")
        if not host or not port.isdigit():
            raise InputError(f"endpoint is {endpoint!r}, expected 'host:port' of node 0, where {nodes} nodes meet")
        if not 0 <= node < nodes:
            raise InputError(f"node is {node!r}, expected 0 to {nodes - 1}")
        # rendezvous by number, not by arrival: rank 0 must be where the requests are
        line += [f"--nnodes={nodes}", f"--node-rank={node}", f"--master-addr={host}", f"--master-port={port}"]
    if logs is not None:
        line += [f"--log-dir={logs}", "--redirects=2"]
    return [*line, "-m", module, *arguments]


def threads_of(ranks: int) -> int:
    """Return how many threads each of some ranks on this machine gets, so that they share its cores.

    What `OMP_NUM_THREADS` says here is the most that a rank gets.
    """
    own = max(1, (usable_cores() or 1) // ranks)
    told = os.environ.get("OMP_NUM_THREADS", "")
    return min(own, int(told)) if told.isdigit() and int(told) else own
