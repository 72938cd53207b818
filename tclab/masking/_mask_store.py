"""The base of strategies whose workers read the masks from LMDB instead of making them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from tclab.masking._edge_mask import EdgeMask, Masks
from tclab.perturbation import Deletions, Perturbations
from tclab.perturbation._deletions import Int64s
from tclab.perturbation._sample_store import StoreSize, build_store


class MaskStore(EdgeMask):
    """Every sample's masks on disk, as a subclass encodes them; `prepare` writes, `encode` reads a batch at once."""

    stores = True

    def prepare(self, perturbations: Perturbations, path: Path) -> None:
        """Write the encodings of every sample into a file; see `build_store`."""
        deletions = perturbations.deletions
        self._store = build_store(
            path,
            lambda sample: self.encode_sample(self.removed_by(deletions.take([sample]))),
            size=self.store_size(deletions),
            header={
                "encoding": self.name,
                "graph": self.graph.fingerprint(),
                "deletions": deletions.fingerprint(),
            },
        )

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def encode(self, indices: Sequence[int], removed: dict[str, Deletions]) -> Masks:
        """Return for each sample: relation → [E] bool, from what lies on disk."""
        return self._store.read(indices, self.decode_sample)

    def build_lookups(self, indices: Sequence[int], removed: dict[str, Deletions]) -> None:
        """Make the incidence that the store is built from: the process that prepares it keeps that."""
        self.masks(removed, 0)

    def store_size(self, deletions: Deletions) -> StoreSize:
        """Return what a store of some samples would take, without building it."""
        return StoreSize.of(self.encoded_bytes(deletions))

    @abstractmethod
    def encoded_bytes(self, deletions: Deletions) -> Int64s:
        """Return how many bytes each sample's encoding has, [S] int64."""

    @abstractmethod
    def encode_sample(self, removed: dict[str, Deletions]) -> bytes:
        """Return the encoding of one sample's masks."""

    @abstractmethod
    def decode_sample(self, value: memoryview) -> dict[str, Tensor]:
        """Return relation → [E] bool from an encoding, which must be copied: it lies on disk."""
