"""PyG's convolutions over one graph that all samples share: the same names, arguments and parameters.

Each is called `conv(x, shared, keep)`, with a `SharedGraph` and a mask in the place of the edge list, and gives what
PyG's own gives on the batch of the samples' subgraphs. A `state_dict` of PyG's own loads as it is.

One mask deletes nodes: their rows come out zero and reach nothing. A pair (sources, targets) on a graph of one kind of
nodes deletes none and cuts edges: those from and into some nodes, whose own rows and added self-loops stay. So
`(None, mask)` cuts what goes into a node, and `(mask, mask)` leaves it alone with its own features. On a bipartite
graph a pair is the masks of its two sides, and deletes nodes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tclab.errors import InputError, check_known, require, shown, unknown
from tclab.message_passing._changed_rows import ChangedRows, Joined, across_rows, needs_every_row, reach
from tclab.message_passing._shared_graph import SharedGraph, Sides, kept_grid
from tclab.message_passing.kernels._edge_blocks import edge_attention
from tclab.message_passing.kernels._row_ops import add_rows, take_rows

EdgeType = tuple[str, str, str]
# arguments of PyG's that are not here: what is taken all the same, its default first, and why nothing else is
_NOT_HERE: dict[str, tuple[tuple[object, ...], str]] = {
    "aggr": (("add", "sum"), "this layer is a sum; SharedSAGEConv has a mean and a maximum"),
    "aggr_kwargs": ((None, {}), "a sum, a mean and a maximum have no arguments"),
    "decomposed_layers": ((1,), "features are computed together"),
    "edge_attr": ((None,), "edges have no features here"),
    "edge_dim": ((None,), "edges have no features here"),
    "edge_weight": ((None,), "weights are the graph's own: SharedGraph(edge_index, num_nodes, weight=weight)"),
    "flow": (("source_to_target",), "edges go from their first row to their second: flip the edge_index"),
    "node_dim": ((-2,), "x is [N, B, F], nodes first"),
    "return_attention_weights": ((None,), "they would be numbers of every edge and sample, which are never there"),
    "size": ((None,), "it is the graph's own: SharedGraph(edge_index, (sources, targets))"),
}


def _refuse(others: Mapping[str, object]) -> None:
    """Raise an error for an argument of PyG's that is not its default; see `_NOT_HERE`."""
    for name, value in others.items():
        key = name.removesuffix("_dict")
        if key not in _NOT_HERE:
            raise TypeError(f"unexpected keyword argument {name!r}")
        taken, why = _NOT_HERE[key]
        if isinstance(value, Tensor) or value not in taken:
            raise InputError(f"{name} is {shown(value)}, expected {taken[0]!r}: {why}")


