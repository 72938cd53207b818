"""Running one point on this machine, in a warm worker: a process of one rank, or the torchrun of several."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable
from math import inf
from time import monotonic, sleep
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from tclab._child_process import ChildProcess
from tclab._limits import field_of
from tclab.errors import require
from tclab.sweeps._fingerprint import imports_of, unchanged
from tclab.sweeps._point import ALLOCATORS, Point, check_enough
from tclab.sweeps._point_inputs import resolve
from tclab.sweeps._progress import SweepOptions
from tclab.sweeps._rows import frame, not_measured, table, with_code
from tclab.timing._environment import conditions, contention, usable_cores

Answer = list[dict[str, Any]] | str  # rows, or why there are none
Code = dict[str, str]  # file → digest, of the code that measured
STOPPED = "not run: stopped"
_WORKER = "tclab.sweeps._worker"  # the module that answers requests
_LOOK_SECONDS = 0.2  # between looks whether the point is to be stopped
_OTHERS = 0.5  # cores that others keep busy, from which they are in the way of a sweep that wants all of them
_MEASURE = "tclab.sweeps._measure:measure"


def run(point: Point, *, fresh: bool = False, hang_seconds: float | None = None) -> pd.DataFrame:
    """Run one point in a worker process, or its ranks in one each, and return its rows, one for each stage.

    The equivalence check comes first: a strategy that does not compute what `subgraph` computes has one row,
    `wrong`, and no time. A point that cannot be run, runs out of memory or crashes has one row that says so in
    `status`.

    **Arguments:**

    - `point`: what is run; a device "auto" is resolved here.
    - `fresh`: in a process of its own, so that nothing is carried over from earlier points; otherwise the worker is
      kept warm for the next point.
    - `hang_seconds`: how long the whole point may take, the start of its worker included; it is then ended, with a row
      that says so. Without a limit unless given.

    A limit of this process's memory (`ulimit -d`) is one of its worker's, too.

    **Raises:** `InputError` for `device="cuda"` where there is none, or a strategy that no worker could import.
    """
    require("point", point, Point, "a tclab.Point")
    limit = SweepOptions(hang_seconds=hang_seconds).hang_seconds
    return frame(point_rows(resolve(point), fresh=fresh, hang_seconds=limit))


def point_rows(point: Point, **limits: Any) -> pa.Table:
    """Return the rows of a resolved point as an arrow table; `limits` are those of `ask`."""
    if (reason := point.skipped()) is not None:
        return not_measured(point, reason)
    answer, code = ask(point, request_of(point), **limits)
    return with_code(not_measured(point, answer) if isinstance(answer, str) else table(answer), code)


def rows_of_task(point: Point, task: Callable[..., list[dict[str, Any]]], **arguments: Any) -> list[dict[str, Any]]:
    """Return what another task than measuring makes of a resolved point, in a worker with its settings.

    **Raises:** `RuntimeError` where it could not be done: the strategy is wrong, memory ran out, the process died.
    """
    answer, _ = ask(point, request_of(point, f"{task.__module__}:{task.__name__}", **arguments))
    rows = [{"status": answer}] if isinstance(answer, str) else answer
    if (status := rows[0].get("status", "ok")) != "ok":
        raise RuntimeError(f"{point.model} by {point.strategy} with {point.workers} workers: {status}")
    return rows


def request_of(point: Point, task: str = _MEASURE, **arguments: Any) -> dict[str, Any]:
    """Return the request for a resolved point's rows, as JSON can hold it.

    The task is the "module:function" that returns them; it takes the point, and the arguments by name.

    **Raises:** `InputError` for a strategy or model that no other process could import.
    """
    return {"point": point.to_dict(), **imports_of(point), "task": task, "arguments": arguments}


_idle: dict[WorkerKind, Worker] = {}  # warm, one of each kind
_lock = threading.RLock()  # whoever holds it has a point run
_exiting = threading.Event()


def ask(
    point: Point, request: dict[str, Any], *,
    fresh: bool = False, hang_seconds: float | None = None, stop: threading.Event | None = None,
) -> tuple[Answer, Code]:  # fmt: skip
    """Return a worker's answer to the request for a resolved point's rows, and the code that it ran; see `run`.

    Points run one after the other: a second thread that asks waits. With `stop`, or at this process's exit, the point
    that runs is ended, and its answer is "not run: stopped".

    **Raises:** `InputError` where the point's ranks need more GPUs than this machine has.
    """
    if point.device == "cuda":
        check_enough(point.ranks)
    kind = WorkerKind(point.ranks, point.device, point.allocator, os.environ.get("OMP_NUM_THREADS"))
    with _lock:
        if _is_stopped(stop):
            return STOPPED, {}
        worker = _worker_for(kind, fresh=fresh)
        try:
            answer = worker.ask(request, hang_seconds=hang_seconds, stop=stop)
        except BaseException:  # an interrupt among them
            worker.close()
            raise
        if isinstance(answer, str) or fresh or any(row["status"] == "oom" for row in answer):
            worker.close()  # it is dead, or holds too much memory for the next point
        else:
            _idle[kind] = worker
        return answer, worker.code


def _is_stopped(stop: threading.Event | None) -> bool:
    return _exiting.is_set() or (stop is not None and stop.is_set())


def _worker_for(kind: WorkerKind, *, fresh: bool) -> Worker:
    """Return a worker of a kind: the warm one, where the code that it has loaded is as it is now, or else a new one.

    Warm ones that would be in the way of a new one are ended: ranks are kept of one kind alone, for each has all its
    memory and caches; on a GPU nothing else at all.
    """
    warm = None if fresh else _idle.pop(kind, None)
    if warm is not None:
        if warm.alive and unchanged(warm.loaded):
            return warm
        warm.close()
    for other in tuple(_idle):
        if (kind.ranks > 1 and other.ranks > 1) or kind.device == other.device == "cuda":
            _idle.pop(other).close()
    return Worker(kind)


def close_workers() -> None:
    """End every warm worker; the next point starts a new one."""
    with _lock:
        while _idle:
            _idle.popitem()[1].close()


@atexit.register
def _exit() -> None:
    _exiting.set()
    close_workers()


def others_now() -> str:
    """Return that other processes keep cores busy which the threads of a point would wait for; empty where none do.

    Threads that share the work of each operation wait for the one whose core another process has.
    """
    cores, threads = usable_cores(), threads_of(1)
    before = conditions()
    sleep(0.3)  # meanwhile this process and its idle workers keep none busy
    others = contention(before, conditions()).busy_cores
    if cores is None or others is None or cores < 2 or others + threads < cores + _OTHERS:
        return ""
    fewer = ", or with fewer threads: OMP_NUM_THREADS=1" if threads > 1 else ""
    return (
        f"other programs keep {others:.1f} of {cores} cores busy now, so steps will be slower, and much slower if a "
        f"step's threads wait for one another. Measure and race when those programs have ended{fewer}"
    )


class WorkerKind(NamedTuple):
    """What points must have in common to be run by the same worker."""

    ranks: int
    device: str
    allocator: str
    threads: str | None  # OMP_NUM_THREADS


class Worker(ChildProcess):
    """A process that runs points or, for several ranks, the torchrun that has started them."""

    def __init__(self, kind: WorkerKind) -> None:
        self.code: Code = {}  # what the last request ran
        self.loaded: Code = {}  # what all of them have loaded
        command = [_WORKER, str(kind.ranks), kind.device]
        if kind.ranks > 1:
            command = ["tclab._torchrun", str(kind.ranks), "tclab._child_process", *command]
        super().__init__(command, _environment_of(kind))

    def ask(self, request: dict[str, Any], *, hang_seconds: float | None, stop: threading.Event | None) -> Answer:
        """Return the rows of a request, or why there are none; then the worker is to be closed."""
        killed = _killed_for_memory()
        self.send(request)
        end = inf if hang_seconds is None else monotonic() + hang_seconds
        while not ((answer := self.receive(_LOOK_SECONDS)) is None or {"rows", "failed"} & answer.keys()):
            self._take_code(answer)
            if _is_stopped(stop):
                return STOPPED
            if monotonic() > end:
                return f"failed: the point was not through after {hang_seconds:g} s, and its process was ended"
        if answer is None:
            code = self.wait()
            ended = f"the child ended with {code}: {self.last_error_line}"
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else ended
            answer = {"failed": f"failed: {how}"}
        if "SIGKILL" in answer.get("failed", "") and _killed_for_memory() != killed:
            return "oom"
        self._take_code(answer)
        found: Answer = answer["rows"] if "rows" in answer else answer["failed"]
        return found

    def _take_code(self, message: dict[str, Any]) -> None:
        self.code = message.get("code", self.code)
        self.loaded |= self.code


def _environment_of(kind: WorkerKind) -> dict[str, str]:
    """Return the variables of a worker."""
    # of a Slurm job's variables Lightning would make ranks that this point does not have
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    if kind.ranks > 1:
        variables["OMP_NUM_THREADS"] = str(threads_of(kind.ranks))
        variables.setdefault("GLOO_SOCKET_IFNAME", "lo")
        variables.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    return variables | ALLOCATORS[kind.allocator]


def _killed_for_memory() -> float | None:
    """Return how many processes the system has killed for memory so far; `None` where it does not tell."""
    return field_of("/proc/vmstat", "oom_kill ")


def threads_of(ranks: int) -> int:
    """Return how many threads each of some ranks on this machine gets, so that they share its cores.

    `OMP_NUM_THREADS` of this process is the most that a rank gets.
    """
    share = max(1, (usable_cores() or 1) // ranks)
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(limit)) if limit.isdecimal() and int(limit) else share
