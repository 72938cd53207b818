"""A set of ranks that torchrun starts, as one worker to ask: a request in, rows or the reason of a failure out."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from tclab._child_process import ChildProcess
from tclab._io import TemporaryFolder
from tclab.sweeps.execution._request import RANK_SECRET, WORKER
from tclab.timing._environment import usable_cores

HANG_SECONDS = 300.0  # without any rank entering a stage, until one is said to hang
_OTHERS_SECONDS = 3.0  # after the first failure, for the others to report theirs
_LOOK_SECONDS = 0.2
_ENDED_BY_TORCHRUN = (-signal.SIGTERM, -signal.SIGABRT)  # how torchrun ends the others, and NCCL those that wait
_LAUNCHER = Path(__file__).with_name("_rank_launcher.py")


@dataclass
class RankReport:
    """What a rank has reported since it was last asked."""

    pid: int | None = None
    entered: int = 0  # stages
    at: str = "starting"  # the last of them
    failed: str | None = None  # its status, where it raised an error
    peer: bool = False  # because another rank had ended


class RankGroup:
    """Ranks under torchrun, in a session of their own, kept for as long as they are asked.

    **Arguments:**

    - `ranks`: how many. `environment`: theirs, whole.
    """

    def __init__(self, ranks: int, environment: dict[str, str]) -> None:
        self.ranks = ranks
        self.has_read: dict[str, Any] = {}  # files that points of these ranks read, each with its state then
        self._reports = {rank: RankReport() for rank in range(ranks)}
        self._exit_codes: dict[int, int] = {}  # of ranks that failed, from torchrun
        self._killed = False
        self._temporary = TemporaryFolder()  # for all that ranks keep on disk: one that is killed cannot clear up
        self.folder = self._temporary.path
        loopback = {"GLOO_SOCKET_IFNAME": "lo"} if Path("/sys/class/net/lo").exists() else {}
        self._torchrun = ChildProcess(
            command(ranks, logs=self.folder / "logs"),
            {
                **loopback,
                **environment,
                "OMP_NUM_THREADS": str(threads_of(ranks)),
                "TMPDIR": str(self.folder),
                RANK_SECRET: token_hex(),  # for the ranks to sign what they exchange
                "TORCH_CPP_LOG_LEVEL": environment.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
            },
        )

    # ---- asking

    def ask(self, request: dict[str, Any], *, hang_seconds: float | None = None) -> list[dict[str, Any]] | str:
        """Return the rows of a request, or what became of the ranks; then they have ended.

        A rank that is killed, or raises an error, is named within about 5 seconds; one that hangs, when no rank has
        entered a stage for `hang_seconds`, or `HANG_SECONDS` where that is longer until all have entered their first.
        """
        hang_seconds = HANG_SECONDS if hang_seconds is None else hang_seconds
        for report in self._reports.values():
            report.entered = 0
        self._torchrun.send(request)
        moved = time.monotonic()
        failed_at: float | None = None
        while True:
            message = self._torchrun.receive(_LOOK_SECONDS)
            if message and "rows_file" in message:
                file = Path(message["rows_file"])
                rows: list[dict[str, Any]] = json.loads(file.read_text())
                file.unlink()
                return rows
            if message:
                moved = time.monotonic()
                self._take(message)
            now = time.monotonic()
            if failed_at is None and any(report.failed for report in self._reports.values()):
                failed_at = now
            if message is None or (failed_at is not None and now - failed_at > _OTHERS_SECONDS):
                self._end()
                return self._reason()
            if now - moved > (hang_seconds if self.started else max(hang_seconds, HANG_SECONDS)):
                reason = self._hanging(hang_seconds)
                self._end()
                return reason

    def _take(self, message: dict[str, Any]) -> None:
        """Take up a message of a rank, or of torchrun."""
        codes = message.get("exit_codes", {})
        self._exit_codes |= {int(rank): code for rank, code in codes.items()}
        if "rank" in message:
            report = self._reports.setdefault(message["rank"], RankReport())
            vars(report).update({name: value for name, value in message.items() if name in vars(report)})

    # ---- what became of them

    def _reason(self) -> str:
        """Return which rank's failure it was, and its last line: others fail because of it, and report it sooner."""
        if self._killed:
            return "failed: killed by SIGKILL"
        for rank, report in self._reports.items():
            if report.failed is not None and not report.peer:
                return self._named(rank, report.failed)
        silent = [rank for rank, report in self._reports.items() if report.failed is None]
        # killed ones first, and those that torchrun ended last
        for rank, code in sorted(
            self._exit_codes.items(), key=lambda pair: (pair[1] >= 0, pair[1] in _ENDED_BY_TORCHRUN)
        ):
            if rank in silent:
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
                return f"failed: rank {rank} {how}{self._last_line(rank)}"
        failed = [rank for rank, report in self._reports.items() if report.failed is not None]
        if failed and len(silent) == 1:
            return f"failed: rank {silent[0]} is gone{self._last_line(silent[0])}"
        if failed:
            return self._named(failed[0], str(self._reports[failed[0]].failed))
        return f"failed: torchrun ended: {self._torchrun.last_error_line}"

    def _named(self, rank: int, status: str) -> str:
        if status == "oom":
            return f"failed: rank {rank} ran out of memory{self._last_line(rank)}"
        return status if status.startswith("skipped") else f"failed: rank {rank}: {status.removeprefix('failed: ')}"

    def _hanging(self, seconds: float) -> str:
        rank, status = hanging_rank(self._reports, seconds)
        if rank is None:
            return status
        pid = self._reports[rank].pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)  # it writes down where it is
            time.sleep(0.3)
        frames = re.findall(r'File "([^"]+)", line (\d+) in (\w+)', self._stderr(rank))
        shown = [frame for frame in frames if "site-packages" not in frame[0]] or frames
        where = f" ({Path(shown[0][0]).name}, line {shown[0][1]}, in {shown[0][2]})" if shown else ""
        return status + where

    def _stderr(self, rank: int) -> str:
        files = sorted(self.folder.glob(f"logs/*/attempt_0/{rank}/stderr.log"))
        return files[-1].read_text(errors="replace") if files else ""

    def _last_line(self, rank: int) -> str:
        lines = self._stderr(rank).strip().splitlines()
        return f"; its last words: {lines[-1].strip()[:300]}" if lines else ""

    # ---- ending

    @property
    def alive(self) -> bool:
        return self._torchrun.alive

    @property
    def started(self) -> bool:
        """Whether every rank has entered a stage of the point that was asked for last."""
        return all(report.entered for report in self._reports.values())

    def kill(self) -> None:
        """End torchrun, the ranks and their workers at once; who asks them learns so."""
        self._killed = True
        self._kill()

    def _kill(self) -> None:
        pids = {report.pid for report in self._reports.values() if report.pid}
        if self._torchrun.alive:
            with suppress(ProcessLookupError):
                os.kill(self._torchrun.pid, signal.SIGSTOP)  # it starts no other rank now
            pids |= _children(self._torchrun.pid)
        for pid in [self._torchrun.pid, *pids]:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _end(self) -> None:
        """Let torchrun report which ranks it saw fail, then end what is left."""
        self._torchrun.wait(_OTHERS_SECONDS)
        self._end_rest()

    def _end_rest(self) -> None:
        while message := self._torchrun.receive(0.0):  # that has arrived
            self._take(message)
        self._kill()
        self._torchrun.wait()

    def close(self) -> None:
        """End everything, and remove what the ranks kept."""
        if self._torchrun.closed:
            return
        self._end_rest()
        self._torchrun.close()
        self._temporary.close()


