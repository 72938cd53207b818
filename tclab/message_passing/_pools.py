"""Softmax-weighted sums over what is left of each sample, in float32 or more, also under autocast."""

from __future__ import annotations

import torch
from torch import Tensor

from tclab.message_passing.kernels._row_ops import add_rows, in_float32, take_rows


def pool_grid(scores: Tensor, values: Tensor, keep: Tensor) -> Tensor:
    """Return the softmax-weighted sum over the nodes of a full grid of (sample, node) rows.

    **Arguments:**

    - `scores`: [B, N]
    - `values`: [B, N, H]
    - `keep`: [B, N] bool, which rows are left.

    **Returns:** [B, H] in the dtype of `values`; 0 for a sample with nothing left.
    """
    scores = in_float32(scores).masked_fill(~keep, float("-inf"))
    highest = scores.detach().amax(1, keepdim=True)
    highest = highest.masked_fill(highest == float("-inf"), 0.0)
    weights = (scores - highest).exp()
    # the highest score adds exactly 1, so the clamp is for samples with nothing left alone
    weights = weights / weights.sum(1, keepdim=True).clamp_min(0.5)
    with torch.autocast(values.device.type, enabled=False):  # it would multiply in two bytes
        return torch.einsum("bn,bnh->bh", weights, in_float32(values)).to(values.dtype)


def pool_ragged(scores: Tensor, values: Tensor, sample: Tensor, size: int) -> Tensor:
    """Return the softmax-weighted sum over rows that each belong to a sample, by scatter.

    **Arguments:**

    - `scores`: [R, 1]
    - `values`: [R, H]
    - `sample`: [R] int64, 0 … `size` - 1.

    **Returns:** [size, H] in the dtype of `values`; 0 for a sample with no row.
    """
    scores = in_float32(scores).flatten()
    highest = scores.new_full((size,), float("-inf")).scatter_reduce(0, sample, scores.detach(), "amax")
    weights = (scores - take_rows(highest, sample)).exp()
    weights = weights / take_rows(add_rows(weights, sample, size), sample)
    return add_rows(weights.unsqueeze(-1) * in_float32(values), sample, size).to(values.dtype)
