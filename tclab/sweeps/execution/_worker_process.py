"""A warm worker process that is asked for the rows of points, and how it ended where it did."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from tclab._child_process import ChildProcess, child_command
from tclab._io import TemporaryFolder
from tclab.sweeps.execution._request import WORKER


class WorkerProcess(ChildProcess):
    """One process that runs points of one rank; a `Worker` of `_worker_pool`.

    **Arguments:**

    - `environment`: all of its variables.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.has_read: dict[str, Any] = {}
        self._folder = TemporaryFolder()  # for all that it keeps on disk: one that is killed cannot clear up
        # the compiler's cache outlives the process, as it does elsewhere
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir(), f"torchinductor_{os.getuid()}"))}
        super().__init__(child_command(WORKER), {**cache, **environment, "TMPDIR": str(self._folder.path)})

    def ask(self, request: dict[str, Any], *, hang_seconds: float) -> list[dict[str, Any]] | str:
        """Return the rows of a request, or how the process died; one that hangs is waited for."""
        killed = _killed_for_memory()
        self.send(request)
        answer = self.receive_one()
        if answer is not None:
            rows: list[dict[str, Any]] = answer["rows"]
            return rows
        code = self.wait()
        assert code is not None
        if code == -signal.SIGKILL and _killed_for_memory() != killed:
            return "oom"
        if code < 0:
            return f"failed: killed by {signal.Signals(-code).name}"
        return f"failed: the child ended with {code}: {self.last_error_line}"

    def close(self) -> None:
        """End everything, and remove what it kept on disk."""
        super().close()
        self._folder.close()


def _killed_for_memory() -> int | None:
    """Return how many processes the system has killed for memory so far; `None` where it does not tell."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return None
