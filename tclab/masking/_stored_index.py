"""`stored_index`: the removed edges of every sample are read from LMDB; the worker rebuilds the masks from them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tclab.masking._mask_store import MaskStore
from tclab.masking._replicated_edges import removed_counts, removed_edges
from tclab.perturbation import Deletions
from tclab.perturbation._deletions import Int64s

_WORD = np.dtype("<i4")


class StoredIndex(MaskStore):
    """Removed-edge indices on disk, int32: for each relation in order their number, then the indices."""

    name = "stored_index"

    def encoded_bytes(self, deletions: Deletions) -> Int64s:
        """Return how many bytes each sample's indices have, [S] int64."""
        removed = self.removed_by(deletions)
        words = np.full(len(deletions), len(self.graph.relations), dtype=np.int64)
        for network in self.graph.relations.values():
            words += removed_counts(network, removed)
        return _WORD.itemsize * words

    def encode_sample(self, removed: dict[str, Deletions]) -> bytes:
        """Return a sample's removed edges."""
        parts = []
        for network in self.graph.relations.values():
            edges = removed_edges(network, removed, 0).numpy()
            parts.append(np.concatenate([[len(edges)], edges]).astype(_WORD).tobytes())
        return b"".join(parts)

    def decode_sample(self, value: memoryview) -> dict[str, Tensor]:
        """Return relation → [E] bool from the indices."""
        words = np.frombuffer(value, dtype=_WORD)
        masks, start = {}, 0
        for name, network in self.graph.relations.items():
            edges = words[start + 1 : start + 1 + int(words[start])]
            kept = np.ones(network.num_edges, dtype=np.bool_)
            kept[edges] = False
            masks[name] = torch.from_numpy(kept)
            start += 1 + len(edges)
        return masks
