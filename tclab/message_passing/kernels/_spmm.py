"""Sparse matrix times dense rows, for several relations and samples: it fans out or in.

Of one `x` for all matrices it makes a result each, of one for each matrix their sum. Each is the other's gradient on
the transposed matrices, so every derivative is there. `tclab::spmm` does both, a custom operation of plain tensors, as
`torch.compile` refuses sparse ones. Rows lie sample after sample, [B, N, H]. On a CPU each product is one
`torch.nn.functional.embedding_bag` over one sample, whose rows stay in the cache while all relations gather them:
FBGEMM compiles that kernel for the width, keeps a row's sums in registers and prefetches. float64 has no such kernel
and takes ATen's sparse product, as do small graphs, many samples at once. CUDA takes cuSPARSE in float32 and float64,
and in two bytes Triton's tiles, or cuSPARSE in float32 where those cannot serve.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tclab.graph._csr import Csr, SparseMatrix
from tclab.message_passing.kernels._row_ops import compiling, kept_rows
from tclab.message_passing.kernels._tile_sums import tile_sums, tiles_for

_SMALL = 1 << 14  # numbers of a sample, 64 kB in float32
_CACHED = 1 << 18  # numbers of small samples that a CPU takes at a time: 1 MB in float32, which stays in its cache


with warnings.catch_warnings():  # torch warns once a process that CSR is in beta, and 2.11 of checks that are off
    warnings.filterwarnings("ignore", "Sparse (CSR tensor support is in beta|invariant checks are implicitly disabled)")
    torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([1.0]), check_invariants=False)


def product(matrix: SparseMatrix, x: Tensor) -> Tensor:
    """Return A·X of every sample, [B, rows, H], for `x: [B, columns, H]`.

    A CPU adds up each row in the order of its entries, whatever the number of threads: two runs give the same bits, as
    they do in tiles on CUDA. bfloat16 and float16 are added up in float32 and rounded once. cuSPARSE promises no order.
    """
    a, x = matrix.csr, x.contiguous()
    rows = len(a.crow) - 1
    if matrix.lasting and (tiles := tiles_for(x, *a, x.size(1))) is not None:
        return tile_sums(tiles, x, rows=rows)
    if x.device.type == "cuda" and x.element_size() == 2:  # summed in bf16 itself cuSPARSE is 4 % off
        return product(matrix, x.float()).to(x.dtype)
    if x.device.type == "cpu" and x.dtype != torch.float64 and len(x) == 1:  # as `_chunks` cuts large graphs
        weights = None if a.values is None else a.values.to(x.dtype)
        bags = partial(F.embedding_bag, mode="sum", include_last_offset=True, per_sample_weights=weights)
        return bags(a.col, x[0].detach(), a.crow).unsqueeze(0)
    wide = x.transpose(0, 1).flatten(1)  # [columns, B·H]: one product serves all samples
    values = x.new_ones(a.col.shape) if a.values is None else a.values.to(x.dtype)
    sparse = torch.sparse_csr_tensor(a.crow, a.col, values, size=(rows, x.size(1)), check_invariants=False)
    if x.device.type == "cpu":
        summed = torch.sparse.mm(sparse, wide, "sum")  # ATen's kernel, which knows every dtype
    else:  # into zeros; `mm` would make them and copy them into its result
        summed = wide.new_zeros(rows, wide.size(1))
        torch.addmm(summed, sparse, wide, beta=0, out=summed)
    return summed.view(rows, *x.shape[::2]).transpose(0, 1).contiguous()


def spmm(
    matrices: Sequence[SparseMatrix], *xs: Tensor, self_weights: Tensor | None = None, sources: Tensor | None = None,
    targets: Tensor | None = None
) -> list[Tensor]:  # fmt: skip
    """Return Yᵢ = K′·(Aᵢ·(K·X) + wᵢ·K·X) for each matrix, of every sample; of an X for each matrix the one sum of all.

    **Arguments:**

    - `xs`: [B, columns, H]. What rows hold that are left out reaches nothing, NaN neither.
    - `self_weights`: [matrices], w, for square matrices; `None` for none.
    - `sources`: K, which rows of `x` are kept, [B, columns] bool; `None` for all.
    - `targets`: K′, which rows of the result are kept, [B, rows] bool, the others being zero; `None` for all.

    **Returns:** [B, rows, H] for each matrix, contiguous.
    """
    if compiling():
        lasting = all(matrix.lasting for matrix in matrices)
        return torch.ops.tclab.spmm(list(xs), _flat(matrices), lasting, self_weights, sources, targets)
    return list(_Products.apply(self_weights, sources, targets, matrices, *xs))


def _flat(matrices: Sequence[SparseMatrix]) -> list[Tensor]:
    """Return matrices as a custom operation takes them, three tensors a matrix, then three a transpose."""
    # a list of tensors may hold no None for autograd: no values at all stand for ones
    sides = [side for matrix in matrices for side in (matrix.csr, matrix.transposed)]
    return [t for csr in sides for t in (csr.crow, csr.col, csr.col[:0] if csr.values is None else csr.values)]


def _matrices(flat: Sequence[Tensor], lasting: bool) -> list[SparseMatrix]:
    """Return the matrices that `_flat` made flat."""
    triples = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    sides = [Csr(crow, col, values if values.numel() else None) for crow, col, values in triples]
    return [SparseMatrix(*pair, lasting) for pair in zip(sides[::2], sides[1::2], strict=True)]


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


def _kept_copy(x: Tensor, keep: Tensor | None) -> Tensor:
    """Return what `kept_rows` does of `x: [B, N, H]` and `keep: [B, N]`, in fewer writes."""
    return x if keep is None else _zero_deleted_(x.clone(memory_format=torch.contiguous_format), keep)


def _zero_deleted_(x: Tensor, keep: Tensor) -> Tensor:
    """Write zeros where `keep` is False to `x`, contiguous; on a CPU there alone, as few are deleted."""
    if x.device.type == "cpu":  # by numpy: a tensor's own `nonzero()` would count as a wait for the device
        x.flatten(0, 1).index_fill_(0, torch.from_numpy(np.flatnonzero(~keep.numpy())), 0.0)
    else:  # to know which rows they are the host would have to wait
        x.masked_fill_(~keep.unsqueeze(-1), 0.0)
    return x


_SCHEMA = "(Tensor[] xs, Tensor[] matrices, bool lasting, Tensor? w, Tensor? sources, Tensor? targets) -> Tensor[]"


@torch.library.custom_op("tclab::spmm", mutates_args=(), schema=_SCHEMA)
def _spmm(
    xs: Sequence[Tensor], matrices: Sequence[Tensor], lasting: bool, w: Tensor | None, sources: Tensor | None,
    targets: Tensor | None
) -> list[Tensor]:  # fmt: skip
    each, chunks, ys = _matrices(matrices, lasting), _chunks(xs[0]), _empty(xs, matrices)
    exact = torch.promote_types(xs[0].dtype, torch.float32)  # the relations' sums are rounded once, together
    for samples in chunks:
        keep = None if sources is None else sources[samples]
        if len(xs) == 1:
            part = _kept_copy(xs[0][samples], keep)
            for i, matrix in enumerate(each):
                summed = product(matrix, part)
                if w is not None:
                    torch.addcmul(summed, part, w[i], out=ys[i][samples])
                elif len(chunks) == 1:
                    ys[i] = summed
                else:
                    ys[i][samples] = summed
        else:
            total: Tensor | None = None
            for i, (matrix, x) in enumerate(zip(each, xs, strict=True)):
                part = _kept_copy(x[samples], keep)
                summed = product(matrix, part)
                total = summed.to(exact) if total is None else total.add_(summed)
                if w is not None:
                    total.addcmul_(part, w[i])
            assert total is not None
            if len(chunks) == 1:
                ys = [total.to(xs[0].dtype)]
            else:
                ys[0][samples] = total
        if targets is not None:
            for y in ys:
                _zero_deleted_(y[samples], targets[samples])
    return ys


@_spmm.register_fake
def _empty(xs: Sequence[Tensor], matrices: Sequence[Tensor], *rest: Any) -> list[Tensor]:
    rows = [crow.size(0) - 1 for crow in matrices[::6]]
    return [xs[0].new_empty(xs[0].size(0), n, xs[0].size(2)) for n in rows[: len(rows) // len(xs)]]


# ---- derivatives


def _dot(grad: Tensor, x: Tensor) -> Tensor:
    if grad.element_size() == 2:  # torch's own adds up in two bytes, and takes six times as long on a CPU
        return (grad * x).sum(dtype=torch.float32).to(x.dtype)
    return torch.dot(grad.flatten(), x.flatten())


class _Products(torch.autograd.Function):
    """`spmm` with every derivative, forward and reverse, also under `torch.func`.

    It is linear in the rows, and its gradient is itself on the transposed matrices. It calls the custom operation,
    which has a gradient and no other derivative; a compiler, which cannot trace this class, calls that directly.
    """

    @staticmethod
    def forward(
        w: Tensor | None, sources: Tensor | None, targets: Tensor | None, matrices: Sequence[SparseMatrix], *xs: Tensor
    ) -> tuple[Tensor, ...]:
        lasting = all(matrix.lasting for matrix in matrices)
        return tuple(torch.ops.tclab.spmm(xs, _flat(matrices), lasting, w, sources, targets))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        w, sources, targets, ctx.matrices, *xs = inputs
        ctx.set_materialize_grads(False)
        saved = (w, sources, targets, *([] if w is None else xs))
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        to_xs, to_w = _gradients(ctx.matrices, grads, ctx.needs_input_grad[0], *ctx.saved_tensors)
        return to_w, None, None, None, *to_xs

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        w, sources, targets, *xs = ctx.saved_tensors
        w_t, xs_t = tangents[0], tangents[4:]
        moved = {i: x_t for i, x_t in enumerate(xs_t) if x_t is not None}
        parts = []
        if moved:
            matrices, weights = (ctx.matrices, w) if len(xs_t) == 1 else _some(ctx.matrices, w, moved)
            parts.append(_Products.apply(weights, sources, targets, matrices, *moved.values()))
        if w_t is not None:
            rows = [kept_rows(kept_rows(x, sources), targets) for x in xs] * len(w_t)
            by_weights = [x * weight for x, weight in zip(rows, w_t, strict=False)]
            parts.append(by_weights if len(xs) == 1 else [torch.stack(by_weights).sum(0)])
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


def _some(
    matrices: Sequence[SparseMatrix], w: Tensor | None, indices: Collection[int]
) -> tuple[Sequence[SparseMatrix], Tensor | None]:
    """Return some of the matrices and their self-weights."""
    if len(indices) == len(matrices):
        return matrices, w
    return [matrices[i] for i in indices], None if w is None else w[[*indices]]


def _gradients(
    matrices: Sequence[SparseMatrix], grads: Sequence[Tensor | None], of_weights: bool, w: Tensor | None,
    sources: Tensor | None, targets: Tensor | None, *xs: Tensor
) -> tuple[Sequence[Tensor | None], Tensor | None]:  # fmt: skip
    """Return the gradients of the rows and, `of_weights`, of the self-weights, for which the rows `xs` are needed."""
    given = {i: grad for i, grad in enumerate(grads) if grad is not None}
    if not given:
        return [None] * (len(matrices) // len(grads)), None
    to_w = None
    if w is not None and of_weights:
        rows = [kept_rows(x, sources) for x in xs] * (len(matrices) // len(xs))
        reached = [*grads] * (len(matrices) // len(grads))
        pairs = zip(reached, rows, strict=True)
        to_w = torch.stack([w.new_zeros(()) if g is None else _dot(kept_rows(g, targets), x) for g, x in pairs])
    if len(grads) > 1:
        matrices, w = _some(matrices, w, given)
    transposed = [matrix.transpose() for matrix in matrices]
    return spmm(transposed, *given.values(), self_weights=w, sources=targets, targets=sources), to_w


# ---- the gradient of the custom operation


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    xs, flat, ctx.lasting, w, sources, targets = inputs
    ctx.set_materialize_grads(False)
    ctx.count = len(flat)
    ctx.save_for_backward(*flat, w, sources, targets, *([] if w is None else xs))


def _backward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # read once: a checkpoint gives each tensor once
    matrices = _matrices(saved[: ctx.count], ctx.lasting)
    to_xs, to_w = _gradients(matrices, grads, ctx.needs_input_grad[3], *saved[ctx.count :])
    return list(to_xs), [None] * ctx.count, None, to_w, None, None


_spmm.register_autograd(_backward, setup_context=_save)
