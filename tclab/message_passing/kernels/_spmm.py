"""Products of a sparse CSR matrix and a dense one, by the kernel and tile width that are fastest on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag
from torch.utils._python_dispatch import _disable_current_modes as disabled_modes

from tclab.message_passing.kernels._tile_sums import tile_sums, tiles_for

T = TypeVar("T")


class Csr(NamedTuple):
    """A sparse matrix as plain tensors, which `torch.compile` and custom ops take where a sparse one is refused."""

    crow: Tensor  # [rows + 1] int32
    col: Tensor  # [nnz] int32
    values: Tensor | None  # [nnz]; None where all are 1
    columns: int  # how many there are

    def matrix(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return this as torch's sparse CSR matrix, in a dtype; nothing is copied where it is in that already."""
        size = (self.crow.numel() - 1, self.columns)
        values = torch.ones_like(self.col, dtype=dtype) if self.values is None else self.values.to(dtype)
        return torch.sparse_csr_tensor(self.crow, self.col, values, size=size, check_invariants=False)


class Relation(NamedTuple):
    """A matrix A [targets, sources] and its transpose."""

    matrix: Csr
    transposed: Csr


with warnings.catch_warnings():  # torch warns once a process that CSR is in beta, and 2.11 of checks that are off
    warnings.filterwarnings("ignore", "Sparse (CSR tensor support is in beta|invariant checks are implicitly disabled)")
    Csr(torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([1.0]), 1).matrix()


class Tiling(NamedTuple):
    """How a product is run: by torch's own kernel ("aten") or a vendor's ("library"), `tile` columns at a time."""

    kernel: str
    tile: int | None


class Columns(NamedTuple):
    """A dense matrix cut for a product: `tiles` of adjacent columns, each contiguous, and how it is run."""

    tiles: list[Tensor]
    tiling: Tiling


def columns(x: Tensor, tiling: Tiling | None = None) -> Columns:
    """Return `x: [rows, C]` cut for products with sparse matrices; several products may share it.

    Rows that are gathered by an edge list come from all over `x`. Once `x` outgrows the processor's cache every
    one of them is fetched from memory, so a wide `x` is gathered tile by tile.
    """
    tiling = tiling or tiling_of(x)
    if tiling.tile is None or tiling.tile >= x.size(1):
        return Columns([x.contiguous()], tiling)
    return Columns([part.contiguous() for part in x.split(tiling.tile, dim=1)], tiling)


def multiply(matrix: Tensor, right: Columns, *, out: Tensor | None = None, add: bool = False) -> Tensor:
    """Return a sparse CSR matrix times a dense one.

    Every entry adds up its row in the order of the columns: on a CPU one kernel gives the same bits in every run,
    whatever the tile, and both kernels do where there are no weights. cuSPARSE, which takes CUDA tensors, does not
    promise that.

    **Arguments:**

    - `matrix`: [rows, columns], sparse CSR.
    - `right`: what `columns` returns for `x: [columns, C]`.
    - `out`: [rows, C], what the product is written to, or with `add` added to.

    **Returns:** [rows, C]
    """
    tiles, (kernel, _) = right
    one = _by_aten if kernel == "aten" else _by_library
    if len(tiles) == 1:
        return one(matrix, tiles[0], out, add)
    if out is None:
        out = tiles[0].new_empty(matrix.size(0), sum(tile.size(1) for tile in tiles))
    begin = 0
    for tile in tiles:
        one(matrix, tile, out[:, begin : begin + tile.size(1)], add)
        begin += tile.size(1)
    return out


def _by_aten(matrix: Tensor, x: Tensor, out: Tensor | None, add: bool) -> Tensor:
    product = torch.sparse.mm(matrix, x, "sum")
    if out is None:
        return product
    return out.add_(product) if add else out.copy_(product)


def _by_library(matrix: Tensor, x: Tensor, out: Tensor | None, add: bool) -> Tensor:
    # written where it is wanted: the plain product makes a tensor of zeros first and copies it
    if out is None:
        out = x.new_empty(matrix.size(0), x.size(1))
    return torch.addmm(out, matrix, x, beta=1 if add else 0, out=out)


def tiling_of(x: Tensor) -> Tiling:
    """Return the kernel and tile that a product with `x: [rows, C]` uses on this machine.

    On CUDA that is cuSPARSE. A CPU has two kernels, ATen's reduction and MKL's product; which is faster, and in
    tiles of how many columns, differs from one make of processor to the next and with the width, so the first
    call of about each width times them. MKL knows float32 and float64 alone.
    """
    return tiling_for(x.dtype, *x.shape) if x.device.type == "cpu" else Tiling("library", None)


