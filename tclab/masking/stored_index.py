"""`stored_index`: the removed edges of every sample are read from LMDB; the worker rebuilds the masks from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tclab.masking.edge_mask import EdgeMask
from tclab.masking.replicas import removed_edges
from tclab.perturbation import Perturbations, Store, write_store


class StoredIndex(EdgeMask):
    """Removed-edge indices on disk, int32: for each relation in order their number, then the indices."""

    name = "stored_index"
    stores = True

    def prepare(self, perturbations: Perturbations, folder: Path) -> None:
        """Write the removed edges of every sample."""
        encoded = []
        for index in range(len(perturbations)):
            lost = self.graph.closure(perturbations.deletions[index])
            removed = [removed_edges(network, lost) for network in self.graph.relations.values()]
            parts = [np.concatenate([[len(ids)], ids.numpy()]).astype("<i4") for ids in removed]
            encoded.append(np.concatenate(parts).tobytes())
        header = {"encoding": self.name, "graph": self.graph.fingerprint()}
        write_store(folder, encoded, header=header, size_bytes=sum(map(len, encoded)))
        self._store = Store(folder, header=header)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def encode(self, index: int, lost: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return relation → [E] bool, from the indices on disk."""
        values = torch.from_numpy(np.frombuffer(self._store[index], dtype="<i4").astype(np.int64))
        masks, start = {}, 0
        for name, network in self.graph.relations.items():
            number = int(values[start])
            removed = values[start + 1 : start + 1 + number]
            masks[name] = torch.ones(network.num_edges, dtype=torch.bool).index_fill_(0, removed, False)
            start += 1 + number
        return masks
