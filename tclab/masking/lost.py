"""What a whole batch of samples loses, found at once."""

from __future__ import annotations

import numpy as np

from tclab.graph import CellGraph
from tclab.perturbation import Deletions, Int64s, ranges


def lost_by(graph: CellGraph, deletions: Deletions) -> dict[str, Deletions]:
    """Return what each sample loses with the nodes it deletes, closed over dependants: node type → its ids, sorted.

    As `CellGraph.closure` does for one sample; relations that cascade are followed in the graph's order.

    **Arguments:**

    - `deletions`: of B samples, on the CPU.
    """
    size = len(deletions)
    # a lost node of a sample is one number, sample * nodes + node, so that one sort serves the whole batch
    owner = np.repeat(np.arange(size), np.diff(deletions.ptr.numpy()))
    numbers = graph.num_nodes
    lost = dict.fromkeys(numbers, np.empty(0, dtype=np.int64))
    lost[graph.deleted_type] = _sorted(owner * numbers[graph.deleted_type] + deletions.nodes.numpy())
    for network in graph.relations.values():
        if network.cascades:
            targets = network.targets_of()
            ptr, items = targets.ptr.numpy(), targets.items.numpy()
            sample, node = np.divmod(lost[network.source], numbers[network.source])
            length = ptr[node + 1] - ptr[node]
            found = np.repeat(sample, length) * numbers[network.target] + items[ranges(ptr[node], length)]
            lost[network.target] = _sorted(np.concatenate([lost[network.target], found]))
    joined = {}
    for kind, keys in lost.items():
        sample, node = np.divmod(keys, max(numbers[kind], 1))
        joined[kind] = Deletions.joined(node, np.bincount(sample, minlength=size))
    return joined


def _sorted(keys: Int64s) -> Int64s:
    """Return distinct keys in order; `np.unique` takes several times as long on a batch's few."""
    keys = np.sort(keys)
    again = keys[1:] == keys[:-1]
    return keys[np.append(True, ~again)] if again.any() else keys
