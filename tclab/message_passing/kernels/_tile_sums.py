"""Sums in fp16 and bf16 on a GPU by tensor cores: blocks of 128 rows, each block's distinct sources 64 at a time.

Rows are sorted by degree, once a graph, so that a block holds rows that hear from many of the same sources: of the real
networks 0.15 of a source an edge. A block gathers each of its sources once for all its rows, and multiplies by zeros
and ones that lie in memory as bits. It is the only writer of its rows and adds up in fp32, always in the same order:
two runs give the same bits. What is not finite in a source reaches every row of its blocks, as in a dense product.
"""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes as disabled_modes

ROWS = 128  # of a block
SOURCES = 64  # of a tile
_MOST_COPIES = 16  # of one edge; each takes a place of its own in a tile
_DTYPES = (torch.float16, torch.bfloat16)  # in float32 cuSPARSE is faster, and more exact


# How the kernel is launched: columns of a program, its warps, and how many tiles are loaded ahead. It is the fastest of
# 18 ways on an H100 (64 to 256 columns, 4 and 8 warps, 2 to 4 stages).
COLUMNS, WARPS, STAGES = 128, 4, 3


class Tiles(NamedTuple):
    """A sparse matrix of whole numbers, in blocks of 128 rows by tiles of 64 sources."""

    bits: Tensor  # [tiles, 128, 2] int32, which of its tile's sources each row adds up
    sources: Tensor  # [tiles, 64] int32, -1 where there are fewer
    ptr: Tensor  # [blocks + 1] int32, the tiles of each block
    rows: Tensor  # [blocks, 128] int32, the row of the matrix; -1 after the last


