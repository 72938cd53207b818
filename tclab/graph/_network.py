"""A named relation of the graph, with its sparse matrices and indices, each made once."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from tclab._display import Display, Shown
from tclab.errors import InputError, check_whole

T = TypeVar("T")


class Rows(NamedTuple):
    """Lists of integers, one a node, end to end: node `i` owns `items[ptr[i]:ptr[i + 1]]`."""

    ptr: Tensor  # [N + 1] int64
    items: Tensor  # [sum of lengths] int64

    def of(self, node: int) -> Tensor:
        """Return the items of one node, [length] int64."""
        return self.items[int(self.ptr[node]) : int(self.ptr[node + 1])]


def _rows(keys: Tensor, items: Tensor, num_nodes: int) -> Rows:
    order = torch.argsort(keys, stable=True)
    ptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(keys, minlength=num_nodes), 0, out=ptr[1:])
    return Rows(ptr, items[order])


MOST_NODES = 2**31 - 1  # sparse matrices have int32 indices
_OF_EDGES = ("edge_index", "weight", "edge_type")  # tensors whose last dimension is the edges


@dataclass(frozen=True, eq=False, repr=False)
class Network(Shown):
    """One relation from nodes of a source type to nodes of a target type.

    **Arguments:**

    - `name`: unique within its graph.
    - `edge_index`: [2, E] int64; row 0 the sources, row 1 the targets. Kept sorted by (source, target);
      self-loops and duplicate edges are allowed, and each duplicate counts.
    - `source`, `target`: node types, and `num_sources`, `num_targets`: how many nodes of each there are.
    - `weight`: [E] float64, what an edge multiplies its message by; `None` means 1.
    - `cascades`: the target node is removed as soon as one of its sources is (a reaction whose rule
      needs the gene).
    - `edge_type`: [E] int64, which of several merged networks an edge comes from; see `Point`'s `variant`.
    - `directed`: False where each undirected edge is stored once, in one direction, in which alone messages pass.
    - `report`: what its reader kept and dropped; `None` for a network that was not read from a file.
    """

    name: str
    edge_index: Tensor
    source: str
    target: str
    num_sources: int
    num_targets: int
    weight: Tensor | None = None
    cascades: bool = False
    directed: bool = True
    report: Any = None
    edge_type: Tensor | None = None
    _cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def _display(self) -> Display:
        notes = [] if self.report is None else [str(self.report)]
        if not self.directed:
            notes.append("Undirected: each edge is stored once, and messages pass from its first node to its second.")
        return Display(
            f"Network({self.name}: {self.source} → {self.target}, {self.num_edges:,} edges)", notes=tuple(notes)
        )

    def __post_init__(self) -> None:
        edges = self.edge_index
        if not isinstance(edges, Tensor):
            raise InputError(f"network {self.name!r}: edge_index is a {type(edges).__name__}, expected a tensor [2, E]")
        for number, end in ((self.num_sources, self.source), (self.num_targets, self.target)):
            check_whole(f"network {self.name!r}: its {end} nodes are", number, most=MOST_NODES)
        if edges.dim() != 2 or edges.size(0) != 2:
            raise InputError(f"network {self.name!r}: edge_index is {list(edges.shape)}, expected [2, E]")
        if edges.dtype != torch.int64:
            raise InputError(f"network {self.name!r}: edge_index is {edges.dtype}, expected torch.int64")
        if self.weight is not None and list(self.weight.shape) != [edges.size(1)]:
            raise InputError(f"network {self.name!r}: weight is {list(self.weight.shape)}, expected [{edges.size(1)}]")
        if self.weight is not None and not bool(self.weight.isfinite().all()):
            edge = int(self.weight.isfinite().logical_not().nonzero()[0])
            found = f"the weight of edge {edge} is {float(self.weight[edge])}"
            raise InputError(f"network {self.name!r}: {found}, expected a finite number")
        if self.edge_type is not None and (
            list(self.edge_type.shape) != [edges.size(1)] or self.edge_type.dtype != torch.int64
        ):
            raise InputError(
                f"network {self.name!r}: edge_type is {list(self.edge_type.shape)} {self.edge_type.dtype}, "
                f"expected [{edges.size(1)}] torch.int64"
            )
        for row, limit, end in ((0, self.num_sources, self.source), (1, self.num_targets, self.target)):
            if edges.size(1) and (int(edges[row].min()) < 0 or int(edges[row].max()) >= limit):
                worst = int(edges[row].min()) if int(edges[row].min()) < 0 else int(edges[row].max())
                raise InputError(f"network {self.name!r}: index {worst} is outside the {limit} {end} nodes")
        key = edges[0] * max(self.num_targets, 1) + edges[1]
        if edges.size(1) > 1 and bool((key[1:] < key[:-1]).any()):
            order = torch.argsort(key, stable=True)
            for name in _OF_EDGES:
                if (tensor := getattr(self, name)) is not None:
                    object.__setattr__(self, name, tensor[..., order])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}}  # what can be made again does not travel to a worker

    @property
    def num_edges(self) -> int:
        """How many edges there are, duplicates and self-loops counted."""
        return self.edge_index.size(1)

    def _cached(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self._cache:
            self._cache[key] = make()
        made: T = self._cache[key]
        return made

    def to(self, device: torch.device | str) -> Network:
        """Return this network with its tensors on `device`; the copy is made once."""
        device = torch.device(device)
        if self.edge_index.device == device:
            return self

        def moved() -> Network:
            return self._copy(**{name: t if (t := getattr(self, name)) is None else t.to(device) for name in _OF_EDGES})

        return self._cached(("to", device), moved)

    def _copy(self, **changes: Any) -> Network:
        """Return this network with other fields that need no check; on a device a check makes the host wait."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, _cache={}, **changes)
        return copy

    def csr_parts(self, *, dtype: torch.dtype, transpose: bool = False) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return the adjacency [targets, sources] in CSR, or its transpose, as plain tensors; made once.

        Duplicate edges are added into one entry, as a CSR matrix must hold each position once.

        **Returns:** the row pointers, the column indices, the values, and how many columns there are.
        """

        def made() -> tuple[Tensor, Tensor, Tensor, int]:
            source, target = self.edge_index
            rows, columns = (source, target) if transpose else (target, source)
            shape = (self.num_sources, self.num_targets) if transpose else (self.num_targets, self.num_sources)
            key = rows * max(shape[1], 1) + columns
            unique, place = torch.unique(key, return_inverse=True)
            weight = self.weight if self.weight is not None else torch.ones_like(key, dtype=torch.float64)
            values = torch.zeros_like(unique, dtype=torch.float64).index_add_(0, place, weight)
            rows = torch.div(unique, max(shape[1], 1), rounding_mode="floor")
            crow = torch.zeros(shape[0] + 1, dtype=torch.int64, device=key.device)
            torch.cumsum(torch.bincount(rows, minlength=shape[0]), 0, out=crow[1:])
            # int32, as MKL takes no other and half the bytes of int64 are read
            col = (unique % max(shape[1], 1)).to(torch.int32)
            return crow.to(torch.int32), col, values.to(dtype), shape[1]

        return self._cached(("csr", dtype, transpose), made)

    def csr(self, *, dtype: torch.dtype, transpose: bool = False) -> Tensor:
        """Return the adjacency as a sparse CSR matrix [targets, sources], or its transpose; see `csr_parts`."""
        crow, col, values, columns = self.csr_parts(dtype=dtype, transpose=transpose)
        size = (crow.numel() - 1, columns)
        with warnings.catch_warnings():  # torch says once a process that CSR is in beta
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(crow, col, values, size=size, check_invariants=False)

    def dense(self, *, dtype: torch.dtype) -> Tensor:
        """Return the adjacency as a dense matrix [targets, sources]; made once."""
        return self._cached(("dense", dtype), lambda: self.csr(dtype=dtype).to_dense())

    def unweighted(self) -> Network:
        """Return this network with every edge counting 1; made once."""
        return self if self.weight is None else self._cached("unweighted", lambda: self._copy(weight=None))

    def degree(self, *, transpose: bool = False) -> Tensor:
        """Return how many edges go into each target node, or out of each source, [N] float32."""

        def made() -> Tensor:
            ends = self.edge_index[0 if transpose else 1]
            return torch.bincount(ends, minlength=self.num_sources if transpose else self.num_targets).float()

        return self._cached(("degree", transpose), made)

    def targets_of(self) -> Rows:
        """Return each source node's targets, on the CPU."""
        return self._cached(
            "targets_of", lambda: _rows(self.edge_index[0].cpu(), self.edge_index[1].cpu(), self.num_sources)
        )

    def incidence(self, node_type: str) -> Rows:
        """Return the ids of the edges that touch each node of a type, on this network's device.

        An edge within one type belongs to both its ends, a self-loop to its node once.
        """
        if node_type not in (self.source, self.target):
            raise InputError(f"network {self.name!r} joins {self.source} and {self.target}, not {node_type!r}")

        def made() -> Rows:
            source, target = self.edge_index.cpu()
            ids = torch.arange(self.num_edges)
            if self.source == self.target:
                other = source != target
                keys, ids = torch.cat([source, target[other]]), torch.cat([ids, ids[other]])
            else:
                keys = source if node_type == self.source else target
            number = self.num_sources if node_type == self.source else self.num_targets
            rows = _rows(keys, ids, number)
            return Rows(rows.ptr.to(self.edge_index.device), rows.items.to(self.edge_index.device))

        return self._cached(("incidence", node_type), made)

    def fingerprint(self) -> str:
        """Return a hash of the name, the types and every edge, so that a store made for it can be checked."""

        def made() -> str:
            digest = hashlib.sha256()
            digest.update(f"{self.name}|{self.source}|{self.target}|{self.cascades}".encode())
            digest.update(f"{self.num_sources}|{self.num_targets}".encode())
            digest.update(self.edge_index.cpu().contiguous().numpy().tobytes())
            if self.weight is not None:
                digest.update(self.weight.cpu().numpy().tobytes())
            if self.edge_type is not None:
                digest.update(self.edge_type.cpu().numpy().tobytes())
            return digest.hexdigest()

        return self._cached("fingerprint", made)


class Networks(Shown, dict[str, Network]):
    """Networks by name, in order."""

    def _display(self) -> Display:
        lines = [(name, f"{n.source} → {n.target}", f"{n.num_edges:,}") for name, n in self.items()]
        return Display(columns=("network", "nodes", "edges"), lines=lines)
