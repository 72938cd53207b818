"""Sparse matrix times dense rows, for several relations and samples: `spmm` fans out, `spmm_sum` fans in.

They are custom operations of plain tensors, as `torch.compile` refuses sparse ones, and each is the other's gradient on
the transposed matrices, so every derivative is there. Rows lie sample after sample, [B, N, H]. On a CPU each product is
one `torch.nn.functional.embedding_bag` over one sample, whose rows stay in the cache while all relations gather them:
FBGEMM compiles that kernel for the width, keeps a row's sums in registers and prefetches. float64 has no such kernel
and takes ATen's sparse product, as do small graphs, many samples at once. CUDA takes cuSPARSE in float32 and float64,
and in two bytes Triton's tiles, or cuSPARSE in float32 where those cannot serve.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tclab.graph._csr import Csr, SparseMatrix
from tclab.message_passing.kernels._row_ops import compiling, masked_rows
from tclab.message_passing.kernels._tile_sums import tile_sums, tiles_for

_SMALL = 1 << 14  # numbers of a sample, 64 kB in float32
_CACHED = 1 << 18  # numbers of small samples that a CPU takes at a time: 1 MB in float32, which stays in its cache


with warnings.catch_warnings():  # torch warns once a process that CSR is in beta, and 2.11 of checks that are off
    warnings.filterwarnings("ignore", "Sparse (CSR tensor support is in beta|invariant checks are implicitly disabled)")
    torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([1.0]), check_invariants=False)


def product(a: Csr, x: Tensor, *, lasting: bool) -> Tensor:
    """Return A·X of every sample, [B, rows, H], for `x: [B, columns, H]`; `lasting` as in `SparseMatrix`.

    A CPU adds up each row in the order of its entries, whatever the number of threads: two runs give the same bits, as
    they do in tiles on CUDA. bfloat16 and float16 are added up in float32 and rounded once. cuSPARSE promises no order.
    """
    x, rows = x.contiguous(), len(a.crow) - 1
    if lasting and (tiles := tiles_for(x, *a, x.size(1))) is not None:
        return tile_sums(tiles, x, rows=rows)
    if x.device.type == "cuda" and x.element_size() == 2:  # summed in bf16 itself cuSPARSE is 4 % off
        return product(a, x.float(), lasting=lasting).to(x.dtype)
    if x.device.type == "cpu" and x.dtype != torch.float64 and len(x) == 1:  # as `_chunks` cuts large graphs
        weights = None if a.values is None else a.values.to(x.dtype)
        bags = partial(F.embedding_bag, mode="sum", include_last_offset=True, per_sample_weights=weights)
        return bags(a.col, x[0].detach(), a.crow).unsqueeze(0)
    wide = x.transpose(0, 1).flatten(1)  # [columns, B·H]: one product serves all samples
    reduce = ("sum",) if x.device.type == "cpu" else ()  # ATen's kernel, which knows every dtype
    summed = torch.sparse.mm(_csr_tensor(a, x), wide, *reduce)
    return summed.view(rows, *x.shape[::2]).transpose(0, 1).contiguous()


def _csr_tensor(a: Csr, x: Tensor) -> Tensor:
    values = x.new_ones(a.col.shape) if a.values is None else a.values.to(x.dtype)
    size = (a.crow.numel() - 1, x.size(1))
    return torch.sparse_csr_tensor(a.crow, a.col, values, size=size, check_invariants=False)


def spmm(
    matrices: Sequence[SparseMatrix],
    x: Tensor,
    *,
    self_weights: Tensor | None = None,
    sources: Tensor | None = None,
    targets: Tensor | None = None,
) -> list[Tensor]:
    """Return Yᵢ = K′·(Aᵢ·(K·X) + wᵢ·K·X) for each matrix, of every sample.

    **Arguments:**

    - `x`: [B, columns, H]. What rows hold that are left out reaches nothing, NaN neither.
    - `self_weights`: [matrices], w, for square matrices; `None` for none.
    - `sources`: K, which rows of `x` are kept, [B, columns] bool; `None` for all.
    - `targets`: K′, which rows of the result are kept, [B, rows] bool, the others being zero; `None` for all.

    **Returns:** [B, rows, H] for each matrix, contiguous.
    """
    if compiling():
        return torch.ops.tclab.spmm(x, *_flat(matrices), _lasting(matrices), self_weights, sources, targets)
    return list(_Products.apply(False, self_weights, sources, targets, matrices, x))


def spmm_sum(
    matrices: Sequence[SparseMatrix],
    xs: Sequence[Tensor],
    *,
    self_weights: Tensor | None = None,
    sources: Tensor | None = None,
    targets: Tensor | None = None,
) -> Tensor:
    """Return Y = K′·Σ (Aᵢ·(K·Xᵢ) + wᵢ·K·Xᵢ), of every sample; the adjoint of `spmm`.

    **Arguments:**

    - `xs`: [B, columns, H] for each matrix.
    - `self_weights`, `sources`, `targets`: as for `spmm`.

    **Returns:** [B, rows, H], contiguous.
    """
    if compiling():
        return torch.ops.tclab.spmm_sum(list(xs), *_flat(matrices), _lasting(matrices), self_weights, sources, targets)
    total: Tensor = _Products.apply(True, self_weights, sources, targets, matrices, *xs)[0]
    return total


def _flat(matrices: Sequence[SparseMatrix]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the matrices, and their transposes, as a custom op takes them: three tensors each."""
    return _tensors([matrix.csr for matrix in matrices]), _tensors([matrix.transposed for matrix in matrices])


