"""`ChangedRows`: the rows of B samples of one graph, of which few differ from those of the whole graph, the wild type.

A layer makes a row of a sample different from the wild type's only where a neighbour was deleted, an edge was cut, or a
neighbour's row differed before. So it is enough to compute the wild type once and, for each sample, the rows that can
differ: `reach` says which they are, and `Joined` is the graph that computes both in one product.

Shapes: N nodes (N_s sources, N_t targets), B samples, F features, E edges; D rows of sources differ before a layer, T
rows of targets after it. A *key* is sample · N + node, one number for a node of a sample. A *table* [N + D, F] is the
wild type's rows, then those that differ, by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any, Self

import torch
from torch import Tensor, nn

from tclab.errors import InputError, require
from tclab.graph._csr import Csr, SparseMatrix, csr_of, entries, group
from tclab.message_passing._shared_graph import SelfLoops, SharedGraph, Sides, adjacency_of, edges_by_target, edges_of
from tclab.message_passing.kernels._edge_blocks import Edges, EdgesByTarget, edges_a_block, sort_edges
from tclab.message_passing.kernels._row_ops import add_rows, keep_mask, kept_rows, take_rows, under_transform
from tclab.message_passing.kernels._spmm import spmm
from tclab.perturbation import Deletions

# What a layer takes, in units of what one row's products take, at a width of 64 (`benchmarks/sparse.py --share`).
# An edge into a row that differs has to be looked up and sorted first; one of the graph's own has been, once.
CHANGED_EDGE, OWN_EDGE = 0.4, 0.03
WHOLE = 1.0  # whole samples are computed where rows that differ would take more than this share of their time
_INSTEAD = "call rows.map(torch.relu), rows.map(torch.add, other); pool by rows.sum() and mean(); read rows.grid()"


class ChangedRows:
    """The rows of B samples of one graph, each without some of its nodes.

    It holds the rows of the whole graph, the wild type, once, and each sample's rows that differ from them. The layers
    `SharedGCNConv`, `SharedGINConv`, `SharedSAGEConv`, `SharedGATv2Conv` and `SharedHeteroConv` take it instead of
    features and a mask, and return it. Rows equal those that the layers return for whole samples; so do the gradients
    of weights and of `x`.

    >>> import torch
    >>> from tclab import SharedGraph
    >>> from tclab.message_passing import ChangedRows, SharedSAGEConv
    >>> line = SharedGraph(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), num_nodes=5)  # 0 → 1 → 2 → 3 → 4
    >>> x = torch.randn(5, 8)
    >>> rows = SharedSAGEConv(8, 16)(ChangedRows(x, deletions=[[0], [3], []]), line).map(torch.relu)
    >>> rows  # sample 0 changes node 1, sample 1 changes node 4
    ChangedRows(3 samples, 5 nodes; 2 rows differ)
    >>> rows.mean().shape
    torch.Size([3, 16])

    **Arguments:**

    - `x`: [N, F], the features of the whole graph.
    - `deletions`: for each sample the nodes that it deletes, or `Deletions` on the device of `x`.
    - `pairs`: [2, n] int64, (node, sample): whose rows differ from the start. List each pair once.
    - `values`: [n, F], these rows.

    **Raises:** `InputError` for what does not fit.
    """

    def __init__(
        self, x: Tensor, deletions: Deletions | Iterable[Sequence[int] | Tensor], *, pairs: Tensor | None = None,
        values: Tensor | None = None
    ) -> None:  # fmt: skip
        require("x", x, Tensor, "a tensor [N, F], the whole graph's rows")
        if x.dim() != 2 or not x.is_floating_point():
            raise InputError(f"x is {list(x.shape)} {x.dtype}, expected [N, F] of floats; pairs= has rows of samples")
        if x.is_meta:
            raise InputError("x is on meta, expected a device with values: which rows differ depends on them")
        self.num_nodes = len(x)
        if not isinstance(deletions, Deletions):  # lists are checked where they are, without waiting for a device
            deletions = Deletions.of(deletions, num_nodes=self.num_nodes)
        elif bool(((deletions.nodes < 0) | (deletions.nodes >= self.num_nodes)).any()):
            raise InputError(f"deletions have a node outside the {self.num_nodes} that x has")
        deletions = deletions.to(x.device)
        self.size = len(deletions)
        self.deleted = deletions.rows(self.num_nodes).unique()  # [M] keys, sorted
        self.rows = x  # the table, or every row of every sample, [B · N, F]
        self.keys: Tensor | None = self.deleted[:0]  # [D], of the rows that differ; None where every row is there
        if pairs is not None or values is not None:
            keys, values = self._given(pairs, values)
            self.keys, order = keys.sort()
            if is_in(self.keys, self.deleted).any():
                raise InputError("pairs has a row of a node that its sample deletes, expected rows that are kept")
            self.rows = torch.cat([x, take_rows(values, order)])
        # the wild type's row would reach gradients: zero times what is not finite is not zero
        wild_type = take_rows(x, torch.cat([self.keys, self.deleted]) % max(self.num_nodes, 1))
        if not under_transform() and not bool(wild_type.isfinite().all()):
            self.rows, self.keys = self.grid().transpose(0, 1).flatten(0, 1), None

    def map(self, function: Callable[..., Tensor], *others: ChangedRows) -> Self:
        """Return these rows after a function of rows [R, F], which must treat each row by itself (ReLU, Linear).

        It sees the wild type's rows once, so dropout drops the same numbers of these rows in every sample. A module
        that has a batch norm in training sees every row that each sample keeps. No function sees rows of deleted nodes.

        **Arguments:**

        - `function`: takes these rows, [R, F], and as many rows of each of `others`; returns [R, F'].
        - `others`: other rows of the same samples: `after.map(torch.add, before)` is a residual connection.

        **Raises:** `InputError` for rows of other samples, or if the function does not return R rows.
        """
        parts = self.beside(*others)
        if any(part.keys is None for part in parts) or (isinstance(function, nn.Module) and needs_every_row(function)):
            kept = self.keep().t().flatten().nonzero().flatten()
            rows = [take_rows(part.rows, part.position(kept)) for part in parts]
            return self.like(add_rows(_rowwise(function, rows), kept, self.size * self.num_nodes), None)
        return self.like(_rowwise(function, [part.rows for part in parts]), parts[0].keys)

    def beside(self, *others: ChangedRows) -> list[ChangedRows]:
        """Return these rows and others, all with the same pairs (node, sample) as rows that differ.

        If some hold every row of every sample, all are returned as they are.

        **Raises:** `InputError` for rows of other samples.
        """
        parts: list[ChangedRows] = [self, *others]
        for other in others:
            require("what map is given besides a function", other, ChangedRows, "ChangedRows of the same samples")
            if (self.num_nodes, self.size) != (other.num_nodes, other.size) or not self.deleted.equal(other.deleted):
                raise InputError("the other ChangedRows are rows of other samples, expected the same deletions")
        keys = [part.keys for part in parts if part.keys is not None]
        return [part.with_rows(torch.cat(keys)) for part in parts] if 1 < len(parts) == len(keys) else parts

    def like(self, rows: Tensor, keys: Tensor | None) -> Self:
        """Return other rows of the same samples.

        **Arguments:**

        - `rows`: [N + D, F], the wild type's, then those of `keys`; or every row of every sample, [B · N, F].
        - `keys`: [D] int64, sorted, sample · N + node of each row that differs; `None` for every row.
        """
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__, rows=rows, keys=keys)
        return new

    def with_rows(self, keys: Tensor) -> Self:
        """Return these rows, with those of `keys: [n]` held for their samples even if they do not differ."""
        assert self.keys is not None
        both = torch.cat([self.keys, keys]).unique()
        if len(both) == len(self.keys):
            return self
        nodes = torch.arange(self.num_nodes, device=both.device)
        return self.like(take_rows(self.rows, torch.cat([nodes, self.position(both)])), both)

    def position(self, keys: Tensor) -> Tensor:
        """Return where in `rows` each of `keys: [n]`, sample · N + node, has its row, [n] int64."""
        if self.keys is None:
            return keys
        index, found = search(keys, self.keys)
        return torch.where(found, self.num_nodes + index, keys % max(self.num_nodes, 1))

    def keep(self) -> Tensor:
        """Return which nodes each sample keeps, [N, B] bool."""
        return keep_mask(self.deleted, self.size * self.num_nodes).view(self.size, self.num_nodes).t()

    def grid(self) -> Tensor:
        """Return every row of every sample, [N, B, F]; zero for nodes that are deleted."""
        every = torch.arange(self.size * self.num_nodes, device=self.rows.device)
        rows = self.rows if self.keys is None else take_rows(self.rows, self.position(every))
        samples = rows.flatten(1).unflatten(0, (self.size, self.num_nodes))
        return kept_rows(samples, self.keep().t()).unflatten(-1, rows.shape[1:]).transpose(0, 1)

    def take(self, nodes: Tensor, samples: Tensor) -> Tensor:
        """Return the rows of n pairs (node, sample), [n, F]; zero for nodes that are deleted.

        **Arguments:**

        - `nodes`, `samples`: [n] int64.

        **Raises:** `InputError` for another shape or dtype, or an index outside the nodes and samples.
        """
        keys = self._keys("take", torch.as_tensor(nodes), torch.as_tensor(samples))
        return kept_rows(take_rows(self.rows, self.position(keys)), ~is_in(keys, self.deleted))

    def sum(self) -> Tensor:
        """Return the sum over each sample's kept rows, [B, F]: PyG's `global_add_pool`; added up in float64."""
        return self._sum().to(self.rows.dtype)

    def _sum(self) -> Tensor:
        if self.keys is None:
            return self.grid().sum(0, dtype=torch.float64)
        # in float64: what a sample deletes may be nearly all of the sum that it is subtracted from
        nodes = torch.cat([self.keys, self.deleted])
        wild_type = take_rows(self.rows, nodes % max(self.num_nodes, 1))
        changes = torch.cat([self.rows[self.num_nodes :], self.rows.new_zeros(len(self.deleted), *self.rows.shape[1:])])
        changes = add_rows(changes.double() - wild_type.double(), nodes // max(self.num_nodes, 1), self.size)
        return self.rows[: self.num_nodes].sum(0, dtype=torch.float64) + changes

    def mean(self) -> Tensor:
        """Return the mean over each sample's kept rows, [B, F]: PyG's `global_mean_pool`; 0 where none is kept."""
        deleted = torch.bincount(self.deleted // max(self.num_nodes, 1), minlength=self.size)
        kept = (self.num_nodes - deleted).clamp_min(1).view(-1, *[1] * (self.rows.dim() - 1))
        return (self._sum() / kept).to(self.rows.dtype)

    def _keys(self, name: str, nodes: Tensor, samples: Tensor) -> Tensor:
        """Return the keys [n] of nodes and their samples, [n] int64 each, which an error calls `name`."""
        if nodes.dim() != 1 or nodes.shape != samples.shape or {nodes.dtype, samples.dtype} != {torch.int64}:
            given = f"{list(nodes.shape)} {nodes.dtype} nodes and {list(samples.shape)} {samples.dtype} samples"
            raise InputError(f"{name} has {given}, expected [n] torch.int64 each")
        outside = (nodes < 0) | (nodes >= self.num_nodes) | (samples < 0) | (samples >= self.size)
        if bool(outside.any()):
            raise InputError(f"{name} has an index outside the {self.num_nodes} nodes and {self.size} samples")
        return samples * self.num_nodes + nodes

    def _given(self, pairs: Any, values: Any) -> tuple[Tensor, Tensor]:
        """Return the keys of rows of a sample's own, and the rows."""
        require("pairs", pairs, Tensor, "[2, n] int64: nodes, samples; with values=[n, F]")
        require("values", values, Tensor, "[n, F]: what these rows hold")
        if pairs.dim() != 2 or pairs.size(0) != 2:
            raise InputError(f"pairs is {list(pairs.shape)} {pairs.dtype}, expected [2, n] torch.int64: nodes, samples")
        keys, expected = self._keys("pairs", *pairs), [pairs.size(1), *self.rows.shape[1:]]
        if list(values.shape) != expected or values.dtype != self.rows.dtype:
            raise InputError(f"values are {list(values.shape)} {values.dtype}, expected {expected} {self.rows.dtype}")
        if len(keys.unique()) < len(keys):
            raise InputError("pairs lists the same (node, sample) pair twice; list each pair once")
        return keys, values

    def _refused(self, *_: Any) -> Any:  # rows + rows
        raise InputError(f"ChangedRows are not a tensor: {_INSTEAD}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __getitem__ = _refused

    def __getattr__(self, name: str) -> Any:  # what a tensor has: rows.relu()
        raise AttributeError(f"ChangedRows are not a tensor and have no {name!r}: {_INSTEAD}")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> Any:  # torch.relu(rows)
        raise InputError(f"{getattr(function, '__name__', function)} takes no ChangedRows: {_INSTEAD}")

    def __repr__(self) -> str:
        differing = "every row is there" if self.keys is None else f"{len(self.keys)} rows differ"
        return f"ChangedRows({self.size} samples, {self.num_nodes} nodes; {differing})"


def across_rows(module: nn.Module) -> list[nn.Module]:
    """Return the norms within a module for which a row depends on others: batch norms, PyG's norms of a graph."""

    def reads_others(part: nn.Module) -> bool:
        of_pyg = type(part).__module__.startswith("torch_geometric.nn.norm.") and type(part).__name__ != "BatchNorm"
        return isinstance(part, nn.modules.batchnorm._NormBase) or of_pyg

    return list(filter(reads_others, module.modules()))


def needs_every_row(module: nn.Module) -> bool:
    """Return whether a module needs what rows that differ do not say, such as all rows of a batch norm in training."""
    return any(norm.training or getattr(norm, "running_mean", None) is None for norm in across_rows(module))


def _rowwise(function: Callable[..., Tensor], rows: Sequence[Tensor]) -> Tensor:
    """Return what a function makes of rows [R, F], checked."""
    out, n = function(*rows), len(rows[0])
    require("what the function of map returns", out, Tensor, f"a tensor [{n}, F], a row for each that it is given")
    if out.dim() < 2 or len(out) != n:
        raise InputError(f"the function of map returns {list(out.shape)}, expected [{n}, F]: a row for each row")
    return out


def search(keys: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each of `keys` is `among: [n]` int64, sorted, and whether it is there at all."""
    index = torch.searchsorted(among, keys)
    return index, torch.cat([among, among.new_full((1,), -1)])[index] == keys


def is_in(keys: Tensor, among: Tensor) -> Tensor:
    """Return which of `keys` are `among: [n]` int64, sorted."""
    return search(keys, among)[1]


def reach(
    shared: SharedGraph, sources: Any, targets: Any, cut: Tensor | None, *, degrees: bool, every: bool
) -> tuple[ChangedRows, ChangedRows, Tensor | None]:
    """Return the rows that a layer reads, and the keys [T] of the targets whose rows can differ after it, sorted.

    The keys are `None` where to compute them would take longer than to compute every row of every sample.

    **Arguments:**

    - `sources`, `targets`: `ChangedRows`; the same ones for a graph of one kind of nodes.
    - `degrees`: what a source sends depends on its degree: sources whose degree differs are among those that differ.
    - `every`: the layer needs every row of every sample in any case.

    **Raises:** `InputError` where they do not fit the graph or one another.
    """
    for side, rows, n in (("sources", sources, shared.num_sources), ("targets", targets, shared.num_targets)):
        require(f"x's {side}", rows, ChangedRows, "ChangedRows of both sides of a bipartite graph: (sources, targets)")
        if rows.num_nodes != n:
            raise InputError(f"x's {side} are {rows.num_nodes} nodes, expected the graph's {n}")
    if sources.size != targets.size:
        raise InputError(f"x's sources are {sources.size} samples, its targets {targets.size}; expected as many")
    if not shared.bipartite and targets is not sources:
        sources, targets = sources.beside(targets)
    if cut is not None:
        shared.checked(cut, sources.size)
    if every or sources.keys is None or targets.keys is None:
        return sources, targets, None
    if degrees and not shared.bipartite:
        sources = targets = sources.with_rows(_reached(shared, sources.deleted, sources, targets, cut))
    keys = _reached(shared, torch.cat([sources.keys, sources.deleted]), sources, targets, cut, targets.keys)
    crow = shared._kept(adjacency_of, keys.device, None).csr.crow
    nodes = keys % max(targets.num_nodes, 1)
    edges = int((crow[nodes + 1] - crow[nodes]).sum())
    wild_type = shared.num_targets + OWN_EDGE * shared.num_edges
    changed = wild_type + len(keys) + CHANGED_EDGE * edges
    return sources, targets, keys if changed <= WHOLE * sources.size * wild_type else None


def _reached(
    shared: SharedGraph, keys: Tensor, sources: ChangedRows, targets: ChangedRows, cut: Tensor | None, *more: Tensor
) -> Tensor:
    """Return `more` keys of targets, those that edges from sources of `keys` go to, and those that have a cut edge."""
    by_source = shared._kept(adjacency_of, keys.device, None).transposed
    which, position = entries(by_source.crow, keys % max(sources.num_nodes, 1))
    sample = (keys // max(sources.num_nodes, 1))[which]
    parts = [*more, sample * targets.num_nodes + by_source.col[position]]
    if cut is not None:
        parts.append(cut[1] * targets.num_nodes + shared._kept(edges_of, cut.device)[0][1, cut[0]])
    reached = torch.cat(parts).unique()
    return reached[~is_in(reached, targets.deleted)]


def _positions_of_edges(shared: SharedGraph) -> Tensor:
    """Return where each edge stands among the edges by target, [E] int64."""
    return torch.argsort(group(shared._edge_index[1].long(), shared.num_targets).items)


class Joined(SharedGraph):
    """The graph of one layer: the wild type's edges, and those into the T rows that differ after it.

    Its sources are the table of sources, [N_s + D], and its targets the table of targets, [N_t + T].
    """

    def __init__(
        self, shared: SharedGraph, sources: ChangedRows, targets: ChangedRows, keys: Tensor, cut: Tensor | None
    ) -> None:
        self._shared = shared
        by_target = shared._kept(adjacency_of, keys.device, None).csr
        n_s, n_t = max(sources.num_nodes, 1), max(targets.num_nodes, 1)
        # of each edge which of `keys` it goes into, and where it is
        row, position = entries(by_target.crow, keys % n_t)
        sample = (keys // n_t)[row]
        from_keys = sample * sources.num_nodes + by_target.col[position]
        left = ~is_in(from_keys, sources.deleted)
        if cut is not None:
            of_cut = (cut[1] * max(shared.num_edges, 1) + shared._kept(_positions_of_edges, cut.device)[cut[0]]).sort()
            left &= ~is_in(sample * max(shared.num_edges, 1) + position, of_cut.values)
        self._row, self._position, from_keys = row[left], position[left], from_keys[left]
        self._source = sources.position(from_keys)
        self._is_loop = from_keys % n_s == (keys % n_t)[self._row]  # of a graph of one kind of nodes
        self._keys, nodes = keys, torch.arange(targets.num_nodes, device=keys.device)
        self._before = torch.cat([nodes, targets.position(keys)])  # of each row after the layer the one before it
        if not shared.bipartite and sources.keys is not None:
            # the sources that differ are kept, so each is among the targets
            self._among_targets = torch.cat([nodes, targets.num_nodes + torch.searchsorted(keys, sources.keys)])
        self.bipartite, self.weighted = shared.bipartite, shared.weighted
        self.num_sources, self.num_targets = len(sources.rows), targets.num_nodes + len(keys)
        self._matrices: dict[torch.dtype | None, tuple[SparseMatrix, SparseMatrix]] = {}  # made once a dtype of weights

    def of_targets(self, x: Tensor) -> Tensor:
        """Return the rows of targets, [N_t + T, ...], of their rows before the layer, as `ChangedRows` hold them."""
        return take_rows(x, self._before)

    def of_sources(self, x: Tensor) -> Tensor:
        """Return the rows of sources, [N + D, ...], of `x: [N + T, ...]`; for a graph of one kind of nodes."""
        return take_rows(x, self._among_targets)

    def self_loops(self, device: torch.device) -> SelfLoops:
        """Return the self-loops of the nodes of the N + T targets."""
        loops, n = self._shared.self_loops(device), max(self._shared.num_targets, 1)
        total, last = (torch.cat([of_nodes, of_nodes[self._keys % n]]) for of_nodes in (loops.total, loops.last))
        return SelfLoops(self.over(loops.others), total, last)

    def over(self, shared: SharedGraph) -> Joined:
        """Return this graph over another of the same edges in the same order."""
        new = copy(self)
        new._shared, new.weighted, new._matrices = shared, shared.weighted, {}
        return new

    def _product(self, x: Tensor, *, weighted: bool = True, **masks: Tensor | None) -> Tensor:
        """Return the sums of the wild type's rows and of those that differ; no mask, as tables hold kept rows alone."""
        return torch.cat(spmm(self._wild_type_and_changed(x, weighted), x), dim=1)

    def _wild_type_and_changed(self, x: Tensor, weighted: bool) -> tuple[SparseMatrix, SparseMatrix]:
        """Return two matrices, [N_t, N_s + D] and [T, N_s + D]; what is sorted are the edges of the latter alone."""
        dtype, shared = x.dtype if weighted and self.weighted else None, self._shared
        if dtype not in self._matrices:
            by_target, by_source, _ = shared._matrix(x, weighted=weighted)
            differing, rows = self.num_sources - shared.num_sources, self.num_targets - shared.num_targets
            crow = torch.cat([by_source.crow, by_source.crow[-1:].expand(differing)])  # from those go no edges of its
            values = None if by_target.values is None else by_target.values[self._position]
            ptr = torch.searchsorted(self._row, torch.arange(rows + 1, device=x.device), out_int32=True)
            changed = Csr(ptr, self._source.int(), values), csr_of(self._source, self._row, self.num_sources, values)
            wild_type = SparseMatrix(by_target, by_source._replace(crow=crow), lasting=False)
            self._matrices[dtype] = wild_type, SparseMatrix(*changed, lasting=False)
        return self._matrices[dtype]

    def edges(self, sides: Sides, cut: Tensor | None, x: Tensor, *, loops: bool = False) -> Edges:
        """Return the single edges, for an operation that goes through them by blocks; what is deleted or cut is not."""
        shared, most = self._shared, edges_a_block(x)
        self._check_single_edges(loops=loops, deletes=True)
        given = shared._kept(edges_by_target, x.device, loops, most)
        edge_index = torch.stack([self._source, self._row])
        rows = self.num_targets - shared.num_targets
        if loops:  # each row has its own self-loop instead of those given
            new_loops = torch.stack([self._before[shared.num_targets :], torch.arange(rows, device=x.device)])
            edge_index = torch.cat([edge_index[:, ~self._is_loop], new_loops], dim=1)
        added = sort_edges(edge_index, self.num_sources, rows, loops=False, most=most)
        e, t = len(given.source), shared.num_targets
        blocks = given.blocks + [(a + e, b + t, c + e, d + t) for a, b, c, d in added.blocks]
        source, target = torch.cat([given.source, added.source]), torch.cat([given.target, added.target + t])
        return Edges(EdgesByTarget(source, target, given.position, blocks), None, None, None, loops)
