"""Sparse matrix times dense rows, for several relations and samples: `spmm` fans out, `spmm_sum` fans in.

They are custom operations of plain tensors, as `torch.compile` refuses sparse ones, and each is the other's gradient on
the transposed matrices, so every derivative is there. Rows lie sample after sample, [B, N, H]. On a CPU each product is
one `torch.nn.functional.embedding_bag` over one sample, whose rows stay in the cache while all relations gather them:
FBGEMM compiles that kernel for the width, keeps a row's sums in registers and prefetches. float64 has no such kernel
and takes ATen's sparse product; CUDA takes Triton's tiles, or cuSPARSE where those cannot serve.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

T = TypeVar("T")


class Csr(NamedTuple):
    """A sparse matrix [rows, columns] as plain tensors; a column may stand in a row more than once, and counts each."""

    crow: Tensor  # [rows + 1] int32
    col: Tensor  # [nnz] int32
    values: Tensor | None  # [nnz]; None where all are 1


class SparseMatrix(NamedTuple):
    """A sparse matrix and its transpose, each made once for good."""

    csr: Csr
    transposed: Csr

    @property
    def T(self) -> SparseMatrix:  # noqa: N802 (as a tensor's)
        """The transpose."""
        return SparseMatrix(self.transposed, self.csr)


with warnings.catch_warnings():  # torch warns once a process that CSR is in beta, and 2.11 of checks that are off
    warnings.filterwarnings("ignore", "Sparse (CSR tensor support is in beta|invariant checks are implicitly disabled)")
    torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([1.0]), check_invariants=False)


def product(a: Csr, x: Tensor) -> Tensor:
    """Return A·x of every sample, [B, rows, H], for `x: [B, columns, H]`, contiguous.

    A CPU adds up each row in the order of its entries, whatever the number of threads: two runs give the same bits.
    bfloat16 and float16 are added up in float32 and rounded once. cuSPARSE promises no order.
    """
    if x.device.type != "cpu":
        return _product_on_device(a, x)
    if x.dtype == torch.float64:
        return torch.stack([torch.sparse.mm(_csr_tensor(a, x), sample, "sum") for sample in x])
    weights = None if a.values is None else a.values.to(x.dtype)
    sums = [
        F.embedding_bag(a.col, sample, a.crow, mode="sum", include_last_offset=True, per_sample_weights=weights)
        for sample in x.detach()
    ]
    return sums[0].unsqueeze(0) if len(sums) == 1 else torch.stack(sums)


def _product_on_device(a: Csr, x: Tensor) -> Tensor:
    wide = x.transpose(0, 1).flatten(1)  # [columns, B·H]: one wide product serves all samples
    return torch.sparse.mm(_csr_tensor(a, x), wide).unflatten(1, (x.size(0), x.size(2))).transpose(0, 1).contiguous()


def _csr_tensor(a: Csr, x: Tensor) -> Tensor:
    values = x.new_ones(a.col.shape) if a.values is None else a.values.to(x.dtype)
    size = (a.crow.numel() - 1, x.size(1))
    return torch.sparse_csr_tensor(a.crow, a.col, values, size=size, check_invariants=False)


def spmm(matrices: Sequence[SparseMatrix], x: Tensor, *, self_weights: Tensor | None = None) -> list[Tensor]:
    """Return Yᵢ = Aᵢ·X + wᵢ·X for each matrix, of every sample.

    **Arguments:**

    - `x`: [B, columns, H]
    - `self_weights`: [matrices], w, for square matrices; `None` for none.

    **Returns:** [B, rows, H] for each matrix.
    """
    return torch.ops.tclab.spmm(x.contiguous(), *_flat(matrices), self_weights)


def spmm_sum(matrices: Sequence[SparseMatrix], xs: Sequence[Tensor], *, self_weights: Tensor | None = None) -> Tensor:
    """Return Y = Σ Aᵢ·Xᵢ + wᵢ·Xᵢ, of every sample; the adjoint of `spmm`.

    **Arguments:**

    - `xs`: [B, columns, H] for each matrix.
    - `self_weights`: [matrices], w, for square matrices; `None` for none.

    **Returns:** [B, rows, H]
    """
    return torch.ops.tclab.spmm_sum([x.contiguous() for x in xs], *_flat(matrices), self_weights)


def _flat(matrices: Sequence[SparseMatrix]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the matrices, and their transposes, as a custom op takes them: three tensors each."""
    return _tensors([matrix.csr for matrix in matrices]), _tensors([matrix.transposed for matrix in matrices])


def _tensors(parts: Sequence[Csr]) -> list[Tensor]:
    # a list of tensors may hold no None for autograd: no values at all stand for ones
    return [t for csr in parts for t in (csr.crow, csr.col, csr.col[:0] if csr.values is None else csr.values)]


def _matrices(flat: Sequence[Tensor]) -> list[Csr]:
    triples = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    return [Csr(crow, col, values if values.numel() else None) for crow, col, values in triples]


def _samples(x: Tensor) -> list[slice]:
    """Return what is computed at a time: on a CPU one sample, whose rows then stay in the cache, else all."""
    return [slice(b, b + 1) for b in range(x.size(0))] if x.device.type == "cpu" else [slice(None)]


