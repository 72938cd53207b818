"""A point whose ranks are on several machines: how they find one another, and end together."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

from tclab._io import atomic_write
from tclab.sweeps.config._point import RENDEZVOUS_FILE, Point
from tclab.sweeps.execution._rank_group import RankGroup
from tclab.sweeps.execution._worker_pool import Answer, pool, worker_environment

_LOOK_SECONDS = 0.2
_OWN_REASON_SECONDS = 5.0  # that ranks here get to report a failure of their own, when others have ended
_FAILED, _DONE = ".failed", ".over"


class Rendezvous:
    """Where a point's ranks on several machines find one another: small files that all of the machines can read.

    The variable `TCLAB_RENDEZVOUS_FILE` names the first of them, for the point that a job runs.
    """

    def __init__(self) -> None:
        self._path = Path(os.environ[RENDEZVOUS_FILE])

    def _write(self, text: str, suffix: str = "") -> None:
        atomic_write(Path(f"{self._path}{suffix}"), text, readers=0o600)  # the first one has a secret

    def _read(self, suffix: str = "") -> str | None:
        path = Path(f"{self._path}{suffix}")
        # a listing is asked of the file server; a single file may be remembered as missing
        return path.read_text() if path.name in os.listdir(path.parent) else None

    def publish_endpoint(self) -> dict[str, str]:
        """Return a free "host:port" of this machine, the first, and a new secret, and publish them to the others."""
        with socket.socket() as free:
            free.bind(("", 0))
            endpoint = f"{socket.gethostname()}:{free.getsockname()[1]}"
        published = {"endpoint": endpoint, "secret": token_hex()}
        self._write(json.dumps(published))
        return published

    def publish_skip(self) -> None:
        """Publish that this point is not run, unless an endpoint has been published."""
        if not self._path.exists():
            self._write("")

    def publish_failure(self, reason: str) -> None:
        """Publish to the first machine why ranks have failed on this one: it would wait for them."""
        self._write(reason, _FAILED)

    def publish_done(self, reason: str) -> None:
        """Publish that the first machine has ended its ranks; `reason` is empty where all is well."""
        self._write(reason, _DONE)

    def endpoint(self) -> dict[str, str] | None:
        """Wait for the first machine and return its endpoint and secret; `None` where the point is not run."""
        while (text := self._read()) is None:
            time.sleep(_LOOK_SECONDS)
        published: dict[str, str] | None = json.loads(text) if text else None
        return published

    def failure(self) -> str | None:
        """Return why ranks have failed on another machine; `None` where none have."""
        return self._read(_FAILED)

    def done(self) -> str | None:
        """Return how the first machine ended its ranks; `None` as long as it has not."""
        return self._read(_DONE)


def run_on_machines(
    point: Point, request: dict[str, Any], *, memory_bytes: int | None = None, hang_seconds: float | None = None
) -> Answer:
    """Run a resolved point whose ranks are on several machines, on the first of them; return the request's answer."""
    rendezvous = Rendezvous()
    environment = worker_environment(point, memory_bytes)
    published = rendezvous.publish_endpoint()
    ranks = RankGroup(point.ranks // point.machines, environment, nodes=point.machines, node=0, **published)
    answer: Answer = []
    try:
        with pool.at_work(ranks):
            with _ended_with_others(ranks, rendezvous.failure) as reasons:
                answer = ranks.ask(request, hang_seconds=hang_seconds)
            if isinstance(answer, str):
                answer = reasons[0] if reasons else _first_reason(answer, ranks, rendezvous)
            ranks.finish()
    finally:  # ranks elsewhere that hang would be waited for without an end
        rendezvous.publish_done(answer if isinstance(answer, str) else "")
    return answer


def run_ranks_of_this_node(point: Point, node: int, *, memory_bytes: int | None = None) -> None:
    """Run this machine's ranks, of `node` 1 or more, of a resolved point whose first machine answers for it."""
    rendezvous = Rendezvous()
    published = rendezvous.endpoint()
    if published is None:
        return
    environment = worker_environment(point, memory_bytes)
    ranks = RankGroup(point.ranks // point.machines, environment, nodes=point.machines, node=node, **published)
    with pool.at_work(ranks):
        with _ended_with_others(ranks, rendezvous.done) as reasons:
            reason = ranks.wait()
        # one whose ranks only lost another's must not write over what that one reports of its own
        if reason and not reasons and (ranks.own_fault or rendezvous.failure() is None):
            rendezvous.publish_failure(reason)
        ranks.finish()


def _first_reason(answer: str, ranks: RankGroup, rendezvous: Rendezvous) -> str:
    """Return why ranks failed: what another machine reports within some seconds, where it did not begin here."""
    until = time.monotonic() + _OWN_REASON_SECONDS
    while not ranks.own_fault and time.monotonic() < until:
        if reason := rendezvous.failure():
            return reason
        time.sleep(_LOOK_SECONDS)
    return answer


@contextmanager
def _ended_with_others(ranks: RankGroup, others: Callable[[], str | None]) -> Iterator[list[str]]:
    """End ranks that wait for those of another machine, which have ended; yield a list that gets the reason.

    One torchrun looks after the ranks of its own machine alone. Ranks here get some seconds to report that the
    failure was theirs, or to end by themselves. `others` returns what became of those elsewhere, `None` so far.
    """
    reasons: list[str] = []
    through = threading.Event()

    def watch() -> None:
        while not through.wait(0.5):
            reason = others()
            if reason is not None:
                if not through.wait(_OWN_REASON_SECONDS):
                    reasons.append(reason)
                    ranks.kill()
                return

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield reasons
    finally:
        through.set()
        watching.join()
