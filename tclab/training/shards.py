"""Which samples of a batch are which rank's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Shard:
    """One rank's part of every batch: `ranks` times as many samples are drawn, and shared out in order.

    So R ranks with batches of b train on what one process with batches of R · b trains on. Of a last batch that is
    smaller, parts differ by one sample at most; a rank with none repeats the first, to join in, with no weight.

    **Arguments:**

    - `rank`: from 0 up. `ranks`: how many.
    """

    rank: int = 0
    ranks: int = 1

    def sizes(self, number: int) -> tuple[int, ...]:
        """Return how many of so many samples each rank has."""
        cuts = [rank * number // self.ranks for rank in range(self.ranks + 1)]
        return tuple(end - begin for begin, end in pairwise(cuts))

    def part(self, samples: Sequence[int]) -> list[int]:
        """Return this rank's of some samples; one that stands in where it has none."""
        begin, end = (place * len(samples) // self.ranks for place in (self.rank, self.rank + 1))
        return list(samples[begin:end]) or list(samples[:1])
