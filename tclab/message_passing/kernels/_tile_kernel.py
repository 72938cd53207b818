"""The kernel of `_tile_sums` in Triton; to be imported where Triton is installed."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_kernel(
    x,  # [B, sources, H], the last contiguous
    out,  # [B, targets, H], the last contiguous
    bits,  # [tiles, BM, 2] int32: which of a tile's 64 sources a row adds up
    sources,  # [tiles, 64] int32; -1 where a tile has fewer
    ptr,  # [blocks + 1] int32: the tiles of each block of rows
    rows,  # [blocks, BM] int32: the target of each row; -1 after the last
    C,  # B · H columns: all samples' features side by side
    x_sample,  # strides, in numbers
    x_row,
    out_sample,
    out_row,
    H: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    block = tl.program_id(0)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = c < C
    sample, feature = (c // H).to(tl.int64), c % H
    column = x + sample * x_sample + feature
    r = tl.arange(0, BM)
    k = tl.arange(0, 64)
    total = tl.zeros((BM, BN), tl.float32)
    for tile in range(tl.load(ptr + block), tl.load(ptr + block + 1)):
        source = tl.load(sources + tile * 64 + k)
        words = bits + (tile * BM + r) * 2
        low, high = tl.load(words), tl.load(words + 1)
        word = tl.where((k < 32)[None, :], low[:, None], high[:, None])
        a = ((word >> (k & 31)[None, :]) & 1).to(x.dtype.element_ty)
        entries = column[None, :] + source.to(tl.int64)[:, None] * x_row
        b = tl.load(entries, (source >= 0)[:, None] & inside[None, :], 0.0)
        total = tl.dot(a, b, total)
    row = tl.load(rows + block * BM + r)
    entries = out + (sample * out_sample + feature)[None, :] + row.to(tl.int64)[:, None] * out_row
    tl.store(entries, total.to(out.dtype.element_ty), (row >= 0)[:, None] & inside[None, :])
