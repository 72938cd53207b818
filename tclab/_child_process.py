"""A child process that is asked, and answers, in lines of JSON; and the child's side of that pipe.

As a program it runs `main` of another module in a process that ends with its parent:
`python -m tclab._child_process MODULE ARGUMENT …`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

from tclab._io import TemporaryFolder

SOURCE = Path(__file__).resolve().parents[1]  # a child imports the tclab that its parent runs, installed or not
PARENT = "TCLAB_PARENT_PID"  # the variable that tells a child who started it, however long it takes to look
_LOOK_SECONDS = 0.5  # between looks whether the other process is still alive
_END_SECONDS = 5.0  # in which all that a killed process had started has ended, too


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `main` of a module in a process that ends with its parent."""
    return [sys.executable, "-m", __name__, module, *arguments]


class ChildProcess:
    """A process that runs `main` of a module, and ends with its parent.

    It is in a session of its own: an interrupt of the parent is for the parent to handle. It reads requests from its
    standard input and sends messages with `ParentPipe`, one line of JSON each. Lines on its standard output that are no
    JSON object are left out.

    **Arguments:**

    - `words`: the module's name, and its arguments.
    - `environment`: all of its variables. This tclab goes before its PYTHONPATH, and its temporary files go into a
      folder that ends with it.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        path = os.pathsep.join([str(SOURCE), environment.get("PYTHONPATH", "")])
        # the compiler's cache outlives the process, as it does elsewhere
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir(), f"torchinductor_{os.getuid()}"))}
        self.temporary = TemporaryFolder()  # for all that it keeps on disk: one that is killed cannot clear up
        own = {"PYTHONPATH": path, PARENT: str(os.getpid()), "TMPDIR": str(self.temporary.path)}
        environment = {**caches, **environment, **own}
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (close() ends it)
        self._process = subprocess.Popen(
            child_command(*words), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._messages = self._process.stdin, self._process.stdout
        self._arrival = select.poll()
        self._arrival.register(self._messages, select.POLLIN)
        self._unread = b""

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request; a child that has died does not get it: `receive` finds out."""
        with suppress(BrokenPipeError):
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()

    def receive(self, seconds: float = inf) -> dict[str, Any] | None:
        """Wait for the next message and return it: an empty one after some seconds, `None` from a child that has ended.

        A process that the child started may hold the pipe open after it; that does not count as alive.
        """
        end = monotonic() + seconds
        while True:
            while b"\n" in self._unread:
                line, _, self._unread = self._unread.partition(b"\n")
                with suppress(ValueError):
                    message = json.loads(line)
                    if isinstance(message, dict):
                        return message
            left = max(0.0, end - monotonic())
            if self._arrival.poll(1000 * min(left, _LOOK_SECONDS)):
                data = os.read(self._messages.fileno(), 1 << 16)
                if not data:
                    return None
                self._unread += data
            elif not self.alive:
                return None
            elif not left:
                return {}

    def wait(self) -> int:
        """Wait until the process ends, and return its exit status."""
        return self._process.wait()

    @property
    def last_error_line(self) -> str:
        """The last line of its standard error, or the end of a long one."""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1][-1000:] if lines else "it said nothing"

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the process, what it started in its session, and what it kept on disk; a second call does nothing."""
        if self._stderr.closed:
            return
        with suppress(BrokenPipeError), self._process:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._wait_for_others()
        self._stderr.close()
        self.temporary.close()

    def _wait_for_others(self) -> None:
        """Wait until nobody holds the pipe of messages: ranks end by themselves, a moment after their torchrun."""
        end = monotonic() + _END_SECONDS
        while (left := end - monotonic()) > 0 and self._arrival.poll(1000 * left):
            if not os.read(self._messages.fileno(), 1 << 16):
                return


class ParentPipe:
    """A child's requests from its parent and messages to it: standard input and output, which nothing else can use.

    Whatever prints, in Python or in C, here or in a process started from here, writes to standard error instead, and
    whatever reads finds the end of an empty file. Several processes may share the pipe: a message of up to 4,096 bytes
    is written whole.
    """

    def __init__(self) -> None:
        self._requests = os.fdopen(os.dup(0), encoding="utf-8")
        self._messages = os.fdopen(os.dup(1), "wb")
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)

    def receive(self) -> dict[str, Any] | None:
        """Wait for a request and return it; `None` when none follows: the parent has ended."""
        line = self._requests.readline()
        return json.loads(line) if line else None

    def send(self, **message: Any) -> None:
        """Send a message: an object of JSON with these fields."""
        self._messages.write(json.dumps(message).encode() + b"\n")
        self._messages.flush()


def end_with_parent() -> None:
    """End this process, and those of its process group where it leads one, when its parent has ended.

    Linux's own signal for that comes when the thread that started the child ends, which is too early for a worker
    that a thread leaves warm; and other systems have none. So a thread looks.
    """
    parent = int(os.environ.get(PARENT, os.getppid()))  # which may have ended before this process could ask for it
    os.environ[PARENT] = str(os.getpid())  # for ranks, which torchrun starts

    def watch() -> None:
        while os.getppid() == parent:
            sleep(_LOOK_SECONDS)
        end = os.killpg if os.getpgrp() == os.getpid() else os.kill
        end(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    sys.argv = sys.argv[1:]
    import_module(sys.argv[0]).main()
