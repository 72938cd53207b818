"""Synthetic cells of the real size: the published numbers of nodes and edges, with heavy-tailed degrees."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from tclab._progress import progress_bar
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
# about 1 is an exponential law, less is more uneven. `benchmarks/fit_degree_law.py` fits the shape to a real
# network, so that a made-up one of the same size has the same Gini coefficient of its degrees. STRING's are
# fitted to its v9.1 channels; the two that could not be had, and the physical network, take their mean.
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


_LARGE = 0.5  # the scale from which a graph takes more than a second to make


def _cumulative(weights: np.ndarray) -> np.ndarray:
    total = np.cumsum(weights)
    return np.asarray(total / total[-1])


def _draw(cumulative: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    return np.minimum(np.searchsorted(cumulative, rng.random(number), side="right"), len(cumulative) - 1)


def network_edges(
    nodes: int,
    edges: int,
    rng: np.random.Generator,
    *,
    shape: float,
    num_sources: int | None = None,
    source_shape: float = FACTOR_SHAPE,
) -> np.ndarray:
    """Return [2, edges] distinct edges without self-loops, that touch each of 0 … nodes - 1.

    **Arguments:**

    - `shape`: of the gamma distribution that the nodes' weights are drawn from.
    - `num_sources`: where edges have a direction, how many nodes they may start from; the others have only
      edges that end there.
    - `source_shape`: of the sources' weights as sources.
    """
    order = rng.permutation(nodes)
    weights = _cumulative(rng.gamma(shape, size=nodes) + 1e-9)  # a weight of 0 could never be drawn
    if num_sources is None or num_sources == nodes:
        start, start_of = weights, np.arange(nodes)
        ring = np.append(order, order[0]) if nodes % 2 else order
        first = np.stack([ring[0::2], ring[1::2]])  # each node once: none is left out
    else:
        start_of = order[:num_sources]
        start = _cumulative(rng.gamma(source_shape, size=num_sources) + 1e-9)
        rest = order[num_sources:]  # at least as many, as the caller sees to
        from_each = start_of[_draw(start, len(rest), rng)]
        from_each[:num_sources] = start_of
        first = np.stack([from_each, rest])

    def keys_of(pairs: np.ndarray) -> np.ndarray:
        pairs = pairs[:, pairs[0] != pairs[1]]
        if num_sources is None:
            pairs = np.sort(pairs, axis=0)
        return np.asarray(pairs[0] * nodes + pairs[1])

    taken = np.zeros(nodes * nodes, dtype=bool)  # no larger than the edges of a dense network
    taken[keys_of(first)] = True
    missing = edges - int(taken.sum())
    for _ in range(64):
        if missing <= 0:
            break
        number = 2 * missing + 16
        drawn = keys_of(np.stack([start_of[_draw(start, number, rng)], _draw(weights, number, rng)]))
        fresh = np.unique(drawn[~taken[drawn]])
        taken[rng.permutation(fresh)[:missing]] = True
        missing -= min(missing, len(fresh))
    else:  # nearly every pair is taken, which only a very small graph comes to: take from what is left
        every = keys_of(np.stack(np.meshgrid(start_of, np.arange(nodes))).reshape(2, -1))
        fresh = np.unique(every[~taken[every]])
        taken[rng.permutation(fresh)[:missing]] = True
    return np.stack(np.divmod(np.flatnonzero(taken), nodes))


def _num_sources(nodes: int, edges: int, scale: float) -> int:
    """Return how many sources a directed network has: the real share, and enough for its nodes and edges."""
    enough = max(round(NUM_FACTORS * scale), nodes - edges, math.ceil(edges / max(nodes - 1, 1)), 1)
    return min(enough, nodes // 2) if nodes // 2 * (nodes - 1) >= edges else nodes


def _bipartite_edges(left: int, right: int, edges: int, rng: np.random.Generator) -> np.ndarray:
    """Return [2, edges] distinct pairs that touch each left and each right node, the right heavy-tailed."""
    most = max(left, right)
    keys = np.unique((np.arange(most) % left) * right + rng.permutation(most) % right)
    cumulative = _cumulative((rng.permutation(right) + OFFSET) ** -EXPONENT)
    while (missing := edges - len(keys)) > 0:
        drawn = rng.integers(0, left, 2 * missing + 16) * right + _draw(cumulative, 2 * missing + 16, rng)
        keys = np.union1d(keys, rng.permutation(np.setdiff1d(drawn, keys))[:missing])
    return np.stack([keys // right, keys % right])


def _metabolism(genes: int, scale: float, rng: np.random.Generator) -> tuple[Network, Network]:
    """Return gpr and stoichiometry, scaled by nodes: a reaction has as many genes and metabolites at every scale."""

    def scaled(number: int) -> int:
        return max(1, round(number * scale))

    reactions, metabolites = scaled(NUM_REACTIONS), scaled(NUM_METABOLITES)
    chosen = rng.permutation(genes)[: min(genes, scaled(NUM_METABOLIC_GENES))]
    catalysed = rng.permutation(reactions)[: scaled(NUM_REACTIONS_WITH_GENES)]
    pairs = min(scaled(NUM_GPR), len(chosen) * len(catalysed))
    reaction, gene = _bipartite_edges(len(catalysed), len(chosen), pairs, rng)
    gpr = Network(
        "gpr",
        torch.from_numpy(np.stack([chosen[gene], catalysed[reaction]])),
        "gene",
        "reaction",
        genes,
        reactions,
        cascades=True,
    )
    pairs = min(scaled(NUM_STOICHIOMETRY), reactions * metabolites)
    turned_over = _bipartite_edges(reactions, metabolites, pairs, rng)
    size = rng.choice([1.0, 2.0, 3.0, 4.0], turned_over.shape[1], p=[0.9, 0.07, 0.02, 0.01])
    sign = rng.choice([-1.0, 1.0], turned_over.shape[1])  # consumed or produced
    stoichiometry = Network(
        "stoichiometry",
        torch.from_numpy(turned_over),
        "reaction",
        "metabolite",
        reactions,
        metabolites,
        weight=torch.from_numpy(size * sign),
    )
    return gpr, stoichiometry


def synthetic_relations(scale: float, seed: int, *, metabolism: bool) -> tuple[dict[str, int], dict[str, Network]]:
    """Return the nodes by type and the relations of a synthetic yeast cell; see `CellGraph.synthetic`.

    Where a network's edges are too few to touch its share of the nodes (below scale 0.15 for the sparsest), it
    touches twice as many nodes as it has edges.

    **Raises:** `InputError` for a scale that is not a positive number, or a seed below 0.
    """
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < math.inf:
        raise InputError(f"scale is {scale!r}, expected a number above 0 (1.0 is the real size)")
    check_whole("the seed is", seed)
    genes = max(2, round(NUM_GENES * scale))
    relations: dict[str, Network] = {}
    sizes = {name: max(1, round(size.edges * scale**2)) for name, size in NETWORK_SIZES.items()}
    bar = progress_bar(sum(sizes.values()), "making the graph", " edges") if scale >= _LARGE else None
    for place, (name, size) in enumerate(NETWORK_SIZES.items()):
        rng = np.random.default_rng([seed, place])
        edges = sizes[name]
        nodes = min(max(2, round(size.nodes * scale)), 2 * edges, genes)
        edges = min(edges, nodes * (nodes - 1) // (1 if size.directed else 2))
        touched = rng.permutation(genes)[:nodes]
        pairs = network_edges(
            nodes,
            edges,
            rng,
            shape=TARGET_SHAPE if size.directed else SHAPES.get(name, MEAN_SHAPE),
            num_sources=_num_sources(nodes, edges, scale) if size.directed else None,
        )
        pairs = np.sort(touched)[pairs]
        relations[name] = Network(name, torch.from_numpy(pairs), "gene", "gene", genes, genes, directed=size.directed)
        if bar is not None:
            bar.update(sizes[name])
    if bar is not None:
        bar.close()
    num_nodes = {"gene": genes}
    if metabolism:
        gpr, stoichiometry = _metabolism(genes, scale, np.random.default_rng([seed, len(NETWORK_SIZES)]))
        relations |= {"gpr": gpr, "stoichiometry": stoichiometry}
        num_nodes |= {"reaction": gpr.num_targets, "metabolite": stoichiometry.num_targets}
    return num_nodes, relations
