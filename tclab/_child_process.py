"""A child process that is asked, and answers, in lines of JSON; and the child's side of that pipe.

As a program it runs `main` of another module, from the first moment in the knowledge of its parent:
`python -m tclab._child_process MODULE ARGUMENT …`.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

SOURCE = Path(__file__).resolve().parents[1]  # a child imports the tclab that its parent runs, installed or not
_LOOK_SECONDS = 0.5  # between looks whether the other end, which sends nothing, is still alive
PARENT = "TCLAB_PARENT_PID"  # the variable that tells a child who started it, however long it takes to look


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `main` of a module in a process that ends with its parent."""
    return [sys.executable, "-m", __name__, module, *arguments]


class ChildProcess:
    """A process in a session of its own: an interrupt of the parent is for the parent to handle.

    It reads requests from its standard input and sends messages with `ParentPipe`, one line of JSON each. Lines on
    its standard output that are no JSON object are left out. `environment` has all of its variables; this tclab goes
    before its PYTHONPATH.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        path = os.pathsep.join([str(SOURCE), environment.get("PYTHONPATH", "")])
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (close() ends it)
        self._incomplete = b""
        self._unread: deque[dict[str, Any]] = deque()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**environment, "PYTHONPATH": path, PARENT: str(os.getpid())},
            start_new_session=True,
        )

    def send(self, request: Mapping[str, Any] | None) -> None:
        """Send a request, or that none follows (`None`); a child that has died does not get it: `receive` finds out."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write((b"" if request is None else json.dumps(request).encode()) + b"\n")
            self._process.stdin.flush()

    def receive(self, seconds: float) -> list[dict[str, Any]] | None:
        """Return the messages that arrive within some seconds, as soon as there are any; `None` once it has ended.

        A process that the child started may hold the pipe open after it; that does not count as alive.
        """
        if self._unread:
            messages = list(self._unread)
            self._unread.clear()
            return messages
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            ready = selector.select(seconds)
        if not ready:
            return [] if self.alive else None
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._incomplete = (self._incomplete + data).split(b"\n")
        messages = []
        for line in lines:
            with suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    messages.append(message)
        return messages

    def receive_one(self) -> dict[str, Any] | None:
        """Wait for the next message and return it; `None` from a child that ended before it was whole."""
        while not self._unread:
            messages = self.receive(_LOOK_SECONDS)
            if messages is None:
                return None
            self._unread.extend(messages)
        return self._unread.popleft()

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait until the process ends, for some seconds at most, and return its exit status; `None` if it goes on."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    @property
    def last_error_line(self) -> str:
        """The last line of its standard error, or of its last 10 kB the end."""
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - 10_000))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1][-1000:] if lines else "it said nothing"

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End the process, and what it started in its session, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def closed(self) -> bool:
        return self._stderr.closed

    def close(self) -> None:
        """End the process and close its pipes; a second call does nothing."""
        if self.closed:
            return
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


class ParentPipe:
    """A child's requests from its parent and messages to it: standard input and output, which nothing else can use.

    Whatever prints, in Python or in C, here or in a process started from here, writes to standard error instead, and
    whatever reads finds the end of an empty file. Several processes may share the pipe: a message of up to 4,096 bytes
    is written whole.
    """

    def __init__(self) -> None:
        self._requests = os.fdopen(os.dup(0), encoding="utf-8")
        self._messages = os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)

    def receive(self) -> dict[str, Any] | None:
        """Wait for a request and return it; `None` when none follows."""
        line = self._requests.readline().strip()
        request: dict[str, Any] | None = json.loads(line) if line else None
        return request

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yield requests until none follows."""
        return iter(self.receive, None)

    def send(self, **message: Any) -> None:
        """Send a message: an object of JSON with these fields."""
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._messages, data) :]


def end_with_parent() -> None:
    """End this process, and those of its process group where it leads one, when its parent has ended.

    The standard input of a `ChildProcess`, and of the processes that it starts, is a pipe whose other end closes then;
    a process that the parent has forked may hold it open, so the parent's number is looked at, too.
    """
    poll = select.poll()
    parent = os.getppid()
    if PARENT in os.environ:  # the parent may have ended before this process could ask for its number
        parent = int(os.environ[PARENT])
        os.environ[PARENT] = str(os.getpid())  # for ranks, which torchrun starts
        poll.register(os.dup(0), 0)  # reports that the other end is closed, and nothing else

    def watch() -> None:
        while os.getppid() == parent and not poll.poll(_LOOK_SECONDS * 1000):
            pass
        end = os.killpg if os.getpgrp() == os.getpid() else os.kill
        end(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    sys.argv = sys.argv[1:]
    import_module(sys.argv[0]).main()
