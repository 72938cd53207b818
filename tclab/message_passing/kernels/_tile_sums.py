"""Sums over neighbours on a GPU by tensor cores: blocks of 128 rows, each block's distinct sources 64 at a time.

Rows are sorted by degree, once a graph, so that a block holds rows that hear from many of the same sources: of the real
networks 0.15 of a source an edge. A block gathers each of its sources once for all its rows, and multiplies by zeros
and ones that lie in memory as bits. It is the only writer of its rows and adds up in fp32, always in the same order:
two runs give the same bits. What is not finite in a source reaches every row of its blocks, as in a dense product.
"""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes as disabled_modes

from tclab.message_passing.kernels._spmm import Csr

ROWS = 128  # of a block
SOURCES = 64  # of a tile
_MOST_COPIES = 16  # of one edge; each takes a place of its own in a tile
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Launch(NamedTuple):
    """How the kernel is launched: `columns` of a program, its `warps`, and how many tiles are loaded ahead."""

    columns: int
    warps: int
    stages: int


# The widest that keep to their registers, by bytes of a number and whether the device is of capability 9 or above.
LAUNCH = {
    (2, False): Launch(128, 8, 3),
    (2, True): Launch(128, 8, 3),
    (4, False): Launch(32, 8, 2),
    (4, True): Launch(128, 8, 2),
}


class Tiles(NamedTuple):
    """A sparse matrix of whole numbers, in blocks of 128 rows by tiles of 64 sources."""

    bits: Tensor  # [tiles, 128, 2] int32, which of its tile's sources each row adds up
    sources: Tensor  # [tiles, 64] int32, -1 where there are fewer
    ptr: Tensor  # [blocks + 1] int32, the tiles of each block
    rows: Tensor  # [blocks, 128] int32, the row of the matrix; -1 after the last


