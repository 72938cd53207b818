"""What ranks say to one another beside their collectives: texts, through torchrun's store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from tclab.timing import Ledger, NoLedger

_FOREVER = timedelta(days=30)  # whoever started the ranks watches over them, and ends those that wait in vain


class Together:
    """One rank among those that run a point together; every method that waits is called by all of them.

    **Arguments:**

    - `store`: torchrun's, which all ranks reach.
    - `rank`, `ranks`: which one, of how many. `local_rank`: on its own node.
    """

    def __init__(self, store: Any, rank: int, ranks: int) -> None:
        self._store = store
        self.rank = rank
        self.ranks = ranks
        self.local_rank = int(os.environ.get("LOCAL_RANK", rank))
        self.entered = 0  # stages so far, for whoever watches over the ranks
        self.stage = "setting up"
        self._texts = 0

    def _key(self, rank: int) -> str:
        return f"text/{self._texts}/{rank}"

    def _read(self, rank: int) -> str:
        self._store.wait([self._key(rank)], _FOREVER)
        text: bytes = self._store.get(self._key(rank))
        return text.decode()

    def from_first(self, text: Callable[[], str]) -> str:
        """Return what rank 0 says; only there is it made."""
        self._texts += 1
        if self.rank == 0:
            self._store.set(self._key(0), text())
        return self._read(0)

    def from_every(self, text: str) -> list[str]:
        """Return what every rank says, in their order; nobody goes on before all have spoken."""
        self._texts += 1
        self._store.set(self._key(self.rank), text)
        return [self._read(rank) for rank in range(self.ranks)]

    def meet(self) -> None:
        """Wait until every rank is here."""
        self.from_every("")

    def told(self, ledger: Ledger | NoLedger | None) -> Any:
        """Return a ledger's two methods as a loop calls them, with a note of every stage that is entered."""
        return _Told(self, NoLedger() if ledger is None else ledger)

    def note(self, stage: str) -> None:
        """Remember what this rank is at."""
        self.stage = stage
        self.entered += 1


class _Told:
    def __init__(self, together: Together, ledger: Ledger | NoLedger) -> None:
        self._together = together
        self._ledger = ledger

    def steps(self, batches: Iterable[Any]) -> Iterator[Any]:
        return self._ledger.steps(batches)

    def stage(self, name: str) -> AbstractContextManager[Any]:
        self._together.note(name)
        return self._ledger.stage(name)