def _lasting(matrices: Sequence[SparseMatrix]) -> bool:
    return all(matrix.lasting for matrix in matrices)


def _tensors(parts: Sequence[Csr]) -> list[Tensor]:
    # a list of tensors may hold no None for autograd: no values at all stand for ones
    return [t for csr in parts for t in (csr.crow, csr.col, csr.col[:0] if csr.values is None else csr.values)]


def _matrices(flat: Sequence[Tensor]) -> list[Csr]:
    triples = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    return [Csr(crow, col, values if values.numel() else None) for crow, col, values in triples]


def _chunks(x: Tensor) -> list[slice]:
    """Return the samples that are computed at a time.

    On a CPU that is one, whose rows stay in the cache; of small graphs, whose products take less time than a call, as
    many as stay there; on CUDA all.
    """
    if x.device.type != "cpu":
        return [slice(None)]
    sample = x.size(1) * x.size(2)
    step = 1 if sample >= _SMALL else _CACHED // max(sample, 1)
    return [slice(b, b + step) for b in range(0, len(x), step)]


def _kept(x: Tensor, keep: Tensor | None) -> Tensor:
    """Return `x: [B, N, H]` with the rows that `keep: [B, N]` leaves out zero; `masked_rows`, in fewer writes."""
    return x if keep is None else _zero_(x.clone(memory_format=torch.contiguous_format), keep)


def _zero_(x: Tensor, keep: Tensor) -> Tensor:
    """Write zeros to the rows that are left out of `x`, contiguous; on a CPU to these alone, as few are."""
    if x.device.type == "cpu":  # by numpy: a tensor's own `nonzero()` would count as a wait for the device
        x.flatten(0, 1).index_fill_(0, torch.from_numpy(np.flatnonzero(~keep.numpy())), 0.0)
    else:  # to know which rows they are the host would have to wait
        x.masked_fill_(~keep.unsqueeze(-1), 0.0)
    return x


_ARGUMENTS = "Tensor[] a, Tensor[] at, bool lasting, Tensor? w, Tensor? sources, Tensor? targets"