def tiles_of(matrix: Csr) -> Tiles | None:
    """Return a matrix in tiles; `None` where an entry is not a whole number from 1 to 16."""
    crow, col, values, columns = matrix
    device, number = col.device, crow.numel() - 1
    copies = values.long()
    if not bool(((copies == values) & (copies >= 1) & (copies <= _MOST_COPIES)).all()):
        return None
    degree = crow.diff().long()
    order = torch.argsort(degree, descending=True, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(number, device=device)
    entry = torch.arange(col.numel(), device=device).repeat_interleave(copies)
    copy = torch.arange(entry.numel(), device=device) - (copies.cumsum(0) - copies)[entry]
    at = place[torch.arange(number, device=device).repeat_interleave(degree)[entry]]
    # the distinct sources of each block, a further time for each further copy of an edge
    width = max(columns, 1)
    pairs, pair = torch.unique((at // ROWS * _MOST_COPIES + copy) * width + col[entry], return_inverse=True)
    blocks = -(-number // ROWS)
    block = pairs // (width * _MOST_COPIES)
    found = torch.bincount(block, minlength=blocks)
    ptr = torch.zeros(blocks + 1, dtype=torch.int64, device=device)
    torch.cumsum(-(-found // SOURCES), 0, out=ptr[1:])
    slot = ptr[block] * SOURCES + torch.arange(pairs.numel(), device=device) - (found.cumsum(0) - found)[block]
    tiles = int(ptr[-1])
    sources = torch.full((tiles * SOURCES,), -1, dtype=torch.int32, device=device)
    sources[slot] = (pairs % width).to(torch.int32)
    tile, bit = slot[pair] // SOURCES, slot[pair] % SOURCES
    words = torch.zeros(tiles * ROWS * 2, dtype=torch.int64, device=device)
    words.index_add_(0, (tile * ROWS + at % ROWS) * 2 + bit // 32, 1 << bit % 32)
    rows = torch.full((blocks * ROWS,), -1, dtype=torch.int32, device=device)
    rows[:number] = order.to(torch.int32)
    bits = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    return Tiles(bits.view(tiles, ROWS, 2), sources.view(tiles, SOURCES), ptr.to(torch.int32), rows.view(blocks, ROWS))


# By where a matrix lies; it is held, so that no other one comes to lie there.
_MADE: OrderedDict[tuple[int, ...], tuple[Csr, Tiles | None]] = OrderedDict()
_KEPT = 256  # matrices


def tiles_for(matrix: Csr, x: Tensor) -> Tiles | None:
    """Return a matrix in tiles, made once; `None` where the kernel cannot serve it, `x`'s dtype or this device."""
    if _off or x.dtype not in _DTYPES or not _serves(x.device) or not _is_right(x.device, x.dtype):
        return None
    key = (*(tensor.data_ptr() for tensor in matrix[:3]), matrix.col.numel(), matrix.crow.numel(), matrix.columns)
    if key not in _MADE:
        with disabled_modes():
            _MADE[key] = matrix, tiles_of(matrix)
        if len(_MADE) > _KEPT:
            _MADE.popitem(last=False)
    _MADE.move_to_end(key)
    return _MADE[key][1]


@contextmanager
def without_tiles() -> Iterator[None]:
    """Sum by torch's own sparse product in this block, as where the kernel cannot serve; to compare the two."""
    global _off
    before, _off = _off, True
    try:
        yield
    finally:
        _off = before


_off = False


def _interpreted() -> bool:
    """Whether Triton runs kernels in Python, on tensors of a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _serves(device: torch.device) -> bool:
    return find_spec("triton") is not None and _capability(device) >= 8


@cache
def _is_right(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the kernel sums a small graph as exactly as torch's product does, and warn if not.

    It is tried on each device before it is used: how tensor cores round differs between makes, interpreted products in
    bfloat16 are wrong, and Triton may lack a compiler.
    """
    with disabled_modes(), torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        dense = torch.rand(150, 150, generator=generator) < torch.linspace(0.0, 0.8, 150).unsqueeze(1)
        x = torch.randn(150, 64, generator=generator).to(dtype)
        sparse = dense.to(torch.float64).to_sparse_csr()
        exact = sparse @ x.double()
        crow, col = (indices.to(device, torch.int32) for indices in (sparse.crow_indices(), sparse.col_indices()))
        matrix = Csr(crow, col, sparse.values().to(device, dtype), 150)
        tiles, right = tiles_of(matrix), x.to(device)
        assert tiles is not None
        try:
            found = tile_sums(tiles, right, 32, out=torch.empty_like(right)).cpu()
        except Exception as error:  # whatever Triton, a driver or a C compiler raises
            lines = str(error).strip().splitlines()
            return _left_out(device, dtype, f"{type(error).__name__} {lines[0] if lines else ''}")
        other = (dense.to(device, dtype) @ right).cpu()
        own, theirs = (float((y.double() - exact).norm() / exact.norm()) for y in (found, other))
    allowed = 2 * max(theirs, torch.finfo(dtype).eps)
    return own <= allowed or _left_out(device, dtype, f"its sums are off by {own:.1e}, {allowed:.1e} is allowed")


def _left_out(device: torch.device, dtype: torch.dtype, why: str) -> bool:
    if not _interpreted():
        warnings.warn(
            f"sums in {dtype} on {device} are torch's sparse product, not the tile kernel: {why}", stacklevel=2
        )
    return False


@cache
def _capability(device: torch.device) -> int:
    """Return the first number of a device's compute capability; 0 for one that runs no such kernel."""
    if device.type == "cpu":
        return 9 if _interpreted() else 0
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" and not torch.version.hip else 0


def tile_sums(
    tiles: Tiles,
    x: Tensor,
    width: int,
    *,
    out: Tensor,
    self_weight: Tensor | None = None,
    keep: Tensor | None = None,
    add: bool = False,
) -> Tensor:
    """Write K·(A·X + w·X) to `out`, or with `add` K·(A·X + w·X + out), and return it.

    **Arguments:**

    - `x`: [sources, B * width], contiguous. `width`: features of a sample.
    - `out`: [targets, B * width], contiguous.
    - `self_weight`: one number, w; then a source is a target.
    - `keep`: [targets * B] uint8, 0 where a row comes out zero.
    """
    from tclab.message_passing.kernels._tile_kernel import tile_kernel

    launch = LAUNCH[x.element_size(), _capability(x.device) >= 9]
    count = x.size(1)
    if out.numel() == 0:
        return out
    with torch.cuda.device_of(x):  # Triton launches on the current device
        tile_kernel[(tiles.rows.size(0), -(-count // launch.columns))](
            x,
            out,
            *tiles,
            out if keep is None else keep,
            x if self_weight is None else self_weight,
            count,
            H=width,
            BM=ROWS,
            BN=launch.columns,
            MASKED=keep is not None,
            SELF=self_weight is not None,
            ADD=add,
            PRECISION=precision(x.dtype),
            num_warps=launch.warps,
            num_stages=launch.stages,
        )
    return out


def precision(dtype: torch.dtype) -> str:
    """Return how tensor cores multiply: fp32 in two products of tf32, as zeros and ones are exact in it."""
    return "tf32x2" if dtype == torch.float32 else "ieee"
