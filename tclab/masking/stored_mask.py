"""`stored_mask`: the whole masks of every sample are read from LMDB, one byte an edge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tclab.masking.edge_mask import EdgeMask
from tclab.perturbation import Perturbations, Store, write_store


class StoredMask(EdgeMask):
    """Whole masks on disk: 2.4 MB a sample on the real graph, 890 GB for the real dataset."""

    name = "stored_mask"
    stores = True

    def prepare(self, perturbations: Perturbations, folder: Path) -> None:
        """Write the masks of every sample."""

        def masks() -> Iterator[bytes]:
            for index in range(len(perturbations)):
                lost = self.graph.closure(perturbations.deletions[index])
                encoded = EdgeMask.encode(self, index, lost)
                yield b"".join(mask.numpy().tobytes() for mask in encoded.values())

        size = sum(network.num_edges for network in self.graph.relations.values())
        page = 4096  # LMDB gives a large value whole pages
        header = {"encoding": self.name, "graph": self.graph.fingerprint()}
        write_store(folder, masks(), header=header, size_bytes=(size + page) * len(perturbations))
        self._store = Store(folder, header=header)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def encode(self, index: int, lost: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return relation → [E] bool, as they lie on disk."""
        values = torch.from_numpy(np.frombuffer(self._store[index], dtype=np.bool_).copy())
        sizes = [network.num_edges for network in self.graph.relations.values()]
        return dict(zip(self.graph.relations, values.split(sizes), strict=True))
