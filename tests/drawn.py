"""Graphs and deletions as hypothesis draws them: self-loops, duplicates, isolated nodes, empty networks."""

import torch
from hypothesis import strategies as st

from tclab import CellGraph, SharedGraph
from tclab.graph import Network


def index_of(pairs):
    """Return pairs of nodes as an edge index, [2, E] int64."""
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t().contiguous()


@st.composite
def graphs(draw, *, bipartite=None):
    """Draw a graph of up to 12 nodes and one to three networks, perhaps with a bipartite part."""
    nodes = draw(st.integers(2, 12))
    node = st.integers(0, nodes - 1)
    relations = {}
    for number in range(draw(st.integers(1, 3))):
        edges = draw(st.lists(st.tuples(node, node), max_size=40))
        if edges and draw(st.booleans()):
            edges += draw(st.lists(st.sampled_from(edges), max_size=5))  # duplicates
        name = f"network{number}"
        cascades = draw(st.sampled_from([False, False, False, True]))
        relations[name] = Network(name, index_of(edges), "person", "person", nodes, nodes, cascades=cascades)
    num_nodes = {"person": nodes}
    if draw(st.booleans()) if bipartite is None else bipartite:
        reactions, metabolites = draw(st.integers(1, 6)), draw(st.integers(1, 5))
        needs = draw(st.lists(st.tuples(node, st.integers(0, reactions - 1)), max_size=12))
        turned = st.tuples(st.integers(0, reactions - 1), st.integers(0, metabolites - 1))
        turns_over = draw(st.lists(turned, max_size=15))
        weight = draw(st.lists(st.sampled_from([-2.0, -1.0, 1.0, 3.0]), min_size=15, max_size=15))
        weight = torch.tensor(weight[: len(turns_over)], dtype=torch.float64)
        num_nodes |= {"reaction": reactions, "metabolite": metabolites}
        relations["gpr"] = Network("gpr", index_of(needs), "person", "reaction", nodes, reactions, cascades=True)
        relations["stoichiometry"] = Network(
            "stoichiometry", index_of(turns_over), "reaction", "metabolite", reactions, metabolites, weight=weight
        )
    return CellGraph(num_nodes, relations, "person")


@st.composite
def dependants(draw):
    """Draw a graph of up to three node types, perhaps without nodes, and relations between any, most of which cascade.

    Few edges a relation, so that a cascade is seldom over at once: loops, cycles, and ways back to the deleted type.
    """
    num_nodes = {kind: draw(st.integers(0, 8)) for kind in ("person", "team", "room")[: draw(st.integers(1, 3))]}
    relations = {}
    for name in ("a", "b", "c", "d", "e")[: draw(st.integers(0, 5))]:
        source, target = draw(st.sampled_from(sorted(num_nodes))), draw(st.sampled_from(sorted(num_nodes)))
        sizes = num_nodes[source], num_nodes[target]
        pair = st.tuples(*(st.integers(0, max(size - 1, 0)) for size in sizes))
        edges = draw(st.lists(pair, max_size=10)) if all(sizes) else []
        cascades = draw(st.sampled_from([True, True, False]))
        relations[name] = Network(name, index_of(edges), source, target, *sizes, cascades=cascades)
    return CellGraph(num_nodes, relations, draw(st.sampled_from(sorted(num_nodes))))


@st.composite
def deletions(draw, graph):
    """Draw two to five samples: any sets, and among them nothing, a hub, all neighbours of a node, a set twice."""
    nodes = graph.num_nodes[graph.deleted_type]
    any_set = st.lists(st.integers(0, nodes - 1), unique=True, max_size=min(4, nodes))
    samples = draw(st.lists(any_set, min_size=1, max_size=3))
    pairs = [pair for network in graph.networks.values() for pair in network.edge_index.t().tolist()]
    hub = max(range(nodes), key=[end for pair in pairs for end in pair].count)
    node = draw(st.integers(0, nodes - 1))
    neighbours = {end for pair in pairs if node in pair for end in pair} - {node}
    special = st.sampled_from([[], [hub], sorted(neighbours), samples[0]])
    return [*samples, *draw(st.lists(special, min_size=1, max_size=2))]


def ring(nodes=40, steps=(0, 1, 3, 3)):
    """Return a shared graph of edges to the node and to some after it, rows [N, 4, 8], and which are kept, [N, 4]."""
    at = torch.arange(nodes)
    edge_index = torch.cat([torch.stack([at, (at + step) % nodes]) for step in steps], dim=1)
    generator = torch.Generator().manual_seed(0)
    keep = torch.rand(nodes, 4, generator=generator) < 0.8
    return SharedGraph(edge_index, nodes), torch.randn(nodes, 4, 8, generator=generator), keep


def removed_one_by_one(graph, deleted):
    """Return node type → sorted ids of what one sample removes, with its dependants: what `removed_by` is held to."""
    removed = {(graph.deleted_type, int(node)) for node in deleted}
    before = None
    while removed != before:
        before = set(removed)
        for network in graph.relations.values():
            for source, target in network.edge_index.t().tolist() if network.cascades else ():
                if (network.source, source) in removed:
                    removed.add((network.target, target))
    return {
        kind: torch.tensor(sorted(node for of, node in removed if of == kind), dtype=torch.int64)
        for kind in graph.num_nodes
    }
