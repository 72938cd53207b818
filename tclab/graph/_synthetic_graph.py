"""Synthetic cells of the real size: the published numbers of nodes and edges, with heavy-tailed degrees."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from tclab.errors import InputError, check_whole
from tclab.graph._network import Network

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

# Degrees are in proportion to weights drawn from a gamma distribution, whose shape says how uneven they are:
# about 1 is an exponential law, less is more uneven. Each shape is the one with which a made-up network of the real
# one's size has the same Gini coefficient of its degrees. STRING's are those of its v9.1 channels; the two that could
# not be had, and the physical network, take their mean.
# A regulatory network has few sources, as uneven as YEASTRACT's factors, and targets that are far more even.
SHAPES = {
    "string12_0_neighborhood": 0.62,
    "string12_0_fusion": 0.53,
    "string12_0_cooccurence": 0.58,
    "string12_0_database": 0.51,
}
MEAN_SHAPE = 0.56
FACTOR_SHAPE, TARGET_SHAPE = 0.40, 2.1  # between those of `both` and of the documented pairs
NUM_FACTORS = 201  # transcription factors in YEASTRACT's list of documented pairs, at scale 1

# A metabolite's weight is (rank + OFFSET) ** -EXPONENT: a power law, as water and ATP are everywhere.
EXPONENT, OFFSET = 0.6, 10.0


def _cumulative(weights: np.ndarray) -> np.ndarray:
    total = np.cumsum(weights)
    return np.asarray(total / total[-1])


def _draw(cumulative: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    return np.minimum(np.searchsorted(cumulative, rng.random(n), side="right"), len(cumulative) - 1)


def network_edges(
    nodes: int, edges: int, rng: np.random.Generator, *, shape: float, num_sources: int | None = None
) -> np.ndarray:
    """Return [2, edges] distinct edges without self-loops, that touch each of 0 … nodes - 1.

    **Arguments:**

    - `shape`: of the gamma distribution that the nodes' weights are drawn from.
    - `num_sources`: where edges have a direction, how many nodes they may start from; the others have only
      edges that end there.
    """
    order = rng.permutation(nodes)
    weights = _cumulative(rng.gamma(shape, size=nodes) + 1e-9)  # a weight of 0 could never be drawn
    if num_sources is None or num_sources == nodes:
        sources, source_weights = np.arange(nodes), weights
        ring = np.append(order, order[0]) if nodes % 2 else order
        first = np.stack([ring[0::2], ring[1::2]])  # each node once: none is left out
    else:
        sources = order[:num_sources]
        source_weights = _cumulative(rng.gamma(FACTOR_SHAPE, size=num_sources) + 1e-9)
        targets = order[num_sources:]  # at least as many, as the caller sees to
        starts = sources[_draw(source_weights, len(targets), rng)]
        starts[:num_sources] = sources
        first = np.stack([starts, targets])

    def keys_of(pairs: np.ndarray) -> np.ndarray:
        pairs = pairs[:, pairs[0] != pairs[1]]
        if num_sources is None:
            pairs = np.sort(pairs, axis=0)
        return np.asarray(pairs[0] * nodes + pairs[1])

    taken = np.zeros(nodes * nodes, dtype=bool)  # no larger than the edges of a dense network
    taken[keys_of(first)] = True
    for attempt in range(65):
        missing = edges - int(taken.sum())
        if missing <= 0:
            break
        n = 2 * missing + 16
        if attempt < 64:
            pairs = np.stack([sources[_draw(source_weights, n, rng)], _draw(weights, n, rng)])
        else:  # nearly every pair is taken, which only a very small graph comes to: take from all that there are
            pairs = np.stack(np.meshgrid(sources, np.arange(nodes))).reshape(2, -1)
        fresh = np.zeros_like(taken)
        fresh[keys_of(pairs)] = True
        fresh &= ~taken
        taken[rng.permutation(np.flatnonzero(fresh))[:missing]] = True
    return np.stack(np.divmod(np.flatnonzero(taken), nodes))


def _num_sources(nodes: int, edges: int, scale: float) -> int:
    """Return how many sources a directed network has: the real share, and enough for its nodes and edges."""
    enough = max(round(NUM_FACTORS * scale), nodes - edges, math.ceil(edges / max(nodes - 1, 1)), 1)
    return min(enough, nodes // 2) if nodes // 2 * (nodes - 1) >= edges else nodes


def _network(name: str, scale: float, genes: int, rng: np.random.Generator) -> Network:
    """Return one of the networks, at a scale.

    Where its edges are too few to touch its share of the nodes (below scale 0.15 for the sparsest), it touches twice
    as many nodes as it has edges.
    """
    size = NETWORK_SIZES[name]
    edges = max(1, round(size.edges * scale**2))
    nodes = min(max(2, round(size.nodes * scale)), 2 * edges, genes)
    edges = min(edges, nodes * (nodes - 1) // (1 if size.directed else 2))
    touched = np.sort(rng.permutation(genes)[:nodes])
    shape = TARGET_SHAPE if size.directed else SHAPES.get(name, MEAN_SHAPE)
    num_sources = _num_sources(nodes, edges, scale) if size.directed else None
    pairs = network_edges(nodes, edges, rng, shape=shape, num_sources=num_sources)
    edge_index = torch.from_numpy(touched[pairs])
    return Network(name, edge_index, "gene", "gene", genes, genes, directed=size.directed)


def _bipartite_edges(left: int, right: int, edges: int, rng: np.random.Generator) -> np.ndarray:
    """Return [2, edges] distinct pairs that touch each left and each right node, the right heavy-tailed."""
    edges = min(edges, left * right)
    most = max(left, right)
    keys = np.unique((np.arange(most) % left) * right + rng.permutation(most) % right)
    cumulative = _cumulative((rng.permutation(right) + OFFSET) ** -EXPONENT)
    while (missing := edges - len(keys)) > 0:
        n = 2 * missing + 16
        drawn = rng.integers(0, left, n) * right + _draw(cumulative, n, rng)
        keys = np.union1d(keys, rng.permutation(np.setdiff1d(drawn, keys))[:missing])
    return np.stack([keys // right, keys % right])


def _metabolism(genes: int, scale: float, rng: np.random.Generator) -> tuple[Network, Network]:
    """Return gpr and stoichiometry, scaled by nodes: a reaction has as many genes and metabolites at every scale."""

    def scaled(n: int) -> int:
        return max(1, round(n * scale))

    reactions, metabolites = scaled(NUM_REACTIONS), scaled(NUM_METABOLITES)
    chosen = rng.permutation(genes)[: min(genes, scaled(NUM_METABOLIC_GENES))]
    catalysed = rng.permutation(reactions)[: scaled(NUM_REACTIONS_WITH_GENES)]
    reaction, gene = _bipartite_edges(len(catalysed), len(chosen), scaled(NUM_GPR), rng)
    needed = torch.from_numpy(np.stack([chosen[gene], catalysed[reaction]]))
    turned_over = torch.from_numpy(_bipartite_edges(reactions, metabolites, scaled(NUM_STOICHIOMETRY), rng))
    size = rng.choice([1.0, 2.0, 3.0, 4.0], turned_over.size(1), p=[0.9, 0.07, 0.02, 0.01])
    weight = torch.from_numpy(size * rng.choice([-1.0, 1.0], turned_over.size(1)))  # consumed or produced
    gpr = Network("gpr", needed, "gene", "reaction", genes, reactions, cascades=True)
    return gpr, Network("stoichiometry", turned_over, "reaction", "metabolite", reactions, metabolites, weight=weight)


def synthetic_relations(scale: float, seed: int, *, metabolism: bool) -> tuple[dict[str, int], dict[str, Network]]:
    """Return the nodes by type and the relations of a synthetic yeast cell; see `CellGraph.synthetic`.

    **Raises:** `InputError` for a scale that is not a positive number, or a seed below 0.
    """
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < math.inf:
        raise InputError(f"scale is {scale!r}, expected a number above 0 (1.0 is the real size)")
    check_whole("the seed is", seed)
    num_nodes = {"gene": max(2, round(NUM_GENES * scale))}
    relations: dict[str, Network] = {}
    for i, name in enumerate(NETWORK_SIZES):
        relations[name] = _network(name, scale, num_nodes["gene"], np.random.default_rng([seed, i]))
    if metabolism:
        gpr, stoichiometry = _metabolism(num_nodes["gene"], scale, np.random.default_rng([seed, len(NETWORK_SIZES)]))
        relations |= {"gpr": gpr, "stoichiometry": stoichiometry}
        num_nodes |= {"reaction": gpr.num_targets, "metabolite": stoichiometry.num_targets}
    return num_nodes, relations
