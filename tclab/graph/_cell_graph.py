"""The one large graph that samples perturb: nodes by type and named relations between them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tclab import _folder_reader
from tclab._extras import need
from tclab._io import cache_folder
from tclab.errors import InputError, check_whole, require, unknown
from tclab.graph._graph_folder import HEADER_FILE, GraphFields, write_fields
from tclab.graph._network import MOST_NODES, Network, Networks
from tclab.graph._synthetic_graph import synthetic_relations

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData


@dataclass(frozen=True)
class Metabolism:
    """The bipartite part of a cell: which genes a reaction needs, and which metabolites it turns over."""

    gpr: Network  # deleted type → reaction; a reaction is removed with any of its genes (`cascades`)
    stoichiometry: Network  # reaction → metabolite, weighted by the signed stoichiometric coefficient

    @property
    def num_reactions(self) -> int:
        """How many reaction nodes there are."""
        return self.stoichiometry.num_sources

    @property
    def num_metabolites(self) -> int:
        """How many metabolite nodes there are."""
        return self.stoichiometry.num_targets


@dataclass(frozen=True, eq=False)
class CellGraph:
    """Nodes by type, named relations between them, and the node type that perturbations delete.

    **Arguments:**

    - `num_nodes`: how many nodes each type has.
    - `relations`: every relation by name, in order; those within the deleted type are the `networks`.
    - `deleted_type`: the node type that a perturbation deletes.
    - `node_names`: the names of a type's nodes, where they have any.
    - `source`: where it came from, for titles and rows.
    - `report`: what its reader kept and dropped; `None` for a graph that was not read from files.
    """

    num_nodes: Mapping[str, int]
    relations: Mapping[str, Network]
    deleted_type: str
    node_names: Mapping[str, Sequence[str]] | None = None
    source: str = "given"
    report: Any = None

    def __post_init__(self) -> None:
        if self.deleted_type not in self.num_nodes:
            raise unknown("node type", self.deleted_type, self.num_nodes)
        for kind, number in self.num_nodes.items():
            check_whole(f"the graph's {kind} nodes are", number, most=MOST_NODES)
        for name, network in self.relations.items():
            if name != network.name:
                raise InputError(f"relation {name!r} holds a network called {network.name!r}")
            for end, number in ((network.source, network.num_sources), (network.target, network.num_targets)):
                if self.num_nodes.get(end) != number:
                    raise InputError(
                        f"network {name!r} counts {number} {end} nodes, the graph {self.num_nodes.get(end)}"
                    )

    @staticmethod
    def synthetic(scale: float = 1.0, seed: int = 0, *, self_loops: bool = False, metabolism: bool = True) -> CellGraph:
        """Return a synthetic yeast cell, the same for the same seed.

        Nodes grow with `scale` and edges with its square, so that density stays: `scale=1.0` has exactly the numbers
        of nodes and edges in `NETWORK_SIZES`. Degrees are as uneven as in the real networks, and directed networks
        start from few nodes. The metabolism's edges grow with its nodes: a reaction has few at every scale.

        **Arguments:**

        - `scale`: above 0; 0.05 has 330 genes and 6,060 edges.
        - `seed`: of the edges.
        - `self_loops`: add one to every node of every network; see `with_self_loops`.
        - `metabolism`: with the bipartite part, or without.

        **Raises:** `InputError` for a scale that is not a positive number, or a seed below 0.
        """
        num_nodes, relations = synthetic_relations(scale, seed, metabolism=metabolism)
        graph = CellGraph(num_nodes, relations, "gene", source=f"synthetic, scale {scale:g}")
        return graph.with_self_loops() if self_loops else graph

    @staticmethod
    def from_folder(path: str | Path) -> CellGraph:
        """Return the graph that a folder holds, of public files or from `to_folder`; see `tclab.readers.read_folder`.

        **Raises:** `InputError` for a folder that holds neither, `ReadError` for a file that is not as expected.
        """
        graph: CellGraph = _folder_reader.read_folder(path)
        return graph

    def to_folder(self, path: str | Path) -> None:
        """Write this graph into a new or empty folder, from which `from_folder` makes an equal one.

        Edges, weights, directions, names and order are kept; reports are not.

        **Raises:** `InputError` where the folder holds anything, or cannot be written.
        """
        write_fields(GraphFields(self.num_nodes, self.relations, self.deleted_type, self.node_names, self.source), path)

    @staticmethod
    def from_edges(
        edges: Mapping[str, Tensor], *, num_nodes: int, node_type: str = "node", source: str = "given"
    ) -> CellGraph:
        """Return a graph of one node type from edge lists, each [2, E] int64.

        **Raises:** `InputError` for edges that are no such tensor, or a number of nodes that they do not fit.
        """
        if not isinstance(edges, Mapping):
            raise InputError(f"edges are a {type(edges).__name__}, expected a tensor [2, E] by the name of its network")
        networks = {
            name: Network(name, edge_index, node_type, node_type, num_nodes, num_nodes)
            for name, edge_index in edges.items()
        }
        return CellGraph({node_type: num_nodes}, networks, node_type, source=source)

    @staticmethod
    def from_hetero_data(data: HeteroData, *, deleted_type: str) -> CellGraph:
        """Return the graph of a PyG `HeteroData`.

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

    def to_hetero_data(self) -> HeteroData:
        """Return a PyG `HeteroData`: node counts and names, edges, their `edge_weight` and `edge_type`."""
        need("to_hetero_data", "sweep", "torch_geometric")
        from torch_geometric.data import HeteroData  # takes a second to import, and few ask for it

        data = HeteroData()
        for kind, number in self.num_nodes.items():
            data[kind].num_nodes = number
            if self.node_names and kind in self.node_names:
                data[kind].names = list(self.node_names[kind])
        for name, network in self.relations.items():
            store = data[network.source, name, network.target]
            store.edge_index = network.edge_index
            store.directed = network.directed
            store.cascades = network.cascades
            if network.weight is not None:
                store.edge_weight = network.weight
            if network.edge_type is not None:
                store.edge_type = network.edge_type
        return data

    @property
    def networks(self) -> Networks:
        """The relations within the deleted type, in order: the edge types that a sweep counts."""
        kind = self.deleted_type
        return Networks({name: n for name, n in self.relations.items() if n.source == kind == n.target})

    @property
    def metabolism(self) -> Metabolism | None:
        """The bipartite part, where the graph has one: relations called `gpr` and `stoichiometry`."""
        if "gpr" in self.relations and "stoichiometry" in self.relations:
            return Metabolism(self.relations["gpr"], self.relations["stoichiometry"])
        return None

    @property
    def num_edges(self) -> int:
        """How many edges the networks have in all; the bipartite part is not counted."""
        return sum(network.num_edges for network in self.networks.values())

    @property
    def device(self) -> torch.device:
        """Where the tensors are; the CPU for a graph with no relation."""
        for network in self.relations.values():
            return network.edge_index.device
        return torch.device("cpu")

    def select(self, networks: int | Iterable[str] | None) -> CellGraph:
        """Return this graph with some of its networks: the first n, or those named, in the order named.

        `None` keeps all. The bipartite part stays.
        """
        if networks is None:
            return self
        within = self.networks
        names = resolve_networks(networks, list(within))
        rest = {name: n for name, n in self.relations.items() if name not in within}
        return self.with_relations({**{name: within[name] for name in names}, **rest})

    def without_metabolism(self) -> CellGraph:
        """Return this graph with its networks only."""
        return self.with_relations(self.networks)

    def with_self_loops(self) -> CellGraph:
        """Return this graph with one self-loop on every node of every network.

        **Raises:** `InputError` for a network whose edges have types: a loop would have none.
        """
        relations = dict(self.relations)
        for name, network in self.networks.items():
            if network.edge_type is not None:
                raise InputError(f"network {name!r} has edge types; add self-loops before networks are merged")
            source, target = network.edge_index
            has = torch.zeros(network.num_sources, dtype=torch.bool)
            has[source[source == target]] = True
            missing = torch.nonzero(~has).flatten()
            weight = network.weight
            relations[name] = replace(
                network,
                edge_index=torch.cat([network.edge_index, missing.expand(2, -1)], dim=1),
                weight=None if weight is None else torch.cat([weight, weight.new_ones(len(missing))]),
            )
        return self.with_relations(relations)

    def induced(self, nodes: Mapping[str, Tensor]) -> CellGraph:
        """Return the subgraph that some nodes induce, relabelled in the order given.

        **Arguments:**

        - `nodes`: node type → [n] int64, distinct; all nodes of a type that is not named are kept.
        """
        num_nodes = {**self.num_nodes, **{kind: len(kept) for kind, kept in nodes.items()}}
        place = {}
        for kind, kept in nodes.items():
            place[kind] = torch.full((self.num_nodes[kind],), -1, dtype=torch.int64)
            place[kind][kept] = torch.arange(len(kept))
        relations = {}
        for name, network in self.relations.items():
            source, target = network.edge_index
            source = place[network.source][source] if network.source in place else source
            target = place[network.target][target] if network.target in place else target
            kept = (source >= 0) & (target >= 0)
            relations[name] = replace(
                network,
                edge_index=torch.stack([source, target])[:, kept],
                num_sources=num_nodes[network.source],
                num_targets=num_nodes[network.target],
                weight=None if network.weight is None else network.weight[kept],
                edge_type=None if network.edge_type is None else network.edge_type[kept],
                report=None,
            )
        names = None
        if self.node_names is not None:
            names = {
                kind: [of_kind[node] for node in nodes[kind].tolist()] if kind in nodes else of_kind
                for kind, of_kind in self.node_names.items()
            }
        return CellGraph(num_nodes, relations, self.deleted_type, names, f"part of {self.source}")

    def to(self, device: torch.device | str) -> CellGraph:
        """Return this graph with its tensors on `device`; each network is copied there once."""
        return self.with_relations({name: network.to(device) for name, network in self.relations.items()})

    def fingerprint(self) -> str:
        """Return a hash of every node count and edge."""
        parts = [f"{self.deleted_type}", *(f"{kind}={number}" for kind, number in self.num_nodes.items())]
        parts += [network.fingerprint() for network in self.relations.values()]
        return hashlib.sha256("|".join(parts).encode()).hexdigest()

    def with_relations(self, relations: Mapping[str, Network]) -> CellGraph:
        """Return this graph with other relations between the same nodes."""
        return CellGraph(self.num_nodes, dict(relations), self.deleted_type, self.node_names, self.source, self.report)

    def __repr__(self) -> str:
        nodes = ", ".join(f"{number:,} {kind}" for kind, number in self.num_nodes.items())
        return f"CellGraph({self.source}: {nodes}; {len(self.networks)} networks, {self.num_edges:,} edges)"


