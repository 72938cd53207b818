"""torchrun, which also sends the exit codes of failed ranks: a line of JSON on standard output.

The store of ranks listens on the loopback interface alone; torchrun's own listens on all.

It is run as a file, not as a module of the package, so that it loads nothing but torch. The ranks share its standard
output.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

from tclab._child_process import end_with_parent


def main() -> None:
    """Run torchrun with the arguments of the command line."""
    end_with_parent()  # torch takes seconds to import
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    options = parse_args(sys.argv[1:])
    store = _loopback_store()
    options.master_port = store.port
    try:
        run(options)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        print(json.dumps({"exit_codes": codes}), flush=True)
        raise SystemExit(str(error)) from None


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


if __name__ == "__main__":
    main()
