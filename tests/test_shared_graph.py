"""`tclab.SharedGraph`, the drop-in layer: what it sums, what it refuses, and where it can go."""

import doctest
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.utils import bipartite_subgraph

import tclab
from tclab.message_passing import shared_graph, sums
from tclab.message_passing.shared import link_of
from tclab.message_passing.spmm import Tiling, columns, multiply


def test_the_example_of_its_docstring_runs():
    found = doctest.testmod(shared_graph)
    assert found.attempted >= 5
    assert found.failed == 0


def of_its_own_graph(edge_index, weight, x, sources, targets, reduce):
    """By the definition: each sample's subgraph, its edges one by one."""
    out = torch.zeros(len(targets), *x.shape[1:], dtype=x.dtype)
    for b in range(x.size(1)):
        kept, weights = bipartite_subgraph(
            (sources[:, b], targets[:, b]), edge_index, weight, size=(len(x), len(out))
        )
        messages = x[kept[0], b] * weights.unsqueeze(-1)
        out[:, b].index_add_(0, kept[1], messages)
        if reduce == "mean":
            out[:, b] /= torch.bincount(kept[1], minlength=len(out)).clamp_min(1).unsqueeze(-1)
    return out


@given(data=st.data())
def test_every_sample_is_its_own_subgraph(data):
    n, m = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    bipartite = data.draw(st.booleans())
    m = m if bipartite else n
    pair = st.tuples(st.integers(0, n - 1), st.integers(0, m - 1))
    edges = data.draw(st.lists(pair, max_size=40))
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    size, reduce = data.draw(st.integers(1, 4)), data.draw(st.sampled_from(["sum", "mean"]))
    sources = torch.rand(n, size, generator=generator) < 0.7
    targets = torch.rand(m, size, generator=generator) < 0.7 if bipartite else sources
    weight = torch.randn(len(edges), generator=generator, dtype=torch.float64)
    given_weight = weight if data.draw(st.booleans()) else None
    weight = torch.ones_like(weight) if given_weight is None else weight
    x = torch.randn(n, size, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    graph = tclab.SharedGraph(edge_index, (n, m) if bipartite else n, weight=given_weight).double()
    graph = graph if given_weight is None else tclab.SharedGraph(edge_index, (n, m), weight=weight)
    found = graph(x, (sources, targets), reduce=reduce)
    expected = of_its_own_graph(edge_index, weight, x, sources, targets, reduce)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    by = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((y * by).sum(), x, retain_graph=True)[0] for y in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert not ours[~sources].any()


@pytest.fixture(scope="module")
def ring():
    nodes = torch.arange(50)
    edge_index = torch.cat([torch.stack([nodes, (nodes + step) % 50]) for step in (1, 3, 7)], dim=1)
    generator = torch.Generator().manual_seed(0)
    keep = torch.rand(50, 4, generator=generator) < 0.8
    return tclab.SharedGraph(edge_index, 50), torch.randn(50, 4, 8, generator=generator), keep


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_it_goes_through_compile_whole_with_its_gradient(ring, dtype, reduce):
    graph, x, keep = ring
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inductor's own imports
        for call in (graph, torch.compile(graph, fullgraph=True)):
            own = x.to(dtype, copy=True).requires_grad_()
            summed = call(own, keep, reduce=reduce)
            summed.square().sum().backward()
            results.append((summed, own.grad))
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(results[1], results[0], **tolerance)
    assert results[0][0].dtype == dtype
    exact = graph(x, keep, reduce=reduce)
    torch.testing.assert_close(results[0][0].float(), exact, rtol=2e-2, atol=5e-2)


def test_it_runs_under_autocast(ring):
    graph, x, keep = ring
    linear = torch.nn.Linear(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        summed = graph(linear(x), keep)
    assert summed.dtype == torch.bfloat16
    summed.float().sum().backward()
    torch.testing.assert_close(summed.float(), graph(linear(x), keep), rtol=5e-2, atol=5e-2)
    assert torch.isfinite(linear.weight.grad).all()


def test_what_deleted_rows_hold_reaches_nothing_even_if_it_is_not_finite(ring):
    graph, x, keep = ring
    poisoned = x.masked_fill(~keep.unsqueeze(-1), float("nan")).requires_grad_()
    summed = graph(poisoned, keep)
    assert torch.equal(summed, graph(x, keep))
    summed.sum().backward()
    assert torch.isfinite(poisoned.grad).all()


def test_two_runs_give_the_same_bits(ring):
    graph, x, keep = ring

    def once():
        own = x.clone().requires_grad_()
        summed = graph(own, keep, reduce="mean")
        summed.square().sum().backward()
        return summed.detach(), own.grad

    assert all(torch.equal(a, b) for a, b in zip(once(), once(), strict=True))


def test_a_second_derivative_is_refused(ring):
    graph, x, keep = ring
    own = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(graph(own, keep).square().sum(), own, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


def test_it_is_a_layer_of_any_module_and_adds_nothing_to_its_state(ring):
    graph = ring[0]
    model = torch.nn.ModuleDict({"graph": graph, "linear": torch.nn.Linear(8, 8)})
    assert set(model.state_dict()) == {"linear.weight", "linear.bias"}
    assert graph.double()._there_values.dtype == torch.float64
    graph.float()
    assert repr(graph) == "SharedGraph(50 → 50, 150 edges)"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g, x, k: g(x, k, reduce="avg"), "unknown reduction 'avg'"),
        (lambda g, x, k: g(x[:, 0], k), r"x is \[50, 8\], expected \[50, B, H\]"),
        (lambda g, x, k: g(x, k[:, :2]), r"keep is \[50, 2\] torch.bool, expected \[50, 4\]"),
        (lambda g, x, k: g(x, k.float()), "torch.float32, expected"),
        (lambda g, x, k: tclab.SharedGraph(torch.tensor([[0], [9]]), 5), "index 9 is outside the 5 node nodes"),
        (lambda g, x, k: tclab.SharedGraph(torch.zeros(2, 0).long(), (5, 4))(x[:5], k), "for a bipartite graph"),
        (
            lambda g, x, k: tclab.SharedGraph(
                torch.tensor([[0], [1]]), 5, weight=torch.ones(1, requires_grad=True)
            ),
            "weight requires a gradient",
        ),
    ],
)
def test_bad_input_is_named(ring, call, words):
    with pytest.raises(tclab.InputError, match=words):
        call(*ring)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("add", [False, True])
