"""Perturbations with their scores, synthetic ones, and how many steps an epoch of the published ones has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tclab.errors import check_whole
from tclab.graph._cell_graph import CellGraph
from tclab.perturbation._deletions import Deletions


class Samples(Protocol):
    """A source of samples, read a batch at a time: memory, or a store."""

    def __len__(self) -> int: ...

    def read(self, indices: Sequence[int]) -> Perturbations:
        """Return some samples, in the order asked for."""
        ...


@dataclass(frozen=True, eq=False)
class Perturbations:
    """Samples: the nodes each deletes, and one score each.

    **Arguments:**

    - `deletions`: of S samples.
    - `scores`: [S] float32, the interaction scores.
    """

    deletions: Deletions
    scores: Tensor

    @staticmethod
    def synthetic(graph: CellGraph, number: int, *, deleted: int = 3, seed: int = 0) -> Perturbations:
        """Return `number` samples that each delete `deleted` distinct nodes, drawn evenly, with N(0, 0.1) scores.

        The same seed gives the same samples, and the first samples do not depend on `number`.

        **Raises:** `InputError` where the graph has fewer nodes than a sample should delete.
        """
        nodes = graph.num_nodes[graph.deleted_type]
        check_whole("the samples are", number)
        check_whole("the seed is", seed)
        check_whole(f"of {nodes} {graph.deleted_type} nodes a sample deletes", deleted, most=nodes)
        rows, scores = [], []
        for sample in range(number):
            rng = np.random.default_rng([seed, sample])
            rows.append(rng.choice(nodes, deleted, replace=False).tolist())
            scores.append(rng.normal(0.0, 0.1))
        return Perturbations(Deletions.of(rows, num_nodes=nodes), torch.tensor(scores, dtype=torch.float32))

    def __len__(self) -> int:
        return len(self.deletions)

    def read(self, indices: Sequence[int]) -> Perturbations:
        """Return some samples, in the order asked for."""
        scores = self.scores.numpy()[np.asarray(indices, dtype=np.int64)]
        return Perturbations(self.deletions.take(indices), torch.from_numpy(scores))


TRAINING_SAMPLES = 265_851  # the training split of the published trigenic dataset


def steps_per_epoch(batch_size: int, ranks: int, samples: int = TRAINING_SAMPLES) -> int:
    """Return how many steps an epoch has; the last batch may be smaller.

    **Raises:** `InputError` for a batch size or ranks below 1.
    """
    check_whole("batch_size is", batch_size, least=1)
    check_whole("ranks is", ranks, least=1)
    return math.ceil(samples / (batch_size * ranks))
