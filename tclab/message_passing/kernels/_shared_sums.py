"""The operation that sums over neighbours: `tclab::shared_sums`, K·A·(K·X) for several relations at once.

A custom op of plain tensors, since `torch.compile` refuses sparse ones. It works in a compiled graph, under autocast
and in every dtype that the device's kernel knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from tclab.message_passing._row_layout import Order
from tclab.message_passing.kernels._spmm import Csr, columns, multiply, tiling_for
from tclab.message_passing.kernels._tile_sums import Tiles, tile_sums, tiles_for


class Link(NamedTuple):
    """One relation as the sums need it: A [targets, sources] and its transpose, each made once for good."""

    matrix: Csr
    transposed: Csr


def without_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Return `x: [R, H]` with some rows zero, itself where they are already.

    On a CPU looking at a few rows is cheaper than copying all; on a GPU looking would make the host wait.
    """
    if rows.numel() == 0:
        return x
    # looked at as bytes, by numpy: a CPU tensor's own `any()` would count as a wait for the device
    if x.device.type == "cpu" and not x.index_select(0, rows).view(torch.uint8).numpy().any():
        return x
    return x.index_fill(0, rows, 0.0)


def shared_sums(
    x: Tensor,
    links: Sequence[Link],
    size: int,
    *,
    group: int | None = None,
    self_weights: Tensor | None = None,
    source_removed: Tensor | None = None,
    target_removed: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Return for each relation Yᵢ = Aᵢ·X + wᵢ·X, one matrix Aᵢ for all samples; rows are as `Order` has them.

    The gradient, Σ Aᵢᵀ·Gᵢ + wᵢ·Gᵢ, is added up in one tensor in place. A second derivative is refused. On a CPU
    two runs give the same bits, and on CUDA where `_tile_sums` serves; cuSPARSE does not promise it.

    **Arguments:**

    - `x`: [N_source * size, H]
    - `size`: how many samples there are, B.
    - `group`: how many lie side by side; all unless given.
    - `self_weights`: [relations], how much of itself a row adds. `target_removed` are `source_removed` then.
    - `source_removed`: rows of `x` that count as zero, [n] int64, whatever finite number they hold.
    - `target_removed`: for each relation the rows that come out zero, [n] int64.

    **Returns:** [N_target * size, H] for each relation.
    """
    nothing = torch.empty(0, dtype=torch.int64, device=x.device)
    flat = flat_of(links)
    if source_removed is None:
        source_removed = nothing
    removed = [nothing] * len(links) if target_removed is None else list(target_removed)
    return torch.ops.tclab.shared_sums(x, self_weights, flat, source_removed, removed, size, group or max(size, 1))


def flat_of(links: Sequence[Link]) -> list[Tensor]:
    """Return the tensors of links, six of each, as a custom op takes them."""
    return [tensor for link in links for csr in link for tensor in (csr.crow, csr.col, csr.values)]


def links_of(flat: Sequence[Tensor], sources: Sequence[int]) -> Iterator[Link]:
    """Return the links that `flat_of` took apart, each with how many columns its matrix has."""
    for place, width in enumerate(sources):
        crow, col, values, crow_t, col_t, values_t = flat[6 * place : 6 * place + 6]
        targets = crow.numel() - 1
        yield Link(Csr(crow, col, values, width), Csr(crow_t, col_t, values_t, targets))


class _Common(NamedTuple):
    """The arguments that the operation and its backward have in common; see `shared_sums`."""

    self_weights: Tensor | None
    matrices: Sequence[Tensor]  # six a relation; see `flat_of`
    source_removed: Tensor
    target_removed: Sequence[Tensor]
    size: int
    group: int


_COMMON = (
    "Tensor? self_weights, Tensor[] matrices, Tensor source_removed, Tensor[] target_removed, SymInt size, SymInt group"
)


@torch.library.custom_op("tclab::shared_sums", mutates_args=(), schema=f"(Tensor x, {_COMMON}) -> Tensor[]")
def _shared_sums(x: Tensor, *common: Any) -> list[Tensor]:
    self_weights, flat, source_removed, target_removed, size, group = _Common(*common)
    if source_removed.numel():
        x = x.index_fill(0, source_removed, 0.0)
    parts = _segments(x, size, group)
    links = list(links_of(flat, [x.size(0) // size] * len(target_removed)))
    sums: dict[int, Tensor] = {}
    for place, (link, removed) in enumerate(zip(links, target_removed, strict=True)):
        if len(parts) == 1 and (tiles := tiles_for(x, *link.matrix)) is not None:
            weight = None if self_weights is None else self_weights[place]
            sums[place] = _by_tiles(tiles, parts[0], x.size(1), link.matrix.crow.numel() - 1, weight, removed)
    matrices = {place: link.matrix.matrix(x.dtype) for place, link in enumerate(links) if place not in sums}
    if matrices and len(parts) == 1 and self_weights is None:  # as the kernel gives them
        right = columns(parts[0])
        sums |= {place: multiply(matrix, right).view(-1, x.size(1)) for place, matrix in matrices.items()}
    elif matrices:
        sums |= {place: x.new_empty(matrix.size(0) * size, x.size(1)) for place, matrix in matrices.items()}
        into = {place: _segments(sums[place], size, group) for place in matrices}
        for at, part in enumerate(parts):  # all relations while it is in the cache
            right = columns(part)
            for place, matrix in matrices.items():
                if self_weights is not None:
                    torch.mul(part, self_weights[place], out=into[place][at])
                multiply(matrix, right, out=into[place][at], add=self_weights is not None)
    for place in matrices:
        if target_removed[place].numel():
            sums[place].index_fill_(0, target_removed[place], 0.0)
    return [sums[place] for place in range(len(links))]


def _by_tiles(tiles: Tiles, x: Tensor, width: int, rows: int, weight: Tensor | None, removed: Tensor) -> Tensor:
    """Return one relation's sums [rows * samples, width] of `x: [N, samples * width]`, rows that are removed zero."""
    grid = x.view(len(x), -1, width).transpose(0, 1)
    summed = tile_sums(tiles, grid, rows=rows).transpose(0, 1).reshape(-1, width)
    if weight is not None:
        summed = summed.add_(weight * x.view(-1, width))
    return summed.index_fill_(0, removed, 0.0) if removed.numel() else summed


def _segments(x: Tensor, size: int, group: int) -> list[Tensor]:
    """Return each group of samples in `x: [N * size, H]` as the dense side of a product, [N, samples * H]."""
    if size <= group:  # the most frequent, and short
        return [x.contiguous().view(x.size(0) // size, size * x.size(1))]
    return [grid.flatten(1) for grid in Order(size, group).grids(x.contiguous())]


@_shared_sums.register_fake
def _(x: Tensor, *common: Any) -> list[Tensor]:
    of = _Common(*common)
    return [x.new_empty((crow.size(0) - 1) * of.size, x.size(1)) for crow in of.matrices[::6]]


@torch.library.custom_op(
    "tclab::shared_sums_backward",
    mutates_args=(),
    schema=f"(Tensor?[] gradients, Tensor? x, {_COMMON}, SymInt sources) -> (Tensor, Tensor)",
)
def _backward(gradients: Sequence[Tensor | None], x: Tensor | None, *common_and_sources: Any) -> tuple[Tensor, Tensor]:
    *common, sources = common_and_sources
    self_weights, matrices, source_removed, target_removed, size, group = _Common(*common)
    given = next(gradient for gradient in gradients if gradient is not None)
    to_weights = given.new_zeros(0 if self_weights is None else len(self_weights))
    used = [  # the others' sums were not
        (place, link.transposed, without_rows(gradient, target_removed[place]))
        for place, (link, gradient) in enumerate(
            zip(links_of(matrices, [sources] * len(gradients)), gradients, strict=True)
        )
        if gradient is not None
    ]
    parts = [_segments(gradient, size, group) for *_, gradient in used]
    tiled = [tiles_for(given, *matrix) if len(parts[0]) == 1 else None for _, matrix, _ in used]
    if len(used) == len(parts[0]) == 1 and self_weights is None and tiled[0] is None:  # as the kernel gives it
        to_x = multiply(used[0][1].matrix(given.dtype), columns(parts[0][0])).view(-1, given.size(1))
        return to_x.index_fill_(0, source_removed, 0.0) if source_removed.numel() else to_x, to_weights
    # once, not for each group
    made = [
        None if tiles is not None else csr.matrix(given.dtype) for (_, csr, _), tiles in zip(used, tiled, strict=True)
    ]
    own = None if x is None else _segments(x, size, group)
    to_x = given.new_empty(sources * size, given.size(1))
    for at, into in enumerate(_segments(to_x, size, group)):
        for number, (place, *_) in enumerate(used):
            part, tiles, matrix = parts[number][at], tiled[number], made[number]
            weight = None if self_weights is None else self_weights[place]
            if weight is not None and own is not None:
                to_weights[place] += torch.dot(part.view(-1), own[at].view(-1))
            if matrix is None:
                assert tiles is not None
                summed = _by_tiles(tiles, part, given.size(1), sources, weight, source_removed[:0]).view_as(into)
                into.copy_(summed) if number == 0 else into.add_(summed)
                continue
            if weight is not None and number:
                into.addcmul_(part, weight)
            elif weight is not None:
                torch.mul(part, weight, out=into)
            multiply(matrix, columns(part), out=into, add=number > 0 or weight is not None)
    if source_removed.numel():
        to_x.index_fill_(0, source_removed, 0.0)
    return to_x, to_weights


@_backward.register_fake
def _(gradients: Sequence[Tensor | None], x: Tensor | None, *common_and_sources: Any) -> tuple[Tensor, Tensor]:
    *common, sources = common_and_sources
    of = _Common(*common)
    given = next(gradient for gradient in gradients if gradient is not None)
    number = 0 if of.self_weights is None else of.self_weights.size(0)
    return given.new_empty(sources * of.size, given.size(1)), given.new_empty(number)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, *common = inputs
    of = _Common(*common)
    ctx.size, ctx.group, ctx.sources = of.size, of.group, x.size(0) // of.size
    ctx.number = len(of.target_removed)
    ctx.set_materialize_grads(False)
    weighted = () if of.self_weights is None else (x, of.self_weights)
    ctx.save_for_backward(*of.matrices, of.source_removed, *of.target_removed, *weighted)


def _differentiate(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    matrices, rest = saved[: 6 * ctx.number], saved[6 * ctx.number :]
    source_removed, target_removed, weighted = rest[0], rest[1 : 1 + ctx.number], rest[1 + ctx.number :]
    x, self_weights = weighted or (None, None)
    to_x = to_weights = None
    if any(gradient is not None for gradient in gradients):
        common = _Common(self_weights, matrices, source_removed, target_removed, ctx.size, ctx.group)
        to_x, to_weights = torch.ops.tclab.shared_sums_backward(gradients, x, *common, ctx.sources)
    if self_weights is None:
        to_weights = None
    # a list takes a list of gradients back
    return to_x, to_weights, [None] * len(matrices), None, [None] * ctx.number, None, None


def refuse(ctx: Any, *gradients: Tensor) -> NoReturn:
    """Refuse a second derivative.

    **Raises:** `RuntimeError`, always.
    """
    raise RuntimeError(
        "a neighbour sum over a shared graph is once_differentiable: it has no second derivative "
        "(no create_graph=True through it)"
    )


_shared_sums.register_autograd(_differentiate, setup_context=_setup)
_backward.register_autograd(refuse)


def workspace_bytes(x: Tensor, size: int, group: int, *, sparse: Sequence[Tensor], copies: bool) -> int:
    """Return how many bytes an operation on a shared matrix takes on a CPU while it runs, besides its result.

    They are a copy of `x` whose rows are zeroed, and for one group of samples a copy that is cut into tiles and a
    product that is added to another, or copied, where the kernel cannot write it there.

    **Arguments:**

    - `x`: [N * size, H], what is summed, or its gradient.
    - `sparse`: the matrices, as the operation takes them.
    - `copies`: some of the rows count as zero.
    """
    if x.device.type != "cpu":
        return 0
    width = min(group, size) * x.size(1)
    number = x.size(0) // size
    kernel, tile = tiling_for(x.dtype, number, width)
    rows = max((crow.numel() - 1 for crow in sparse[::3]), default=0)
    product = rows * min(tile or width, width) if kernel == "aten" else 0
    cut = number * width if tile is not None else 0
    return x.nbytes * int(copies) + (product + cut) * x.element_size()
