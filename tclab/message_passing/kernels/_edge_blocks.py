"""Operations that need every edge by itself, attention and maximum, over one edge list that all samples share.

They go through the edges by blocks, all edges into some targets in each, and the backward goes through them again: of
what has a row for each (edge, sample) no more than a block is there at any time, and nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

def refuse(ctx, *g):
    raise RuntimeError('once_differentiable')


_BLOCK = {"cpu": 1 << 18, "cuda": 1 << 26}  # numbers in a block: what a core's cache holds, what keeps a GPU busy
_MOST_STARTS = 4096  # of blocks: an operation takes them one by one as arguments
_LEAST_EDGES = 256  # from one start to the next, so that a small graph is one block


class EdgesByTarget(NamedTuple):
    """The edges that count, sorted by target, and where blocks of them may begin."""

    source: Tensor  # [E] int32
    target: Tensor  # [E] int32
    first_edge: list[int]  # of each block that can be, and at the end how many there are
    first_target: list[int]  # the same
    source_keep: Tensor | None = None  # [N_source, B] bool; None where all are kept
    target_keep: Tensor | None = None  # [N_target, B] bool
    cut: Tensor | None = None  # [E, B] bool, which edges a sample cuts besides; None for none


_EDGES = (
    "Tensor source, Tensor target, SymInt[] first_edge, SymInt[] first_target, "
    "Tensor? source_keep, Tensor? target_keep, Tensor? cut"
)


def block_starts(target: Tensor, num_targets: int) -> tuple[list[int], list[int]]:
    """Return where blocks of edges sorted by `target: [E]` may begin, first edges and first targets, and the ends."""
    number = target.numel()
    crow = torch.zeros(num_targets + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(target.cpu().long(), minlength=num_targets), 0, out=crow[1:])
    every = torch.arange(0, number, max(_LEAST_EDGES, -(-number // _MOST_STARTS)))
    targets = torch.unique(torch.cat([torch.tensor([0, num_targets]), torch.searchsorted(crow, every)]))
    return crow[targets].tolist(), targets.tolist()


class _Block(NamedTuple):
    """Edges into the targets `first` … `last` - 1: their ends, targets from 0, and which count in which sample."""

    first: int
    last: int
    source: Tensor
    target: Tensor
    kept: Tensor | None  # [edges, B] bool; None where all do


def _blocks(edges: EdgesByTarget, x: Tensor, loops: int | None = None) -> Iterator[_Block]:
    """Go through the edges; `loops` puts one self-loop, which is never cut, on so many nodes in place of their own."""
    most = _BLOCK.get(x.device.type, _BLOCK["cuda"]) // max(x[0].numel() if len(x) else 1, 1)
    places = len(edges.first_edge) - 1
    begin = 0
    while begin < places:
        end = begin + 1
        while end < places and _rows(edges, begin, end + 1) <= most:
            end += 1
        first, last = edges.first_target[begin], edges.first_target[end]
        here = slice(edges.first_edge[begin], edges.first_edge[end])
        source, target = edges.source[here], edges.target[here]
        kept = None if edges.cut is None else ~edges.cut[here]
        for mask, ends in ((edges.source_keep, source), (edges.target_keep, target)):
            if mask is not None:
                of_ends = mask.index_select(0, ends)
                kept = of_ends if kept is None else kept & of_ends
        if loops is not None:
            others = (source != target).unsqueeze(1)
            own = torch.arange(first, max(first, min(last, loops)), dtype=source.dtype, device=source.device)
            kept = others.expand(-1, x.size(1)) if kept is None else kept & others
            kept = torch.cat([kept, kept.new_ones(len(own), x.size(1))])
            source, target = torch.cat([source, own]), torch.cat([target, own])
        yield _Block(first, last, source, target - first, kept)
        begin = end


def _rows(edges: EdgesByTarget, begin: int, end: int) -> int:
    return edges.first_edge[end] - edges.first_edge[begin] + edges.first_target[end] - edges.first_target[begin]


def _highest(values: Tensor, rows: Tensor, number: int) -> Tensor:
    """Return the largest of the `values: [n, …]` that go to each row, -inf where none does."""
    index = rows.long().view(-1, *[1] * (values.dim() - 1)).expand_as(values)
    out = values.new_full((number, *values.shape[1:]), float("-inf"))
    return out.scatter_reduce_(0, index, values, "amax")


def _masked(values: Tensor, kept: Tensor | None) -> Tensor:
    if kept is None:
        return values
    return values.masked_fill_(~kept.view(*kept.shape, *[1] * (values.dim() - 2)), float("-inf"))


def edge_max(x: Tensor, edges: EdgesByTarget) -> Tensor:
    """Return for each target the maximum over its edges that count of their sources' rows, 0 where it has none.

    The gradient goes to the rows that are the maximum, in equal shares. A second derivative is refused.

    **Arguments:**

    - `x`: [N_source, B, F]

    **Returns:** [N_target, B, F]
    """
    return torch.ops.tclab.edge_max(x, *edges)


@torch.library.custom_op("tclab::edge_max", mutates_args=(), schema=f"(Tensor x, {_EDGES}) -> Tensor")
def _edge_max(x: Tensor, *of_edges: Any) -> Tensor:
    edges = EdgesByTarget(*of_edges)
    out = x.new_empty(edges.first_target[-1], *x.shape[1:])
    for block in _blocks(edges, x):
        values = _masked(x.index_select(0, block.source), block.kept)
        highest = _highest(values, block.target, block.last - block.first)
        out[block.first : block.last] = highest.masked_fill_(highest == float("-inf"), 0.0)
    return out


@_edge_max.register_fake
def _(x: Tensor, *of_edges: Any) -> Tensor:
    return x.new_empty(EdgesByTarget(*of_edges).first_target[-1], *x.shape[1:])


@torch.library.custom_op(
    "tclab::edge_max_backward",
    mutates_args=(),
    schema=f"(Tensor gradient, Tensor x, Tensor out, {_EDGES}) -> Tensor",
)
def _edge_max_backward(gradient: Tensor, x: Tensor, out: Tensor, *of_edges: Any) -> Tensor:
    to_x = torch.zeros_like(x, memory_format=torch.contiguous_format)
    for block in _blocks(EdgesByTarget(*of_edges), x):
        here = slice(block.first, block.last)
        equal = x.index_select(0, block.source) == out[here].index_select(0, block.target)
        if block.kept is not None:
            equal &= block.kept.unsqueeze(-1)
        shares = torch.zeros_like(out[here]).index_add_(0, block.target, equal.to(x.dtype))
        shares = gradient[here] / shares.clamp_min_(1.0)
        to_x.index_add_(0, block.source, shares.index_select(0, block.target).mul_(equal))
    return to_x


@_edge_max_backward.register_fake
def _(gradient: Tensor, x: Tensor, out: Tensor, *of_edges: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep_edges(ctx: Any, edges: EdgesByTarget, *tensors: Tensor) -> None:
    ctx.starts = (edges.first_edge, edges.first_target)
    ctx.save_for_backward(*tensors, edges.source, edges.target, *edges[4:])


def _kept_edges(ctx: Any) -> tuple[list[Tensor], EdgesByTarget]:
    *tensors, source, target, source_keep, target_keep, cut = ctx.saved_tensors
    first_edge, first_target = ctx.starts
    return tensors, EdgesByTarget(source, target, first_edge, first_target, source_keep, target_keep, cut)


def _setup_max(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *of_edges = inputs
    _keep_edges(ctx, EdgesByTarget(*of_edges), x, output)


def _differentiate_max(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    (x, out), edges = _kept_edges(ctx)
    return torch.ops.tclab.edge_max_backward(gradient, x, out, *edges), *[None] * 7


_edge_max.register_autograd(_differentiate_max, setup_context=_setup_max)
_edge_max_backward.register_autograd(refuse)


def edge_attention(
    x_l: Tensor,
    x_r: Tensor,
    att: Tensor,
    edges: EdgesByTarget,
    *,
    slope: float,
    dropout: float = 0.0,
    loops: int | None = None,
) -> Tensor:
    """Return GATv2's sums: of each target its sources' `x_l`, weighted by the softmax over its edges that count.

    An edge's score is `att` times the leaky ReLU of its source's `x_l` plus its target's `x_r`. Besides the result one
    number a target, sample and head is kept for the backward, which computes the scores again. A second derivative is
    refused.

    **Arguments:**

    - `x_l`: [N_source, B, heads, C]. `x_r`: [N_target, B, heads, C]. `att`: [heads, C].
    - `slope`: the leaky ReLU's, below 0.
    - `dropout`: the probability that a weight is zero; the others are larger in return.
    - `loops`: the first so many nodes have one self-loop, which is never cut, in place of their own; `None` for none.

    **Returns:** [N_target, B, heads, C]; 0 for a target without an edge.
    """
    if x_l.dtype != x_r.dtype or x_l.dtype != att.dtype:  # autocast brings some of them to another
        x_r, att = x_r.to(x_l.dtype), att.to(x_l.dtype)
    seed = torch.randint(2**62, (1,)) if dropout else None  # on the CPU, where reading it makes no host wait
    return torch.ops.tclab.edge_attention(x_l, x_r, att, seed, slope, dropout, loops, *edges)[0]


def _dropped(weights: Tensor, dropout: float, generator: torch.Generator | None) -> Tensor | None:
    """Return what each weight is multiplied by, `None` for 1."""
    if generator is None:
        return None
    drawn = torch.rand(weights.shape, generator=generator, device=weights.device)
    return (drawn >= dropout).to(weights.dtype).div_(max(1.0 - dropout, 1e-12))


def _generator(seed: Tensor | None, device: torch.device) -> torch.Generator | None:
    return None if seed is None else torch.Generator(device).manual_seed(int(seed))


def _scores(
    x_l: Tensor, x_r: Tensor, att: Tensor, slope: float, block: _Block
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a block's sources' rows, what goes into the leaky ReLU and out of it, and the scores."""
    sources = x_l.index_select(0, block.source).to(_at_least_single(x_l))
    sums = x_r[block.first : block.last].index_select(0, block.target) + sources
    active = torch.nn.functional.leaky_relu(sums, slope)
    return sources, sums, active, _masked((active * att).sum(-1), block.kept)


