"""Each fast path is switched off, or forced, by itself: predictions and gradients stay those of `subgraph`.

Graphs of tests are too small for tiles of columns, which otherwise would never be tried here. Blocks of edges are
tried so in `test_shared_convs.py`, the mixes of `fastest` in `test_fastest.py`, and compiled steps in
`test_equality.py`.
"""

from types import SimpleNamespace
from unittest import mock

import drawn
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_equality import OTHERS
from torch.nn import functional

from tclab import masking
from tclab.masking._delta import Delta
from tclab.message_passing import _shared_view
from tclab.message_passing.kernels import _shared_sums, _spmm
from tclab.models import HeteroCell, _layers
from tclab.training._equivalence import FP64_TOLERANCE, outcome, relative_error


def products(kernel, columns):
    """Return what makes every product one of this kernel, in tiles of so many columns, and times none."""
    tiling = _spmm.Tiling(kernel, columns)
    return [mock.patch.object(module, "tiling_for", return_value=tiling) for module in (_spmm, _shared_sums)]


def differences(**options):
    """Return what makes `delta` carry differences through so many layers, at any cost."""
    return [mock.patch.dict(Delta.__init__.__kwdefaults__, limit=float("inf"), **options)]


SWITCHED = {
    "ATen's product in tiles": products("aten", 3),
    "ATen's product, whole, whatever is faster": products("aten", None),
    "no look at the rows that count as zero": [
        mock.patch.object(_shared_sums, "without_rows", lambda x, rows: x.index_fill(0, rows, 0.0))
    ],
    "rows zeroed in a tensor of their own": [
        mock.patch.object(_shared_view, "zero_rows", lambda x, rows, in_place=False: x.index_fill(0, rows, 0.0))
    ],
    "ReLU in a tensor of its own": [mock.patch.object(_layers, "_InnerReLU", SimpleNamespace(apply=functional.relu))],
    "PyG's collation": [],
    "differences at no layer": differences(depth=0),
    "differences at one layer": differences(depth=1),
    "differences at every layer": differences(depth=3),
}
if torch.backends.mkl.is_available():
    SWITCHED |= {
        "MKL's product in tiles": products("library", 3),
        "MKL's product, whole, whatever is faster": products("library", None),
    }


@pytest.mark.parametrize("switched", SWITCHED)
@given(data=st.data(), graph=drawn.graphs())
def test_a_step_is_the_same_with(switched, data, graph):
    samples = data.draw(drawn.deletions(graph))
    collation = "pyg" if switched == "PyG's collation" else "lean"
    strategy = data.draw(st.sampled_from([name for name in OTHERS if collation in masking.get(name).collations]))
    torch.manual_seed(0)
    names = list(graph.networks)
    nodes = graph.num_nodes[graph.deleted_type]
    model = HeteroCell(nodes, names, width=8, layers=3, local_heads=2, metabolism="used" if graph.metabolism else "off")
    model.double()
    expected = outcome(model, graph, samples, "subgraph")
    for patch in SWITCHED[switched]:
        patch.start()
    try:
        error = relative_error(outcome(model, graph, samples, strategy, collation), expected)
    finally:
        for patch in SWITCHED[switched]:
            patch.stop()
    assert error <= FP64_TOLERANCE, strategy
