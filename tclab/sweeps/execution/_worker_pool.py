"""The pool of warm worker processes, and sets of ranks, that run this process's points."""

from __future__ import annotations

import atexit
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from tclab._child_process import ChildProcess, child_command
from tclab._io import TemporaryFolder
from tclab._limits import field_of
from tclab.errors import InputError
from tclab.sweeps.config._gpus import check_enough, device_of
from tclab.sweeps.config._point import ALLOCATORS, Point
from tclab.sweeps.execution._rank_group import RankGroup
from tclab.sweeps.execution._request import MEMORY_LIMIT, WORKER
from tclab.sweeps.store._code_fingerprint import files_of


class WorkerProcess(ChildProcess):
    """One process that runs points of one rank; `environment` has all of its variables."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.has_read: dict[str, Any] = {}  # files that points of this process read, each with its state then
        self._folder = TemporaryFolder()  # for all that it keeps on disk: one that is killed cannot clear up
        # the compiler's cache outlives the process, as it does elsewhere
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir(), f"torchinductor_{os.getuid()}"))}
        super().__init__(child_command(WORKER), {**cache, **environment, "TMPDIR": str(self._folder.path)})

    def ask(self, request: dict[str, Any], *, hang_seconds: float | None) -> list[dict[str, Any]] | str:
        """Return the rows of a request, or how the process died.

        One that is not through after `hang_seconds` is ended; without a limit it is waited for.
        """
        killed = _killed_for_memory()
        self.send(request)
        answer = self.receive(inf if hang_seconds is None else hang_seconds)
        if answer == {}:
            return f"failed: the point was not through after {hang_seconds:g} s, and its process was ended"
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


def _killed_for_memory() -> float | None:
    """Return how many processes the system has killed for memory so far; `None` where it does not tell."""
    return field_of("/proc/vmstat", "oom_kill ")


Answer = list[dict[str, Any]] | str  # rows, or why there are none
Worker = WorkerProcess | RankGroup  # runs one point at a time, and is kept warm for the next


def worker_environment(point: Point, memory_bytes: int | None) -> dict[str, str]:
    """Return the variables of a process that runs a point.

    **Raises:** `InputError` where its ranks need more GPUs than this machine has.
    """
    # of a Slurm job's variables Lightning would make ranks that this point does not have
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    variables |= ALLOCATORS[point.allocator]
    if memory_bytes is not None:
        variables[MEMORY_LIMIT] = str(memory_bytes)
    if point.device == "cuda":
        check_enough(point.ranks)
    return variables


class WorkerKind(NamedTuple):
    """What points must have in common to be run by the same worker."""

    ranks: int
    allocator: str
    memory_bytes: int | None
    device: str


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

        One set of ranks is kept, for each has all its memory and caches; on a GPU nothing else at all.
        """
        for kind, worker in tuple(self.idle.items()):
            if (point.ranks > 1 and isinstance(worker, RankGroup)) or point.device == kind.device == "cuda":
                self.idle.pop(kind).close()
        environment = worker_environment(point, memory_bytes)
        return WorkerProcess(environment) if point.ranks == 1 else RankGroup(point.ranks, environment)

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
