"""A child process to ask for the rows of points, and what it says when it dies."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

from tclab.timing.child_process import ChildProcess


class Child:
    """A child process that serves points, and what it says when it dies."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.has_read: dict[str, Any] = {}  # of the user's modules and folders, as they were then
        # for all that it keeps on disk: one that is killed cannot clear up
        self._folder = tempfile.mkdtemp(prefix="tclab-")
        self._process = ChildProcess(
            "tclab.sweeps.child",
            {
                # what the compiler keeps is to outlive the child, as it does in a process of one's own
                "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir(), f"torchinductor_{os.getuid()}")),
                **environment,
                "TMPDIR": self._folder,
            },
        )

    def ask(self, request: dict[str, Any], *, hang_seconds: float) -> list[dict[str, Any]] | str:
        """Return the rows of a request, or how the child died; one that hangs is waited for."""
        killed = _killed_for_memory()
        self._process.tell(request)
        rows: list[dict[str, Any]] | None = self._process.hear()
        if rows is not None:
            return rows
        code = self._process.wait()
        if code == -signal.SIGKILL and _killed_for_memory() != killed:
            return "oom"
        if code < 0:
            return f"failed: killed by {signal.Signals(-code).name}"
        return f"failed: the child ended with {code}: {self._process.last_words}"

    @property
    def alive(self) -> bool:
        """Whether the process is."""
        return self._process.alive

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def kill(self) -> None:
        """End the process and its workers at once."""
        self._process.kill()

    def close(self) -> None:
        """End everything."""
        self._process.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _killed_for_memory() -> int | None:
    """Return how many processes the system has killed for memory so far, where it tells."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return None
