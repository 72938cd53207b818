"""A child process to ask for the rows of points, and what it says when it dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any


class Child:
    """A child process that serves points, and what it says when it dies."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.has_read: dict[str, Any] = {}  # of the user's modules and folders, as they were then
        # for all that it keeps on disk: one that is killed cannot clear up
        self._folder = tempfile.mkdtemp(prefix="tclab-")
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (close() ends it)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tclab.sweeps.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env={
                # what the compiler keeps is to outlive the child, as it does in a process of one's own
                "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir(), f"torchinductor_{os.getuid()}")),
                **environment,
                "TMPDIR": self._folder,
            },
            start_new_session=True,  # an interrupt of the notebook is the sweep's to handle, not the child's
        )

    def ask(self, request: dict[str, Any], *, hang_seconds: float) -> list[dict[str, Any]] | str:
        """Return the rows of a request, or how the child died; one that hangs is waited for."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        killed = _killed_for_memory()
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if answer.endswith(b"\n"):
            rows: list[dict[str, Any]] = json.loads(answer)
            return rows
        code = self._process.wait()
        if code == -signal.SIGKILL and _killed_for_memory() != killed:
            return "oom"
        if code < 0:
            return f"failed: killed by {signal.Signals(-code).name}"
        return f"failed: the child ended with {code}: {self._last_words()}"

    def _last_words(self) -> str:
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    @property
    def alive(self) -> bool:
        """Whether the process is."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def kill(self) -> None:
        """End the process and its workers at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End everything."""
        if self.alive:
            self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._words):
            if pipe is not None:
                pipe.close()
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
