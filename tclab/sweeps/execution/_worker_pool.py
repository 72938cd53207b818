"""The warm workers that run this process's points: a process of one rank, or the several ranks of a torchrun."""

from __future__ import annotations

import atexit
import os
import re
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from tclab import _torchrun
from tclab._child_process import ChildProcess, child_command
from tclab._io import TemporaryFolder
from tclab._limits import field_of
from tclab.errors import InputError
from tclab.sweeps.config._gpus import check_enough, device_of
from tclab.sweeps.config._point import ALLOCATORS, Point
from tclab.sweeps.execution._request import MEMORY_LIMIT, RANK, RANK_DEVICE, WORKER
from tclab.sweeps.store._code_fingerprint import files_of
from tclab.timing._environment import usable_cores

Answer = list[dict[str, Any]] | str  # rows, or why there are none
_WRITTEN_SECONDS = 0.5  # in which a rank has written where it is


class WorkerKind(NamedTuple):
    """What points must have in common to be run by the same worker."""

    ranks: int
    allocator: str
    memory_bytes: int | None
    device: str


class Worker(ChildProcess):
    """A process that runs points or, for several ranks, the torchrun that has started them.

    **Arguments:**

    - `ranks`: how many. `environment`: all of its variables.
    """

    def __init__(self, ranks: int, environment: dict[str, str]) -> None:
        self.has_read: dict[str, Any] = {}  # files that its points read, each with its state then
        self.rank_pids: dict[int, int] = {}
        self._temporary = TemporaryFolder()  # for all that it keeps on disk: one that is killed cannot clear up
        self.folder = self._temporary.path
        # the compiler's cache outlives the process, as it does elsewhere
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir(), f"torchinductor_{os.getuid()}"))}
        environment = {**cache, **environment, "TMPDIR": str(self.folder)}
        command = child_command(WORKER)
        if ranks > 1:
            command = _torchrun.command(ranks, self.folder / "logs", "tclab._child_process", RANK)
            environment |= {"OMP_NUM_THREADS": str(threads_of(ranks))}
            environment = {"GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR", **environment}
        super().__init__(command, environment)

    def ask(self, request: dict[str, Any], *, hang_seconds: float | None) -> Answer:
        """Return the rows of a request, or how the worker ended.

        One that is not through after `hang_seconds` is ended; without a limit it is waited for.
        """
        killed = _killed_for_memory()
        self.send(request)
        end = inf if hang_seconds is None else monotonic() + hang_seconds
        while answer := self.receive(max(0.0, end - monotonic())):
            if "rows" in answer:
                rows: list[dict[str, Any]] = answer["rows"]
                return rows
            if "failed" in answer:
                failed: str = answer["failed"]
                return "oom" if "SIGKILL" in failed and _killed_for_memory() != killed else failed
            self.rank_pids[answer["rank"]] = answer["pid"]
        if answer is not None:
            where = self._where_ranks_are()
            return f"failed: the point was not through after {hang_seconds:g} s, and its process was ended{where}"
        code = self.wait()
        assert code is not None
        if code == -signal.SIGKILL and _killed_for_memory() != killed:
            return "oom"
        if code < 0:
            return f"failed: killed by {signal.Signals(-code).name}"
        return f"failed: the child ended with {code}: {self.last_error_line}"

    def _where_ranks_are(self) -> str:
        """Return the line at which each rank is, as text; "" for a single process."""
        for pid in self.rank_pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)  # it writes that down
        sleep(_WRITTEN_SECONDS if self.rank_pids else 0.0)
        found = ""
        for rank in sorted(self.rank_pids):
            written = _torchrun.standard_error(self.folder / "logs", rank)
            frames = re.findall(r'File "([^"]+)", line (\d+) in (\w+)', written)
            for file, line, function in [frame for frame in frames if "site-packages" not in frame[0]][:1]:
                found += f"; rank {rank} was at {Path(file).name}, line {line}, in {function}"
        return found

    def kill(self) -> None:
        """End the process and its ranks at once; ranks that are not known yet end as they see that it has."""
        super().kill()
        for pid in self.rank_pids.values():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def close(self) -> None:
        """End everything, and remove what it kept on disk."""
        super().close()
        self._temporary.close()


def _killed_for_memory() -> float | None:
    """Return how many processes the system has killed for memory so far; `None` where it does not tell."""
    return field_of("/proc/vmstat", "oom_kill ")


def threads_of(ranks: int) -> int:
    """Return how many threads each of some ranks on this machine gets, so that they share its cores.

    `OMP_NUM_THREADS` of this process is the most that a rank gets.
    """
    share = max(1, (usable_cores() or 1) // ranks)
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(limit)) if limit.isdigit() and int(limit) else share


