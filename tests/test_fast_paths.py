"""Each kernel is switched off, or forced, by itself: predictions and gradients stay those of the definition.

Graphs of tests are too small for tiles of columns, which otherwise would never be tried here. Blocks of edges are
tried so in `test_shared_convs.py`, the mixes of `fastest` in `test_fastest.py`, and compiled steps in `test_dtypes.py`.
"""

from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from unittest import mock

import drawn
import pytest
import torch
from brute_force import TOLERANCE, Loop, largest_error, outcome
from hypothesis import given
from hypothesis import strategies as st
from test_equality import OTHERS, cell
from torch.nn import functional

import tclab
from tclab import masking
from tclab.message_passing import _shared_view
from tclab.message_passing.kernels import _shared_sums, _spmm
from tclab.models import _layers


SWITCHED = {
    "ATen's sparse product": [mock.patch.object(_spmm, "_bags", _spmm.aten_product)],
    "ReLU in a tensor of its own": [mock.patch.object(_layers, "_InnerReLU", SimpleNamespace(apply=functional.relu))],
}


@pytest.mark.parametrize("switched", SWITCHED)
@given(data=st.data(), graph=drawn.graphs())
def test_a_step_is_the_same_with(switched, data, graph):
    samples = data.draw(drawn.deletions(graph))
    strategy = data.draw(st.sampled_from(OTHERS))
    build = partial(cell, layers=3)
    expected = outcome(Loop(graph, samples), samples, build, dtype="float64")
    with ExitStack() as patched:
        for patch in SWITCHED[switched]:
            patched.enter_context(patch)
        found = outcome(masking.get(strategy)(graph), samples, build, dtype="float64")
    assert largest_error(found, expected) <= TOLERANCE["float64"], strategy


def test_both_cpu_kernels_give_the_same():
    matrix = tclab.CellGraph.synthetic(0.05).networks["physical"].csr(dtype=torch.float32)
    x = torch.randn(matrix.size(1), 24)
    base = torch.randn(matrix.size(0), 24)
    for add in (False, True):
        results = [kernel(matrix, x, base.clone(), add) for kernel in (_spmm._by_aten, _spmm._by_library)]
        torch.testing.assert_close(*results)
    torch.testing.assert_close(*[kernel(matrix, x, None, False) for kernel in (_spmm._by_aten, _spmm._by_library)])
