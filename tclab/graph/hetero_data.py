"""To and from PyG's `HeteroData`, so that a graph of any field can be brought in."""

from __future__ import annotations

from collections import Counter

import torch
from torch_geometric.data import HeteroData

from tclab.errors import InputError
from tclab.graph.cell_graph import CellGraph
from tclab.graph.network import Network


def to_hetero_data(graph: CellGraph) -> HeteroData:
    """Return a `HeteroData` of the graph: node counts and names, edges, their `edge_weight` and `edge_type`."""
    data = HeteroData()
    for kind, number in graph.num_nodes.items():
        data[kind].num_nodes = number
        if graph.node_names and kind in graph.node_names:
            data[kind].names = list(graph.node_names[kind])
    for name, network in graph.relations.items():
        store = data[network.source, name, network.target]
        store.edge_index = network.edge_index
        store.directed = network.directed
        store.cascades = network.cascades
        if network.weight is not None:
            store.edge_weight = network.weight
        if network.edge_type is not None:
            store.edge_type = network.edge_type
    return data


def from_hetero_data(data: HeteroData, *, deleted_type: str) -> CellGraph:
    """Return the graph of a `HeteroData`.

    An edge type's relation name becomes the network's name; where several edge types share it, the name is
    `source__relation__target`. `edge_weight`, `edge_type`, `cascades` and `directed` of an edge type are taken
    where they are there, and so are `names` of a node type.

    **Raises:** `InputError` where a node type has no count, or `deleted_type` is not one of its node types.
    """
    num_nodes: dict[str, int] = {}
    names: dict[str, list[str]] = {}
    for kind in data.node_types:
        number = data[kind].num_nodes
        if number is None:
            raise InputError(f"node type {kind!r} has neither features nor num_nodes, so it cannot be counted")
        num_nodes[kind] = int(number)
        if "names" in data[kind]:
            names[kind] = list(data[kind].names)
    shared = Counter(relation for _, relation, _ in data.edge_types)
    relations: dict[str, Network] = {}
    for source, relation, target in data.edge_types:
        store = data[source, relation, target]
        if "edge_index" not in store:
            raise InputError(f"edge type {(source, relation, target)} has no edge_index")
        name = relation if shared[relation] == 1 else f"{source}__{relation}__{target}"
        weight, edge_type = store.get("edge_weight"), store.get("edge_type")
        relations[name] = Network(
            name,
            store.edge_index.to(torch.int64),
            source,
            target,
            num_nodes[source],
            num_nodes[target],
            weight=None if weight is None else weight.to(torch.float64),
            cascades=bool(store.get("cascades", False)),
            directed=bool(store.get("directed", True)),
            edge_type=None if edge_type is None else edge_type.to(torch.int64),
        )
    return CellGraph(num_nodes, relations, deleted_type, names or None, source="HeteroData")
