"""K·A·(K·X): one sparse matrix for all samples, without the rows that each sample deletes.

`spmm` with the masks inside: a few samples are masked, multiplied and masked again while they lie in a processor's
cache. Whole copies of `x` that are masked would take as long as the product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tclab.message_passing.kernels._spmm import Csr, Relation, spmm

_CACHED = 1 << 18  # numbers of `x` that go through a CPU at a time


def masked_spmm(a: Relation, x: Tensor, sources: Tensor | None, targets: Tensor | None) -> Tensor:
    """Return K·A·(K·X) of every sample. The gradient is the same operation on A's transpose.

    **Arguments:**

    - `x`: [B, N_source, H], of any strides. What rows hold that are left out reaches nothing, NaN neither.
    - `sources`, `targets`: which rows are kept, [B, N] bool; `None` for all.

    **Returns:** [B, N_target, H], contiguous
    """
    return torch.ops.tclab.masked_spmm(x, sources, targets, *a.matrix[:3], *a.transposed[:3])


@torch.library.custom_op(
    "tclab::masked_spmm",
    mutates_args=(),
    schema="(Tensor x, Tensor? sources, Tensor? targets, Tensor crow, Tensor col, Tensor? values, "
    "Tensor t_crow, Tensor t_col, Tensor? t_values) -> Tensor",
)
def _masked_spmm(
    x: Tensor, sources: Tensor | None, targets: Tensor | None, crow: Tensor, col: Tensor, values: Tensor | None, *t: Any
) -> Tensor:
    size, columns, width = x.shape
    rows = len(crow) - 1
    out = x.new_empty(size, rows, width)
    if x.numel() == 0:
        return out.zero_()
    a = Relation(Csr(crow, col, values, columns), Csr(t[0], t[1], t[2], rows))
    step = max(_CACHED // (columns * width), 1) if x.device.type == "cpu" else size
    for i in range(0, size, step):
        few = slice(i, i + step)
        part = x[few] if sources is None else x[few].masked_fill(~sources[few].unsqueeze(-1), 0.0)
        summed = spmm(a, part)
        if targets is not None:
            summed.masked_fill_(~targets[few].unsqueeze(-1), 0.0)
        out[few] = summed
    return out


@_masked_spmm.register_fake
def _(x: Tensor, sources: Tensor | None, targets: Tensor | None, crow: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.size(0), crow.size(0) - 1, x.size(2))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    sources, targets, *csr = ctx.saved_tensors
    return torch.ops.tclab.masked_spmm(grad, targets, sources, *csr[3:], *csr[:3]), *[None] * 8


_masked_spmm.register_autograd(_differentiate, setup_context=_setup)
