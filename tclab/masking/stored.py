"""Masks that are read from LMDB in the worker, instead of being made there: what is stored of them differs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from tclab.masking.edge_mask import EdgeMask, Masks
from tclab.perturbation import Deletions, Int64s, Perturbations, Progress, StoreSize, build_store


class StoredMasks(EdgeMask):
    """An encoding of every sample's masks on disk, written by `prepare`, read a batch in one transaction."""

    stores = True

    def prepare(self, perturbations: Perturbations, folder: Path, *, progress: Progress | None = None) -> None:
        """Write the encodings of every sample, or go on where a build of them stopped; see `build_store`."""
        deletions = perturbations.deletions
        self._store = build_store(
            folder,
            lambda sample: self.value(self.lost_by(deletions.take([sample]))),
            size=self.store_size(deletions),
            header={
                "encoding": self.name,
                "graph": self.graph.fingerprint(),
                "deletions": deletions.fingerprint(),
            },
            progress=progress,
        )

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def encode(self, indices: Sequence[int], lost: dict[str, Deletions]) -> Masks:
        """Return for each sample: relation → [E] bool, from what lies on disk."""
        return self._store.read(indices, self.decoded)

    def look_up(self, indices: Sequence[int], lost: dict[str, Deletions]) -> None:
        """Make what the store is made from: the process that prepares it keeps that."""
        self.masks(lost, 0)

    def store_size(self, deletions: Deletions) -> StoreSize:
        """Return what a store of some samples would take, without building it."""
        return StoreSize.of(self.value_bytes(deletions))

    @abstractmethod
    def value_bytes(self, deletions: Deletions) -> Int64s:
        """Return how many bytes each sample's encoding has, [S] int64."""

    @abstractmethod
    def value(self, lost: dict[str, Deletions]) -> bytes:
        """Return the encoding of one sample, by what it loses."""

    @abstractmethod
    def decoded(self, value: memoryview) -> dict[str, Tensor]:
        """Return relation → [E] bool from an encoding, which must be copied: it lies on disk."""
