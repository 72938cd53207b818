"""Which gamma shape makes a synthetic network's degrees as uneven as a real one's of the same size.

    python benchmarks/fit_degree_law.py FOLDER [NETWORK ...]

FOLDER holds public files (`tclab.readers.read_folder`). For each network the shape is found by bisection, so
that the Gini coefficient of degrees agrees over three seeds; for directed ones that of the sources, then of
the targets. The constants in `tclab/graph/_synthetic_graph.py` are what this prints.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np

from tclab import CellGraph
from tclab.graph import Network
from tclab.graph._synthetic_graph import network_edges
from tclab.lab.reports._graphs import degrees, gini

SEEDS = range(3)


def bisected(gini_of: Callable[[float], float], wanted: float) -> float:
    low, high = 0.02, 50.0  # the larger the shape, the more even
    for _ in range(14):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if gini_of(middle) > wanted else (low, middle)
    return float(np.sqrt(low * high))


def touched(network: Network, end: str) -> np.ndarray:
    degree = degrees(network, end)
    return degree[degree > 0]


def fit(network: Network) -> str:
    nodes, edges = len(touched(network, "both")), network.num_edges
    number = len(touched(network, "source")) if network.directed else None

    def made(end: int | None, shape: float, source_shape: float = 1.0) -> float:
        found = []
        for seed in SEEDS:
            pairs = network_edges(
                nodes,
                edges,
                np.random.default_rng(seed),
                shape=shape,
                num_sources=number,
                source_shape=source_shape,
            )
            counts = np.bincount(pairs.reshape(-1) if end is None else pairs[end], minlength=nodes)
            found.append(gini(counts[counts > 0]))
        return float(np.mean(found))

    if not network.directed:
        wanted = gini(touched(network, "both"))
        shape = bisected(partial(made, None), wanted)
        return f"shape {shape:.2f} (Gini {wanted:.3f}, made {made(None, shape):.3f})"
    sources, targets = gini(touched(network, "source")), gini(touched(network, "target"))
    target_shape = 3.0
    for _ in range(2):  # each bends the other a little
        source_shape = bisected(partial(made, 0, target_shape), sources)
        target_shape = bisected(partial(made, 1, source_shape=source_shape), targets)
    return (
        f"{number} sources, shape {source_shape:.2f} (Gini {sources:.3f}); "
        f"targets, shape {target_shape:.2f} (Gini {targets:.3f})"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("networks", nargs="*")
    given = parser.parse_args()
    graph = CellGraph.from_folder(given.folder).select(given.networks or None)
    for name, network in graph.networks.items():
        nodes = len(touched(network, "both"))
        print(f"{name}: {nodes:,} nodes, {network.num_edges:,} edges, {fit(network)}", flush=True)
