"""Rows taken by index, and values added up by row, in operations that compiled code on a CPU gets right.

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
from torch.autograd import forward_ad


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return `x.index_select(0, index)`, [n, …], of `x: [R, …]` and `index: [n]` int64."""
    if compiled_for_cpu(x):
        return torch.ops.tclab.take_rows(x, index)
    return x.index_select(0, index)


def add_rows(values: Tensor, index: Tensor, rows: int) -> Tensor:
    """Return the sum of the `values: [n, …]` that go to each row, [rows, …]; `index: [n]` int64, 0 … `rows` - 1."""
    if compiled_for_cpu(values):
        return torch.ops.tclab.add_rows(values, index, rows)
    return values.new_zeros(rows, *values.shape[1:]).index_add(0, index, values)


def without(removed: Tensor, rows: int) -> Tensor:
    """Return [rows] bool, False for those in `removed: [n]` int64, on its device."""
    if compiled_for_cpu(removed):
        return torch.ops.tclab.add_rows(torch.ones_like(removed), removed, rows) == 0
    return torch.ones(rows, dtype=torch.bool, device=removed.device).index_fill_(0, removed, False)


def masked_rows(x: Tensor, keep: Tensor | None) -> Tensor:
    """Return `x: [*, H]` with the rows that `keep: [*]` leaves out zero, whatever they hold; itself for `None`."""
    return x if keep is None else x.masked_fill(~keep.unsqueeze(-1), 0.0)


def compiled_for_cpu(x: Tensor) -> bool:
    """Return whether this is traced by a compiler, for a CPU."""
    return x.device.type == "cpu" and torch.compiler.is_compiling()


def under_transform() -> bool:
    """Return whether a transform of `torch.func` or forward-mode differentiation runs; False while a compiler traces.

    Neither may go through an `autograd.Function` that has a backward alone.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


@torch.library.custom_op("tclab::take_rows", mutates_args=(), schema="(Tensor x, Tensor index) -> Tensor")
def _take_rows(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index)


@_take_rows.register_fake
def _(x: Tensor, index: Tensor) -> Tensor:
    return x.new_empty(index.size(0), *x.shape[1:])


@torch.library.custom_op(
    "tclab::add_rows", mutates_args=(), schema="(Tensor values, Tensor index, SymInt rows) -> Tensor"
)
def _add_rows(values: Tensor, index: Tensor, rows: int) -> Tensor:
    return values.new_zeros(rows, *values.shape[1:]).index_add_(0, index, values)


@_add_rows.register_fake
def _(values: Tensor, index: Tensor, rows: int) -> Tensor:
    return values.new_empty(rows, *values.shape[1:])


def _setup_take(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, index = inputs
    ctx.rows = x.size(0)
    ctx.save_for_backward(index)


def _differentiate_take(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return torch.ops.tclab.add_rows(gradient, *ctx.saved_tensors, ctx.rows), None


def _setup_add(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[1])


def _differentiate_add(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return torch.ops.tclab.take_rows(gradient, *ctx.saved_tensors), None, None


_take_rows.register_autograd(_differentiate_take, setup_context=_setup_take)
_add_rows.register_autograd(_differentiate_add, setup_context=_setup_add)
