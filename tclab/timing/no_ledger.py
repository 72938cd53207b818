"""What stands in a ledger's place in a loop that nobody looks at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

Item = TypeVar("Item")


class NoLedger:
    """Takes a ledger's place in a loop, and keeps nothing."""

    _nothing: AbstractContextManager[None] = nullcontext()

    def steps(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield batch after batch."""
        return iter(batches)

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return self._nothing