def tiles_of(crow: Tensor, col: Tensor, values: Tensor | None, columns: int) -> Tiles | None:
    """Return a matrix in tiles; `None` where an entry, its duplicates added, is not a whole number from 1 to 16."""
    device, number, width = col.device, len(crow) - 1, max(columns, 1)
    degree = crow.diff().long()
    order = torch.argsort(degree, descending=True, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(number, device=device)
    edges = place.repeat_interleave(degree) * width + col  # each as one number, (row by degree, source)
    if values is not None:
        copies = values.long()
        if not bool(((copies == values) & (copies >= 1) & (copies <= _MOST_COPIES)).all()):
            return None
        edges = edges.repeat_interleave(copies)
    edges = edges.sort().values
    copy = torch.arange(len(edges), device=device) - torch.searchsorted(edges, edges)
    if bool((copy >= _MOST_COPIES).any()):
        return None
    row, source = edges // width, edges % width
    # the distinct sources of each block, a further time for each further copy of an edge
    pairs, pair = torch.unique((row // ROWS * _MOST_COPIES + copy) * width + source, return_inverse=True)
    blocks = -(-number // ROWS)
    block = pairs // (width * _MOST_COPIES)
    found = torch.bincount(block, minlength=blocks)
    ptr = torch.zeros(blocks + 1, dtype=torch.int64, device=device)
    torch.cumsum(-(-found // SOURCES), 0, out=ptr[1:])
    slot = ptr[block] * SOURCES + torch.arange(len(pairs), device=device) - (found.cumsum(0) - found)[block]
    tiles = int(ptr[-1])
    sources = torch.full((tiles * SOURCES,), -1, dtype=torch.int32, device=device)
    sources[slot] = (pairs % width).to(torch.int32)
    tile, bit = slot[pair] // SOURCES, slot[pair] % SOURCES
    words = torch.zeros(tiles * ROWS * 2, dtype=torch.int64, device=device)
    words.index_add_(0, (tile * ROWS + row % ROWS) * 2 + bit // 32, 1 << bit % 32)
    rows = torch.full((blocks * ROWS,), -1, dtype=torch.int32, device=device)
    rows[:number] = order.to(torch.int32)
    bits = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    return Tiles(bits.view(tiles, ROWS, 2), sources.view(tiles, SOURCES), ptr.to(torch.int32), rows.view(blocks, ROWS))


# By where a matrix lies; its tensors are held, so that no other one comes to lie there. `clear` lets go of all.
MADE: OrderedDict[tuple[int, ...], tuple[list[Tensor], Tiles | None]] = OrderedDict()
_KEPT = 256  # matrices


def tiles_for(x: Tensor, crow: Tensor, col: Tensor, values: Tensor | None, columns: int) -> Tiles | None:
    """Return a matrix in tiles, made once; `None` where the kernel cannot serve it, `x`'s dtype or this device."""
    if x.dtype not in _DTYPES or not _serves(x.device) or not _is_right(x.device, x.dtype):
        return None
    tensors = [tensor for tensor in (crow, col, values) if tensor is not None]
    key = (*(tensor.data_ptr() for tensor in tensors), len(col), len(crow), columns)
    if key not in MADE:
        with disabled_modes():
            MADE[key] = tensors, tiles_of(crow, col, values, columns)
        if len(MADE) > _KEPT:
            MADE.popitem(last=False)
    MADE.move_to_end(key)
    return MADE[key][1]


def _interpreted() -> bool:
    """Return whether Triton runs kernels in Python, on tensors of a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _serves(device: torch.device) -> bool:
    """Return whether Triton runs the kernel on a device: of compute capability 8.0 and above, or interpreted."""
    if find_spec("triton") is None or device.type not in ("cpu", "cuda"):
        return False
    if device.type == "cpu":
        return _interpreted()
    return not torch.version.hip and torch.cuda.get_device_capability(device)[0] >= 8


@cache
def _is_right(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the kernel sums a small graph as exactly as torch's product does, and warn if not.

    It is tried on each device before it is used: how tensor cores round differs between makes, interpreted products in
    bfloat16 are wrong, and Triton may lack a compiler.
    """
    with disabled_modes(), torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        dense = torch.rand(150, 150, generator=generator) < torch.linspace(0.0, 0.8, 150).unsqueeze(1)
        x = torch.randn(2, 150, 32, generator=generator).to(dtype)
        exact = dense.double() @ x.double()
        rows, columns = dense.to(device).nonzero().t().to(torch.int32)
        crow = torch.searchsorted(rows, torch.arange(151, device=device, dtype=torch.int32), out_int32=True)
        tiles = tiles_of(crow, columns, None, 150)
        assert tiles is not None
        try:
            found = tile_sums(tiles, x.to(device), rows=150).cpu()
        except Exception as error:  # whatever Triton, a driver or a C compiler raises
            lines = str(error).strip().splitlines()
            return _left_out(device, dtype, f"{type(error).__name__} {lines[0] if lines else ''}")
        other = (dense.to(device, dtype) @ x.to(device)).cpu()
        own, theirs = (float((y.double() - exact).norm() / exact.norm()) for y in (found, other))
    allowed = 2 * max(theirs, torch.finfo(dtype).eps)
    return own <= allowed or _left_out(device, dtype, f"its sums are off by {own:.1e}, {allowed:.1e} is allowed")


def _left_out(device: torch.device, dtype: torch.dtype, why: str) -> bool:
    if not _interpreted():
        warnings.warn(
            f"sums in {dtype} on {device} are torch's sparse product, not the tile kernel: {why}", stacklevel=2
        )
    return False


def tile_sums(tiles: Tiles, x: Tensor, *, rows: int) -> Tensor:
    """Return A·X of every sample, [B, rows, H], of `x: [B, sources, H]`, whose features are contiguous."""
    from tclab.message_passing.kernels._tile_kernel import tile_kernel

    size, _, width = x.shape
    out = x.new_empty(size, rows, width)
    if out.numel() == 0:
        return out
    with torch.cuda.device_of(x):  # Triton launches on the current device
        launch = tile_kernel[(len(tiles.rows), -(-size * width // COLUMNS))]
        sizes = {"H": width, "BM": ROWS, "BN": COLUMNS, "num_warps": WARPS, "num_stages": STAGES}
        launch(x, out, *tiles, size * width, *x.stride()[:2], *out.stride()[:2], **sizes)
    return out