def test_every_kernel_and_tile_gives_the_same(dtype, add):
    network = tclab.CellGraph.synthetic(0.05).networks["physical"]
    x = torch.randn(network.num_sources, 101).to(dtype)
    tilings = [Tiling("aten", None), Tiling("aten", 40)]
    if dtype != torch.bfloat16:
        tilings += [Tiling("library", None), Tiling("library", 32)]
    matrix = network.csr(dtype=dtype)
    base = torch.randn(network.num_targets, 101).to(dtype)
    exact = matrix.to_dense().double() @ x.double() + (base.double() if add else 0.0)
    for tiling in tilings:
        found = multiply(matrix, columns(x, tiling), out=base.clone() if add else None, add=add)
        tolerance = {"rtol": 2e-2, "atol": 1e-1} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(found.double(), exact, **tolerance)


def test_the_operation_is_registered_as_torch_asks():
    network = tclab.CellGraph.synthetic(0.02).networks["physical"]
    link = link_of(network, torch.float64)
    flat = [tensor for csr in link for tensor in csr[:3]]
    x = torch.randn(network.num_sources * 2, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, dtype=torch.float64, requires_grad=True)
    gone = torch.tensor([3, 4])
    torch.library.opcheck(torch.ops.tclab.shared_sums, (x, weights, flat * 2, gone, [gone, gone], 2, 1))

    for group in (1, 2):

        def summed(x, weights, group=group):
            return sums.shared_sums(
                x, [link, link], 2, group=group, self_weights=weights, source_gone=gone, target_gone=[gone, gone]
            )

        assert torch.autograd.gradcheck(summed, (x, weights))
