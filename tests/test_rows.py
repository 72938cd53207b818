"""Rows taken by index and added up by row, as they are called and as a compiler sees them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tclab.message_passing.kernels._row_ops import add_rows, take_rows, without


def indices(rows):
    return st.lists(st.integers(0, rows - 1), max_size=9).map(lambda rows: torch.tensor(rows, dtype=torch.int64))


@given(indices(5), st.sampled_from([(), (3,)]))
def test_each_is_the_others_gradient(index, width):
    x = torch.randn(5, *width, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(len(index), *width, dtype=torch.float64)
    (take_rows(x, index) * weights).sum().backward()
    torch.testing.assert_close(x.grad, add_rows(weights, index, 5))
    expected = torch.zeros(5, *width, dtype=torch.float64)
    for place, row in enumerate(index.tolist()):
        expected[row] += weights[place]
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("width", [(), (3,)])
def test_what_the_compiler_calls_is_the_same(width):
    index = torch.tensor([3, 0, 3, 4])
    x = torch.randn(5, *width, dtype=torch.float64, requires_grad=True)
    values = torch.randn(4, *width, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(torch.ops.tclab.take_rows, (x, index))
    torch.autograd.gradcheck(lambda v: torch.ops.tclab.add_rows(v, index, 5), (values,))
    torch.library.opcheck(torch.ops.tclab.take_rows, (x, index))
    torch.library.opcheck(torch.ops.tclab.add_rows, (values, index, 5))
    assert torch.equal(torch.ops.tclab.take_rows(x, index), take_rows(x, index))
    assert torch.equal(torch.ops.tclab.add_rows(values, index, 5), add_rows(values, index, 5))

    def all_of_them(x, values, gone):
        return take_rows(x, index).sum(), add_rows(values, index, 5), without(gone, 5)

    torch._dynamo.reset()
    arguments = (x, values, torch.tensor([1, 2, 1]))
    for found, expected in zip(
        torch.compile(all_of_them, backend="aot_eager", fullgraph=True)(*arguments),
        all_of_them(*arguments),
        strict=True,
    ):
        assert torch.equal(found, expected)
    assert without(torch.tensor([1, 2, 1]), 5).tolist() == [True, False, False, True, True]
    assert without(torch.tensor([], dtype=torch.int64), 2).tolist() == [True, True]
