"""The view that holds every sample's edges one by one: gather, mask, scatter, as PyG's convolutions do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from tclab.graph._cell_graph import CellGraph
from tclab.message_passing._pools import pool_grid, pool_ragged
from tclab.message_passing._view import View
from tclab.message_passing.kernels._row_ops import add_rows, in_float32, keep_mask, summable, take_rows
from tclab.perturbation import Deletions


@dataclass(frozen=True)
class EdgeList:
    """One relation's edges in every sample."""

    edge_index: Tensor  # [2, E] int64, ends are rows of all samples, not nodes
    mask: Tensor | None = None  # [E] bool, which of them count; None where all do
    weight: Tensor | None = None  # [E] float64; None where all are 1


class EdgeListView(View):
    """Samples one after the other, each with its own rows and its own list of edges.

    **Arguments:**

    - `graph`, `on_close`: of every `View`.
    - `removed`: node type → what each sample removes, on the graph's device.
    - `edges`: relation → its edges, by rows.
    - `rows`: node type → the sample and the node of each row, [R] int64 each, where only nodes that are left have rows;
      unless given, every node of every sample has one, in order.
    """

    def __init__(
        self,
        graph: CellGraph,
        removed: Mapping[str, Deletions],
        edges: Mapping[str, EdgeList],
        *,
        rows: Mapping[str, tuple[Tensor, Tensor]] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(graph, removed[graph.deleted_type], on_close)
        self._edges = edges
        self._rows = rows
        if rows is None:
            self._keep = {k: keep_mask(removed[k].rows(n), n * self.size) for k, n in graph.num_nodes.items()}
        else:
            self._keep = {kind: torch.ones_like(nodes, dtype=torch.bool) for kind, (_, nodes) in rows.items()}

    @property
    def keep(self) -> dict[str, Tensor]:
        """Which rows are left: node type → [R] bool."""
        return self._keep

    def rows(self) -> list[tuple[int, int]]:
        """Return the sample and the node of each row of the deleted type."""
        kind = self.graph.deleted_type
        if self._rows is None:
            return list(product(range(self.size), range(self.graph.num_nodes[kind])))
        samples, nodes = self._rows[kind]
        return list(zip(samples.tolist(), nodes.tolist(), strict=True))

    def row_samples(self) -> Tensor:
        """Return the sample of each row of the deleted type, [R]; samples are one after the other."""
        kind = self.graph.deleted_type
        if self._rows is not None:
            return self._rows[kind][0]
        return torch.arange(self.size, device=self.graph.device).repeat_interleave(self.graph.num_nodes[kind])

    def lift(self, x: Tensor, node_type: str | None = None) -> Tensor:
        """Return one row for each (sample, node) pair; see `View.lift`."""
        if self._rows is None:
            return x.repeat(self.size, 1)
        return take_rows(x, self._rows[node_type or self.graph.deleted_type][1])

    def neighbour_sum(
        self, relation: str, x: Tensor, *, transpose: bool = False, self_weight: Tensor | None = None
    ) -> Tensor:
        """Return the sum over kept edges into each row, by gather, mask and scatter."""
        edges = self._edges[relation]
        source, target, rows = self._ends(relation, transpose)
        message = take_rows(summable(x) if edges.weight is None else in_float32(x), source)
        for factor in (edges.weight, edges.mask):
            if factor is not None:
                message = message * factor.unsqueeze(-1).to(message.dtype)
        summed = add_rows(message, target, rows, scatter=True)
        # autograd keeps `x` as it came, which all relations share, and not in float32
        return (summed if self_weight is None else summed + self_weight * x).to(x.dtype)

    def degree(self, relation: str, *, transpose: bool = False) -> Tensor:
        """Return how many kept edges go into each row, [R_target] float32."""
        _, target, rows = self._ends(relation, transpose)
        mask = self._edges[relation].mask
        one = torch.ones_like(target, dtype=torch.float32) if mask is None else mask.float()
        return add_rows(one, target, rows)

    def _ends(self, relation: str, transpose: bool) -> tuple[Tensor, Tensor, int]:
        """Return the row that each message comes from, [E], the row that it goes to, [E], and how many of these."""
        network = self._relation(relation)
        source, target = self._edges[relation].edge_index
        if transpose:
            return target, source, self._keep[network.source].numel()
        return source, target, self._keep[network.target].numel()

    def pool(self, scores: Tensor, values: Tensor) -> Tensor:
        """Return the softmax-weighted sum over what is left of each sample, [B, H]."""
        if self._rows is not None:
            return pool_ragged(scores, values, self.row_samples(), self.size)
        grid = (self.size, -1)
        keep = self._keep[self.graph.deleted_type].view(grid)
        return pool_grid(scores.view(grid), values.view(*grid, values.size(1)), keep)

    def emptied(self) -> Tensor:
        """Return which samples have no row of the deleted type, [B] bool."""
        return super().emptied() if self._rows is None else keep_mask(self.row_samples(), self.size)

    @property
    def wild_type(self) -> View:
        """One copy of the graph with nothing deleted."""
        graph = self.graph
        nothing = Deletions.nothing(1, device=graph.device)
        edges = {name: EdgeList(n.edge_index, weight=n.weight) for name, n in graph.relations.items()}
        return EdgeListView(graph, dict.fromkeys(graph.num_nodes, nothing), edges)

    def edges(self, relation: str) -> tuple[Tensor, Tensor | None]:
        """Return a relation's edges of rows, and which of them count."""
        self._relation(relation)
        return self._edges[relation].edge_index, self._edges[relation].mask

    def edge_weight(self, relation: str) -> Tensor | None:
        """Return the weights of a relation's edges, those that do not count among them; see `View.edge_weight`."""
        self._relation(relation)
        return self._edges[relation].weight
