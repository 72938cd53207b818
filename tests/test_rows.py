"""Rows taken by index and added up by row, as they are called and as a compiler sees them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tclab.message_passing.kernels._row_ops import add_rows, take_rows, without


@given(st.lists(st.integers(0, 4), max_size=9), st.sampled_from([(), (3,)]))
def test_each_is_the_others_gradient(rows, width):
    index = torch.tensor(rows, dtype=torch.int64)
    x = torch.randn(5, *width, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(len(rows), *width, dtype=torch.float64)
    (take_rows(x, index) * weights).sum().backward()
    expected = torch.zeros(5, *width, dtype=torch.float64)
    for i, row in enumerate(rows):
        expected[row] += weights[i]
    torch.testing.assert_close(x.grad, expected)
    torch.testing.assert_close(add_rows(weights, index, 5), expected)
    assert without(index, 5).tolist() == [row not in rows for row in range(5)]


@pytest.mark.parametrize("width", [(), (3,)])
def test_what_the_compiler_calls_is_the_same(width):
    index = torch.tensor([3, 0, 3, 4])
    x, values = (torch.randn(n, *width, dtype=torch.float64, requires_grad=True) for n in (5, 4))
    for op, arguments in ((torch.ops.tclab.take_rows, (x, index)), (torch.ops.tclab.add_rows, (values, index, 5))):
        torch.autograd.gradcheck(op, arguments)
        torch.library.opcheck(op, arguments)

    def all_of_them(x, values, gone):
        return take_rows(x, index), add_rows(values, index, 5), without(gone, 5)

    torch._dynamo.reset()
    arguments = (x, values, torch.tensor([1, 2, 1]))
    compiled = torch.compile(all_of_them, backend="aot_eager", fullgraph=True)
    for found, expected in zip(compiled(*arguments), all_of_them(*arguments), strict=True):
        assert torch.equal(found, expected)
