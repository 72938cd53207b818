"""Made-up cells of the real size: the published numbers of nodes and edges, with heavy-tailed degrees."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from tclab.errors import InputError
from tclab.graph.cell_graph import CellGraph
from tclab.graph.network import Network

NUM_GENES = 6_607  # SGD, S288C R64-4-1


class Size(NamedTuple):
    """How large a real network is: the nodes it touches, its edges, whether they have a direction."""

    nodes: int
    edges: int
    directed: bool


# Counts of the yeast networks as torchcell built them from SGD, TFLink and STRING v12.0.
NETWORK_SIZES = {
    "regulatory": Size(3_632, 9_753, True),
    "physical": Size(5_721, 139_463, False),
    "tflink": Size(5_092, 201_898, True),
    "string12_0_neighborhood": Size(2_204, 147_874, False),
    "string12_0_fusion": Size(3_095, 11_810, False),
    "string12_0_cooccurence": Size(2_615, 11_115, False),
    "string12_0_coexpression": Size(6_503, 1_002_538, False),
    "string12_0_experimental": Size(6_036, 825_101, False),
    "string12_0_database": Size(4_044, 73_818, False),
}

# yeast-GEM 9.0.2, a reaction counted once for each branch of its rule and each direction.
NUM_REACTIONS, NUM_REACTIONS_WITH_GENES, NUM_METABOLITES = 7_122, 4_881, 2_806
NUM_METABOLIC_GENES = 1_161
NUM_GPR, NUM_STOICHIOMETRY = 5_450, 26_325

# A node's weight is (rank + OFFSET) ** -EXPONENT: a power law whose largest hub stays below full connection
# in the densest network (4.7 % of all pairs).
EXPONENT, OFFSET = 0.6, 10.0


def _heavy_tailed(number: int, rng: np.random.Generator) -> np.ndarray:
    """Return the cumulative weights of `number` nodes in random order of rank, ending at 1."""
    weights = (rng.permutation(number) + OFFSET) ** -EXPONENT
    total = np.cumsum(weights)
    return np.asarray(total / total[-1])


def _draw(cumulative: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    return np.minimum(np.searchsorted(cumulative, rng.random(number), side="right"), len(cumulative) - 1)


def _network_edges(nodes: int, edges: int, directed: bool, rng: np.random.Generator) -> np.ndarray:
    """Return [2, edges] distinct edges without self-loops, that touch each of 0 … nodes - 1."""
    order = rng.permutation(nodes)
    ring = np.append(order, order[0]) if nodes % 2 else order
    first = np.stack([ring[0::2], ring[1::2]])  # each node once: none is left out

    def keys_of(pairs: np.ndarray) -> np.ndarray:
        pairs = pairs[:, pairs[0] != pairs[1]]
        if not directed:
            pairs = np.sort(pairs, axis=0)
        return np.asarray(pairs[0] * nodes + pairs[1])

    keys = np.unique(keys_of(first))
    cumulative = _heavy_tailed(nodes, rng)
    for _ in range(64):
        missing = edges - len(keys)
        if missing <= 0:
            break
        drawn = keys_of(_draw(cumulative, 2 * (2 * missing + 16), rng).reshape(2, -1))
        fresh = np.setdiff1d(drawn, keys)
        keys = np.union1d(keys, rng.permutation(fresh)[:missing])
    else:  # nearly every pair is taken, which only a very small graph comes to: take from what is left
        every = keys_of(np.indices((nodes, nodes)).reshape(2, -1))
        fresh = np.setdiff1d(every, keys)
        keys = np.union1d(keys, rng.permutation(fresh)[: edges - len(keys)])
    return np.stack([keys // nodes, keys % nodes])


def _bipartite_edges(left: int, right: int, edges: int, rng: np.random.Generator) -> np.ndarray:
    """Return [2, edges] distinct pairs that touch each left and each right node, the right heavy-tailed."""
    most = max(left, right)
    keys = np.unique((np.arange(most) % left) * right + rng.permutation(most) % right)
    cumulative = _heavy_tailed(right, rng)
    while (missing := edges - len(keys)) > 0:
        drawn = rng.integers(0, left, 2 * missing + 16) * right + _draw(cumulative, 2 * missing + 16, rng)
        keys = np.union1d(keys, rng.permutation(np.setdiff1d(drawn, keys))[:missing])
    return np.stack([keys // right, keys % right])


def _metabolism(genes: int, rng: np.random.Generator) -> tuple[Network, Network]:
    chosen = rng.permutation(genes)[: min(genes, NUM_METABOLIC_GENES)]
    catalysed = rng.permutation(NUM_REACTIONS)[:NUM_REACTIONS_WITH_GENES]
    pairs = min(NUM_GPR, len(chosen) * len(catalysed))
    reaction, gene = _bipartite_edges(len(catalysed), len(chosen), pairs, rng)
    gpr = Network(
        "gpr",
        torch.from_numpy(np.stack([chosen[gene], catalysed[reaction]])),
        "gene",
        "reaction",
        genes,
        NUM_REACTIONS,
        cascades=True,
    )
    turned_over = _bipartite_edges(NUM_REACTIONS, NUM_METABOLITES, NUM_STOICHIOMETRY, rng)
    size = rng.choice([1.0, 2.0, 3.0, 4.0], NUM_STOICHIOMETRY, p=[0.9, 0.07, 0.02, 0.01])
    sign = rng.choice([-1.0, 1.0], NUM_STOICHIOMETRY)  # consumed or produced
    stoichiometry = Network(
        "stoichiometry",
        torch.from_numpy(turned_over),
        "reaction",
        "metabolite",
        NUM_REACTIONS,
        NUM_METABOLITES,
        weight=torch.from_numpy(size * sign),
    )
    return gpr, stoichiometry


def synthetic_graph(
    scale: float = 1.0, seed: int = 0, *, self_loops: bool = False, metabolism: bool = True
) -> CellGraph:
    """Return a made-up yeast cell, the same for the same seed.

    Nodes grow with `scale` and edges with its square, so that density stays: `scale=1.0` has exactly the
    nodes and edges of each network in `NETWORK_SIZES`. Where a network's edges are too few to touch its share
    of the nodes (below scale 0.15 for the sparsest), it touches twice as many nodes as it has edges. Degrees
    are heavy-tailed; the law is a guess, not a fit. The metabolism has its real size at every scale.

    **Arguments:**

    - `scale`: above 0; 0.05 has 330 genes and 6,060 edges.
    - `self_loops`: add one to every node of every network, as the original did.
    - `metabolism`: with the bipartite part, or without.

    **Raises:** `InputError` for a scale that is not a positive number.
    """
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < math.inf:
        raise InputError(f"scale is {scale!r}, expected a number above 0 (1.0 is the real size)")
    genes = max(2, round(NUM_GENES * scale))
    relations: dict[str, Network] = {}
    for place, (name, size) in enumerate(NETWORK_SIZES.items()):
        rng = np.random.default_rng([seed, place])
        edges = max(1, round(size.edges * scale**2))
        nodes = min(max(2, round(size.nodes * scale)), 2 * edges, genes)
        edges = min(edges, nodes * (nodes - 1) // (1 if size.directed else 2))
        touched = rng.permutation(genes)[:nodes]
        pairs = np.sort(touched)[_network_edges(nodes, edges, size.directed, rng)]
        relations[name] = Network(
            name, torch.from_numpy(pairs), "gene", "gene", genes, genes, directed=size.directed
        )
    num_nodes = {"gene": genes}
    if metabolism:
        gpr, stoichiometry = _metabolism(genes, np.random.default_rng([seed, len(NETWORK_SIZES)]))
        relations |= {"gpr": gpr, "stoichiometry": stoichiometry}
        num_nodes |= {"reaction": NUM_REACTIONS, "metabolite": NUM_METABOLITES}
    graph = CellGraph(num_nodes, relations, "gene", source=f"synthetic, scale {scale:g}")
    return graph.with_self_loops() if self_loops else graph