@torch.library.custom_op("tclab::spmm", mutates_args=(), schema=f"(Tensor x, {_ARGUMENTS}) -> Tensor[]")
def _spmm(
    x: Tensor,
    a: Sequence[Tensor],
    at: Sequence[Tensor],
    lasting: bool,
    w: Tensor | None,
    sources: Tensor | None,
    targets: Tensor | None,
) -> list[Tensor]:
    matrices, chunks = _matrices(a), _chunks(x)
    ys = [x.new_empty(x.size(0), len(matrix.crow) - 1, x.size(2)) for matrix in matrices]
    for samples in chunks:
        part = _kept(x[samples], None if sources is None else sources[samples])
        for i, matrix in enumerate(matrices):
            summed = product(matrix, part, lasting=lasting)
            if w is not None:
                torch.addcmul(summed, part, w[i], out=ys[i][samples])
            elif len(chunks) == 1:
                ys[i] = summed
            else:
                ys[i][samples] = summed
            if targets is not None:
                _zero_(ys[i][samples], targets[samples])
    return ys


@torch.library.custom_op("tclab::spmm_sum", mutates_args=(), schema=f"(Tensor[] xs, {_ARGUMENTS}) -> Tensor")
def _spmm_sum(
    xs: Sequence[Tensor],
    a: Sequence[Tensor],
    at: Sequence[Tensor],
    lasting: bool,
    w: Tensor | None,
    sources: Tensor | None,
    targets: Tensor | None,
) -> Tensor:
    matrices, chunks = _matrices(a), _chunks(xs[0])
    y = xs[0].new_empty(xs[0].size(0), len(matrices[0].crow) - 1, xs[0].size(2))
    exact = torch.promote_types(y.dtype, torch.float32)  # the relations' sums are rounded once, together
    for samples in chunks:
        total: Tensor | None = None
        for i, (matrix, x) in enumerate(zip(matrices, xs, strict=True)):
            part = _kept(x[samples], None if sources is None else sources[samples])
            summed = product(matrix, part, lasting=lasting)
            total = summed.to(exact) if total is None else total.add_(summed)
            if w is not None:
                total.addcmul_(part, w[i])
        assert total is not None
        if targets is not None:
            _zero_(total, targets[samples])
        if len(chunks) == 1:
            return total.to(y.dtype)
        y[samples] = total
    return y


@_spmm.register_fake
def _(x: Tensor, a: Sequence[Tensor], *rest: Any) -> list[Tensor]:
    return [x.new_empty(x.size(0), crow.size(0) - 1, x.size(2)) for crow in a[::3]]


@_spmm_sum.register_fake
def _(xs: Sequence[Tensor], a: Sequence[Tensor], *rest: Any) -> Tensor:
    return xs[0].new_empty(xs[0].size(0), a[0].size(0) - 1, xs[0].size(2))


# ---- derivatives


def _dot(grad: Tensor, x: Tensor) -> Tensor:
    if grad.element_size() == 2:  # torch's own adds up in two bytes, and takes six times as long on a CPU
        return (grad * x).sum(dtype=torch.float32).to(x.dtype)
    return torch.dot(grad.flatten(), x.flatten())


class _Products(torch.autograd.Function):
    """`spmm`, or `spmm_sum` where `summed`, with every derivative, forward and reverse, also under `torch.func`.

    Both are linear in the rows, and each is the other's gradient on the transposed matrices. It calls the custom
    operations, which have a gradient and no other derivative; a compiler, which cannot trace this class, calls them
    directly.
    """

    @staticmethod
    def forward(
        summed: bool,
        w: Tensor | None,
        sources: Tensor | None,
        targets: Tensor | None,
        matrices: Sequence[SparseMatrix],
        *xs: Tensor,
    ) -> tuple[Tensor, ...]:
        given = (*_flat(matrices), _lasting(matrices), w, sources, targets)
        return (torch.ops.tclab.spmm_sum(xs, *given),) if summed else tuple(torch.ops.tclab.spmm(xs[0], *given))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.summed, w, sources, targets, ctx.matrices, *xs = inputs
        ctx.set_materialize_grads(False)
        saved = (w, sources, targets, *([] if w is None else xs))
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        w, sources, targets, *xs = ctx.saved_tensors
        xs = xs if ctx.needs_input_grad[1] else []
        to_xs, to_w = _gradients(ctx.summed, ctx.matrices, w, sources, targets, grads, xs)
        return None, to_w, None, None, None, *to_xs

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        w, sources, targets, *xs = ctx.saved_tensors
        w_t, xs_t = tangents[1], tangents[5:]
        parts = []
        moved = [i for i, x_t in enumerate(xs_t) if x_t is not None]
        if moved and ctx.summed:
            matrices, weights = [ctx.matrices[i] for i in moved], None if w is None else w[moved]
            parts.append(_Products.apply(True, weights, sources, targets, matrices, *[xs_t[i] for i in moved]))
        elif moved:
            parts.append(_Products.apply(False, w, sources, targets, ctx.matrices, *xs_t))
        if w_t is not None:
            rows = [masked_rows(masked_rows(x, sources), targets) for x in xs] * len(w_t)
            by_weights = [x * weight for x, weight in zip(rows, w_t, strict=False)]
            parts.append([torch.stack(by_weights).sum(0)] if ctx.summed else by_weights)
        return tuple(parts[0]) if len(parts) == 1 else tuple(map(torch.add, *parts))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        batched = [i for i, dim in enumerate(in_dims) if isinstance(dim, int)]
        each = []
        for b in range(info.batch_size):  # samples are computed one after the other anyway
            of_b = {i: given[i].select(in_dims[i], b) for i in batched}
            each.append(_Products.apply(*(of_b.get(i, one) for i, one in enumerate(given))))
        ys = tuple(torch.stack(of_all) for of_all in zip(*each, strict=True))
        return ys, (0,) * len(ys)


