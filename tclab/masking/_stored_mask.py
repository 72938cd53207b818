"""`stored_mask`: the whole masks of every sample are read from LMDB, one byte an edge."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tclab.masking._mask_store import MaskStore
from tclab.perturbation import Deletions
from tclab.perturbation._deletions import Int64s


class StoredMask(MaskStore):
    """Whole masks on disk: 2.4 MB a sample on the real graph, 805 GB for the real dataset."""

    name = "stored_mask"

    def encoded_bytes(self, deletions: Deletions) -> Int64s:
        """Return how many bytes each sample's masks have, [S] int64: one for each edge."""
        return np.full(len(deletions), sum(n.num_edges for n in self.graph.relations.values()), dtype=np.int64)

    def encode_sample(self, removed: dict[str, Deletions]) -> bytes:
        """Return a sample's masks, relation after relation."""
        return b"".join(mask.numpy().tobytes() for mask in self.masks(removed, 0).values())

    def decode_sample(self, value: memoryview) -> dict[str, Tensor]:
        """Return relation → [E] bool, as they lie on disk."""
        values = torch.from_numpy(np.frombuffer(value, dtype=np.bool_).copy())
        sizes = [network.num_edges for network in self.graph.relations.values()]
        return dict(zip(self.graph.relations, values.split(sizes), strict=True))
