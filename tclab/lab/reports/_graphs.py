"""Statistics of a graph: its networks' sizes and degrees, and how far a deletion reaches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from tclab.errors import InputError
from tclab.graph._cell_graph import CellGraph
from tclab.graph._network import Network
from tclab.graph._synthetic_graph import NETWORK_SIZES


def degrees(network: Network) -> np.ndarray:
    """Return how many edges touch each node of a network within one node type, [N] int64; a self-loop counts twice."""
    return np.bincount(network.edge_index.cpu().numpy().reshape(-1), minlength=network.num_sources)


def gini(values: np.ndarray) -> float:
    """Return the Gini coefficient of some counts: 0 where all are equal, towards 1 where one has all."""
    ordered = np.sort(values)
    number, total = len(ordered), ordered.sum()
    return float((2 * np.arange(1, number + 1) - number - 1) @ ordered / (number * total)) if total else 0.0


def network_table(graphs: Mapping[str, CellGraph]) -> pd.DataFrame:
    """Return a row for each network of each graph, with the published sizes of that name, null where none is.

    Columns: `graph`, `network`, `nodes` that it touches, `edges`, `directed`, `self_loops`, the `largest` degree, the
    `gini` coefficient of the degrees of the nodes that it touches, `published_nodes` and `published_edges`.
    """
    rows = []
    for graph_name, graph in graphs.items():
        for name, network in graph.networks.items():
            degree = degrees(network)
            source, target = network.edge_index
            published = NETWORK_SIZES.get(name)
            edges = network.num_edges, network.directed, int((source == target).sum())
            degrees_of = int(degree.max(initial=0)), gini(degree[degree > 0])
            sizes = (published.nodes, published.edges) if published else (None, None)
            rows.append((graph_name, name, int((degree > 0).sum()), *edges, *degrees_of, *sizes))
    columns = ["graph", "network", "nodes", "edges", "directed", "self_loops", "largest", "gini"]
    published_columns = ["published_nodes", "published_edges"]
    return pd.DataFrame(rows, columns=[*columns, *published_columns]).astype(dict.fromkeys(published_columns, "Int64"))


def reach_rows(
    graphs: Mapping[str, CellGraph], *, layers: int = 3, samples: int = 50, deleted: int = 3, seed: int = 0
) -> pd.DataFrame:
    """Return how many rows deletions change, layer by layer: a row for each graph, sample and layer.

    Messages go from source to target, as the models send them. After layer l the rows that differ from the
    wild type are those that a deleted node reaches in l hops, over all networks together. Columns: `graph`, `sample`,
    `layer` (1 …), and as shares of all nodes or edges, 0 to 1:

    - `rows`: nodes whose row differs after the layer, the deleted ones counted.
    - `messages`: edges that start at a row that differed before the layer: what a delta has to send again.
    - `recomputed`: edges that end at a row that differs after it: what recomputing those rows has to read.

    **Raises:** `InputError` where a graph has no edges, or fewer nodes than a sample deletes.
    """
    found = []
    for name, graph in graphs.items():
        nodes = graph.num_nodes[graph.deleted_type]
        if not graph.num_edges or not 1 <= deleted <= nodes:
            raise InputError(f"reach needs edges and 1 to {nodes} deleted nodes, not {deleted!r}")
        ends = [network.edge_index.cpu().numpy() for network in graph.networks.values()]
        source, target = np.concatenate(ends, axis=1).astype(np.int32)
        rng = np.random.default_rng(seed)
        for sample in range(samples):
            differs = np.zeros(nodes, dtype=bool)
            differs[rng.choice(nodes, deleted, replace=False)] = True
            for layer in range(1, layers + 1):
                sent = differs[source]
                differs[target[sent]] = True
                shares = (differs.mean(), sent.mean(), differs[target].mean())
                found.append((name, sample, layer, *shares))
    return pd.DataFrame(found, columns=["graph", "sample", "layer", "rows", "messages", "recomputed"])