def keep_graph(graph: CellGraph, folder: str | Path | None = None) -> str:
    """Return the folder within `folder`, or the cache, that holds a graph, written there unless it is there already.

    For a point, whose processes read the graph; it is named by the graph's fingerprint.
    """
    place = (cache_folder() / "graphs" if folder is None else Path(folder)) / f"graph-{graph.fingerprint()[:12]}"
    if not (place / HEADER_FILE).is_file():
        graph.to_folder(place)
    return str(place)


def resolve_networks(networks: int | Iterable[str], names: Sequence[str]) -> list[str]:
    """Return which of a graph's networks are meant: the first n of their names, or those named.

    **Raises:** `InputError` for a number that is too small or too large, an unknown name, or a name given twice.
    """
    if isinstance(networks, int):
        if isinstance(networks, bool) or not 1 <= networks <= len(names):
            raise InputError(f"networks is {networks!r}, expected 1 to {len(names)} or names of networks")
        return list(names[:networks])
    require("networks", networks, Iterable, "how many, or names of networks")
    wanted = list(networks)
    for name in wanted:
        if name not in names:
            raise unknown("network", name, names)
    if not wanted or len(set(wanted)) < len(wanted):
        raise InputError(f"networks is {wanted!r}, expected one or more names, none of them twice")
    return wanted