def tiling_for(dtype: torch.dtype, rows: int, width: int) -> Tiling:
    """Return the kernel and tile that a product with a CPU's [rows, width] uses on this machine."""
    kind = (dtype, -(-max(width, 1) // 64) * 64 if width <= 512 else 1 << (width - 1).bit_length())
    if kind not in _TILINGS:
        with disabled_modes():  # the caller may be tracing meta tensors, and what is timed must have values
            _TILINGS[kind] = _fastest(*kind)
    tiling = _TILINGS[kind]
    return tiling if rows * width * dtype.itemsize > _CACHED else Tiling(tiling.kernel, None)


_TILINGS: dict[tuple[torch.dtype, int], Tiling] = {}
_CACHED = 2 * 1024 * 1024  # bytes; what is no larger stays in the cache of one core, or nearly, without tiles
_ROWS = 6_000  # of the dense matrix: the size at which a batch of 28 outgrows the last cache of most processors
_TARGETS = {"narrow": 1_000, "wide": 300}  # rows of the sparse one
# As in the largest network of the real graph: a kernel that is fast at short rows may be slow at long ones. Duplicate
# edges are left out.
_EDGES_A_ROW = 165
_SKEW = 0.6  # the n-th largest degree goes as n ** -0.6: 57 % of the edges at a quarter of the nodes, as there


def _fastest(dtype: torch.dtype, width: int) -> Tiling:
    candidates = [Tiling("aten", tile) for tile in (None, 256, 512) if tile is None or tile < width]
    if dtype in (torch.float32, torch.float64) and torch.backends.mkl.is_available():
        candidates += [Tiling("library", tile) for tile in (None, 32) if tile is None or tile < width]
    if len(candidates) == 1:
        return candidates[0]
    matrix = _skewed(_TARGETS["narrow" if width <= 512 else "wide"], dtype).matrix()
    x = torch.ones(_ROWS, width, dtype=dtype)
    cut = {tiling: columns(x, tiling) for tiling in candidates}
    seconds = least_seconds({tiling: partial(multiply, matrix, right) for tiling, right in cut.items()}, rounds=4)
    return min(seconds, key=seconds.__getitem__)


def _skewed(targets: int, dtype: torch.dtype) -> Csr:
    """Return a random matrix, [targets, _ROWS], with power-law degrees in random order."""
    generator = torch.Generator().manual_seed(0)

    def ends(number: int) -> Tensor:
        weights = torch.arange(1, number + 1, dtype=torch.float64) ** -_SKEW
        drawn = torch.multinomial(weights, targets * _EDGES_A_ROW, replacement=True, generator=generator)
        return torch.randperm(number, generator=generator)[drawn]

    places = torch.unique(ends(targets) * _ROWS + ends(_ROWS))  # sorted, and each edge once
    crow = torch.zeros(targets + 1, dtype=torch.int32)
    crow[1:] = torch.bincount(places // _ROWS, minlength=targets).cumsum(0)
    return Csr(crow, (places % _ROWS).to(torch.int32), torch.ones(len(places), dtype=dtype), _ROWS)


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


def spmm(a: Relation, x: Tensor) -> Tensor:
    """Return A·X of every sample, [B, rows, H], of `x: [B, columns, H]`; its gradient is the same on A's transpose."""
    return torch.ops.tclab.spmm(x, *a.matrix[:3], *a.transposed[:3])


@torch.library.custom_op(
    "tclab::spmm",
    mutates_args=(),
    schema="(Tensor x, Tensor crow, Tensor col, Tensor? values, Tensor t_crow, Tensor t_col, Tensor? t_values)"
    " -> Tensor",
)
def _spmm(x: Tensor, crow: Tensor, col: Tensor, values: Tensor | None, *transposed: Any) -> Tensor:
    csr = Csr(crow, col, values, x.size(1))
    if (tiles := tiles_for(x, *csr)) is not None:
        return tile_sums(tiles, x.contiguous(), rows=len(crow) - 1)
    if x.device.type == "cpu" and x.dtype != torch.float64:
        bags = partial(embedding_bag, mode="sum", include_last_offset=True, per_sample_weights=values)
        sums = [bags(col, sample.contiguous(), crow) for sample in x]
    else:
        matrix = csr.matrix(x.dtype)
        sums = [matrix @ sample.contiguous() for sample in x]
    # a single sample, which `masked_spmm` gives, is not copied
    return sums[0].unsqueeze(0) if len(sums) == 1 else torch.stack(sums)


@_spmm.register_fake
def _(x: Tensor, crow: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.size(0), crow.size(0) - 1, x.size(2))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    matrix, transposed = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
    return torch.ops.tclab.spmm(grad, *transposed, *matrix), *[None] * 6


_spmm.register_autograd(_differentiate, setup_context=_setup)
