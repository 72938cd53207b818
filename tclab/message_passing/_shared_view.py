"""The view that shares one sparse matrix among all samples: K·A·(K·X), without copying or masking edges.

Deleting nodes needs no edge mask. An edge counts where both its ends are kept, `mask[e] = keep[source] ·
keep[target]`, so the masked neighbour sum is `K·A·(K·X)`: A is the whole graph's adjacency, the same for all
samples, and K zeroes the rows of deleted nodes, at every layer. The features of B samples are the columns of one dense
matrix [N, B·H], so the sum is one sparse-dense product; on a CPU, one product for every few samples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.message_passing._edge_list_view import pool_grid
from tclab.message_passing._row_layout import Order
from tclab.message_passing._view import View
from tclab.message_passing.kernels._row_ops import without, zero_rows
from tclab.message_passing.kernels._shared_sums import Link, shared_sums
from tclab.message_passing.kernels._spmm import Csr
from tclab.perturbation import Deletions
from tclab.timing._layer_marks import mark


def link_of(network: Network, dtype: torch.dtype, *, transpose: bool = False) -> Link:
    """Return a network's matrix and its transpose as the sums take them."""
    there, back = (Csr(*network.csr_parts(dtype=dtype, transpose=t)) for t in (transpose, not transpose))
    return Link(there, back)


