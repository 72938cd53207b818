"""The one large graph that is perturbed: nodes by type and named relations between them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tclab.errors import InputError, unknown
from tclab.graph.network import Network

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData


@dataclass(frozen=True)
class Metabolism:
    """The bipartite part: which genes a reaction needs, and which metabolites it turns over.

    **Arguments:**

    - `gpr`: deleted type → reaction; a reaction is lost with any of its genes (`cascades`).
    - `stoichiometry`: reaction → metabolite, weighted by the signed stoichiometric coefficient.
    """

    gpr: Network
    stoichiometry: Network

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
    - `report`: what its reader kept and dropped, where it was read from files.
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
        for name, network in self.relations.items():
            if name != network.name:
                raise InputError(f"relation {name!r} holds a network called {network.name!r}")
            for end, number in ((network.source, network.num_sources), (network.target, network.num_targets)):
                if self.num_nodes.get(end) != number:
                    raise InputError(
                        f"network {name!r} counts {number} {end} nodes, the graph {self.num_nodes.get(end)}"
                    )

    @staticmethod
    def synthetic(
        scale: float = 1.0, seed: int = 0, *, self_loops: bool = False, metabolism: bool = True
    ) -> CellGraph:
        """Return a made-up yeast cell; `scale=1.0` has exactly the real numbers of nodes and edges.

        See `tclab.graph.synthetic.synthetic_graph`.
        """
        from tclab.graph.synthetic import synthetic_graph

        return synthetic_graph(scale, seed, self_loops=self_loops, metabolism=metabolism)

    @staticmethod
    def from_folder(path: str | Path) -> CellGraph:
        """Return the graph that a folder holds, of public files or from `to_folder`.

        See `tclab.readers.read_folder`.
        """
        from tclab.readers import read_folder  # the one room above that this one reaches, and only here

        return read_folder(path)

    def to_folder(self, path: str | Path) -> None:
        """Write this graph into a new folder, from which `from_folder` makes an equal one.

        See `tclab.graph.folder.write_graph`.
        """
        from tclab.graph.folder import write_graph

        write_graph(self, path)

    @staticmethod
    def from_edges(
        edges: Mapping[str, Tensor], *, num_nodes: int, node_type: str = "node", source: str = "given"
    ) -> CellGraph:
        """Return a graph of one node type from edge lists, each [2, E] int64."""
        networks = {
            name: Network(name, edge_index, node_type, node_type, num_nodes, num_nodes)
            for name, edge_index in edges.items()
        }
        return CellGraph({node_type: num_nodes}, networks, node_type, source=source)

    @staticmethod
    def from_hetero_data(data: HeteroData, *, deleted_type: str) -> CellGraph:
        """Return the graph of a PyG `HeteroData`; see `tclab.graph.hetero_data`."""
        from tclab.graph.hetero_data import from_hetero_data

        return from_hetero_data(data, deleted_type=deleted_type)

    def to_hetero_data(self) -> HeteroData:
        """Return this graph as a PyG `HeteroData`; see `tclab.graph.hetero_data`."""
        from tclab.graph.hetero_data import to_hetero_data

        return to_hetero_data(self)

    @property
    def networks(self) -> dict[str, Network]:
        """The relations within the deleted type, in order: the edge types that a sweep counts."""
        kind = self.deleted_type
        return {name: n for name, n in self.relations.items() if n.source == kind == n.target}

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
        own = self.networks
        names = chosen(networks, list(own))
        rest = {name: n for name, n in self.relations.items() if name not in own}
        return self.with_relations({**{name: own[name] for name in names}, **rest})

    def without_metabolism(self) -> CellGraph:
        """Return this graph with its networks only."""
        return self.with_relations(self.networks)

    def with_self_loops(self) -> CellGraph:
        """Return this graph with one self-loop on every node of every network, as the original adds them.

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
            relations[name] = Network(
                name,
                torch.cat([network.edge_index, missing.expand(2, -1)], dim=1),
                network.source,
                network.target,
                network.num_sources,
                network.num_targets,
                weight=None if weight is None else torch.cat([weight, weight.new_ones(len(missing))]),
                directed=network.directed,
                report=network.report,
            )
        return self.with_relations(relations)

    def induced(self, nodes: Mapping[str, Tensor]) -> CellGraph:
        """Return the graph that is left when only some nodes are kept, relabelled in the order given.

        **Arguments:**

        - `nodes`: node type → [n] int64, distinct; types that are not named are kept whole.
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
            relations[name] = Network(
                name,
                torch.stack([source, target])[:, kept],
                network.source,
                network.target,
                num_nodes[network.source],
                num_nodes[network.target],
                weight=None if network.weight is None else network.weight[kept],
                cascades=network.cascades,
                directed=network.directed,
                edge_type=None if network.edge_type is None else network.edge_type[kept],
            )
        return CellGraph(num_nodes, relations, self.deleted_type, source=f"part of {self.source}")

    def closure(self, deleted: Tensor) -> dict[str, Tensor]:
        """Return what is lost with some nodes of the deleted type: node type → sorted ids, [n] int64.

        Relations that cascade are followed in the graph's order; types that lose nothing are there, empty.
        """
        lost = {kind: torch.empty(0, dtype=torch.int64) for kind in self.num_nodes}
        lost[self.deleted_type] = torch.unique(deleted)
        for network in self.relations.values():
            if network.cascades:
                targets = network.targets_of()
                parts = [targets.of(node) for node in lost[network.source].tolist()]
                lost[network.target] = torch.unique(torch.cat([lost[network.target], *parts]))
        return lost

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
        return CellGraph(
            self.num_nodes, dict(relations), self.deleted_type, self.node_names, self.source, self.report
        )

    def __repr__(self) -> str:
        nodes = ", ".join(f"{number:,} {kind}" for kind, number in self.num_nodes.items())
        return f"CellGraph({self.source}: {nodes}; {len(self.networks)} networks, {self.num_edges:,} edges)"


def chosen(networks: int | Iterable[str], names: Sequence[str]) -> list[str]:
    """Return which of a graph's networks are meant: the first n of their names, or those named.

    **Raises:** `InputError` for a number that is too small or too large, an unknown name, or a name given twice.
    """
    if isinstance(networks, int):
        if isinstance(networks, bool) or not 1 <= networks <= len(names):
            raise InputError(f"networks is {networks!r}, expected 1 to {len(names)} or names of networks")
        return list(names[:networks])
    wanted = list(networks)
    for name in wanted:
        if name not in names:
            raise unknown("network", name, names)
    if not wanted or len(set(wanted)) < len(wanted):
        raise InputError(f"networks is {wanted!r}, expected one or more names, none of them twice")
    return wanted
