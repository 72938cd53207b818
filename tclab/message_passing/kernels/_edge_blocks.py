"""Operations that need every edge by itself, attention and maximum, over one edge list that all samples share.

They go through the edges by blocks, all edges into some targets in each. A block is a checkpoint, so the backward
computes it again: of what has a row for each (edge, sample) no more than a block exists at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tclab.graph._csr import group
from tclab.message_passing.kernels._row_ops import add_rows, in_float32, take_rows, under_transform

_BLOCK = {"cpu": 1 << 18, "cuda": 1 << 26}  # numbers in a block: what a core's cache holds, what keeps a GPU busy
_LEAST_EDGES = 256  # of a block, so that a small graph is one


class EdgesByTarget(NamedTuple):
    """The edges of a graph sorted by target, in blocks."""

    source: Tensor  # [E] int32
    target: Tensor  # [E] int32
    position: Tensor  # [E] int32, where each edge that was given is among these; their number for one left out
    blocks: list[tuple[int, int, int, int]]  # first edge, first target, and those after the last


class Edges(NamedTuple):
    """Which edges count in which sample."""

    by_target: EdgesByTarget
    sources: Tensor | None  # [N_source, B] bool, which are kept; None for all
    targets: Tensor | None  # [N_target, B] bool
    cut: Tensor | None  # [E + 1, B] bool, which edges a sample cuts besides; None for none
    loops: bool  # self-loops count whatever is cut


def edges_a_block(x: Tensor) -> int:
    """Return about how many edges go into a block, a power of two, where each brings a row of `x: [N, B, ...]`."""
    row, most = max(x[:1].numel(), 1), _LEAST_EDGES
    # a block's gradient is as long as x: shorter ones would write it more often
    while 2 * most <= len(x) or 2 * most * row <= _BLOCK.get(x.device.type, _BLOCK["cuda"]):
        most *= 2
    return most


def sort_edges(edge_index: Tensor, num_sources: int, num_targets: int, *, loops: bool, most: int) -> EdgesByTarget:
    """Return `edge_index: [2, E]` int64 by target, in blocks of about `most` edges.

    With `loops` one self-loop for each node, as far as sources and targets go together, replaces those given.
    """
    source, target = edge_index
    given = torch.arange(len(source), device=source.device)
    if loops:
        given = given[source != target]
        nodes = torch.arange(min(num_sources, num_targets), device=source.device)
        source, target = torch.cat([source[given], nodes]), torch.cat([target[given], nodes])
    ptr, order = group(target, num_targets)
    position = torch.full_like(edge_index[0], len(order))
    position[given] = torch.argsort(order)[: len(given)]
    ends = torch.arange(most, max(len(order), most), most, device=ptr.device)
    inner = torch.searchsorted(ptr, ends).unique().tolist()
    targets = [0, *(t for t in inner if t < num_targets), num_targets]
    edges = ptr[targets].tolist()
    blocks = list(zip(edges, targets, edges[1:], targets[1:], strict=False))
    return EdgesByTarget(source[order].int(), target[order].int(), position.int(), blocks)


def edge_max(x: Tensor, edges: Edges) -> Tensor:
    """Return for each target the maximum over its edges that count of their sources' rows, 0 where it has none.

    The gradient goes to the rows that are the maximum, in equal shares; in two bytes they are added up in float32.

    **Arguments:**

    - `x`: [N_source, B, F]

    **Returns:** [N_target, B, F]
    """

    def compute(source: Tensor, target: Tensor, targets: int, kept: Tensor | None, x: Tensor) -> Tensor:
        highest = _highest(_masked(take_rows(x, source), kept), target, targets)
        counted = torch.ones_like(target, dtype=torch.float32).unsqueeze(1) if kept is None else kept.float()
        has_none = add_rows(counted, target, targets) == 0  # -inf is a maximum, too
        return highest.masked_fill(has_none.unsqueeze(-1), 0.0)

    exact = in_float32(x).contiguous()
    return _by_blocks(compute, edges, [(exact,)] * len(edges.by_target.blocks)).to(x.dtype)


def edge_attention(
    x_l: Tensor, x_r: Tensor, att: Tensor, edges: Edges, *, slope: float, dropout: float = 0.0
) -> Tensor:
    """Return GATv2's sums: of each target its sources' `x_l`, weighted by the softmax over its edges that count.

    An edge's score is `att` times the leaky ReLU of its source's `x_l` plus its target's `x_r`.

    **Arguments:**

    - `x_l`: [N_source, B, heads, C]. `x_r`: [N_target, B, heads, C]. `att`: [heads, C].
    - `slope`: the leaky ReLU's, below 0.
    - `dropout`: the probability that a weight is zero; the others are larger in return.

    **Returns:** [N_target, B, heads, C] in the dtype of `x_l`; 0 for a target without an edge.
    """
    given = x_l.dtype
    # every block adds to the gradients of these
    x_l, x_r, att = in_float32(x_l), in_float32(x_r), in_float32(att)

    def compute(
        source: Tensor, target: Tensor, targets: int, kept: Tensor | None, x_l: Tensor, x_r: Tensor, att: Tensor
    ) -> Tensor:
        sources = take_rows(x_l, source)
        sums = sources + take_rows(x_r, target)
        scores = _masked((F.leaky_relu(sums, slope) * att).sum(-1), kept)
        highest = _highest(scores.detach(), target, targets)
        highest = highest.masked_fill(highest == float("-inf"), 0.0)
        weights = (scores - take_rows(highest, target)).exp()
        # the highest score adds exactly 1, so the clamp is for targets without an edge alone
        total = add_rows(weights, target, targets).clamp_min(0.5)
        weights = F.dropout(weights, dropout)
        summed = add_rows(sources * weights.unsqueeze(-1), target, targets)
        return summed / total.unsqueeze(-1)

    of_blocks = x_r.split([end - first for _, first, _, end in edges.by_target.blocks])
    return _by_blocks(compute, edges, [(x_l, part, att) for part in of_blocks], random=dropout > 0).to(given)


def _by_blocks(
    compute: Callable[..., Tensor], edges: Edges, inputs: Sequence[tuple[Tensor, ...]], *, random: bool = False
) -> Tensor:
    """Return what `compute` makes of each block, [N_target, ...]; the backward computes it again.

    It gets the sources and targets of the block's edges, targets counted from the block's first, how many targets there
    are, which edges count ([edges, B] bool, or `None` for all), and the block's `inputs`.
    """

    def of_block(block: tuple[int, int, int, int], *inputs: Tensor) -> Tensor:
        edge, first, edge_end, end = block
        source, target = edges.by_target.source[edge:edge_end], edges.by_target.target[edge:edge_end]
        kept = None if edges.cut is None else ~edges.cut[edge:edge_end]
        for mask, ends in ((edges.sources, source), (edges.targets, target)):
            if mask is not None:
                of_ends = mask.index_select(0, ends)
                kept = of_ends if kept is None else kept & of_ends
        if edges.loops and kept is not None:
            kept = kept | (source == target).unsqueeze(1)
        return compute(source, target - first, end - first, kept, *inputs)

    run: Callable[..., Tensor] = partial(checkpoint, of_block, use_reentrant=False, preserve_rng_state=random)
    if under_transform() or torch.compiler.is_exporting():  # which have no checkpoints: all blocks are kept
        run = of_block
    parts = [run(block, *of) for block, of in zip(edges.by_target.blocks, inputs, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _masked(values: Tensor, kept: Tensor | None) -> Tensor:
    if kept is None:
        return values
    return values.masked_fill(~kept.view(*kept.shape, *[1] * (values.dim() - 2)), float("-inf"))


def _highest(values: Tensor, target: Tensor, targets: int) -> Tensor:
    """Return the largest of the `values: [edges, ...]` that go to each target, -inf where none does."""
    index = target.long().view(-1, *[1] * (values.dim() - 1)).expand_as(values)
    return values.new_full((targets, *values.shape[1:]), float("-inf")).scatter_reduce(0, index, values, "amax")
