"""Statistics of a graph: its degrees, how far its networks overlap, and how many rows a deletion changes."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd

from tclab.errors import InputError
from tclab.graph._cell_graph import CellGraph
from tclab.graph._network import Network


def degrees(network: Network, end: Literal["both", "source", "target"] = "both") -> np.ndarray:
    """Return how many edges touch each node of a network within one node type, [N] int64.

    **Arguments:**

    - `end`: `source` counts the edges that start at a node, `target` those that end there, `both` all of
      them; a self-loop counts twice then.
    """
    source, target = network.edge_index.cpu().numpy()
    ends = {"source": source, "target": target, "both": np.concatenate([source, target])}[end]
    return np.bincount(ends, minlength=network.num_sources)


def gini(values: np.ndarray) -> float:
    """Return the Gini coefficient of some counts: 0 where all are equal, towards 1 where one has all."""
    ordered = np.sort(values)
    number, total = len(ordered), ordered.sum()
    if not total:
        return 0.0
    return float((2 * np.arange(1, number + 1) - number - 1) @ ordered / (number * total))


def network_sizes(graph: CellGraph) -> pd.DataFrame:
    """Return a row for each network.

    Columns: `network`, `nodes` that it touches, `edges`, `directed`, `self_loops`, the `largest` degree, and
    the `gini` coefficient of the degrees of the nodes that it touches.
    """
    rows = []
    for name, network in graph.networks.items():
        degree = degrees(network)
        source, target = network.edge_index
        rows.append(
            {
                "network": name,
                "nodes": int((degree > 0).sum()),
                "edges": network.num_edges,
                "directed": network.directed,
                "self_loops": int((source == target).sum()),
                "largest": int(degree.max(initial=0)),
                "gini": gini(degree[degree > 0]),
            }
        )
    return pd.DataFrame(rows)


def degree_ranks(graph: CellGraph, *, points: int = 60) -> pd.DataFrame:
    """Return each network's degrees from the largest down: `network`, `rank` (0 to 1), `degree`, `of_mean`.

    At most `points` ranks a network, closer together among the hubs; `of_mean` is the degree over the mean
    degree of the nodes that the network touches.
    """
    frames = []
    for name, network in graph.networks.items():
        degree = degrees(network)
        degree = np.sort(degree[degree > 0])[::-1]
        places = np.unique(np.geomspace(1, len(degree), points).astype(np.int64)) - 1
        frames.append(
            pd.DataFrame(
                {
                    "network": name,
                    "rank": (places + 1) / len(degree),
                    "degree": degree[places],
                    "of_mean": degree[places] / degree.mean(),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def overlap(graph: CellGraph) -> pd.DataFrame:
    """Return for each two networks: `first`, `second`, `shared` pairs of nodes, `jaccard` index.

    A pair counts without direction and once.
    """
    pairs = {}
    for name, network in graph.networks.items():
        ends = np.sort(network.edge_index.cpu().numpy(), axis=0)
        pairs[name] = np.unique(ends[0] * network.num_sources + ends[1])
    rows = []
    for first, one in pairs.items():
        for second, other in pairs.items():
            shared = len(np.intersect1d(one, other, assume_unique=True))
            union = len(one) + len(other) - shared
            rows.append({"first": first, "second": second, "shared": shared, "jaccard": shared / max(union, 1)})
    return pd.DataFrame(rows)


def reach(graph: CellGraph, *, layers: int = 3, samples: int = 50, deleted: int = 3, seed: int = 0) -> pd.DataFrame:
    """Return how many rows deletions change, layer by layer: a row for each sample and layer.

    Messages go from source to target, as the models send them. After layer l the rows that differ from the
    wild type are those that a deleted node reaches in l hops, over all networks together. Columns: `sample`,
    `layer` (1 …), and as shares of all nodes or edges, 0 to 1:

    - `rows`: nodes whose row differs after the layer, the deleted ones counted.
    - `messages`: edges that start at a row that differed before the layer: what a delta has to send again.
    - `recomputed`: edges that end at a row that differs after it: what recomputing those rows has to read.

    **Raises:** `InputError` where the graph has no edges, or fewer nodes than a sample deletes.
    """
    nodes = graph.num_nodes[graph.deleted_type]
    if not graph.num_edges or not 1 <= deleted <= nodes:
        raise InputError(f"reach needs edges and 1 to {nodes} deleted nodes, not {deleted!r}")
    ends = [network.edge_index.cpu().numpy() for network in graph.networks.values()]
    source, target = np.concatenate(ends, axis=1).astype(np.int32)
    rng = np.random.default_rng(seed)
    rows = []
    for sample in range(samples):
        differs = np.zeros(nodes, dtype=bool)
        differs[rng.choice(nodes, deleted, replace=False)] = True
        for layer in range(1, layers + 1):
            sent = differs[source]
            differs[target[sent]] = True
            rows.append(
                {
                    "sample": sample,
                    "layer": layer,
                    "rows": differs.mean(),
                    "messages": sent.mean(),
                    "recomputed": differs[target].mean(),
                }
            )
    return pd.DataFrame(rows)
