"""`tclab.SharedGraph`, the drop-in layer: what it sums, what it refuses, and where it can go."""

import copy
import doctest

import drawn
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.utils import bipartite_subgraph

import tclab
from tclab.message_passing import _shared_graph as shared_graph


def test_the_example_of_its_docstring_runs():
    found = doctest.testmod(shared_graph)
    assert found.attempted >= 5
    assert found.failed == 0


def of_its_own_graph(edge_index, weight, x, sources, targets, reduce="sum", cut=None):
    """By the definition: each sample's subgraph without the edges that are cut, its edges one by one."""
    out = torch.zeros(len(targets), *x.shape[1:], dtype=x.dtype)
    for b in range(x.size(1)):
        left = torch.ones(len(weight), dtype=torch.bool)
        left[[] if cut is None else cut[0, cut[1] == b]] = False
        sides, size = (sources[:, b], targets[:, b]), (len(x), len(out))
        kept, weights = bipartite_subgraph(sides, edge_index[:, left], weight[left], size=size)
        out[:, b].index_add_(0, kept[1], x[kept[0], b] * weights.unsqueeze(-1))
        if reduce == "mean":
            out[:, b] /= torch.bincount(kept[1], minlength=len(out)).clamp_min(1).unsqueeze(-1)
    return out


@given(data=st.data())
def test_every_sample_is_its_own_subgraph(data):
    n, bipartite = data.draw(st.integers(1, 9)), data.draw(st.booleans())
    m = data.draw(st.integers(1, 9)) if bipartite else n
    edges = data.draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, m - 1)), max_size=40))
    edge_index = drawn.index_of(edges)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    size, reduce = data.draw(st.integers(1, 4)), data.draw(st.sampled_from(["sum", "mean"]))
    sources = torch.rand(n, size, generator=generator) < 0.7
    targets = torch.rand(m, size, generator=generator) < 0.7 if bipartite else sources
    weight = torch.randn(len(edges), generator=generator, dtype=torch.float64)
    given_weight = weight if data.draw(st.booleans()) else None
    weight = torch.ones_like(weight) if given_weight is None else weight
    cut = (torch.rand(len(edges), size, generator=generator) < data.draw(st.sampled_from([0.0, 0.3]))).nonzero().t()
    x = torch.randn(n, size, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    graph = tclab.SharedGraph(edge_index, (n, m) if bipartite else n, weight=given_weight)
    graph = graph.to(data.draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16])))
    keep = (sources, targets) if bipartite else sources
    found = graph(x, keep, reduce=reduce, cut=cut if cut.numel() else None)
    expected = of_its_own_graph(edge_index, weight, x, sources, targets, reduce, cut)
    by = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((y * by).sum(), x, retain_graph=True)[0] for y in (found, expected))
    torch.testing.assert_close((found, ours), (expected, theirs), rtol=1e-12, atol=1e-12)
    assert not ours[~sources].any()


@pytest.fixture(scope="module")
def ring():
    return drawn.ring(50, (1, 3, 7))


@pytest.mark.parametrize("held", [float("nan"), float("inf"), -1e30])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_what_deleted_rows_and_their_gradients_hold_reaches_nothing_even_if_it_is_not_finite(ring, reduce, held):
    graph, x, keep = ring
    deleted, cut = ~keep.unsqueeze(-1), torch.stack([torch.arange(0, 150, 7), torch.arange(22) % 4])
    found = []
    for poison in (0.0, held):
        own = x.masked_fill(deleted, poison).requires_grad_()
        summed = graph(own, keep, reduce=reduce, cut=cut)
        summed.backward(summed.detach().masked_fill(deleted, poison))
        found.append((summed.detach(), own.grad))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_sums_and_means_have_second_derivatives(reduce):
    edge_index = torch.tensor([[0, 1, 2, 2, 4, 4, 3], [1, 2, 0, 0, 4, 1, 2]])
    graph = tclab.SharedGraph(edge_index, 5, weight=torch.linspace(-1.0, 2.0, 7))
    generator = torch.Generator().manual_seed(0)
    keep, receives = (torch.rand(5, 3, generator=generator) < 0.7 for _ in range(2))
    cut = torch.tensor([[2, 4], [0, 1]])
    x = torch.randn(5, 3, 2, generator=generator, dtype=torch.float64, requires_grad=True)

    def squares(x):  # a sum alone is linear, and its second derivative zero
        return graph(x.square(), (keep, receives), reduce=reduce, cut=cut)

    assert torch.autograd.gradcheck(squares, x)
    assert torch.autograd.gradgradcheck(squares, x)


