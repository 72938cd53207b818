"""The one large graph that samples perturb: nodes by type and named relations between them."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tclab._display import counted
from tclab._io import atomic_write, cache_folder, keep, writing
from tclab._source import opened
from tclab.errors import InputError, check_known, check_whole, require, unknown
from tclab.graph._network import MOST_NODES, Network, Networks
from tclab.graph._synthetic_graph import synthetic_relations

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData


_FORMAT = "tclab graph 2"


class Metabolism(NamedTuple):
    """The bipartite part of a cell: which genes a reaction needs, and which metabolites it turns over."""

    gpr: Network  # deleted type → reaction; a reaction is removed with any of its genes (`cascades`)
    stoichiometry: Network  # reaction → metabolite, weighted by the signed stoichiometric coefficient


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
    source: str = "made in memory"
    report: Any = None

    def __post_init__(self) -> None:
        check_known("node type", self.num_nodes, self.deleted_type)
        for kind, n in self.num_nodes.items():
            check_whole(f"the graph's {kind} nodes are", n, most=MOST_NODES)
        for name, network in self.relations.items():
            if name != network.name:
                raise InputError(f"relation {name!r} holds a network called {network.name!r}")
            for kind, n in ((network.source, network.num_sources), (network.target, network.num_targets)):
                if self.num_nodes.get(kind) != n:
                    raise InputError(f"network {name!r} counts {n} {kind} nodes, the graph {self.num_nodes.get(kind)}")
        for kind, names in (self.node_names or {}).items():
            if not len({name for name in names if isinstance(name, str)}) == len(names) == self.num_nodes.get(kind):
                raise InputError(f"node_names has {len(names)} {kind} names, expected a text of its own for each node")

    @staticmethod
    def synthetic(scale: float = 1.0, seed: int = 0, *, metabolism: bool = True) -> CellGraph:
        """Return a synthetic yeast cell, the same for the same seed.

        Nodes grow with `scale` and edges with its square, so that density stays: `scale=1.0` has exactly the numbers
        of nodes and edges in `NETWORK_SIZES`. Degrees are as uneven as in the real networks, and directed networks
        start from few nodes. The metabolism's edges grow with its nodes: a reaction has few at every scale.

        **Arguments:**

        - `scale`: above 0; 0.05 has 330 genes and 6,060 edges.
        - `seed`: of the edges.
        - `metabolism`: with the bipartite part, or without.

        **Raises:** `InputError` for a scale that is not a positive number, or a seed below 0.
        """
        num_nodes, relations = synthetic_relations(scale, seed, metabolism=metabolism)
        return CellGraph(num_nodes, relations, "gene", source=f"synthetic, scale {scale:g}")

    @staticmethod
    def from_folder(path: str | Path) -> CellGraph:
        """Return the graph of the public files in a folder; see `tclab.readers.read_folder`.

        **Raises:** `ReadError`, an `InputError`, for a folder that has none, or a file that is not as expected.
        """
        graph: CellGraph = resolve_name("tclab.readers:read_folder")(path)  # by its name: readers import this module
        return graph

    @staticmethod
    def from_file(path: str | Path) -> CellGraph:
        """Return the graph that `save` wrote.

        **Raises:** `InputError` where there is no such file, or it holds something else, with file and cause.
        """
        with (
            opened(path, "a graph that CellGraph.save wrote", archive=True) as content,
            np.load(io.BytesIO(content), allow_pickle=False) as arrays,
        ):
            header = json.loads(str(arrays["header"]))
            if header.pop("format") != _FORMAT:
                raise ValueError(f"has another format than {_FORMAT!r}")
            relations = {}
            for i, fields in enumerate(header.pop("relations")):
                fields |= {name: torch.from_numpy(arrays[f"{i}/{name}"]) for name in fields.pop("tensors")}
                relations[fields["name"]] = Network(**fields)
            return CellGraph(relations=relations, **header)

    def save(self, path: str | Path) -> None:
        """Write this graph into a file (a NumPy `.npz`), from which `from_file` makes an equal one.

        Edges, weights, directions, names and order are kept; reports are not. A file that is there is replaced.

        **Raises:** `InputError` where the file cannot be written.
        """
        fields = ("name", "source", "target", "num_sources", "num_targets", "cascades", "directed")
        relations: list[dict[str, Any]] = []
        arrays: dict[str, Any] = {}
        for i, network in enumerate(self.relations.values()):
            tensors = network.tensors()
            relations.append({name: getattr(network, name) for name in fields} | {"tensors": list(tensors)})
            arrays |= {f"{i}/{name}": tensor.cpu().numpy() for name, tensor in tensors.items()}
        header = {
            "format": _FORMAT,
            "num_nodes": dict(self.num_nodes),
            "relations": relations,
            "deleted_type": self.deleted_type,
            "node_names": self.node_names and {kind: list(names) for kind, names in self.node_names.items()},
            "source": self.source,
        }
        arrays["header"] = np.array(json.dumps(header, default=int))  # counts may be NumPy's
        content = io.BytesIO()
        np.savez(content, **arrays)
        with writing("path", path):
            atomic_write(path, content.getvalue())

    @staticmethod
    def from_edges(edges: Mapping[str, Tensor], *, num_nodes: int, node_type: str = "node") -> CellGraph:
        """Return a graph of one node type from edge lists, each [2, E] int64.

        **Raises:** `InputError` for edges that are no such tensor, or a number of nodes that they do not fit.
        """
        require("edges", edges, Mapping, "a tensor [2, E] by the name of its network")
        sides = node_type, node_type, num_nodes, num_nodes
        networks = {name: Network(name, edge_index, *sides) for name, edge_index in edges.items()}
        return CellGraph({node_type: num_nodes}, networks, node_type)

    @staticmethod
    def from_hetero_data(data: HeteroData, *, deleted_type: str) -> CellGraph:
        """Return the graph of a PyG `HeteroData`.

        An edge type's relation name becomes the network's name; where several edge types share it, the name is
        `source__relation__target`. `edge_weight`, `cascades` and `directed` of an edge type are taken where they are
        there, and so are `names` of a node type.

        **Raises:** `InputError` for what is no `HeteroData`; where a node type has no count, or `deleted_type` is not
        one of its node types.
        """
        if not hasattr(data, "edge_types"):
            expected = "a HeteroData: data.to_heterogeneous() makes one of a Data"
            raise InputError(f"data is a {type(data).__name__}, expected {expected}")
        num_nodes: dict[str, int] = {}
        names: dict[str, list[str]] = {}
        for kind in data.node_types:
            n = data[kind].num_nodes
            if n is None:
                raise InputError(f"node type {kind!r} has neither features nor num_nodes, so it cannot be counted")
            num_nodes[kind] = int(n)
            if "names" in data[kind]:
                names[kind] = list(data[kind].names)
        shared = Counter(relation for _, relation, _ in data.edge_types)
        relations: dict[str, Network] = {}
        for source, relation, target in data.edge_types:
            store = data[source, relation, target]
            if "edge_index" not in store:
                raise InputError(f"edge type {(source, relation, target)} has no edge_index")
            for kind in {source, target} - num_nodes.keys():
                raise InputError(f"node type {kind!r} of {relation!r} is not counted: set data[{kind!r}].num_nodes")
            if "edge_attr" in store and "edge_weight" not in store:
                left_out = f"edge_attr of {relation!r} is left out: edge_weight holds an edge's weight"
                warnings.warn(left_out, stacklevel=2)
            name = relation if shared[relation] == 1 else f"{source}__{relation}__{target}"
            edges, sizes = store.edge_index.long(), (num_nodes[source], num_nodes[target])
            flags = {flag: bool(store[flag]) for flag in ("cascades", "directed") if flag in store}
            relations[name] = Network(name, edges, source, target, *sizes, store.get("edge_weight"), **flags)
        return CellGraph(num_nodes, relations, deleted_type, names or None, source="HeteroData")

    @property
    def networks(self) -> Networks:
        """The relations within the deleted type, in order: the edge types that a sweep counts."""
        kind = self.deleted_type
        return Networks({name: n for name, n in self.relations.items() if n.source == kind == n.target})

    @property
    def num_edges(self) -> int:
        """How many edges the networks have in all; the bipartite part is not counted."""
        return sum(network.num_edges for network in self.networks.values())

    @property
    def device(self) -> torch.device:
        """Where the tensors are; the CPU for a graph with no relation."""
        return next((network.edge_index.device for network in self.relations.values()), torch.device("cpu"))

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

    def induced(self, nodes: Mapping[str, Tensor]) -> CellGraph:
        """Return the subgraph that some nodes induce, relabelled in the order given.

        **Arguments:**

        - `nodes`: node type → [n] int64, distinct; all nodes of a type that is not named are kept.
        """
        num_nodes = {**self.num_nodes, **{kind: len(kept) for kind, kept in nodes.items()}}
        new_ids = {kind: torch.arange(n) for kind, n in self.num_nodes.items()}  # -1 for a node that goes
        for kind, kept in nodes.items():
            new_ids[kind] = torch.full_like(new_ids[kind], -1).scatter_(0, kept, torch.arange(len(kept)))
        relations = {}
        for name, network in self.relations.items():
            source, target = network.edge_index
            edge_index = torch.stack([new_ids[network.source][source], new_ids[network.target][target]])
            kept = (edge_index >= 0).all(dim=0)
            weight = None if network.weight is None else network.weight[kept]
            sizes: Any = {"num_sources": num_nodes[network.source], "num_targets": num_nodes[network.target]}
            relations[name] = replace(network, edge_index=edge_index[:, kept], weight=weight, report=None, **sizes)
        names = dict(self.node_names or {})
        for kind in names.keys() & nodes.keys():
            names[kind] = [names[kind][node] for node in nodes[kind].tolist()]
        return CellGraph(num_nodes, relations, self.deleted_type, names or None, f"part of {self.source}")

    def to(self, device: torch.device | str) -> CellGraph:
        """Return this graph with its tensors on `device`; each network is copied there once.

        **Raises:** `InputError` for a device that torch does not know, or does not find here.
        """
        _check_device(device)
        return self.with_relations({name: network.to(device) for name, network in self.relations.items()})

    def release(self, device: torch.device | str) -> None:
        """Let go of the copies that `to` made on a device, and of all that was made of them there."""
        for network in self.relations.values():
            network.release(device)

    def fingerprint(self) -> str:
        """Return a hash of every node count and edge."""
        parts = [self.deleted_type, *(f"{kind}={n}" for kind, n in self.num_nodes.items())]
        parts += [network.fingerprint() for network in self.relations.values()]
        return hashlib.sha256("|".join(parts).encode()).hexdigest()

    def with_relations(self, relations: Mapping[str, Network]) -> CellGraph:
        """Return this graph with other relations between the same nodes."""
        return CellGraph(self.num_nodes, dict(relations), self.deleted_type, self.node_names, self.source, self.report)

    def __repr__(self) -> str:
        nodes = ", ".join(f"{n:,} {kind}" for kind, n in self.num_nodes.items())
        weighted = sum(network.weight is not None for network in self.networks.values())
        networks = counted(len(self.networks), "network") + f", {weighted} of them weighted" * bool(weighted)
        return f"CellGraph({nodes} nodes; {networks}, {self.num_edges:,} edges; {self.source})"


def _check_device(device: torch.device | str) -> None:
    try:
        wanted = torch.device(device)
        # "meta" has sizes alone, and so no module that counts devices
        count = 1 if wanted.type == "meta" else torch.get_device_module(wanted).device_count()
    except (TypeError, RuntimeError):
        raise unknown("device", device, ("cpu", "cuda")) from None
    if wanted.type != "cpu" and (wanted.index or 0) >= count:
        found = f"torch {torch.__version__} finds {counted(count, f'{wanted.type} device')} here"
        lower = f"a number below {count}, or " if count else ""
        raise InputError(f"device is '{wanted}', and {found}; expected {lower}'cpu'")


def keep_graph(graph: CellGraph, folder: str | Path | None = None) -> str:
    """Return the file within `folder`, or the cache, that holds a graph, written there unless it is there already.

    For a point, whose processes read the graph; it is named by the graph's fingerprint.
    """
    folder = cache_folder() / "graphs" if folder is None else Path(folder)
    return keep(folder / f"graph-{graph.fingerprint()[:12]}.npz", graph.save)


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
        check_known("network", names, name)
    if not wanted or len(set(wanted)) < len(wanted):
        raise InputError(f"networks is {wanted!r}, expected one or more names, none of them twice")
    return wanted