@torch.library.custom_op(
    "tclab::spmm", mutates_args=(), schema="(Tensor x, Tensor[] a, Tensor[] at, Tensor? w) -> Tensor[]"
)
def _spmm(x: Tensor, a: Sequence[Tensor], at: Sequence[Tensor], w: Tensor | None) -> list[Tensor]:
    matrices = _matrices(a)
    ys = [x.new_empty(x.size(0), len(matrix.crow) - 1, x.size(2)) for matrix in matrices]
    for samples in _samples(x):
        for i, matrix in enumerate(matrices):
            summed = product(matrix, x[samples])
            if w is None:
                ys[i] = _written(ys[i], samples, summed)
            else:
                torch.addcmul(summed, x[samples], w[i], out=ys[i][samples])
    return ys


@torch.library.custom_op(
    "tclab::spmm_sum", mutates_args=(), schema="(Tensor[] xs, Tensor[] a, Tensor[] at, Tensor? w) -> Tensor"
)
def _spmm_sum(
    xs: Sequence[Tensor], a: Sequence[Tensor], at: Sequence[Tensor], w: Tensor | None
) -> Tensor:
    matrices = _matrices(a)
    y = xs[0].new_empty(xs[0].size(0), len(matrices[0].crow) - 1, xs[0].size(2))
    for samples in _samples(y):
        total = product(matrices[0], xs[0][samples])
        for matrix, x in zip(matrices[1:], xs[1:], strict=True):
            total += product(matrix, x[samples])
        if w is not None:
            for x, weight in zip(xs, w, strict=True):
                total.addcmul_(x[samples], weight)
        y = _written(y, samples, total)
    return y


def _written(y: Tensor, samples: slice, value: Tensor) -> Tensor:
    """Return `y` with the value of some samples; the value itself where they are all there are."""
    if value.size(0) == y.size(0):
        return value
    y[samples] = value
    return y


@_spmm.register_fake
def _(x: Tensor, a: Sequence[Tensor], at: Sequence[Tensor], w: Tensor | None) -> list[Tensor]:
    return [x.new_empty(x.size(0), matrix.crow.size(0) - 1, x.size(2)) for matrix in _matrices(a)]


@_spmm_sum.register_fake
def _(xs: Sequence[Tensor], a: Sequence[Tensor], at: Sequence[Tensor], w: Tensor | None) -> Tensor:
    return xs[0].new_empty(xs[0].size(0), _matrices(a)[0].crow.size(0) - 1, xs[0].size(2))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, a, at, w = inputs
    xs = x if isinstance(x, (list, tuple)) else [x]
    ctx.set_materialize_grads(False)
    ctx.count = len(a)
    ctx.save_for_backward(*a, *at, w, *([] if w is None else xs))


def _saved(ctx: Any) -> tuple[list[SparseMatrix], Tensor | None, Sequence[Tensor]]:
    """Return the transposed matrices, the self-weights, and, where there are any, what they weigh."""
    saved = ctx.saved_tensors  # read once: a checkpoint gives each tensor once
    a, at, (w, *xs) = saved[: ctx.count], saved[ctx.count : 2 * ctx.count], saved[2 * ctx.count :]
    return [SparseMatrix(*pair) for pair in zip(_matrices(at), _matrices(a), strict=True)], w, xs


def _dot(g: Tensor, x: Tensor) -> Tensor:
    return torch.dot(g.flatten(), x.flatten())


def _spmm_grad(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    transposed, w, xs = _saved(ctx)
    none = [None] * ctx.count
    used = [i for i, grad in enumerate(grads) if grad is not None]
    if not used:
        return None, none, none, None
    to_x = to_w = None
    if w is not None and ctx.needs_input_grad[3]:
        dots = [w.new_zeros(()) if grad is None else _dot(grad, xs[0]) for grad in grads]
        to_w = torch.stack(dots)
    weights = w if w is None or len(used) == len(grads) else w[used]
    to_x = spmm_sum([transposed[i] for i in used], [grads[i] for i in used], self_weights=weights)  # type: ignore[misc]
    return to_x, none, none, to_w


def _spmm_sum_grad(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
    transposed, w, xs = _saved(ctx)
    none = [None] * ctx.count
    if grad is None:
        return [None] * len(transposed), none, none, None
    to_w = None
    if w is not None and ctx.needs_input_grad[3]:
        to_w = torch.stack([_dot(grad, x) for x in xs])
    return spmm(transposed, grad, self_weights=w), none, none, to_w


_spmm.register_autograd(_spmm_grad, setup_context=_save)
_spmm_sum.register_autograd(_spmm_sum_grad, setup_context=_save)


def least_seconds(
    arms: Mapping[T, Callable[[], object]], *, rounds: int = 5, clock: Callable[[], float] = perf_counter
) -> dict[T, float]:
    """Return the least time of each call, in seconds; in turns, as another process may be at work.

    **Arguments:**

    - `rounds`: how often each is called.
    - `clock`: what is read before and after a call, seconds.
    """
    seconds: dict[T, float] = dict.fromkeys(arms, float("inf"))
    for _ in range(rounds):
        for key, call in arms.items():
            begin = clock()
            call()
            seconds[key] = min(seconds[key], clock() - begin)
    return seconds
