"""Sparse matrices as plain tensors, made of edge lists, and how what is made once is kept from the mode of its making.

Shapes: E edges, N nodes, nnz entries of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside_transforms
from torch.utils._python_dispatch import _disable_current_modes as disabled_modes

T = TypeVar("T")


class Groups(NamedTuple):
    """Lists of integers, one a node, end to end: node `i` has `items[ptr[i]:ptr[i + 1]]`."""

    ptr: Tensor  # [N + 1] int64
    items: Tensor  # [sum of lengths] int64


class Csr(NamedTuple):
    """A sparse matrix [rows, columns]; a column that stands twice in a row counts twice."""

    crow: Tensor  # [rows + 1] int32
    col: Tensor  # [nnz] int32
    values: Tensor | None  # [nnz]; None where all are 1


class SparseMatrix(NamedTuple):
    """A sparse matrix and its transpose."""

    csr: Csr
    transposed: Csr
    lasting: bool = True  # made once for many steps, and worth its tiles on a GPU; or for one batch

    def transpose(self) -> SparseMatrix:
        """Return the transposed matrix."""
        return SparseMatrix(self.transposed, self.csr, self.lasting)


def group(keys: Tensor, n: int) -> Groups:
    """Return for each number from 0 to `n` - 1 where it stands in `keys: [E]` int64, in order."""
    lengths = torch.bincount(keys, minlength=n)
    return Groups(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), torch.argsort(keys, stable=True))


def csr_of(rows: Tensor, columns: Tensor, num_rows: int, values: Tensor | None = None) -> Csr:
    """Return the matrix with an entry for each of `rows` and `columns`, [E] int64; `values: [E]` are 1 unless given.

    Indices are int32: MKL takes no other, and int64 would be twice the bytes to read.
    """
    ptr, order = group(rows, num_rows)
    return Csr(ptr.int(), columns[order].int(), None if values is None else values[order])


def matrix_of(edge_index: Tensor, num_sources: int, num_targets: int, values: Tensor | None) -> SparseMatrix:
    """Return the adjacency [targets, sources] of `edge_index: [2, E]` int64, and its transpose; see `csr_of`."""
    source, target = edge_index
    by_target = csr_of(target, source, num_targets, values)
    return SparseMatrix(by_target, csr_of(source, target, num_sources, values))


def entries(ptr: Tensor, rows: Tensor, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the entries of some rows, one row after the other.

    **Arguments:**

    - `ptr`: [N + 1], where each row's entries begin, as in `Groups` and `Csr`. `rows`: [n] int64.
    - `count`: how many entries they have, so that the device need not be asked.

    **Returns:** of each entry which of `rows` it is of, and where it stands among all, [count] int64 each.
    """
    begin = ptr[rows].long()
    length = ptr[rows + 1].long() - begin
    which = torch.arange(len(rows), device=rows.device).repeat_interleave(length, output_size=count)
    return which, torch.arange(len(which), device=rows.device) + (begin - length.cumsum(0) + length)[which]


@contextmanager
def plain_tensors(like: Tensor) -> Iterator[None]:
    """Make tensors that may be kept, whatever mode or transform the call is in.

    A tensor made under `torch.inference_mode` cannot be saved for a backward; one made under `torch.func.grad`, `vmap`
    or a tracer belongs to that call. Where `like`, of which they are made, has no data, neither have they.
    """
    traced = disabled_modes() if type(like) is Tensor else nullcontext()
    with traced, outside_transforms(), torch.inference_mode(False), torch.no_grad():
        yield


class MadeOnce:
    """Keeps what is made of its edges as attributes, which do not travel to another process."""

    def made_once(self, make: Callable[..., T], *options: Any) -> T:
        """Return what `make` makes of this and some options, which are constants."""
        self._make(name := name_of(make, *options), make, *options)
        made: T = getattr(self, name)  # an attribute: a compiler would not see a dict grow while it traces
        return made

    def _make(self, name: str, make: Callable[..., Any], *options: Any) -> None:
        if name not in vars(self):
            edges = next(value for value in vars(self).values() if isinstance(value, Tensor))
            with plain_tensors(edges):
                object.__setattr__(self, name, make(self, *options))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_made")}


# A compiler calls it while it traces, and reads what it has made: to make some of it needs values. It is what
# `torch.compiler.assume_constant_result` sets, which imports torch._dynamo: two seconds, also for who compiles nothing.
MadeOnce._make._dynamo_marked_constant = True  # type: ignore[attr-defined]


def name_of(make: Callable[..., Any], *options: Any) -> str:
    """Return the name of the attribute that holds what `made_once` made."""
    # a step asks some hundred times; a compiler's guards take identifiers alone: torch.float32, cuda:0
    words = [str(getattr(option, "__name__", option)) for option in options]
    return "_".join(["_made", make.__name__, *words]).replace(".", "_").replace(":", "_")