def to_grid(rows: Tensor, size: int) -> Tensor:
    """Return the rows of a PyG batch of `size` graphs of N nodes each, [B · N, F], as [N, B, F]; nothing is copied.

    **Raises:** `InputError` where the rows do not divide.
    """
    if size < 1 or len(rows) % size:
        raise InputError(f"{len(rows)} rows are not {size} graphs of one size")
    return rows.view(size, len(rows) // size, *rows.shape[1:]).transpose(0, 1)


def to_rows(grid: Tensor) -> Tensor:
    """Return `[N, B, F]` as the rows of a PyG batch, graph after graph, [B · N, F].

    It copies nothing if `grid` comes from `to_grid`, a layer that sums, or a `SharedGraph`'s sum or mean.
    """
    return grid.transpose(0, 1).flatten(0, 1)


def _row_by_row(module: nn.Module, grid: Tensor) -> Tensor:
    """Return what a module of rows makes of `grid: [N, B, F]`, in the order of memory that `to_rows` has."""
    nodes, size = grid.shape[:2]  # either may be 0
    return module(to_rows(grid)).unflatten(0, (size, nodes)).transpose(0, 1)


class _Call(NamedTuple):
    """What a convolution is called with, checked, rows of deleted nodes zero; or tables, as `ChangedRows` have them."""

    x: Tensor  # [N_source, B, F]
    own: Tensor | None  # [N_target, B, F], what a target adds of itself
    shared: SharedGraph
    sides: Sides = (None, None)
    cut: Tensor | None = None
    left: Tensor | None = None  # [N_target, B] bool, which targets are not deleted; None where none is

    def sum(self, x: Tensor, reduce: str = "sum") -> Tensor:
        """Return the reduction of `x: [N_source, B, H]` over each target's kept edges, [N_target, B, H]."""
        return self.shared(x, self.sides, reduce=reduce, cut=self.cut)


class _SharedConv(nn.Module, ABC):
    """What all convolutions of one relation are: how they are called."""

    bias: Tensor | None  # of those that have one

    def __init__(self, **others: object) -> None:
        super().__init__()
        _refuse(others)

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        # the children may be parametrizations of a bias, too
        for linear in [child for child in self.children() if isinstance(child, nn.Linear)]:
            linear.reset_parameters()
            nn.init.xavier_uniform_(linear.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, x: Any, shared: SharedGraph, keep: Any = None, *, cut: Tensor | None = None, **others: object
    ) -> Any:
        """Return the targets' new rows, [N_target, B, F'], zero where they are deleted.

        F' is `out_channels`, of attention times its heads where they are side by side, and what `nn` makes for GIN.

        **Arguments:**

        - `x`: [N, B, F], or both sides' (of a bipartite graph); or `ChangedRows`, and `ChangedRows` are returned.
        - `shared`: the graph of all samples.
        - `keep`, `cut`: as for a `SharedGraph`; `ChangedRows` say themselves which nodes are kept.
        - `others`: what PyG's has besides (`edge_weight`, `edge_attr`, `size`, `return_attention_weights`): `None`.

        **Raises:** `InputError` for what does not fit.
        """
        require("shared", shared, SharedGraph, "a SharedGraph(edge_index, num_nodes), made once and kept")
        _refuse(others)
        sources, own = x if isinstance(x, tuple) else (x, None if shared.bipartite else x)
        if isinstance(sources, ChangedRows):
            if keep is not None:
                raise InputError("keep is given, expected None: ChangedRows say which nodes each sample deletes")
            sources, own, keys = self._reach(sources, own, shared, cut)
            return self._changed(sources, own, shared, cut, keys)
        for rows, n in ((sources, shared.num_sources), (own, shared.num_targets)):
            if rows is None:
                continue
            require("x", rows, Tensor, f"a tensor [{n}, B, F], or ChangedRows")
            if rows.dim() != 3 or rows.size(0) != n:
                raise InputError(f"x is {list(rows.shape)}, expected [{n}, B, F]")
        sides = shared.sides(keep, sources.size(1))
        deletes = isinstance(keep, Tensor) or shared.bipartite
        sends, left = sides if deletes else (None, None)
        kept = kept_grid(sources, sends)
        if own is sources and left is sends:
            own = kept
        elif own is not None:
            own = kept_grid(own, left)
        return kept_grid(self._convolved(_Call(kept, own, shared, sides, cut, left)), left)

    def _reach(
        self, sources: ChangedRows, targets: ChangedRows | None, shared: SharedGraph, cut: Tensor | None
    ) -> tuple[ChangedRows, ChangedRows, Tensor | None]:
        """Return the rows that `_changed` reads, and the keys [T] of those that can differ after it; see `reach`."""
        return reach(shared, sources, targets, cut, degrees=self._reads_degrees(), every=self._needs_every_row())

    def _changed(
        self, sources: ChangedRows, targets: ChangedRows, shared: SharedGraph, cut: Tensor | None, keys: Tensor | None
    ) -> ChangedRows:
        """Return the rows of targets: the wild type's and those of `keys: [T]`, or, for `None`, every sample's."""
        if keys is None:
            grid = sources.grid()
            grids = (grid, grid if targets is sources else targets.grid())
            masks = (sources.keep(), targets.keep()) if shared.bipartite else sources.keep()
            return targets.like(to_rows(self.forward(grids, shared, masks, cut=cut)), None)
        joined = Joined(shared, sources, targets, keys, cut)
        call = _Call(sources.rows.unsqueeze(1), joined.of_targets(targets.rows).unsqueeze(1), joined)
        return targets.like(self._convolved(call).squeeze(1), keys)

    def extra_repr(self) -> str:
        """Return the sizes, and how neighbours are added up or with how many heads."""
        options = [f"{name}={vars(self)[name]}" for name in ("aggr", "heads") if name in vars(self)]
        return ", ".join([str(vars(self)[n]) for n in ("in_channels", "out_channels") if n in vars(self)] + options)

    def _reads_degrees(self) -> bool:
        """Return whether what a source sends depends on its own degree."""
        return False

    def _needs_every_row(self) -> bool:
        """Return whether a row needs what rows that differ do not say, such as the others of its batch norm."""
        return False

    @abstractmethod
    def _convolved(self, call: _Call) -> Tensor: ...


class SharedGCNConv(_SharedConv):
    """PyG's GCNConv over a shared graph; messages are normalized by the degrees that nodes have in their sample.

    Edge weights are those of the shared graph, and constant. A pair of masks does not cut self-loops. A bipartite graph
    is refused.

    **Arguments:**

    - `in_channels`, `out_channels`: features before and after.
    - `improved`: an added self-loop weighs 2 instead of 1; as in PyG, only if the edges have weights.
    - `cached`: as PyG's, for one graph that stays: degrees are the whole graph's, whatever a sample deletes or cuts.
    - `add_self_loops`: `normalize` unless given.
    - `normalize`: divide each message by the root of both degrees.
    - `bias`: add one.
    - `others`: PyG's arguments of every layer (`aggr`, `flow`, …). A value other than the default is refused with why.
    """

    def __init__(
        self, in_channels: int, out_channels: int, improved: bool = False, cached: bool = False,
        add_self_loops: bool | None = None, normalize: bool = True, bias: bool = True, **others: object
    ) -> None:  # fmt: skip
        super().__init__(**others)
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        if self.add_self_loops and not normalize:
            raise InputError("add_self_loops is True, expected False where normalize is False")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached, self.normalize = improved, cached, normalize
        self.lin = _linear(in_channels, out_channels, bias=False)
        self.register_parameter("bias", nn.Parameter(torch.empty(out_channels)) if bias else None)
        self.reset_parameters()

    def _convolved(self, call: _Call) -> Tensor:
        if call.shared.bipartite:
            raise InputError("the graph is bipartite, expected one kind of nodes: SharedSAGEConv takes two")
        sent, loops = _row_by_row(self.lin, call.x), call.shared.self_loops(call.x.device)
        own = loops.total  # [N] float64, what each node's own row weighs
        if self.add_self_loops:  # PyG fills in 1 where the edges have no weights, improved or not
            own = loops.last.nan_to_num(2.0 if self.improved and call.shared.weighted else 1.0)
        call = call._replace(shared=loops.others)
        if self.normalize:
            root = self._roots(call, own, sent.dtype)
            sent = sent * call.shared.of_sources(root)
        out = call.sum(sent) + call.shared.of_targets(sent) * own.to(sent.dtype).view(-1, 1, 1)
        if self.normalize:
            out = out * root
        return out if self.bias is None else out + self.bias

    def _reads_degrees(self) -> bool:
        return self.normalize

    def _needs_every_row(self) -> bool:
        return self.cached  # degrees are the whole graph's, which rows that differ do not say

    def _roots(self, call: _Call, own: Tensor, dtype: torch.dtype) -> Tensor:
        """Return one over the root of each target's degree, itself included, [N, B, 1], or [N, 1, 1] where cached."""
        exact = torch.promote_types(dtype, torch.float32)
        (sends, takes), size, cut = ((None, None), 1, None) if self.cached else (call.sides, call.x.size(1), call.cut)
        degree = call.shared.degree(sends, size, call.x.device, cut=cut, weighted=True, dtype=exact)
        degree = degree if takes is None else degree * takes
        root = (degree + own.to(exact).unsqueeze(1)).pow(-0.5)
        return root.masked_fill(root == float("inf"), 0.0).unsqueeze(-1).to(dtype)


class SharedGINConv(_SharedConv):
    """PyG's GINConv over a shared graph: `nn` of 1 + eps times a node's row plus the sum over its neighbours.

    Where the shared graph has weights, messages are multiplied by them; PyG's has none.

    **Arguments:**

    - `nn`: a module of rows [n, F]. If it has a batch norm, it gets only kept rows, as PyG's does. Their number depends
      on the mask, so `torch.compile` breaks the graph there.
    - `eps`: its initial value.
    - `train_eps`: make it a parameter.
    - `others`: at PyG's defaults, as for `SharedGCNConv`.
    """

    eps: Tensor

    def __init__(self, nn: nn.Module, eps: float = 0.0, train_eps: bool = False, **others: object) -> None:
        super().__init__(**others)
        self.nn = nn
        self.initial_eps = eps
        initial = torch.tensor([float(eps)])
        if train_eps:
            self.eps = torch.nn.Parameter(initial)
        else:
            self.register_buffer("eps", initial)

    def reset_parameters(self) -> None:
        """Draw the parameters of `nn` anew, and begin with `eps` again."""
        for module in self.nn.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()  # type: ignore[operator]
        nn.init.constant_(self.eps, self.initial_eps)

    def _convolved(self, call: _Call) -> Tensor:
        out = call.sum(call.x)
        if call.own is not None:
            out = out + (1 + self.eps) * call.own
        if call.left is None or not across_rows(self.nn):
            return _row_by_row(self.nn, out)
        rows, left = to_rows(out), call.left.t().flatten().nonzero().flatten()
        return add_rows(self.nn(take_rows(rows, left)), left, len(rows)).unflatten(0, out.shape[1::-1]).transpose(0, 1)

    def _needs_every_row(self) -> bool:
        return needs_every_row(self.nn)


class SharedSAGEConv(_SharedConv):
    """PyG's SAGEConv over a shared graph.

    **Arguments:**

    - `in_channels`: features before, or (sources', targets').
    - `out_channels`: features after.
    - `aggr`: "mean", "sum" ("add") or "max". If several rows are equally high, each gets an equal share of a maximum's
      gradient, as in PyG without torch-scatter; with torch-scatter on CUDA, PyG gives it to one of them. A maximum is
      computed by blocks of edges, and nothing is stored per edge. If the shared graph has weights, a mean and a sum
      multiply messages by them (PyG's has none), and a maximum is refused.
    - `normalize`: divide each row by its length.
    - `root_weight`: add a linear function of the node's own row.
    - `project`: a linear layer and ReLU before the sum.
    - `bias`: add one.
    - `others`: at PyG's defaults, as for `SharedGCNConv`.
    """

    def __init__(
        self, in_channels: int | tuple[int, int], out_channels: int, aggr: str = "mean", normalize: bool = False,
        root_weight: bool = True, project: bool = False, bias: bool = True, **others: object
    ) -> None:  # fmt: skip
        super().__init__(**others)
        check_known("aggregation", ("mean", "sum", "add", "max"), aggr)
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        sources, targets = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        if project:
            self.lin = _linear(sources, sources)
        self.lin_l = _linear(sources, out_channels, bias=bias)
        if root_weight:
            self.lin_r = _linear(targets, out_channels, bias=False)

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        for linear in self.children():
            linear.reset_parameters()  # type: ignore[operator]

    def _convolved(self, call: _Call) -> Tensor:
        sent = _row_by_row(self.lin, call.x).relu() if self.project else call.x
        out = _row_by_row(self.lin_l, call.sum(sent, self.aggr.replace("add", "sum")))
        if self.root_weight and call.own is not None:
            out = out + _row_by_row(self.lin_r, call.own)
        return F.normalize(out, dim=-1) if self.normalize else out


class SharedGATv2Conv(_SharedConv):
    """PyG's GATv2Conv over a shared graph: attention over each sample's own edges, none of which is copied.

    It computes one block of (edge, sample) rows at a time, and computes each again in the backward pass. Besides inputs
    and outputs it stores one number per node, sample and head. `cut` takes one more byte per edge and sample. Features
    and weights of edges are not supported, nor is `return_attention_weights`, since nothing is stored per edge.

    **Arguments:**

    - `in_channels`: features before, or (sources', targets').
    - `out_channels`: features after, of each head.
    - `heads`: how many there are. `concat`: put them side by side; otherwise take their mean.
    - `negative_slope`: the leaky ReLU's.
    - `dropout`: the probability with which an edge's weight is zero in a sample, in training.
    - `add_self_loops`: give each node one self-loop instead of its own ones. `(None, mask)` does not cut it.
    - `edge_dim`, `fill_value`: PyG's, for features of edges. `edge_dim` must be `None`; `fill_value` has no effect.
    - `bias`: add one.
    - `share_weights`: one linear layer for sources and targets.
    - `residual`: add a linear function of the node's own row.
    - `others`: at PyG's defaults, as for `SharedGCNConv`.
    """

    def __init__(
        self, in_channels: int | tuple[int, int], out_channels: int, heads: int = 1, concat: bool = True,
        negative_slope: float = 0.2, dropout: float = 0.0, add_self_loops: bool = True, edge_dim: None = None,
        fill_value: object = "mean", bias: bool = True, share_weights: bool = False, residual: bool = False,
        **others: object
    ) -> None:  # fmt: skip
        super().__init__(edge_dim=edge_dim, **others)
        self.in_channels, self.out_channels, self.heads, self.concat = in_channels, out_channels, heads, concat
        self.negative_slope, self.dropout, self.add_self_loops = negative_slope, dropout, add_self_loops
        sources, targets = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        width, total = heads * out_channels, out_channels * (heads if concat else 1)
        self.lin_l = _linear(sources, width, bias=bias)
        self.lin_r = self.lin_l if share_weights else _linear(targets, width, bias=bias)
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        self.res = _linear(targets, total, bias=False) if residual else None
        self.register_parameter("bias", nn.Parameter(torch.empty(total)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        super().reset_parameters()
        bound = math.sqrt(6.0 / (self.heads + self.out_channels))
        nn.init.uniform_(self.att, -bound, bound)

    def _convolved(self, call: _Call) -> Tensor:
        if call.own is None:
            raise InputError("x has no targets, expected (sources', targets'): attention compares them")
        heads, dropout = (self.heads, self.out_channels), self.dropout if self.training else 0.0
        x_l, x_r = self.lin_l(call.x).unflatten(-1, heads), self.lin_r(call.own).unflatten(-1, heads)
        edges = call.shared.edges(call.sides, call.cut, x_l, loops=self.add_self_loops)
        out = edge_attention(x_l, x_r, self.att[0], edges, slope=self.negative_slope, dropout=dropout)
        out = out.flatten(2) if self.concat else out.mean(2)
        if self.res is not None:
            out = out + self.res(call.own)
        return out if self.bias is None else out + self.bias


class SharedHeteroConv(nn.Module):
    """PyG's HeteroConv over shared graphs: one convolution per relation; `aggr` combines those into one node type.

    **Arguments:**

    - `convs`: (source type, relation, target type) → one of the convolutions here.
    - `aggr`: "sum", "mean", "min", "max", "cat", or `None`, which stacks them in [N, relations, B, F].
    """

    def __init__(self, convs: Mapping[EdgeType, nn.Module], aggr: str | None = "sum") -> None:
        super().__init__()
        if aggr not in (None, "sum", "mean", "min", "max", "cat"):
            raise unknown("aggregation", aggr, ("sum", "mean", "min", "max", "cat"))
        for edge_type, conv in convs.items():
            if edge_type[0] != edge_type[2] and getattr(conv, "add_self_loops", False):
                raise InputError(f"{edge_type} adds self-loops, expected add_self_loops=False between two types")
        self.edge_types = list(convs)
        # named as PyG's ModuleDict has it, for its state_dict
        self.convs = nn.ModuleDict({f"<{'___'.join(each)}>".replace(".", "#"): conv for each, conv in convs.items()})
        self.aggr = aggr

    def reset_parameters(self) -> None:
        """Draw the parameters of every convolution anew."""
        for conv in self.convs.values():
            conv.reset_parameters()  # type: ignore[operator]

    def forward(
        self, x_dict: Mapping[str, Any], shared_dict: Mapping[EdgeType, SharedGraph],
        keep_dict: Mapping[str, Tensor | None] | None = None, *, cut_dict: Mapping[EdgeType, Tensor] | None = None,
        **others: object
    ) -> dict[str, Any]:  # fmt: skip
        """Return for each node type that something goes into its rows.

        **Arguments:**

        - `x_dict`: node type → [N, B, F]; or `ChangedRows` for every type, and then `ChangedRows` are returned.
        - `shared_dict`: relation → its graph, bipartite between two types; relations that are not there are left out.
        - `keep_dict`: node type → [N, B] bool; all are kept of a type that is not there.
        - `cut_dict`: relation → edges that samples cut, as for a `SharedGraph`.
        - `others`: arguments that PyG's passes on to its layers (`edge_weight_dict`, …); they must be `None`.

        **Raises:** `InputError` for what does not fit.
        """
        _refuse(others)
        keeps, cuts = keep_dict or {}, cut_dict or {}
        check_known("relation of cut_dict", {*shared_dict, *self.edge_types}, *cuts)
        check_known("node type of keep_dict", {*x_dict}.union(*(each[::2] for each in self.edge_types)), *keeps)
        if any(isinstance(x, ChangedRows) for x in x_dict.values()):
            return self._changed(x_dict, shared_dict, keep_dict, cuts)
        found: dict[str, list[Tensor]] = {}
        for edge_type, conv in self._of(shared_dict, x_dict):
            source, _, target = edge_type
            x, keep = x_dict[source], keeps.get(source)
            both = (x, keep) if source == target else ((x, x_dict.get(target)), (keep, keeps.get(target)))
            part = conv(both[0], shared_dict[edge_type], both[1], cut=cuts.get(edge_type))
            found.setdefault(target, []).append(part)
        return {target: self._grouped(parts) for target, parts in found.items()}

    def _changed(
        self, x_dict: Mapping[str, ChangedRows], shared_dict: Mapping[EdgeType, SharedGraph], keep_dict: object,
        cuts: Mapping[EdgeType, Tensor]
    ) -> dict[str, ChangedRows]:  # fmt: skip
        """Return `forward` for rows that differ: of each node type those that any of its relations can change."""
        if keep_dict is not None:
            raise InputError("keep_dict is given, expected None: ChangedRows say which nodes each sample deletes")
        given: dict[EdgeType, tuple[ChangedRows, ChangedRows]] = {}
        reached: dict[str, Tensor | None] = {}  # by node type; None for all
        for relation, conv in self._of(shared_dict, x_dict):
            source, _, target = relation
            rows = x_dict[source], x_dict.get(target)
            *both, keys = conv._reach(*rows, shared_dict[relation], cuts.get(relation))
            given[relation], before = (both[0], both[1]), reached.get(target, keys)
            reached[target] = None if keys is None or before is None else torch.cat([before, keys]).unique()
        found: dict[str, list[ChangedRows]] = {}
        for relation, conv in self._of(shared_dict, x_dict):
            target, cut = relation[2], cuts.get(relation)
            part = conv._changed(*given[relation], shared_dict[relation], cut, reached[target])
            found.setdefault(target, []).append(part)
        grouped = {target: self._grouped([part.rows.unsqueeze(1) for part in parts]) for target, parts in found.items()}
        firsts = {target: parts[0] for target, parts in found.items()}
        return {target: first.like(grouped[target].squeeze(-2), first.keys) for target, first in firsts.items()}

    def _of(
        self, shared_dict: Mapping[EdgeType, SharedGraph], x_dict: Mapping[str, object]
    ) -> Iterator[tuple[EdgeType, _SharedConv]]:
        """Yield the relations that have a graph, with their convolutions."""
        for edge_type, conv in zip(self.edge_types, self.convs.values(), strict=True):
            if edge_type in shared_dict:
                check_known("node type of x_dict", x_dict, edge_type[0])
                shared = shared_dict[edge_type]
                require(f"the graph of {edge_type}", shared, SharedGraph, "a SharedGraph")
                if shared.bipartite == (edge_type[0] == edge_type[2]):
                    raise InputError(f"the graph of {edge_type} is {shared}, expected bipartite just between two types")
                assert isinstance(conv, _SharedConv)
                yield edge_type, conv

    def _grouped(self, parts: list[Tensor]) -> Tensor:
        if self.aggr is None:
            return torch.stack(parts, dim=1)
        if len(parts) == 1:
            return parts[0]
        parts = [part.transpose(0, 1) for part in parts]  # as they lie in memory, and so does the result
        if self.aggr == "cat":
            return torch.cat(parts, dim=-1).transpose(0, 1)
        reduced = getattr(torch, self.aggr)(torch.stack(parts), dim=0)
        grouped: Tensor = reduced[0] if self.aggr in ("min", "max") else reduced
        return grouped.transpose(0, 1)

    def extra_repr(self) -> str:
        """Return how many relations there are."""
        return f"num_relations={len(self.convs)}"


def _linear(before: int, after: int, *, bias: bool = True) -> nn.Linear:
    if before < 1:
        raise InputError(f"in_channels is {before}, expected how many there are: they are not derived from x")
    return nn.Linear(before, after, bias=bias)