def test_it_adds_nothing_to_a_modules_state_and_keeps_the_order_of_a_pyg_batch(ring):
    graph, x, keep = ring
    model = torch.nn.ModuleDict({"graph": graph, "linear": torch.nn.Linear(8, 8)})
    assert set(model.state_dict()) == {"linear.weight", "linear.bias"}
    assert repr(graph) == "SharedGraph(50 → 50, 150 edges)"
    grid = tclab.message_passing.to_grid(tclab.message_passing.to_rows(x), 4)
    for reduce in ("sum", "mean"):
        assert graph(grid, keep, reduce=reduce).transpose(0, 1).is_contiguous()


def test_in_another_dtype_and_back_it_has_every_digit_of_its_weights_and_the_bits_of_the_first_run(ring):
    _, x, keep = ring
    generator = torch.Generator().manual_seed(1)
    edge_index = torch.randint(50, (2, 400), generator=generator)
    weight = torch.randn(400, generator=generator, dtype=torch.float64)
    graph = tclab.SharedGraph(edge_index, 50, weight=weight)
    first = graph(x.double(), keep)
    expected = of_its_own_graph(edge_index, weight, x.double(), keep, keep)
    torch.testing.assert_close(first, expected, rtol=1e-13, atol=1e-13)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        rough = graph.to(dtype)(x.to(dtype), keep)  # what it makes for one dtype is not what another gets
        assert rough.dtype == dtype
        torch.testing.assert_close(rough.double(), first, rtol=2e-2, atol=5e-2)
        assert torch.equal(graph(x.double(), keep), first)
    assert torch.equal(copy.deepcopy(graph)(x.double(), keep), first)


def test_degrees_are_whole_numbers_in_every_dtype():
    leaves = torch.arange(1, 601)
    graph = tclab.SharedGraph(torch.stack([leaves, torch.zeros_like(leaves)]), 601).to(torch.bfloat16)
    keep = torch.ones(601, 2, dtype=torch.bool)
    keep[1:101, 1] = False
    assert graph.degree(None, 2)[0].tolist() == [600, 600]
    assert graph.degree(keep)[0].tolist() == [600, 500]
    means = graph(torch.ones(601, 2, 1, dtype=torch.bfloat16), keep, reduce="mean")
    assert means[0].flatten().tolist() == [1.0, 1.0]
    assert means.dtype == torch.bfloat16


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize(("sizes", "shape"), [(5, (5, 0, 8)), (5, (5, 3, 0)), ((0, 3), (0, 2, 4)), ((5, 0), (5, 2, 4))])
def test_no_node_no_sample_and_no_feature_give_nothing(sizes, shape, reduce):
    graph = tclab.SharedGraph(torch.zeros(2, 0, dtype=torch.int64), sizes)
    x = torch.zeros(shape, requires_grad=True)
    summed = graph(x, reduce=reduce)
    assert summed.shape == (graph.num_targets, *shape[1:])
    summed.sum().backward()
    assert not x.grad.any()


ONE = torch.tensor([[0], [1]])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g, x, k: g(x, k, reduce="avg"), "unknown reduction 'avg'"),
        (lambda g, x, k: g(x[:, 0], k), r"x is \[50, 8\] torch.float32, expected \[50, B, H\]"),
        (lambda g, x, k: g(x.long(), k), r"torch.int64, expected \[50, B, H\] of floats"),
        (lambda g, x, k: g(x, k[:, :2]), r"keep is \[50, 2\] torch.bool, expected \[50, 4\]"),
        (lambda g, x, k: g(x, k.float()), "torch.float32, expected"),
        (lambda g, x, k: tclab.SharedGraph(torch.tensor([[0], [9]]), 5), "index 9 is outside the 5 node nodes"),
        (lambda g, x, k: tclab.SharedGraph(torch.zeros(2, 0).long(), (5, 4))(x[:5], k), "for a bipartite graph"),
        (lambda g, x, k: tclab.SharedGraph(ONE, 5, weight=torch.ones(1, requires_grad=True)), "weight requires a grad"),
        (lambda g, x, k: g(x, cut=torch.tensor([[150], [0]])), "cut has an index outside the 150 edges and 4 samples"),
        (lambda g, x, k: g(x, cut=torch.tensor([[3, 3], [0, 0]])), "an edge of a sample twice"),
        (lambda g, x, k: g(x, cut=torch.tensor([3])), r"cut is \[1\] torch.int64, expected \[2, n\]"),
    ],
)
def test_bad_input_is_named(ring, call, words):
    with pytest.raises(tclab.InputError, match=words):
        call(*ring)
