"""Running one point in a child process, kept warm for the next."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa

from tclab.sweeps.own_code import own_code, own_modules
from tclab.sweeps.point import ALLOCATORS, Point
from tclab.sweeps.rows import columns_of, frame, table


class _Child:
    """A child process that serves points, and what it says when it dies."""

    def __init__(self, allocator: str, memory_bytes: int | None) -> None:
        environment = {**os.environ, **ALLOCATORS[allocator]}
        if memory_bytes is not None:
            environment["TCLAB_MEMORY_BYTES"] = str(memory_bytes)
        self.own_code: dict[str, str] = {}  # of the user's modules that it has imported, as they were then
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (close() ends it)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tclab.sweeps.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env={
                **environment,
                "PYTHONPATH": os.pathsep.join([str(_SOURCE), os.environ.get("PYTHONPATH", "")]),
            },
            start_new_session=True,  # an interrupt of the notebook is the sweep's to handle, not the child's
        )

    def ask(self, request: dict[str, Any]) -> list[dict[str, Any]] | str:
        """Return the rows of a request, or how the child died."""
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
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the process and its workers."""
        if self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._words):
            if pipe is not None:
                pipe.close()


# The children must import the tclab that their parent runs, also where that one is not installed.
_SOURCE = Path(__file__).resolve().parents[2]
_children: dict[tuple[str, int | None], _Child] = {}
_lock = threading.RLock()


def _killed_for_memory() -> int | None:
    """Return how many processes the system has killed for memory so far, where it tells."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return None


@atexit.register
def close_children() -> None:
    """End every child that is kept warm; the next point starts a new one."""
    with _lock:
        while _children:
            _children.popitem()[1].close()


def rows_of(point: Point, *, fresh: bool = False, memory_bytes: int | None = None) -> pa.Table:
    """Return the rows of one point as an arrow table; see `run`."""
    reason = point.skipped()
    if reason is not None:
        return table([{**columns_of(point), "stage": "step", "status": reason}])
    point = point.resolved()
    answer = answer_of(point, fresh=fresh, memory_bytes=memory_bytes)
    if isinstance(answer, str):
        answer = [{**columns_of(point), "stage": "step", "status": answer}]
    return table(answer)


def answer_of(
    point: Point, *, fresh: bool, memory_bytes: int | None = None, **more: Any
) -> list[dict[str, Any]] | str:
    """Return what a child process answers about a resolved point, or how it died; `more` goes with the request."""
    request = {
        "point": point.to_dict(),
        "modules": own_modules(point),
        "path": [p for p in sys.path if p] + [os.getcwd()],
        **more,
    }
    with _lock:
        key = (point.allocator, memory_bytes)
        child = None if fresh else _children.pop(key, None)
        own = own_code(point)
        if child is not None and (not child.alive or any(child.own_code.get(m, h) != h for m, h in own.items())):
            child.close()  # dead, or it has imported code that has changed since
            child = None
        if child is None:
            child = _Child(point.allocator, memory_bytes)
        child.own_code |= own
        _running.append(child)
        try:
            answer = child.ask(request)
        except BaseException:  # an interrupt: what the child is at cannot be taken up again
            child.close()
            raise
        finally:
            _running.remove(child)
        if isinstance(answer, str) or fresh or any(row["status"] == "oom" for row in answer):
            child.close()  # a new one for the next point: this one is dead, or holds too much
        else:
            _children[key] = child
    return answer


_running: list[_Child] = []


def abandon() -> None:
    """Kill the child that is at work now, if any; its point ends with `failed: killed by SIGKILL`."""
    for child in _running:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def run(point: Point, *, fresh: bool = False, memory_bytes: int | None = None) -> pd.DataFrame:
    """Run one point in a child process and return its rows, one for each stage.

    The gate goes first: a strategy that does not give what `subgraph` gives has one row, `wrong`, and no time.
    A point that cannot be run, runs out of memory or crashes has one row that says so in `status`.

    **Arguments:**

    - `point`: what is run, on a device made definite here.
    - `fresh`: in a process of its own, so that nothing is carried over from earlier points; the child is kept
      warm for the next point otherwise.
    - `memory_bytes`: refuse to let the child's memory grow past this (Linux).

    **Raises:** `InputError` for `device="cuda"` where there is none, or a strategy no child could import.
    """
    return frame(rows_of(point, fresh=fresh, memory_bytes=memory_bytes))
