"""torchrun for ranks on this machine: `python -m tclab._child_process tclab._torchrun RANKS MODULE ARGUMENT …`.

The ranks read this program's standard input and write to its standard output; their standard errors are files among
its temporary ones. Their store listens on the loopback interface alone, where torchrun's own listens on all. Which rank
failed first is one more line of JSON on standard output.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    """Start the ranks of the command line, and wait for them; torchrun ends all when one has failed."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    ranks, *what = sys.argv[1:]
    logs = Path(tempfile.gettempdir(), "logs")
    options = parse_args(
        [f"--nproc-per-node={ranks}", f"--log-dir={logs}", "--redirects=2", "--max-restarts=0",
         "--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1", "-m", *what]
    )  # fmt: skip
    store = _loopback_store()
    options.master_port = store.port
    try:
        run(options)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        how = f"killed by {failure.signal_name()}" if failure.exitcode < 0 else f"ended with {failure.exitcode}"
        files = logs.glob(f"*/attempt_0/{rank}/stderr.log")
        lines = [line for file in files for line in file.read_text(errors="replace").splitlines() if line.strip()]
        said = f"; its last words: {lines[-1].strip()[:300]}" if lines else ""
        print(json.dumps({"failed": f"failed: rank {rank} {how}{said}"}), flush=True)
        raise SystemExit(1) from None


def _loopback_store() -> Any:
    """Return the store of all ranks; torchrun takes over the one that its process has on its port."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        return TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, multi_tenant=True,
            master_listen_fd=listening.detach(),
        )  # fmt: skip
