"""Sparse matrix times dense rows, for several relations and samples: `spmm` fans out, `spmm_sum` fans in.

They are custom operations of plain tensors, as `torch.compile` refuses sparse ones, and each is the other's gradient on
the transposed matrices, so every derivative is there. Rows lie sample after sample, [B, N, H]. On a CPU each product is
one `torch.nn.functional.embedding_bag` over one sample, whose rows stay in the cache while all relations gather them:
FBGEMM compiles that kernel for the width, keeps a row's sums in registers and prefetches. float64 has no such kernel
and takes ATen's sparse product, as do small graphs, many samples at once. CUDA takes cuSPARSE in float32 and float64,
and in two bytes Triton's tiles, or cuSPARSE in float32 where those cannot serve.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tclab.message_passing.kernels._row_ops import masked_rows
from tclab.message_passing.kernels._tile_sums import tile_sums, tiles_for

_SMALL = 1 << 14  # numbers of a sample, 64 kB in float32
_CACHED = 1 << 18  # numbers of small samples that a CPU takes at a time: 1 MB in float32, which stays in its cache


class Csr(NamedTuple):
    """A sparse matrix [rows, columns] as plain tensors; a column that stands twice in a row counts twice."""

    crow: Tensor  # [rows + 1] int32
    col: Tensor  # [nnz] int32
    values: Tensor | None  # [nnz]; None where all are 1


class SparseMatrix(NamedTuple):
    """A sparse matrix and its transpose."""

    csr: Csr
    transposed: Csr
    lasting: bool = True  # made once for many steps, and worth its tiles on a GPU; or for one batch


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
    if x.device.type == "cpu" and x.dtype != torch.float64 and len(x) == 1:
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
    return torch.ops.tclab.spmm(x, *_flat(matrices), _lasting(matrices), self_weights, sources, targets)


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
    return torch.ops.tclab.spmm_sum(list(xs), *_flat(matrices), _lasting(matrices), self_weights, sources, targets)


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
    for samples in chunks:
        total: Tensor | None = None
        for i, (matrix, x) in enumerate(zip(matrices, xs, strict=True)):
            part = _kept(x[samples], None if sources is None else sources[samples])
            summed = product(matrix, part, lasting=lasting)
            total = summed if total is None else total.add_(summed)
            if w is not None:
                total.addcmul_(part, w[i])
        assert total is not None
        if targets is not None:
            _zero_(total, targets[samples])
        if len(chunks) == 1:
            return total
        y[samples] = total
    return y


@_spmm.register_fake
def _(x: Tensor, a: Sequence[Tensor], *rest: Any) -> list[Tensor]:
    return [x.new_empty(x.size(0), crow.size(0) - 1, x.size(2)) for crow in a[::3]]


@_spmm_sum.register_fake
def _(xs: Sequence[Tensor], a: Sequence[Tensor], *rest: Any) -> Tensor:
    return xs[0].new_empty(xs[0].size(0), a[0].size(0) - 1, xs[0].size(2))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, a, at, ctx.lasting, w, sources, targets = inputs
    xs = x if isinstance(x, (list, tuple)) else [x]
    ctx.set_materialize_grads(False)
    ctx.count = len(a)
    ctx.save_for_backward(*a, *at, w, sources, targets, *([] if w is None else xs))


def _saved(ctx: Any) -> tuple[list[SparseMatrix], dict[str, Tensor | None], Sequence[Tensor]]:
    """Return the transposed matrices, `spmm`'s further arguments for the gradient, and what the weights weigh."""
    saved = ctx.saved_tensors  # read once: a checkpoint gives each tensor once
    a, at, (w, sources, targets, *xs) = saved[: ctx.count], saved[ctx.count : 2 * ctx.count], saved[2 * ctx.count :]
    transposed = [SparseMatrix(*pair, ctx.lasting) for pair in zip(_matrices(at), _matrices(a), strict=True)]
    return transposed, {"self_weights": w, "sources": targets, "targets": sources}, xs


def _dot(grad: Tensor, x: Tensor) -> Tensor:
    return torch.dot(grad.flatten(), x.flatten())


def _spmm_grad(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    transposed, of, xs = _saved(ctx)
    none = [None] * ctx.count
    used = [i for i, grad in enumerate(grads) if grad is not None]
    if not used:
        return None, none, none, None, None, None, None
    to_w, w = None, of["self_weights"]
    if w is not None:
        if ctx.needs_input_grad[4]:
            x = masked_rows(xs[0], of["targets"])
            dots = [w.new_zeros(()) if g is None else _dot(masked_rows(g, of["sources"]), x) for g in grads]
            to_w = torch.stack(dots)
        of["self_weights"] = w[used] if len(used) < len(grads) else w
    to_x = spmm_sum([transposed[i] for i in used], [g for g in grads if g is not None], **of)
    return to_x, none, none, None, to_w, None, None


def _spmm_sum_grad(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
    transposed, of, xs = _saved(ctx)
    none = [None] * ctx.count
    if grad is None:
        return [None] * len(transposed), none, none, None, None, None, None
    to_w = None
    if of["self_weights"] is not None and ctx.needs_input_grad[4]:
        grad = masked_rows(grad, of["sources"])
        to_w = torch.stack([_dot(grad, masked_rows(x, of["targets"])) for x in xs])
    return spmm(transposed, grad, **of), none, none, None, to_w, None, None


_spmm.register_autograd(_spmm_grad, setup_context=_save)
_spmm_sum.register_autograd(_spmm_sum_grad, setup_context=_save)
