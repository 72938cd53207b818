"""Variants of a graph in which several networks are merged into one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tclab.errors import InputError, unknown
from tclab.graph._cell_graph import CellGraph, resolve_networks
from tclab.graph._network import Network

# what a sweep may do with a graph's networks before a model reads them
VARIANTS = ("separate", "merged_string", "homogeneous")


def to_merge(networks: Iterable[str], variant: str) -> list[str]:
    """Return which of some networks a variant merges."""
    return [name for name in networks if variant == "homogeneous" or name.startswith("string")]


def variant_of(graph: CellGraph, variant: str) -> CellGraph:
    """Return a variant of a graph.

    **Arguments:**

    - `graph`: whose networks they are.
    - `variant`: "separate", the graph as it is; "merged_string", its networks whose names begin with `string`
      as the one network `string_merged`, each edge once; or "homogeneous", all its networks as the one network
      `all`, each edge with its type (`Network.edge_type`).

    **Raises:** `InputError` for an unknown variant, or a graph with fewer than two networks to merge.
    """
    if variant not in VARIANTS:
        raise unknown("variant", variant, VARIANTS)
    if variant == "separate":
        return graph
    networks = to_merge(graph.networks, variant)
    if variant == "homogeneous":
        return merged(graph, networks, name="all", edge_types=True)
    return merged(graph, networks, name="string_merged")


def merged(graph: CellGraph, networks: Iterable[str], *, name: str, edge_types: bool = False) -> CellGraph:
    """Return a graph with some of its networks merged into one, in the place of the first of them.

    An edge that several networks have is there once, with weight 1. With `edge_types` every edge of every network
    stays, duplicates and weights included, and its type is the place of its network in `networks`. Undirected networks
    store an edge in one direction. Merged from undirected networks alone, the result is undirected, and an edge that
    two of them store in opposite directions is one edge.

    **Arguments:**

    - `graph`: of whose networks some are merged.
    - `networks`: names, two or more.
    - `name`: of the one network.
    - `edge_types`: keep every edge, with the place of its network in `networks` as its type.

    **Raises:** `InputError` for a name that the graph lacks, or has for another network; or fewer than two.
    """
    names = list(networks)
    if len(names) < 2:
        raise InputError(f"{len(names)} networks to merge into {name!r}, expected two or more")
    names = resolve_networks(names, list(graph.networks))
    if name in graph.relations and name not in names:
        raise InputError(f"the graph has another relation called {name!r}; give the merged network another name")
    parts = [graph.networks[part] for part in names]
    kind, number = graph.deleted_type, graph.num_nodes[graph.deleted_type]
    directed = any(part.directed for part in parts)
    edge_index = torch.cat([part.edge_index for part in parts], dim=1)
    weight: Tensor | None = None
    edge_type: Tensor | None = None
    if edge_types:
        counts = torch.tensor([part.num_edges for part in parts], device=edge_index.device)
        edge_type = torch.arange(len(parts), device=edge_index.device).repeat_interleave(counts)
        if any(part.weight is not None for part in parts):
            ones = (edge_index.new_ones(part.num_edges, dtype=torch.float64) for part in parts)
            weight = torch.cat([one if p.weight is None else p.weight for p, one in zip(parts, ones, strict=True)])
    else:
        if not directed:
            edge_index = edge_index.sort(dim=0).values
        edge_index = edge_index.unique(dim=1)
    one = Network(name, edge_index, kind, kind, number, number, weight=weight, directed=directed, edge_type=edge_type)
    relations = {}
    for old, network in graph.relations.items():
        if old == names[0] or old not in names:
            relations[name if old == names[0] else old] = one if old == names[0] else network
    return graph.with_relations(relations)