class SharedView(View):
    """Samples side by side over one sparse matrix: rows as `Order` has them, deleted rows kept as zeros.

    **Arguments:**

    - `graph`: on the device.
    - `removed`: node type → the deleted nodes of each sample, closed over dependants, on the device.
    - `dense`: relations whose sums are products with a dense matrix. Such a product does 1 / density times the
      work of a sparse one, at a rate that tensor cores make up for once a few edges in a thousand are there. Zeros
      and ones are exact in every dtype. It holds N² numbers a relation.
    """

    def __init__(self, graph: CellGraph, removed: Mapping[str, Deletions], *, dense: Collection[str] = ()) -> None:
        super().__init__(graph, removed[graph.deleted_type])
        self.removed = removed
        self.dense = dense
        self.order = Order.on(self.deleted.ptr.device, self.size)
        self._rows = {
            kind: self.order.rows(deletions.nodes, deletions.samples(), graph.num_nodes[kind])
            for kind, deletions in removed.items()
        }
        self._keep: dict[str, Tensor] | None = None
        self._degrees: dict[tuple[str, bool], Tensor] = {}

    @property
    def keep(self) -> dict[str, Tensor]:
        """Which rows are left: node type → [N * B] bool."""
        if self._keep is None:
            self._keep = {
                kind: without(self._rows[kind], number * self.size) for kind, number in self.graph.num_nodes.items()
            }
        return self._keep

    def lift(self, x: Tensor, node_type: str | None = None) -> Tensor:
        """Return one row for each (node, sample) pair, [N * B, H]."""
        return self.order.lift(x)

    def neighbour_sum(
        self, relation: str, x: Tensor, *, transpose: bool = False, self_weight: Tensor | None = None
    ) -> Tensor:
        """Return the sum over kept edges into each row: K·A·(K·X)."""
        weights = None if self_weight is None else self_weight.to(x.dtype)
        (summed,) = self._sums([relation], x, transpose, weights)
        return summed

    def neighbour_sums(
        self, relations: Sequence[str], x: Tensor, *, self_weights: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Return the sums over several relations, whose gradients are added up in one tensor."""
        sums = self._sums(relations, x, False, torch.cat(list(self_weights)).to(x.dtype))
        return [mark("neighbour sums", summed) for summed in sums]

    def _sums(self, relations: Sequence[str], x: Tensor, transpose: bool, weights: Tensor | None) -> Sequence[Tensor]:
        if torch.is_autocast_enabled(x.device.type):  # a norm gives float32 there, twice what is to be gathered
            x = x.to(torch.get_autocast_dtype(x.device.type))
            weights = None if weights is None else weights.to(x.dtype)
        links, removed, source = [], [], self.graph.deleted_type
        found: dict[int, Tensor] = {}
        masked: dict[str, Tensor] = {}
        for place, name in enumerate(relations):
            network = self._relation(name)
            source, target = network.source, network.target
            if transpose:
                source, target = target, source
            if name in self.dense:
                if source not in masked:
                    masked[source] = zero_rows(x, self._rows[source])
                weight = None if weights is None else weights[place]
                summed = dense_sum(network, masked[source], self.order, transpose=transpose, self_weight=weight)
                found[place] = zero_rows(summed, self._rows[target], in_place=True)
                continue
            links.append(link_of(network, x.dtype, transpose=transpose))
            removed.append(self._rows[target])
        if not links:
            return [found[place] for place in range(len(relations))]
        if found and weights is not None:
            weights = torch.stack([weights[place] for place in range(len(relations)) if place not in found])
        summed_sparse = iter(
            shared_sums(
                x,
                links,
                self.size,
                group=self.order.group,
                self_weights=weights,
                source_removed=self._rows[source],
                target_removed=removed,
            )
        )
        return [found[place] if place in found else next(summed_sparse) for place in range(len(relations))]

    def degree(self, relation: str, *, transpose: bool = False) -> Tensor:
        """Return how many kept edges go into each row, [R_target] float32; counted once."""
        network = self._relation(relation).unweighted()
        source, target = network.source, network.target
        if transpose:
            source, target = target, source
        if (relation, transpose) not in self._degrees:
            if self._rows[source].numel() == self._rows[target].numel() == 0:
                counted = self.lift(network.degree(transpose=transpose).unsqueeze(1))
            else:
                kept = self.keep[source].float().unsqueeze(1)
                links = [link_of(network, torch.float32, transpose=transpose)]
                (counted,) = shared_sums(
                    kept, links, self.size, group=self.order.group, target_removed=[self._rows[target]]
                )
            self._degrees[relation, transpose] = counted.squeeze(1)
        return self._degrees[relation, transpose]

    def pool(self, scores: Tensor, values: Tensor) -> Tensor:
        """Return the softmax-weighted sum over what is left of each sample, [B, H]."""
        kind = self.graph.deleted_type
        grids = zip(*(self.order.grids(x) for x in (scores.squeeze(1), values, self.keep[kind])), strict=True)
        return torch.cat([pool_grid(*(part.transpose(0, 1) for part in grid)) for grid in grids])

    @property
    def wild_type(self) -> View:
        """One copy of the graph with nothing deleted."""
        nothing = Deletions.nothing(1, device=self.graph.device)
        return SharedView(self.graph, dict.fromkeys(self.graph.num_nodes, nothing), dense=self.dense)

    def with_wild_type(self) -> Sequence[View]:
        """Return one view of B + 1 copies, the wild type first: one product serves them all."""
        first = {k: Deletions(d.nodes, torch.cat([d.ptr[:1], d.ptr]), d.most) for k, d in self.removed.items()}
        return [SharedView(self.graph, first, dense=self.dense)]

    def first(self, x: Tensor) -> Tensor:
        """Return the first sample's rows, [N, H]; that sample must delete nothing."""
        return self.order.grids(x)[0][:, 0]


def dense_sum(
    network: Network, x: Tensor, order: Order, *, transpose: bool = False, self_weight: Tensor | None = None
) -> Tensor:
    """Return A·X (+ w·X) by a dense product, for `x: [N_source * B, H]` in an order; see `SharedView`."""
    device = x.device.type
    # autocast would cast each matrix in every product
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    matrix = network.dense(dtype=dtype)
    matrix = matrix.t() if transpose else matrix
    parts = [(matrix @ grid.flatten(1).to(dtype)).view(-1, x.size(1)) for grid in order.grids(x)]
    summed = parts[0] if len(parts) == 1 else torch.cat(parts)
    return summed if self_weight is None else torch.addcmul(summed, x.to(dtype), self_weight.to(dtype))
