"""Products of sparse matrices and rows, sample after sample, rows by index, and their gradients; test_compiled.py has
how they go through a compiler.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tclab.message_passing.kernels._row_ops import add_rows, keep_mask, take_rows
from tclab.message_passing.kernels._spmm import Csr, SparseMatrix, spmm

TOLERANCES = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def sparse(rows, columns, *, weighted, seed, share=0.3):
    """Return a random dense matrix in float64 with some empty rows, and the same as `spmm` takes it."""
    generator = torch.Generator().manual_seed(seed)
    dense = (torch.rand(rows, columns, generator=generator) < share).double()
    dense[::3] = 0.0
    if weighted:
        dense *= torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    sides = []
    for side in (dense, dense.t().contiguous()):
        csr = side.to_sparse_csr()
        crow, col = csr.crow_indices().int(), csr.col_indices().int()
        sides.append(Csr(crow, col, csr.values().clone() if weighted else None))
    return dense, SparseMatrix(*sides)


def relations(rows, columns, *, weighted, number=3):
    return zip(*(sparse(rows, columns, weighted=weighted, seed=i) for i in range(number)), strict=True)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
@given(size=st.integers(0, 3), rows=st.integers(0, 9), columns=st.integers(0, 9), width=st.sampled_from([1, 5, 64]))
def test_they_equal_dense_products(dtype, weighted, size, rows, columns, width):
    dense, matrices = relations(rows, columns, weighted=weighted)
    x = torch.randn(size, columns, width).to(dtype)
    sums = spmm(matrices, x)
    assert [y.dtype for y in sums] == [dtype] * 3
    for y, a in zip(sums, dense, strict=True):
        torch.testing.assert_close(y.double(), a @ x.double(), rtol=TOLERANCES[dtype], atol=3 * TOLERANCES[dtype])
    xs = [torch.randn(size, columns, width).to(dtype) for _ in range(3)]
    expected = sum(a @ x.double() for a, x in zip(dense, xs, strict=True))
    (total,) = spmm(matrices, *xs)
    torch.testing.assert_close(total.double(), expected, rtol=TOLERANCES[dtype], atol=9 * TOLERANCES[dtype])


@pytest.mark.parametrize("nodes", [300, 4100])  # of 64 numbers: alone more than one sample's share, than a CPU's cache
def test_samples_of_any_size_are_summed(nodes):
    x, crow = torch.randn(2, nodes, 64), torch.arange(nodes + 1, dtype=torch.int32)
    sides = (Csr(crow, crow[:-1].roll(by), None) for by in (1, -1))
    assert torch.equal(spmm([SparseMatrix(*sides)], x)[0], x.roll(1, 1))


def test_every_derivative_is_there_self_weights_too():
    _, matrices = relations(4, 4, weighted=True, number=2)
    x, w = torch.randn(2, 4, 1, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    keep = torch.tensor([[True, True, False, True], [True] * 4])
    inputs = x.requires_grad_(), w.requires_grad_()
    for call in (
        lambda x, w: tuple(spmm(matrices, x, self_weights=w, sources=keep)),
        lambda x, w: tuple(spmm(matrices, x, x.sin(), self_weights=w, targets=keep)),
    ):
        assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


def test_rows_that_are_strided_a_second_run_and_more_threads_give_the_same_bits():
    _, matrices = relations(40, 40, weighted=True)
    x, runs = torch.randn(40, 3, 16).transpose(0, 1), []
    for threads in (2, 1):  # at the end as the tests have it
        torch.set_num_threads(threads)
        runs += [spmm(matrices, x), spmm(matrices, x.contiguous()), spmm(matrices, x)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


@given(st.lists(st.integers(0, 4), max_size=9), st.sampled_from([(), (3,)]))
def test_rows_by_index_and_their_sums_are_each_the_others_gradient(rows, width):
    index = torch.tensor(rows, dtype=torch.int64)
    x = torch.randn(5, *width, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(len(rows), *width, dtype=torch.float64)
    (take_rows(x, index) * weights).sum().backward()
    expected = torch.zeros(5, *width, dtype=torch.float64)
    for i, row in enumerate(rows):
        expected[row] += weights[i]
    torch.testing.assert_close(x.grad, expected)
    torch.testing.assert_close(add_rows(weights, index, 5), expected)
    assert keep_mask(index, 5).tolist() == [row not in rows for row in range(5)]