def _at_least_single(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


_ATTENTION = f"Tensor? seed, float slope, float dropout, SymInt? loops, {_EDGES}"


class _Attention(NamedTuple):
    """The arguments that attention and its backward have in common; see `edge_attention`."""

    seed: Tensor | None
    slope: float
    dropout: float
    loops: int | None
    edges: EdgesByTarget

    @staticmethod
    def of(seed: Tensor | None, slope: float, dropout: float, loops: int | None, *edges: Any) -> _Attention:
        return _Attention(seed, slope, dropout, loops, EdgesByTarget(*edges))


@torch.library.custom_op(
    "tclab::edge_attention",
    mutates_args=(),
    schema=f"(Tensor x_l, Tensor x_r, Tensor att, {_ATTENTION}) -> (Tensor, Tensor)",
)
def _edge_attention(x_l: Tensor, x_r: Tensor, att: Tensor, *common: Any) -> tuple[Tensor, Tensor]:
    given = _Attention.of(*common)
    random = _generator(given.seed, x_l.device)
    out = torch.empty_like(x_r, memory_format=torch.contiguous_format)
    log_sums = x_r.new_empty(x_r.shape[:3], dtype=_at_least_single(x_l))
    for block in _blocks(given.edges, x_l, given.loops):
        sources, _, _, scores = _scores(x_l, x_r, att, given.slope, block)
        highest = _highest(scores, block.target, block.last - block.first)
        highest.masked_fill_(highest == float("-inf"), 0.0)
        weights = scores.sub_(highest.index_select(0, block.target)).exp_()
        total = torch.zeros_like(highest).index_add_(0, block.target, weights)
        if (dropped := _dropped(weights, given.dropout, random)) is not None:
            weights *= dropped
        summed = sources.new_zeros(*highest.shape, sources.size(-1))
        summed.index_add_(0, block.target, sources.mul_(weights.unsqueeze(-1)))
        # the highest score adds exactly 1, so the clamp is for targets without an edge alone
        out[block.first : block.last] = summed.div_(total.clamp_min(0.5).unsqueeze(-1))
        # no edge has a weight where the sum is +inf
        log_sums[block.first : block.last] = highest.add_(total.log()).masked_fill_(total == 0, float("inf"))
    return out, log_sums


@_edge_attention.register_fake
def _(x_l: Tensor, x_r: Tensor, att: Tensor, *common: Any) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(x_r, memory_format=torch.contiguous_format)
    return out, x_r.new_empty(x_r.shape[:3], dtype=_at_least_single(x_l))


@torch.library.custom_op(
    "tclab::edge_attention_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor out, Tensor log_sums, Tensor x_l, Tensor x_r, Tensor att, "
    f"{_ATTENTION}) -> (Tensor, Tensor, Tensor)",
)
def _edge_attention_backward(
    gradient: Tensor,
    out: Tensor,
    log_sums: Tensor,
    x_l: Tensor,
    x_r: Tensor,
    att: Tensor,
    *common: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    of = _Attention.of(*common)
    random = _generator(of.seed, x_l.device)
    kind = _at_least_single(x_l)
    to_l, to_r = (torch.zeros(x.shape, dtype=kind, device=x.device) for x in (x_l, x_r))
    to_att = torch.zeros(att.shape, dtype=kind, device=att.device)
    for block in _blocks(of.edges, x_l, of.loops):
        here = slice(block.first, block.last)
        sources, sums, active, scores = _scores(x_l, x_r, att, of.slope, block)
        weights = scores.sub_(log_sums[here].index_select(0, block.target)).exp_()
        given = gradient[here].to(kind)
        mean = (given * out[here]).sum(-1).index_select(0, block.target)
        given = given.index_select(0, block.target)
        to_weights = (given * sources).sum(-1)
        dropped = _dropped(weights, of.dropout, random)
        if dropped is not None:
            to_weights *= dropped
        to_scores = to_weights.sub_(mean).mul_(weights).unsqueeze(-1)
        if dropped is not None:
            weights *= dropped
        to_att += (active * to_scores).sum((0, 1))
        to_sums = (to_scores * att).mul_(torch.ones_like(sums).masked_fill_(sums <= 0, of.slope))
        to_r[here].index_add_(0, block.target, to_sums)
        to_l.index_add_(0, block.source, to_sums.addcmul_(given, weights.unsqueeze(-1)))
    return to_l.to(x_l.dtype), to_r.to(x_r.dtype), to_att.to(att.dtype)


@_edge_attention_backward.register_fake
def _(
    gradient: Tensor, out: Tensor, log_sums: Tensor, x_l: Tensor, x_r: Tensor, att: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    to_l, to_r, to_att = (x.new_empty(x.shape) for x in (x_l, x_r, att))
    return to_l, to_r, to_att


def _setup_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x_l, x_r, att, *common = inputs
    of = _Attention.of(*common)
    ctx.numbers, ctx.has_seed = of[1:4], of.seed is not None
    _keep_edges(ctx, of.edges, *output, x_l, x_r, att, *([] if of.seed is None else [of.seed]))


def _differentiate_attention(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Any, ...]:
    tensors, edges = _kept_edges(ctx)
    seed = tensors.pop() if ctx.has_seed else None
    found = torch.ops.tclab.edge_attention_backward(gradient, *tensors, seed, *ctx.numbers, *edges)
    return *found, *[None] * 11


_edge_attention.register_autograd(_differentiate_attention, setup_context=_setup_attention)
_edge_attention_backward.register_autograd(refuse)
