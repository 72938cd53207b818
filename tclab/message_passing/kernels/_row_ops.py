"""Rows taken by index, and values added up by row: exact in two bytes, and right in compiled code on a CPU.

torch adds rows up by index in their own dtype: in bfloat16 a sum of ones ends at 256. Only `scatter_add` on a CPU adds
up in float32. Here floats of two bytes are always added up in float32 and rounded once, in gradients, too.

Inductor makes an `index_put` in place of `index_add`, `index_copy` and `index_fill`, of the gradient of
`index_select`, and, where there is one thread, of `scatter_add`, which is the gradient of `gather`. On a CPU its
scheduler may then run a read of the sums before the write: a node whose loops are fitted to another's forgets which
buffers were renamed (torch 2.13, `SchedulerNode.recompute_size_and_body`; pytorch/pytorch#177631 is related). It does
not trace into `tclab::take_rows` and `tclab::add_rows`, each the other's gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_TWO_BYTES = (torch.bfloat16, torch.float16)


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return `x.index_select(0, index)`, [n, …], of `x: [R, …]` and `index: [n]` int64."""
    if compiled_for_cpu(x):
        return torch.ops.tclab.take_rows(x, index)
    if x.dtype in _TWO_BYTES and x.device.type == "cpu":  # of `gather` the gradient is a `scatter_add`
        return x.gather(0, _expanded(index, x))
    return in_float32(x).index_select(0, index).to(x.dtype)


def add_rows(values: Tensor, index: Tensor, rows: int, *, scatter: bool = False) -> Tensor:
    """Return the sum of the `values: [n, …]` that go to each row, [rows, …]; `index: [n]` int64, 0 … `rows` - 1.

    With `scatter` it is added up by `scatter_add_` over an expanded index, as PyG's `scatter` runs it.
    """
    if compiled_for_cpu(values):
        return torch.ops.tclab.add_rows(values, index, rows)
    return _added(values, index, rows, scatter)


def _added(values: Tensor, index: Tensor, rows: int, scatter: bool = False) -> Tensor:
    exact = summable(values)
    sums = exact.new_zeros(rows, *values.shape[1:])
    if scatter or exact.dtype in _TWO_BYTES:
        return sums.scatter_add_(0, _expanded(index, values), exact).to(values.dtype)
    return sums.index_add(0, index, exact).to(values.dtype)


def summable(x: Tensor) -> Tensor:
    """Return `x` in a dtype whose sums by `scatter_add` are rounded once: on a CPU its own, on CUDA not two bytes."""
    return x if x.device.type == "cpu" else in_float32(x)


def in_float32(x: Tensor) -> Tensor:
    """Return `x`, in float32 if its numbers are floats of two bytes."""
    return x.float() if x.dtype in _TWO_BYTES else x


def _expanded(index: Tensor, x: Tensor) -> Tensor:
    return index.long().view(-1, *[1] * (x.dim() - 1)).expand(-1, *x.shape[1:])


def keep_mask(removed: Tensor, rows: int) -> Tensor:
    """Return which of some rows are kept, [rows] bool: all but those in `removed: [n]` int64, on its device."""
    if compiled_for_cpu(removed):
        return torch.ops.tclab.add_rows(torch.ones_like(removed), removed, rows) == 0
    return torch.ones(rows, dtype=torch.bool, device=removed.device).index_fill_(0, removed, False)


def kept_rows(x: Tensor, keep: Tensor | None) -> Tensor:
    """Return `x: [*, H]`, zero where `keep: [*]` is False, whatever `x` holds there; `x` itself for `None`."""
    return x if keep is None else x.masked_fill(~keep.unsqueeze(-1), 0.0)


def under_transform() -> bool:
    """Return whether a function transform (`torch.func`) or forward-mode differentiation is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


under_transform._dynamo_marked_constant = True  # type: ignore[attr-defined] # a compiler guards the transforms itself


def compiling() -> bool:
    """Return whether a compiler traces this.

    **Raises:** `NotImplementedError` where it traces a function transform, of which custom operations have no
    derivative: torch then runs the function uncompiled, unless `fullgraph=True` asks for this error. An error whose
    class has a constructor of its own, as `InputError`, would stop it.
    """
    if torch.compiler.is_compiling() and under_transform():
        raise NotImplementedError("torch.compile traces no layer under a torch.func transform: transform it uncompiled")
    return torch.compiler.is_compiling()


def compiled_for_cpu(x: Tensor) -> bool:
    """Return whether this is traced by a compiler, for a CPU."""
    return compiling() and x.device.type == "cpu"


@torch.library.custom_op("tclab::take_rows", mutates_args=(), schema="(Tensor x, Tensor index) -> Tensor")
def _take_rows(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index)


@torch.library.custom_op("tclab::add_rows", mutates_args=(), schema="(Tensor x, Tensor index, SymInt rows) -> Tensor")
def _add_rows(x: Tensor, index: Tensor, rows: int) -> Tensor:
    return _added(x, index, rows)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.rows = inputs[0].size(0)
    ctx.save_for_backward(inputs[1])


def _differentiate_take(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return torch.ops.tclab.add_rows(gradient, *ctx.saved_tensors, ctx.rows), None


def _differentiate_add(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return torch.ops.tclab.take_rows(gradient, *ctx.saved_tensors), None, None


_take_rows.register_fake(lambda x, index: x.new_empty(index.size(0), *x.shape[1:]))
_add_rows.register_fake(lambda x, index, rows: x.new_empty(rows, *x.shape[1:]))
_take_rows.register_autograd(_differentiate_take, setup_context=_save)
_add_rows.register_autograd(_differentiate_add, setup_context=_save)
