"""Batches from a dataset, by a strategy, in DataLoader workers, each with the time that it took to make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from torch.utils.data import DataLoader, Dataset

from tclab.masking import Batch, Strategy
from tclab.perturbation import Perturbations


@dataclass(frozen=True, eq=False)
class LoadedBatch:
    """A batch with what it took where it was made.

    **Arguments:**

    - `batch`: what travels.
    - `sample_seconds`: reading and encoding its samples.
    - `collate_seconds`: making one batch of them.
    """

    batch: Batch
    sample_seconds: float
    collate_seconds: float

    def pin_memory(self) -> LoadedBatch:
        """Return this batch in page-locked memory; `DataLoader` calls it."""
        return replace(self, batch=self.batch.pin_memory())


class Batches(Dataset[LoadedBatch]):
    """Batch after batch of a dataset in order: item `i` is made of samples `i * size` to `(i + 1) * size - 1`.

    **Arguments:**

    - `strategy`: its half that loads, on the CPU graph, prepared.
    - `perturbations`: the samples.
    - `size`: how many make a batch; samples that fill none are left out.
    """

    def __init__(self, strategy: Strategy, perturbations: Perturbations, size: int) -> None:
        self.strategy = strategy
        self.perturbations = perturbations
        self.size = size

    def __len__(self) -> int:
        return len(self.perturbations) // self.size

    def __getitem__(self, number: int) -> LoadedBatch:
        begin = perf_counter()
        samples = [
            self.strategy.sample(
                index, self.perturbations.deletions[index], float(self.perturbations.scores[index])
            )
            for index in range(number * self.size, (number + 1) * self.size)
        ]
        middle = perf_counter()
        batch = self.strategy.collate(samples)
        return LoadedBatch(batch, middle - begin, perf_counter() - middle)


def loader(batches: Batches, *, workers: int, pin_memory: bool) -> DataLoader[LoadedBatch]:
    """Return the loader of some batches; `workers=0` makes them in this process."""
    options: dict[str, Any] = {"prefetch_factor": 2} if workers else {}
    return DataLoader(
        batches,
        batch_size=None,
        num_workers=workers,
        pin_memory=pin_memory,
        collate_fn=_as_it_is,
        **options,
    )


def _as_it_is(batch: Any) -> Any:
    return batch