# torch asks for it in each call, and to find it out takes as long as a small product
_Products.forward.__signature__ = inspect.signature(_Products.forward)  # type: ignore[attr-defined]


def _gradients(
    summed: bool,
    matrices: Sequence[SparseMatrix],
    w: Tensor | None,
    sources: Tensor | None,
    targets: Tensor | None,
    grads: Sequence[Tensor | None],
    xs: Sequence[Tensor],
) -> tuple[Sequence[Tensor | None], Tensor | None]:
    """Return the gradients of the rows and, where `xs`, these rows, are given, of the self-weights."""
    given = {i: grad for i, grad in enumerate(grads) if grad is not None}
    if not given:
        return [None] * (len(matrices) if summed else 1), None
    to_w = None
    if w is not None and xs:
        rows = [masked_rows(x, sources) for x in xs] * (len(matrices) // len(xs))
        reached = [*grads] * (len(matrices) // len(grads))
        pairs = zip(reached, rows, strict=True)
        to_w = torch.stack([w.new_zeros(()) if g is None else _dot(masked_rows(g, targets), x) for g, x in pairs])
    if summed:
        transposed = [matrix.transpose() for matrix in matrices]
        return spmm(transposed, given[0], self_weights=w, sources=targets, targets=sources), to_w
    transposed = [matrices[i].transpose() for i in given]
    if w is not None and len(given) < len(matrices):
        w = w[[*given]]
    to_x = spmm_sum(transposed, list(given.values()), self_weights=w, sources=targets, targets=sources)
    return [to_x], to_w


# ---- the gradients of the custom operations


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, a, at, ctx.lasting, w, sources, targets = inputs
    ctx.set_materialize_grads(False)
    ctx.summed, ctx.count = isinstance(x, (list, tuple)), len(a)
    ctx.save_for_backward(*a, *at, w, sources, targets, *([] if w is None else x if ctx.summed else [x]))


def _backward(ctx: Any, grads: Any) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # read once: a checkpoint gives each tensor once
    a, at, (w, sources, targets, *xs) = saved[: ctx.count], saved[ctx.count : 2 * ctx.count], saved[2 * ctx.count :]
    matrices = [SparseMatrix(*pair, ctx.lasting) for pair in zip(_matrices(a), _matrices(at), strict=True)]
    xs = xs if ctx.needs_input_grad[4] else []
    grads = [grads] if ctx.summed else grads
    to_xs, to_w = _gradients(ctx.summed, matrices, w, sources, targets, grads, xs)
    none = [None] * ctx.count
    return list(to_xs) if ctx.summed else to_xs[0], none, none, None, to_w, None, None


_spmm.register_autograd(_backward, setup_context=_save)
_spmm_sum.register_autograd(_backward, setup_context=_save)
