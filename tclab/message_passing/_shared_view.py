"""The view that shares one sparse matrix among all samples: K·A·(K·X), without copying or masking edges.

Deleting nodes needs no edge mask. An edge counts where both its ends are kept, `mask[e] = keep[source] ·
keep[target]`, so the masked neighbour sum is `K·A·(K·X)`: A is the whole graph's adjacency, the same for all
samples, and K zeroes the rows of deleted nodes, at every layer. Only the inner K is computed: a sum into a deleted node
has no meaning, and the next layer's K and `pool` leave it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from tclab.errors import require
from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.message_passing._pools import pool_grid
from tclab.message_passing._view import View
from tclab.message_passing.kernels._row_ops import keep_mask, kept_rows
from tclab.message_passing.kernels._spmm import spmm
from tclab.perturbation import Deletions


class SharedView(View):
    """Samples over one sparse matrix: rows [B·N], sample after sample, those of deleted nodes kept.

    **Arguments:**

    - `graph`: on the device.
    - `removed`: node type → the deleted nodes of each sample, closed over dependants, on the device.
    - `dense`: sum by products with dense matrices, N² numbers a relation. Such a product does 1 / density times the
      work of a sparse one, at a higher rate: on a CPU it is faster from about half of all possible edges on. Zeros and
      ones are exact in every dtype.
    """

    def __init__(self, graph: CellGraph, removed: Mapping[str, Deletions], *, dense: bool = False) -> None:
        every = "Deletions, as of every node type; Deletions.nothing(B) deletes none"
        for kind in graph.num_nodes:
            require(f"removed[{kind!r}]", removed.get(kind), Deletions, every)
        super().__init__(graph, removed[graph.deleted_type])
        self.removed = removed
        self.dense = dense
        self._rows = {kind: d.rows(graph.num_nodes[kind]) for kind, d in removed.items()}
        self._keep: dict[str, Tensor] | None = None
        self._degrees: dict[tuple[str, bool], Tensor] = {}

    @property
    def keep(self) -> dict[str, Tensor]:
        """Which rows are left: node type → [B·N] bool."""
        if self._keep is None:
            self._keep = {kind: keep_mask(self._rows[kind], n * self.size) for kind, n in self.graph.num_nodes.items()}
        return self._keep

    def lift(self, x: Tensor, node_type: str | None = None) -> Tensor:
        """Return one row for each (sample, node) pair, [B·N, H]."""
        return x.expand(self.size, -1, -1).flatten(0, 1)

    def neighbour_sum(
        self, relation: str, x: Tensor, *, transpose: bool = False, self_weight: Tensor | None = None
    ) -> Tensor:
        """Return the sum over kept edges into each row, A·(K·X); see `View.neighbour_sum`."""
        weights = None if self_weight is None else [self_weight]
        (summed,) = self._sums([relation], x, weights, transpose=transpose)
        return summed

    def neighbour_sums(
        self, relations: Sequence[str], x: Tensor, *, self_weights: Sequence[Tensor]
    ) -> Iterable[Tensor]:
        """Return the sums over several relations, whose gradients are added up in one tensor."""
        return self._sums(relations, x, self_weights)

    def _sums(
        self, relations: Sequence[str], x: Tensor, self_weights: Sequence[Tensor] | None, *, transpose: bool = False
    ) -> Sequence[Tensor]:
        networks = [self._relation(name) for name in relations]
        x = autocast(x).unflatten(0, (self.size, -1))
        kind = networks[0].target if transpose else networks[0].source
        keep = self.keep[kind].view(self.size, -1) if self._rows[kind].numel() else None
        weights = None if self_weights is None else torch.cat(list(self_weights)).to(x.dtype)
        if self.dense:
            x = kept_rows(x, keep)
            sums = [dense_sum(network, x, transpose=transpose) for network in networks]
            if weights is not None:
                sums = [torch.addcmul(summed, x, w) for summed, w in zip(sums, weights, strict=True)]
        else:
            matrices = [network.matrix(x.dtype, transpose=transpose) for network in networks]
            sums = spmm(matrices, x, self_weights=weights, sources=keep)
        return [summed.flatten(0, 1) for summed in sums]

    def degree(self, relation: str, *, transpose: bool = False) -> Tensor:
        """Return how many kept edges go into each row, [R_target] float32; counted once."""
        network = self._relation(relation).unweighted()
        source = network.target if transpose else network.source
        if (relation, transpose) not in self._degrees:
            kept = self.keep[source].float().view(self.size, -1, 1)
            (counted,) = spmm([network.matrix(torch.float32, transpose=transpose)], kept)
            self._degrees[relation, transpose] = counted.flatten()
        return self._degrees[relation, transpose]

    def pool(self, scores: Tensor, values: Tensor) -> Tensor:
        """Return the softmax-weighted sum over what is left of each sample, [B, H]."""
        grid = (self.size, -1)
        keep = self.keep[self.graph.deleted_type].view(grid)
        return pool_grid(scores.view(grid), values.view(*grid, values.size(1)), keep)

    @property
    def wild_type(self) -> View:
        """One copy of the graph with nothing deleted."""
        nothing = Deletions.nothing(1, device=self.graph.device)
        return SharedView(self.graph, dict.fromkeys(self.graph.num_nodes, nothing), dense=self.dense)

    def with_wild_type(self) -> Sequence[View]:
        """Return one view of B + 1 copies, the wild type first: one product serves them all."""
        return [SharedView(self.graph, self.removed_after_wild_type(), dense=self.dense)]

    def removed_after_wild_type(self) -> dict[str, Deletions]:
        """Return what B + 1 copies remove, the wild type first."""
        return {k: Deletions(d.nodes, torch.cat([d.ptr[:1], d.ptr]), d.most) for k, d in self.removed.items()}


def dense_sum(network: Network, x: Tensor, *, transpose: bool = False) -> Tensor:
    """Return A·X by one dense product for all samples, for `x: [B, N_source, H]`; see `SharedView`."""
    matrix = network.dense(dtype=x.dtype)
    wide = x.transpose(0, 1).flatten(1)  # [N, B·H]
    product = (matrix.t() if transpose else matrix) @ wide
    return product.unflatten(1, (x.size(0), -1)).transpose(0, 1)


def autocast(x: Tensor) -> Tensor:
    """Return `x` in autocast's dtype where it is on: a norm gives float32 there, twice what is to be gathered."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
