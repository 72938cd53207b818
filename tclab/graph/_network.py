"""A named relation of the graph, with its sparse matrices and indices, each made once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tclab._display import Display, Shown
from tclab.errors import InputError, check_whole, require
from tclab.graph._csr import Groups, MadeOnce, SparseMatrix, group, matrix_of, name_of, plain_tensors

MOST_NODES = 2**31 - 1  # sparse matrices have int32 indices


def check_edges(
    here: str, edge_index: Tensor, sides: Sequence[tuple[str, int]], weight: Tensor | None = None
) -> Tensor | None:
    """Return `weight: [E]` in float64, or `None`, of edges that are as they should be.

    **Arguments:**

    - `here`: what to call them in an error.
    - `edge_index`: [2, E] int64.
    - `sides`: the type and the number of the sources, and of the targets.

    **Raises:** `InputError` for tensors of other shapes or types, nodes that there are not, or a weight that is not
    finite.
    """
    require(f"{here}edge_index", edge_index, Tensor, "a tensor [2, E]")
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.dtype != torch.int64:
        raise InputError(f"{here}edge_index is {list(edge_index.shape)} {edge_index.dtype}, expected [2, E] int64")
    if edge_index.device.type == "meta":
        raise InputError(f"{here}edge_index is on the device meta, which has no values; expected the edges themselves")
    for nodes, (kind, n) in zip(edge_index, sides, strict=True):
        check_whole(f"{here}its {kind} nodes are", n, most=MOST_NODES)
        outside = nodes[(nodes < 0) | (nodes >= n)]
        if len(outside):
            raise InputError(f"{here}index {int(outside[0])} is not among the {n} nodes of type {kind!r}")
    if weight is None:
        return None
    require(f"{here}weight", weight, Tensor, f"a tensor [{edge_index.size(1)}]")
    if list(weight.shape) != [edge_index.size(1)]:
        raise InputError(f"{here}weight is {list(weight.shape)}, expected [{edge_index.size(1)}]")
    if weight.is_complex():
        raise InputError(f"{here}weight is {weight.dtype}, expected real numbers")
    if weight.requires_grad:
        raise InputError(f"{here}weight requires a gradient, expected constants: scale x or the sum instead")
    not_finite = torch.nonzero(~weight.isfinite()).flatten()
    if len(not_finite):
        edge = int(not_finite[0])
        raise InputError(f"{here}the weight of edge {edge} is {float(weight[edge])}, expected a finite number")
    return weight.to(torch.float64)


@dataclass(frozen=True, eq=False, repr=False)
class Network(Shown, MadeOnce):
    """One relation from nodes of a source type to nodes of a target type.

    **Arguments:**

    - `name`: unique within its graph.
    - `edge_index`: [2, E] int64; row 0 the sources, row 1 the targets. Kept sorted by (source, target);
      self-loops and duplicate edges are allowed, and each duplicate counts.
    - `source`, `target`: node types, and `num_sources`, `num_targets`: how many nodes of each there are.
    - `weight`: [E], kept as float64; what an edge multiplies its message by. `None` means 1.
    - `cascades`: the target node is removed as soon as one of its sources is (a reaction whose rule
      needs the gene).
    - `directed`: False where each undirected edge is stored once, in one direction, in which alone messages pass.
    - `report`: what its reader kept and dropped; `None` for a network that was not read from a file.

    **Raises:** `InputError` for tensors of other shapes or types, nodes that there are not, or a weight that is not
    finite.
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

    def _display(self) -> Display:
        notes = [] if self.report is None else [str(self.report)]
        if not self.directed:
            notes.append("Undirected: each edge is stored once, and messages pass from its first node to its second.")
            notes.append("To pass them both ways, with an edge's weight on each: in_both_directions().")
        title = f"Network({self.name}: {self.source} → {self.target}, {self.num_edges:,} edges)"
        return Display(title, notes=notes)

    def __post_init__(self) -> None:
        sides = (self.source, self.num_sources), (self.target, self.num_targets)
        weight = check_edges(f"network {self.name!r}: ", self.edge_index, sides, self.weight)
        object.__setattr__(self, "weight", weight)
        key = self.edge_index[0] * self.num_targets + self.edge_index[1]  # sorts by source, then by target
        if bool((key[1:] < key[:-1]).any()):
            order = torch.argsort(key, stable=True)
            for name, tensor in self.tensors().items():
                object.__setattr__(self, name, tensor[..., order])

    def tensors(self) -> dict[str, Tensor]:
        """Return `edge_index`, and `weight` where there is one; the last dimension is the edges."""
        weight = {} if self.weight is None else {"weight": self.weight}
        return {"edge_index": self.edge_index, **weight}

    @property
    def num_edges(self) -> int:
        """How many edges there are, duplicates and self-loops counted."""
        return self.edge_index.size(1)

    def to(self, device: torch.device | str) -> Network:
        """Return this network with its tensors on `device`; the copy is made once."""
        device = torch.device(device)
        if self.edge_index.device == device:
            return self
        return self.made_once(Network._on, device)

    def _on(self, device: torch.device) -> Network:
        return self._copy(**{name: tensor.to(device) for name, tensor in self.tensors().items()})

    def release(self, device: torch.device | str) -> None:
        """Let go of the copy that `to` made on a device."""
        vars(self).pop(name_of(Network._on, torch.device(device)), None)

    def _copy(self, **changes: Any) -> Network:
        """Return this network with other fields that need no check; on a device a check makes the host wait."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__getstate__(), **changes)
        return copy

    def matrix(self, dtype: torch.dtype, *, transpose: bool = False) -> SparseMatrix:
        """Return the adjacency [targets, sources], or its transpose, with values in a dtype; made once.

        A duplicate edge is an entry of its own. Values are left out where all are 1.
        """
        matrix = self.made_once(Network._matrix, None if self.weight is None else dtype)
        return matrix.transpose() if transpose else matrix

    def _matrix(self, dtype: torch.dtype | None) -> SparseMatrix:
        weight = None if self.weight is None or bool((self.weight == 1).all()) else self.weight.to(dtype)
        return matrix_of(self.edge_index, self.num_sources, self.num_targets, weight)

    def dense(self, *, dtype: torch.dtype) -> Tensor:
        """Return the adjacency as a dense matrix [targets, sources]; made once."""
        return self.made_once(Network._dense, dtype)

    def _dense(self, dtype: torch.dtype) -> Tensor:
        source, target = self.edge_index
        values = torch.ones_like(source, dtype=dtype) if self.weight is None else self.weight.to(dtype)
        matrix = values.new_zeros(self.num_targets, self.num_sources)
        return matrix.index_put_((target, source), values, accumulate=True)

    def unweighted(self) -> Network:
        """Return this network with every edge counting 1; made once."""
        return self if self.weight is None else self.made_once(Network._unweighted)

    def _unweighted(self) -> Network:
        return self._copy(weight=None)

    def stacked(self, others: Sequence[Network], dtype: torch.dtype) -> SparseMatrix:
        """Return the adjacencies of this network and of others between the same nodes as one matrix; made once.

        It is [K · targets, sources] for K networks, those of one after those of the other: a product with it is all of
        theirs.
        """
        made: dict[Any, SparseMatrix] = vars(self).setdefault("_made_stacks", {})
        if (key := (dtype, *others)) not in made:
            networks, n = (self, *others), self.num_targets
            with plain_tensors(self.edge_index):
                targets = torch.cat([each.edge_index[1] + i * n for i, each in enumerate(networks)])
                edge_index = torch.stack([torch.cat([each.edge_index[0] for each in networks]), targets])
                weights = [each.edge_index[0] * 0 + 1 if each.weight is None else each.weight for each in networks]
                stack = self._copy(edge_index=edge_index, weight=torch.cat(weights), num_targets=n * len(networks))
                made[key] = stack._matrix(dtype)
        return made[key]

    def in_both_directions(self) -> Network:
        """Return an undirected network with each edge in both directions, with its one weight; a self-loop once.

        Its `report.edge_of_row` has the two edges that each row of an edge list became.

        **Raises:** `InputError` for a directed network.
        """
        if self.directed:
            raise InputError(f"network {self.name!r} is directed, expected one whose edges are stored once")
        other = self.edge_index[0] != self.edge_index[1]
        edges = torch.cat([self.edge_index, self.edge_index[:, other].flip(0)], dim=1)
        weight = None if self.weight is None else torch.cat([self.weight, self.weight[other]])
        report, of_row = self.report, getattr(self.report, "edge_of_row", None)
        if of_row is not None:
            order = torch.argsort(edges[0] * self.num_targets + edges[1], stable=True)
            position = torch.argsort(order)  # of each edge in the new order
            both = torch.stack([position[: self.num_edges], position[: self.num_edges]])
            both[1, other] = position[self.num_edges :]
            # of rows that were dropped, -1
            report = replace(report, edge_of_row=torch.nn.functional.pad(both, (0, 1), value=-1)[:, of_row])
        return replace(self, edge_index=edges, weight=weight, directed=True, report=report)

    def incidence(self, node_type: str) -> Groups:
        """Return the ids of the edges that touch each node of a type, on this network's device; made once.

        An edge within one type belongs to both its ends, a self-loop to its node once.
        """
        return self.made_once(Network._incidence, node_type)

    def _incidence(self, node_type: str) -> Groups:
        source, target = self.edge_index.cpu()
        n = self.num_sources if node_type == self.source else self.num_targets
        nodes, edges = source if node_type == self.source else target, torch.arange(self.num_edges)
        if self.source == self.target:
            other = source != target
            nodes, edges = torch.cat([source, target[other]]), torch.cat([edges, edges[other]])
        ptr, order = group(nodes, n)
        device = self.edge_index.device
        return Groups(ptr.to(device), edges[order].to(device))

    def fingerprint(self) -> str:
        """Return a hash of the name, the types and every edge, so that a store made for it can be checked."""
        return self.made_once(Network._fingerprint)

    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        digest.update(f"{self.name}|{self.source}|{self.target}|{self.cascades}".encode())
        digest.update(f"{self.num_sources}|{self.num_targets}".encode())
        for tensor in self.tensors().values():
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


class Networks(Shown, dict[str, Network]):
    """Networks by name, in order."""

    def _display(self) -> Display:
        lines = [(name, f"{n.source} → {n.target}", f"{n.num_edges:,}") for name, n in self.items()]
        return Display(columns=("network", "nodes", "edges"), lines=lines)
