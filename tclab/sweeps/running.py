"""Running one point in a child process, kept warm for the next."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from tclab.errors import InputError
from tclab.sweeps.allocators import ALLOCATORS
from tclab.sweeps.asked_child import Child
from tclab.sweeps.gpus import check_enough, device_of, gpus, listed
from tclab.sweeps.launched import HANG_SECONDS, Launched
from tclab.sweeps.meeting import call, end, fail, failure, over
from tclab.sweeps.own_code import files_of, imports_of
from tclab.sweeps.point import Point
from tclab.sweeps.rows import frame, not_measured, table

# The children must import the tclab that their parent runs, also where that one is not installed.
SOURCE = Path(__file__).resolve().parents[2]
_children: dict[tuple[Any, ...], Child | Launched] = {}
_lock = threading.RLock()
_OWN_WORDS_SECONDS = 5.0


def _environment(point: Point, memory_bytes: int | None) -> dict[str, str]:
    """Return the variables that a process which runs points has.

    **Raises:** `InputError` where its ranks need more GPUs than answer on this machine.
    """
    # of a Slurm job's variables Lightning would make ranks that this point does not have
    found = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    found |= ALLOCATORS[point.allocator]
    found["PYTHONPATH"] = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    if memory_bytes is not None:
        found["TCLAB_MEMORY_BYTES"] = str(memory_bytes)
    if point.device == "cuda" and (point.ranks > 1 or len(listed()) > 1):  # the first of several may be dead
        check_enough(point.ranks // point.machines)
        found["CUDA_VISIBLE_DEVICES"] = ",".join(gpus().good)
    return found


def _started(point: Point, memory_bytes: int | None) -> Child | Launched:
    """Start what runs a point, and end what is warm and would be in its way.

    Of several ranks one set is kept, for each has all its memory and caches; on a GPU nothing else at all.
    """
    for key, child in tuple(_children.items()):
        if (point.ranks > 1 and isinstance(child, Launched)) or point.device == key[-1] == "cuda":
            _children.pop(key).close()
    if point.ranks == 1:
        return Child(_environment(point, memory_bytes))
    return Launched(point.ranks, _environment(point, memory_bytes))


@atexit.register
def _end_all() -> None:
    """Have the point under way end at once, and no other begin: a process that exits waits for nothing."""
    _over.set()
    abandon()
    close_children()


def close_children() -> None:
    """End every child that is kept warm; the next point starts a new one."""
    with _lock:
        while _children:
            _children.popitem()[1].close()


def request_of(point: Point) -> dict[str, Any]:
    """Return what a process that runs points is asked for a resolved one."""
    return {"point": point.to_dict(), **imports_of(point)}


def rows_of(
    point: Point, *, fresh: bool = False, memory_bytes: int | None = None, hang_seconds: float = HANG_SECONDS
) -> pa.Table:
    """Return the rows of one point as an arrow table; see `run`."""
    reason = point.skipped()
    if reason is not None:
        return not_measured(point, reason)
    point = point.resolved()
    if point.machines > 1:
        answer = run_on_machines(point, 0, memory_bytes=memory_bytes, hang_seconds=hang_seconds)
    else:
        answer = answer_of(point, fresh=fresh, memory_bytes=memory_bytes, hang_seconds=hang_seconds)
    return not_measured(point, answer) if isinstance(answer, str) else table(answer)


def _key(point: Point, memory_bytes: int | None) -> tuple[Any, ...]:
    """Return what points must have in common to be run by the same child."""
    return (point.ranks, point.allocator, memory_bytes, point.device)


def answer_of(
    point: Point,
    *,
    fresh: bool,
    memory_bytes: int | None = None,
    hang_seconds: float = HANG_SECONDS,
    **more: Any,
) -> list[dict[str, Any]] | str:
    """Return what a child process answers about a resolved point, or how it died; `more` goes with the request."""
    request = {**request_of(point), **more}
    with _lock:
        key = _key(point, memory_bytes)
        child = None if fresh else _children.pop(key, None)
        files = files_of(point)
        if child is not None and (not child.alive or any(child.has_read.get(f, s) != s for f, s in files.items())):
            child.close()  # dead, or it has read files that have changed since
            child = None
        if child is None:
            child = _started(point, memory_bytes)
        child.has_read |= files
        owned = (threading.get_ident(), child)
        _running.append(owned)
        try:
            _check_not_over()
            answer = child.ask(request, hang_seconds=hang_seconds)
            _check_not_over()  # or a point that the exit ended would be kept as one that failed
        except BaseException:  # an interrupt: what the child is at cannot be taken up again
            child.close()
            raise
        finally:
            _running.remove(owned)
        if isinstance(answer, str) or fresh or any(row["status"] == "oom" for row in answer):
            child.close()  # a new one for the next point: this one is dead, or holds too much
        else:
            _children[key] = child
    return answer


def warm_up(allocator: str = "default") -> None:
    """Start the child that the next point will be run in, so that its imports are over by then.

    Nothing happens where one waits already, or is at work.

    **Arguments:**

    - `allocator`: the points' own; see `Point`.
    """
    if not _lock.acquire(blocking=False):
        return  # a point is being run: its child is warm
    try:
        point = Point(allocator=allocator, device=device_of("auto"))
        key = _key(point, None)
        child = _children.get(key)
        if child is None or not child.alive:
            if child is not None:
                child.close()
            with suppress(InputError):  # no GPU answers: the point itself will say so
                _children[key] = _started(point, None)
    finally:
        _lock.release()


_running: list[tuple[int, Child | Launched]] = []  # what is at work, and the thread that waits for it
_over = threading.Event()  # this process is exiting


def _check_not_over() -> None:
    if _over.is_set():
        raise RuntimeError("this process is exiting, and runs no other point")


def abandon(thread: int | None = None) -> None:
    """Kill what is at work now, with all its ranks; its point ends with `failed: killed by SIGKILL`.

    **Arguments:**

    - `thread`: by its `ident`, the one whose point is ended; every thread's unless given.
    """
    for owner, child in tuple(_running):
        if thread in (None, owner):
            child.kill()


def run_on_machines(
    point: Point,
    node: int,
    endpoint: str | None = None,
    *,
    memory_bytes: int | None = None,
    hang_seconds: float = HANG_SECONDS,
) -> list[dict[str, Any]] | str:
    """Run a resolved point whose ranks are on several machines; called on each, the first answers as a child does.

    **Arguments:**

    - `node`: which of the point's machines this is, from 0 up.
    - `endpoint`: "host:port" of the first, which finds one and calls the others.
    """
    environment = _environment(point, memory_bytes)
    endpoint = call() if endpoint is None else endpoint
    launched = Launched(
        point.ranks // point.machines, environment, nodes=point.machines, node=node, endpoint=endpoint
    )
    owned = (threading.get_ident(), launched)
    _running.append(owned)
    answer: list[dict[str, Any]] | str = []
    try:
        with _ending_with_others(launched, over if node else failure) as told:
            if node:
                reason = launched.wait()
            else:
                answer = launched.ask(request_of(point), hang_seconds=hang_seconds)
        if node:
            # one whose ranks only lost another's must not write over what that one said of its own
            if reason and not told and (launched.own_fault or failure() is None):
                fail(reason)
        elif isinstance(answer, str):
            answer = told[0] if told else _true_reason(answer, launched)
        launched.finish()
    except BaseException:
        launched.close()
        raise
    finally:
        _running.remove(owned)
        if not node:  # ranks elsewhere that hang would be waited for without an end
            end(answer if isinstance(answer, str) else "")
    return answer


def _true_reason(answer: str, launched: Launched) -> str:
    """Return why ranks failed: what another machine says within some seconds, where it did not begin here."""
    until = time.monotonic() + _OWN_WORDS_SECONDS
    while not launched.own_fault and time.monotonic() < until:
        if reason := failure():
            return reason
        time.sleep(0.2)
    return answer


@contextmanager
def _ending_with_others(launched: Launched, others: Callable[[], str | None] = failure) -> Generator[list[str]]:
    """End ranks that wait for those of another machine, which are gone; yields a list that gets the reason.

    One torchrun looks after the ranks of its own machine alone. Ranks here get some seconds to say
    that the failure was theirs, or to end by themselves.

    **Arguments:**

    - `others`: says what became of those elsewhere, `None` as long as nothing did.
    """
    told: list[str] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            reason = others()
            if reason is not None:
                if not done.wait(_OWN_WORDS_SECONDS):
                    told.append(reason)
                    launched.kill()
                return

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield told
    finally:
        done.set()
        watching.join()


def run(
    point: Point, *, fresh: bool = False, memory_bytes: int | None = None, hang_seconds: float = HANG_SECONDS
) -> pd.DataFrame:
    """Run one point in a child process, or its ranks in one each, and return its rows, one for each stage.

    The gate goes first: a strategy that does not give what `subgraph` gives has one row, `wrong`, and no time.
    A point that cannot be run, runs out of memory or crashes has one row that says so in `status`.

    **Arguments:**

    - `point`: what is run, on a device made definite here.
    - `fresh`: in a process of its own, so that nothing is carried over from earlier points; the child is kept
      warm for the next point otherwise.
    - `memory_bytes`: refuse to let the child's memory, or that of each rank, grow past this (Linux).
    - `hang_seconds`: of several ranks, how long none may enter a stage until one is said to hang.

    **Raises:** `InputError` for `device="cuda"` where there is none, or a strategy no child could import.
    """
    return frame(rows_of(point, fresh=fresh, memory_bytes=memory_bytes, hang_seconds=hang_seconds))
