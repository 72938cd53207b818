"""Tables of a graph's networks, and how far a deletion reaches."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from tclab._display import Sentences
from tclab.graph._cell_graph import CellGraph
from tclab.graph._synthetic_graph import NETWORK_SIZES
from tclab.lab.reports._graph_statistics import network_sizes, reach


def network_table(graphs: Mapping[str, CellGraph]) -> pd.DataFrame:
    """Return each graph's networks with their nodes and edges, with the published sizes of that name.

    `published_nodes` and `published_edges` are null where no size is published.
    """
    frames = [network_sizes(graph).assign(graph=name) for name, graph in graphs.items()]
    frame = pd.concat(frames, ignore_index=True)
    published = [NETWORK_SIZES.get(name) for name in frame["network"]]
    frame["published_nodes"] = pd.array([size and size.nodes for size in published], dtype="Int64")
    frame["published_edges"] = pd.array([size and size.edges for size in published], dtype="Int64")
    return frame[["graph", *(name for name in frame.columns if name != "graph")]]


def reach_rows(graphs: Mapping[str, CellGraph], *, samples: int = 50, deleted: int = 3) -> pd.DataFrame:
    """Return how far deletions reach in each graph; see `tclab.lab.reports._graph_statistics.reach`."""
    frames = [reach(graph, samples=samples, deleted=deleted).assign(graph=name) for name, graph in graphs.items()]
    return pd.concat(frames, ignore_index=True)


def reach_findings(rows: pd.DataFrame) -> Sentences:
    """Return the findings of `reach_rows` on masking against a delta, a sentence for each graph."""
    sentences = Sentences()
    for name, group in rows.groupby("graph", sort=False):
        middle = group.groupby("layer")[["rows", "messages", "recomputed"]].median()
        first, last = middle.index.min(), middle.index.max()
        sentences.append(
            f"{name}: after layer {first} a deletion has changed {middle.loc[first, 'rows']:.0%} of the rows, "
            f"and recomputing them reads {middle.loc[first, 'recomputed']:.0%} of the edges; after layer {last} "
            f"it is {middle.loc[last, 'rows']:.0%} and {middle.loc[last, 'recomputed']:.0%}. Sending only what "
            f"changed takes {middle['messages'].mean():.0%} of the edges, averaged over the layers: a delta can "
            f"save at most the rest, and masking nodes reads them all once for the whole batch."
        )
    return sentences