def hanging_rank(reports: Mapping[int, RankReport], seconds: float) -> tuple[int | None, str]:
    """Return the rank that hangs, the one that has entered the fewest stages, and the status that says so.

    Where all have entered as many, it is not known which one hangs: the rank is `None`. None has entered a stage for
    `seconds`.
    """
    least = min(report.entered for report in reports.values())
    behind = [rank for rank, report in reports.items() if report.entered == least]
    at = reports[behind[0]].at
    words = f"no rank moved for {seconds:g} s"
    if len(behind) == len(reports) > 1:
        return None, f"failed: a rank hung, which one is not known: {words}, and all were at {at}"
    return behind[0], f"failed: rank {behind[0]} hung: {words}, and it was at {at}"


def _children(pid: int) -> set[int]:
    """Return a process's children, where the system tells: ranks that have not yet sent their number."""
    pids: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            pids |= set(map(int, task.read_text().split()))
    return pids


def command(
    ranks: int,
    *,
    logs: str | Path | None = None,
    module: str = "tclab._child_process",
    arguments: Sequence[str] = (WORKER, "rank"),
) -> list[str]:
    """Return the command that starts ranks on this machine.

    torchrun gives each rank its number, and ends all of them when one has failed. Rank 0 reads requests from standard
    input and answers on standard output. The launcher chooses a free port. `logs` is a folder for each rank's standard
    error, which is this process's own unless given.
    """
    line = [sys.executable, "-P", str(_LAUNCHER), f"--nproc-per-node={ranks}", "--max-restarts=0"]
    line += ["--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1"]
    if logs is not None:
        line += [f"--log-dir={logs}", "--redirects=2"]
    return [*line, "-m", module, *arguments]


def threads_of(ranks: int) -> int:
    """Return how many threads each of some ranks on this machine gets, so that they share its cores.

    `OMP_NUM_THREADS` of this process is the most that a rank gets.
    """
    share = max(1, (usable_cores() or 1) // ranks)
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(limit)) if limit.isdigit() and int(limit) else share