def worker_environment(point: Point, memory_bytes: int | None) -> dict[str, str]:
    """Return the variables of a process that runs a point.

    **Raises:** `InputError` where its ranks need more GPUs than this machine has.
    """
    # of a Slurm job's variables Lightning would make ranks that this point does not have
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    variables |= {**ALLOCATORS[point.allocator], RANK_DEVICE: point.device}
    if memory_bytes is not None:
        variables[MEMORY_LIMIT] = str(memory_bytes)
    if point.device == "cuda":
        check_enough(point.ranks)
    return variables


class WorkerPool:
    """Warm workers, one of each kind.

    Points run one after the other: a second thread that asks waits.
    """

    def __init__(self) -> None:
        self.idle: dict[WorkerKind, Worker] = {}
        self.busy: list[tuple[int, Worker]] = []  # and the thread that waits for each
        self._lock = threading.RLock()
        self._exiting = threading.Event()

    def ask(
        self,
        point: Point,
        request: dict[str, Any],
        *,
        fresh: bool = False,
        memory_bytes: int | None = None,
        hang_seconds: float | None = None,
    ) -> Answer:
        """Return a worker's answer to the request for a resolved point's rows; see `run`."""
        with self._lock:
            files = files_of(point)
            kind = WorkerKind(point.ranks, point.allocator, memory_bytes, point.device)
            worker = self._start(point, memory_bytes) if fresh else self._worker(kind, point, files)
            worker.has_read |= files
            with self.at_work(worker):
                answer = worker.ask(request, hang_seconds=hang_seconds)
            if isinstance(answer, str) or fresh or any(row["status"] == "oom" for row in answer):
                worker.close()  # it is dead, or holds too much memory for the next point
            else:
                self.idle[kind] = worker
        return answer

    @contextmanager
    def at_work(self, worker: Worker) -> Iterator[None]:
        """Let `abort` end a worker within this block; close it on any error, an interrupt among them.

        **Raises:** `RuntimeError` when this process exits: a point that the exit ended must not be kept as failed.
        """
        entry = (threading.get_ident(), worker)
        exiting = RuntimeError("this process is exiting, and runs no other point")
        self.busy.append(entry)
        try:
            if self._exiting.is_set():
                raise exiting
            yield
            if self._exiting.is_set():
                raise exiting
        except BaseException:
            worker.close()
            raise
        finally:
            self.busy.remove(entry)

    def _worker(self, kind: WorkerKind, point: Point, files: dict[str, Any]) -> Worker:
        """Return the warm worker, or start one where none lives that has read the files as they are now."""
        worker = self.idle.pop(kind, None)
        if worker is not None:
            if worker.alive and all(worker.has_read.get(file, state) == state for file, state in files.items()):
                return worker
            worker.close()
        return self._start(point, kind.memory_bytes)

    def _start(self, point: Point, memory_bytes: int | None) -> Worker:
        """Start the worker for a point, and end warm ones that would be in its way.

        Ranks are kept of one point alone, for each has all its memory and caches; on a GPU nothing else at all.
        """
        for kind in tuple(self.idle):
            if (point.ranks > 1 and kind.ranks > 1) or point.device == kind.device == "cuda":
                self.idle.pop(kind).close()
        return Worker(point.ranks, worker_environment(point, memory_bytes))

    def warm_up(self) -> None:
        """Start the worker that the next point will be run in, so that its imports are over by then.

        Nothing happens where one waits already, or is at work.
        """
        if not self._lock.acquire(blocking=False):
            return  # a point is being run: its worker is warm
        try:
            point = Point(device=device_of("auto"))
            kind = WorkerKind(1, point.allocator, None, point.device)
            with suppress(InputError):  # no GPU answers: the point itself will say so
                self.idle[kind] = self._worker(kind, point, {})
        finally:
            self._lock.release()

    def abort(self, thread: int | None = None) -> None:
        """Kill the workers at work, with all their ranks; their points end with `failed: killed by SIGKILL`.

        Of one thread alone where its `ident` is given.
        """
        for owner, worker in tuple(self.busy):
            if thread in (None, owner):
                worker.kill()

    def close(self) -> None:
        """End every warm worker; the next point starts a new one."""
        with self._lock:
            while self.idle:
                self.idle.popitem()[1].close()

    def exit(self) -> None:
        """End the point that runs, let no other begin, and end the warm workers: this process exits."""
        self._exiting.set()
        self.abort()
        self.close()


pool = WorkerPool()
atexit.register(pool.exit)
warm_up = pool.warm_up
abort = pool.abort
close_workers = pool.close
