"""A child process that is spoken with in lines of JSON, and its last words when it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any


class ChildProcess:
    """A module run in a process and a session of its own: an interrupt is its parent's to handle.

    **Arguments:**

    - `module`: what runs; it reads lines from its standard input and answers on its standard output.
    - `environment`: all of it.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (close() ends it)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env=dict(environment),
            start_new_session=True,
        )

    def tell(self, line: Mapping[str, Any]) -> None:
        """Send a line; one that is dead is not told, and found so when it is heard."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()

    def hear(self) -> Any:
        """Return the next line, waited for; `None` from one that died before it was whole."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def wait(self) -> int:
        """Return the exit status, waited for."""
        return self._process.wait()

    @property
    def last_words(self) -> str:
        """The last line of its standard error."""
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
        """End the process, and what it started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End everything."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._words):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
