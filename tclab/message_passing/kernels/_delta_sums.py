"""The two operations of a layer that carries the samples as what differs from the wild type.

`tclab::delta_sums` returns every relation's sums, and `tclab::spread` brings what a layer made of them to the rows of
the next and adds them up. Both are custom ops of plain tensors, as `tclab::shared_sums` is, and are called once a
layer where relations are summed and nothing is checkpointed: a call costs as much as the product of a small matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tclab.message_passing.kernels._shared_sums import Link, flat_of, links_of, refuse, workspace_bytes
from tclab.message_passing.kernels._spmm import Csr, columns, multiply


class Carried(NamedTuple):
    """How one relation's sums of T rows that differ come from the wild type's N and from what changed."""

    start: Link  # [T, N], which of the wild type's sums each begins with: one entry a row, 1
    edges: Link  # [T, C + D], the changes that edges bring to it, and what it is itself more than the wild type


def delta_sums(
    x: Tensor,
    wild: Sequence[Link],
    changes: Link,
    carried: Sequence[Carried],
    *,
    self_weights: Tensor,
) -> list[Tensor]:
    """Return for each relation the wild type's N sums, and below them those of its T rows that differ.

    The wild type's are Wᵢ = Aᵢ·X + wᵢ·X. With the changes Δ = M·X, of which the first D are rows of their own, Δ′,
    those that differ are Sᵢ·Wᵢ + Eᵢ·[Δ; wᵢ·Δ′]. A second derivative is refused.

    **Arguments:**

    - `x`: [N + D, H], the wild type's rows and those that differ.
    - `wild`: each relation's matrix A, [N, N]. `changes`: M, [C, N + D]. `carried`: each relation's S and E.
    - `self_weights`: [relations], how much of itself a row adds.

    **Returns:** [N + T, H] for each relation.
    """
    links = [*wild, changes, *(link for pair in carried for link in pair)]
    return torch.ops.tclab.delta_sums(x, self_weights, flat_of(links))


class _Matrices(NamedTuple):
    wild: list[Link]
    changes: Link
    start: list[Link]
    edges: list[Link]


def _matrices(flat: Sequence[Tensor], relations: int, rows: int) -> _Matrices:
    number = flat[0].numel() - 1
    changes = flat[6 * relations :]
    wide = changes[0].numel() - 1 + rows - number
    sources = [*[number] * relations, rows, *[number, wide] * relations]
    links = list(links_of(flat, sources))
    rest = links[relations + 1 :]
    return _Matrices(links[:relations], links[relations], rest[::2], rest[1::2])


@torch.library.custom_op(
    "tclab::delta_sums", mutates_args=(), schema="(Tensor x, Tensor self_weights, Tensor[] matrices) -> Tensor[]"
)
def _delta_sums(x: Tensor, self_weights: Tensor, matrices: Sequence[Tensor]) -> list[Tensor]:
    x = x.contiguous()
    wild, changes, start, edges = _matrices(matrices, len(self_weights), x.size(0))
    number = wild[0].matrix.columns
    first, own = x[:number], x.size(0) - number
    right = columns(first)
    stacked = x.new_empty(edges[0].matrix.columns, x.size(1))  # the changes, and below them each relation's own
    changed = _times(changes.matrix, x, out=stacked[: len(stacked) - own])
    sums = []
    for place, weight in enumerate(self_weights):
        summed = x.new_empty(number + start[place].matrix.crow.numel() - 1, x.size(1))
        torch.mul(first, weight, out=summed[:number])
        multiply(wild[place].matrix.matrix(), right, out=summed[:number], add=True)
        torch.index_select(summed[:number], 0, start[place].matrix.col, out=summed[number:])
        torch.mul(changed[:own], weight, out=stacked[len(stacked) - own :])
        _times(edges[place].matrix, stacked, out=summed[number:], add=True)
        sums.append(summed)
    return sums


def _times(matrix: Csr, x: Tensor, *, out: Tensor | None = None, add: bool = False) -> Tensor:
    return multiply(matrix.matrix(), columns(x), out=out, add=add)


@_delta_sums.register_fake
def _(x: Tensor, self_weights: Tensor, matrices: Sequence[Tensor]) -> list[Tensor]:
    relations = self_weights.size(0)
    start = matrices[6 * (relations + 1) :: 12]
    number = matrices[0].size(0) - 1
    return [x.new_empty(number + crow.size(0) - 1, x.size(1)) for crow in start]


@torch.library.custom_op(
    "tclab::delta_sums_backward",
    mutates_args=(),
    schema="(Tensor?[] gradients, Tensor x, Tensor self_weights, Tensor[] matrices) -> (Tensor, Tensor)",
)
def _backward(
    gradients: Sequence[Tensor | None], x: Tensor, self_weights: Tensor, matrices: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    wild, changes, start, edges = _matrices(matrices, len(self_weights), x.size(0))
    number = wild[0].matrix.columns
    first, own = x[:number], x.size(0) - number
    changed = _times(changes.matrix, x)
    found = x.new_zeros(x.shape)
    to_x, to_changed, to_weights = found[:number], torch.zeros_like(changed), torch.zeros_like(self_weights)
    for place, gradient in enumerate(gradients):
        if gradient is None:
            continue
        weight = self_weights[place]
        below = columns(gradient[number:].contiguous())
        above = gradient[:number].clone(memory_format=torch.contiguous_format)
        multiply(start[place].transposed.matrix(), below, out=above, add=True)
        stacked = multiply(edges[place].transposed.matrix(), below)
        to_changed += stacked[: len(changed)]
        to_changed[:own].addcmul_(stacked[len(changed) :], weight)
        to_weights[place] = _dot(stacked[len(changed) :], changed[:own]) + _dot(above, first)
        to_x.addcmul_(above, weight)
        _times(wild[place].transposed, above, out=to_x, add=True)
        del below, above, stacked  # not held together with the next relation's
    return _times(changes.transposed, to_changed, out=found, add=True), to_weights


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a.reshape(-1), b.reshape(-1))


@_backward.register_fake
def _(
    gradients: Sequence[Tensor | None], x: Tensor, self_weights: Tensor, matrices: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty_like(self_weights)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, self_weights, matrices = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, self_weights, *matrices)


def _differentiate(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    x, self_weights, *matrices = ctx.saved_tensors
    none = [None] * len(matrices)  # a list takes a list of gradients back
    if all(gradient is None for gradient in gradients):
        return None, None, none
    to_x, to_weights = torch.ops.tclab.delta_sums_backward(gradients, x, self_weights, matrices)
    return to_x, to_weights, none


_delta_sums.register_autograd(_differentiate, setup_context=_setup)
_backward.register_autograd(refuse)


def delta_workspace_bytes(x: Tensor, self_weights: Tensor, matrices: Sequence[Tensor], *, backward: bool) -> int:
    """Return how many bytes `tclab::delta_sums`, or its backward, takes while it runs, besides its result."""
    wild, changes, start, edges = _matrices(matrices, self_weights.size(0), x.size(0))
    number, changed, wide = wild[0].matrix.columns, changes.matrix.crow.numel() - 1, edges[0].matrix.columns
    most = max(link.matrix.crow.numel() - 1 for link in start)
    # changes and their gradient, and of one relation what goes up, what goes to the changes, and the latter's own
    rows = 2 * changed + number + wide if backward else wide
    largest = max(x.size(0), wide, most)
    own = rows * x.size(1) * x.element_size()
    return own + workspace_bytes(x.new_empty(largest, x.size(1)), 1, 1, sparse=matrices, copies=False)


def spread(parts: Sequence[Tensor], links: Sequence[Link]) -> Tensor:
    """Return Σ Sᵢ·Pᵢ, added up in one tensor in place.

    **Arguments:**

    - `parts`: [N + T, H] for each relation, T its own.
    - `links`: for each S, [rows, N + T].

    **Returns:** [rows, H]
    """
    return torch.ops.tclab.spread(list(parts), flat_of(links))


@torch.library.custom_op("tclab::spread", mutates_args=(), schema="(Tensor[] parts, Tensor[] matrices) -> Tensor")
def _spread(parts: Sequence[Tensor], matrices: Sequence[Tensor]) -> Tensor:
    total = parts[0].new_empty(matrices[0].numel() - 1, parts[0].size(1))
    links = links_of(matrices, [part.size(0) for part in parts])
    for place, (part, link) in enumerate(zip(parts, links, strict=True)):
        _times(link.matrix, part, out=total, add=place > 0)
    return total


@_spread.register_fake
def _(parts: Sequence[Tensor], matrices: Sequence[Tensor]) -> Tensor:
    return parts[0].new_empty(matrices[0].size(0) - 1, parts[0].size(1))


@torch.library.custom_op(
    "tclab::spread_backward", mutates_args=(), schema="(Tensor gradient, Tensor[] matrices) -> Tensor[]"
)
def _spread_backward(gradient: Tensor, matrices: Sequence[Tensor]) -> list[Tensor]:
    right = columns(gradient.contiguous())
    links = links_of(matrices, [0] * (len(matrices) // 6))  # only the transposes are read
    return [multiply(link.transposed.matrix(), right) for link in links]


@_spread_backward.register_fake
def _(gradient: Tensor, matrices: Sequence[Tensor]) -> list[Tensor]:
    return [gradient.new_empty(crow.size(0) - 1, gradient.size(1)) for crow in matrices[3::6]]


def _setup_spread(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[1])


def _differentiate_spread(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    matrices = list(ctx.saved_tensors)
    return torch.ops.tclab.spread_backward(gradient, matrices), [None] * len(matrices)


_spread.register_autograd(_differentiate_spread, setup_context=_setup_spread)
_spread_backward.register_autograd(refuse)
