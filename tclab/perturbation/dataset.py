"""Perturbations with their scores: what a model is trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tclab.errors import InputError
from tclab.graph import CellGraph
from tclab.perturbation.deletions import Deletions


@dataclass(frozen=True, eq=False)
class Perturbations:
    """Samples: the nodes each deletes, and one score each.

    **Arguments:**

    - `deletions`: of S samples.
    - `scores`: [S] float32, the interaction scores.
    """

    deletions: Deletions
    scores: Tensor

    def __len__(self) -> int:
        return len(self.deletions)


def synthetic_perturbations(graph: CellGraph, number: int, *, deleted: int = 3, seed: int = 0) -> Perturbations:
    """Return `number` samples that each delete `deleted` distinct nodes, drawn evenly, with N(0, 0.1) scores.

    The same seed gives the same samples, and the first samples do not depend on `number`.

    **Raises:** `InputError` where the graph has fewer nodes than a sample should delete.
    """
    nodes = graph.num_nodes[graph.deleted_type]
    if isinstance(deleted, bool) or not 0 <= deleted <= nodes:
        raise InputError(f"a sample cannot delete {deleted!r} of {nodes} {graph.deleted_type} nodes")
    rows, scores = [], []
    for sample in range(number):
        rng = np.random.default_rng([seed, sample])
        rows.append(rng.choice(nodes, deleted, replace=False).tolist())
        scores.append(rng.normal(0.0, 0.1))
    return Perturbations(Deletions.of(rows, num_nodes=nodes), torch.tensor(scores, dtype=torch.float32))
