"""Ranks that torchrun started, as one thing to ask: a request in, rows or the reason of a failure out."""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tclab.sweeps.torchrun import command, threads_of

HANG_SECONDS = 300.0  # without any rank entering a stage, until one is said to hang
_LAST_WORDS_SECONDS = 3.0  # after the first failure, for the others to say theirs
_AFTERWARDS = (-signal.SIGTERM, -signal.SIGABRT)  # how torchrun ends the others, and NCCL those that wait
_REPORT = re.compile(r"rank\s+:\s+(\d+)[^\n]*\n\s*exitcode\s+:\s+(-?\d+)")  # of torchrun, for each that failed


@dataclass
class _Heard:
    """What a rank has said since it was last asked."""

    pid: int | None = None
    entered: int = 0
    at: str = "starting"
    failed: str | None = None
    peer: bool = False  # it failed because another one had gone


class Launched:
    """Ranks under torchrun, in a session of their own, kept for as long as they are asked.

    **Arguments:**

    - `ranks`: on this node.
    - `environment`: of the ranks, whole.
    - `nodes`, `node`, `endpoint`: see `tclab.sweeps.torchrun.command`. Only node 0 is asked; the others `wait`.
    """

    def __init__(
        self,
        ranks: int,
        environment: dict[str, str],
        *,
        nodes: int = 1,
        node: int = 0,
        endpoint: str | None = None,
    ) -> None:
        self.ranks = ranks
        self.nodes = nodes
        self.has_read: dict[str, Any] = {}  # of the user's modules and folders, as they were then
        self._heard = {node * ranks + place: _Heard() for place in range(ranks)}
        self._rest = b""
        self._killed = False
        self.own_fault = False  # what became of the ranks began with one of them, not on another machine
        # for all that ranks keep: one that is killed cannot clear up
        self._folder = Path(tempfile.mkdtemp(prefix="tclab-ranks-"))
        self._said = open(self._folder / "torchrun", "wb")  # noqa: SIM115 (close() ends it)
        loopback = {"GLOO_SOCKET_IFNAME": "lo"} if nodes == 1 and Path("/sys/class/net/lo").exists() else {}
        self._process = subprocess.Popen(
            command(ranks, nodes=nodes, node=node, endpoint=endpoint, logs=self._folder / "logs"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={
                **loopback,
                **environment,
                "OMP_NUM_THREADS": str(threads_of(ranks)),
                "TMPDIR": str(self._folder),
                "TORCH_CPP_LOG_LEVEL": environment.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
            },
            start_new_session=True,
        )

    # ---- asking

    def ask(self, request: dict[str, Any], *, hang_seconds: float = HANG_SECONDS) -> list[dict[str, Any]] | str:
        """Return the rows of a request, or what became of the ranks; then they are gone.

        A rank that is killed, or raises, is named within about 5 seconds; one that hangs, when no rank has entered
        a stage for `hang_seconds`, or `HANG_SECONDS` where that is longer until all have entered their first.
        """
        assert self._process.stdin is not None
        for heard in self._heard.values():
            heard.entered = 0
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        moved = time.monotonic()
        failed_at: float | None = None
        while True:
            lines = self._lines(0.2)
            for what in lines or []:
                if "rows" in what:
                    rows: list[dict[str, Any]] = json.loads(Path(what["rows"]).read_text())
                    Path(what["rows"]).unlink()
                    return rows
                moved = time.monotonic()
                self._hear(what)
            now = time.monotonic()
            if failed_at is None and any(heard.failed for heard in self._heard.values()):
                failed_at = now
            if lines is None or (failed_at is not None and now - failed_at > _LAST_WORDS_SECONDS):
                self._end()
                return self._reason()
            started = all(heard.entered for heard in self._heard.values())
            if now - moved > (hang_seconds if started else max(hang_seconds, HANG_SECONDS)):
                reason = self._hanging(hang_seconds)
                self._end()
                return reason

    def _lines(self, seconds: float) -> list[dict[str, Any]] | None:
        """Return what was said within some seconds at most; `None` when nobody is left to say anything."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            ready = selector.select(seconds)
        if not ready:  # a worker that outlives its rank may hold the pipe open
            return None if self._process.poll() is not None else []
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            with suppress(ValueError):
                what = json.loads(line)
                if isinstance(what, dict) and "rank" in what:
                    found.append(what)
        return found

    def _hear(self, what: dict[str, Any]) -> None:
        heard = self._heard.setdefault(what["rank"], _Heard())
        for name in ("pid", "entered", "at", "failed", "peer"):
            if name in what:
                setattr(heard, name, what[name])

    # ---- what became of them

    def _reason(self) -> str:
        """Return whose failure it was, and its last words: other ranks fail because of it, and say so sooner."""
        if self._killed:
            self.own_fault = True
            return "failed: killed by SIGKILL"
        for rank, heard in self._heard.items():
            if heard.failed is not None and not heard.peer:
                self.own_fault = True
                return self._named(rank, heard.failed)
        codes = {int(rank): int(code) for rank, code in _REPORT.findall(self._torchrun_said())}
        silent = [rank for rank, heard in self._heard.items() if heard.failed is None]
        for rank, code in sorted(codes.items(), key=lambda pair: (pair[1] >= 0, pair[1] in _AFTERWARDS)):
            if rank in silent:
                self.own_fault = code not in _AFTERWARDS
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
                return f"failed: rank {rank} {how}{self._last_words(rank)}"
        said = [rank for rank, heard in self._heard.items() if heard.failed is not None]
        if said and len(silent) == 1:
            return f"failed: rank {silent[0]} is gone{self._last_words(silent[0])}"
        if said:
            return self._named(said[0], str(self._heard[said[0]].failed))
        lines = self._torchrun_said().strip().splitlines()
        return f"failed: torchrun ended: {lines[-1] if lines else 'it said nothing'}"

    def _named(self, rank: int, status: str) -> str:
        if status == "oom":
            return f"failed: rank {rank} ran out of memory{self._last_words(rank)}"
        if status.startswith("skipped"):
            return status
        return f"failed: rank {rank}: {status.removeprefix('failed: ')}"

    def _hanging(self, seconds: float) -> str:
        """Return which rank hangs, the one that came least far, and where in its code it is at."""
        least = min(heard.entered for heard in self._heard.values())
        behind = [rank for rank, heard in self._heard.items() if heard.entered == least]
        words = f"no rank moved for {seconds:g} s"
        if len(behind) == len(self._heard) and self.ranks * self.nodes > 1:
            which = "which one is not known" if self.nodes == 1 else "one here or one on another machine"
            here = "" if self.nodes == 1 else " here"
            return f"failed: a rank hung, {which}: {words}, and all{here} were at {self._heard[behind[0]].at}"
        self.own_fault = True
        rank, heard = behind[0], self._heard[behind[0]]
        if heard.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(heard.pid, signal.SIGUSR1)  # it writes down where it is
            time.sleep(0.3)
        place = re.findall(r'File "([^"]+)", line (\d+) in (\w+)', self._stderr(rank))
        own = [(file, line, name) for file, line, name in place if "site-packages" not in file] or place
        where = f" ({Path(own[0][0]).name}, line {own[0][1]}, in {own[0][2]})" if own else ""
        return f"failed: rank {rank} hung: {words}, and it was at {heard.at}{where}"

    def _stderr(self, rank: int) -> str:
        place = rank % self.ranks
        files = sorted(self._folder.glob(f"logs/*/attempt_0/{place}/stderr.log"))
        return files[-1].read_text(errors="replace") if files else ""

    def _last_words(self, rank: int) -> str:
        lines = self._stderr(rank).strip().splitlines()
        return f"; its last words: {lines[-1].strip()[:300]}" if lines else ""

    def _torchrun_said(self) -> str:
        return (self._folder / "torchrun").read_text(errors="replace")

    # ---- ending

    @property
    def alive(self) -> bool:
        """Whether torchrun is."""
        return self._process.poll() is None

    def wait(self) -> str | None:
        """Listen until the ranks of this node are through; return what became of them where they failed."""
        while (lines := self._lines(0.2)) is not None:
            for what in lines:
                self._hear(what)
        if not self._process.wait():
            return None
        self._end()
        return self._reason()

    def finish(self, seconds: float = 30.0) -> None:
        """Tell the ranks of all nodes that there is no more to do, and wait until those here have ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
            self._process.wait(timeout=seconds)
        self.close()

    def kill(self) -> None:
        """End torchrun, the ranks and their workers at once; whoever asks is told so."""
        self._killed = True
        self._kill()

    def _kill(self) -> None:
        pids = {heard.pid for heard in self._heard.values() if heard.pid}
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGSTOP)  # it starts no other rank now
            pids |= _children(self._process.pid)
        for pid in [self._process.pid, *pids]:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _end(self) -> None:
        """Let torchrun say whom it saw fail, then end what is left."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_LAST_WORDS_SECONDS)
        self._kill()
        self._process.wait()

    def close(self) -> None:
        """End everything, and remove what the ranks kept."""
        if self._said.closed:
            return
        for what in self._lines(0.0) or []:
            self._hear(what)
        self._kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _children(pid: int) -> set[int]:
    """Return a process's children, where the system tells: ranks that have not yet said who they are."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found |= set(map(int, task.read_text().split()))
    return found
