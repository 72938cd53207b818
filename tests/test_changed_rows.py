"""Rows that differ from the wild type's: layers over `ChangedRows` give what PyG's give on each sample's subgraph."""

from unittest import mock

import pytest
import torch
import torch_geometric.nn as pyg
from hypothesis import event, given, settings
from hypothesis import strategies as st
from test_shared_convs import OPTIONS, pair, two_types
from torch_geometric.utils import subgraph

from tclab import InputError, SharedGraph
from tclab.message_passing import (
    ChangedRows,
    SharedGATv2Conv,
    SharedGCNConv,
    SharedGINConv,
    SharedHeteroConv,
    SharedSAGEConv,
    _changed_rows,
)
from tclab.perturbation import Deletions

CASES = settings(max_examples=100 if settings.default.max_examples > 12 else 10)
SHAPES = ("any", "chain", "star in", "star out", "hub", "parts", "no edge", "one node", "loops and duplicates")
LAYERS = [(name, each) for name, all_ in OPTIONS.items() if name != "SimpleConv" for each in all_ if "norm" not in each]
LAYERS.append(("GCNConv", {"cached": True, "add_self_loops": False}))  # of one graph: PyG's takes no other


@st.composite
def samples(draw):
    """Draw a graph by its shape, deletions, edges that samples cut, and rows of their own."""
    shape = draw(st.sampled_from(SHAPES))
    event(shape)
    n = 1 if shape == "one node" else draw(st.integers(3, 12))
    at = torch.arange(n)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    some = torch.randint(n, (2, draw(st.integers(0, 3 * n))), generator=generator)
    edge_index = {
        "chain": torch.stack([at[:-1], at[1:]]),
        "star in": torch.stack([at[1:], torch.zeros_like(at[1:])]),
        "star out": torch.stack([torch.zeros_like(at[1:]), at[1:]]),
        "hub": torch.cat([some, torch.stack([at, at * 0]), torch.stack([at * 0, at])], dim=1),
        "parts": some // 3 * 3 % n,
        "no edge": some[:, :0],
        "loops and duplicates": torch.cat([some, some, torch.stack([at, at])], dim=1),
    }.get(shape, some)
    size = draw(st.integers(1, 4))
    share = draw(st.sampled_from([0.0, 0.1, 0.3, 1.0]))
    keep = torch.rand(n, size, generator=generator) >= share
    cut = torch.rand(edge_index.size(1), size, generator=generator) < draw(st.sampled_from([0.0, 0.2]))
    own = (torch.rand(n, size, generator=generator) < draw(st.sampled_from([0.0, 0.2]))) & keep
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    values = torch.randn(int(own.sum()), 4, generator=generator, dtype=torch.float64)
    return edge_index, keep, cut, own, x, values


def rows_of(x, keep, own, values):
    """Return the rows that a model starts from, as `ChangedRows`."""
    deletions = [torch.nonzero(~kept).flatten() for kept in keep.t()]
    return ChangedRows(x, deletions, pairs=own.nonzero().t(), values=values)


def pairs_of(cut):
    return cut.nonzero().t() if cut.any() else None


def by_subgraphs(convs, linears, case, x, values):
    """Return what PyG's layers give on each sample's subgraph, [N, B, F], zero in rows that are deleted."""
    edge_index, keep, cut, own, *_ = case
    columns = []
    for b in range(keep.size(1)):
        kept, owned = keep[:, b].nonzero().flatten(), own[:, b].nonzero().flatten()
        left = ~cut[:, b]
        if isinstance(convs[0], pyg.GCNConv):  # of which self-loops are a part of the node
            left |= edge_index[0] == edge_index[1]
        edges, _ = subgraph(kept, edge_index[:, left], relabel_nodes=True, num_nodes=len(x))
        rows = x.index_put((owned,), values[own.nonzero()[:, 1] == b])[kept]
        for conv, linear in zip(convs, linears, strict=True):
            rows = linear(conv(rows, edges).tanh())
        columns.append(rows.new_zeros(len(x), rows.size(1)).index_put((kept,), rows))
    return torch.stack(columns, dim=1)


def numbers(call, x, values, modules):
    """Return what a call gives of features and values, and the gradients of both and of all parameters."""
    x, values = x.clone().requires_grad_(), values.clone().requires_grad_()
    out = call(x, values)
    by = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    parameters = [p for module in modules for p in module.parameters()]
    gradients = torch.autograd.grad((out * by).sum(), [x, values, *parameters], allow_unused=True)
    zeros = [torch.zeros_like(p) for p in [x, values, *parameters]]
    return [out.detach(), *(z if g is None else g for g, z in zip(gradients, zeros, strict=True))]


@pytest.mark.parametrize(("name", "options"), LAYERS)
@CASES
@given(case=samples(), share=st.sampled_from([0.0, 0.5, float("inf")]))
def test_layers_of_rows_that_differ_are_pygs_on_the_subgraphs(name, options, case, share):
    edge_index, keep, cut, own, x, values = case
    if options.get("cached"):
        keep, cut = torch.ones_like(keep), torch.zeros_like(cut)
        case = (edge_index, keep, cut, *case[3:])
    theirs, ours = zip(*(pair(name, options, channels=4) for _ in range(3)), strict=True)
    shared = SharedGraph(edge_index, len(x))
    width = ours[0](x.unsqueeze(1), shared).size(-1)
    linears = [torch.nn.Linear(width, 4).double() for _ in ours]

    def mine(x, values):
        rows = rows_of(x, keep, own, values)
        for conv, linear in zip(ours, linears, strict=True):
            rows = conv(rows, shared, cut=pairs_of(cut)).map(lambda rows, linear=linear: linear(rows.tanh()))
        return rows.grid()

    with mock.patch.object(_changed_rows, "WHOLE", share):
        found = numbers(mine, x, values, [*ours, *linears])
    expected = numbers(lambda x, values: by_subgraphs(theirs, linears, case, x, values), x, values, [*theirs, *linears])
    for name_of, one, other in zip(("rows", "x", "values", *" " * 99), found, expected, strict=False):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, msg=lambda text, of=name_of: f"{of}: {text}")


@CASES
@given(case=two_types(), share=st.sampled_from([0.0, 0.5, float("inf")]))
def test_relations_between_types_change_the_rows_that_any_of_them_reaches(case, share):
    """`SharedHeteroConv` over whole samples is PyG's, as `test_shared_convs` has it."""
    number, edges, x, keep, cut, aggr = case
    size = x.size(1)
    kinds = dict(zip(edges, (SharedGCNConv, SharedSAGEConv, SharedGATv2Conv), strict=True))
    options = {SharedGATv2Conv: {"add_self_loops": False}}
    conv = SharedHeteroConv({t: kind(4, 4, **options.get(kind, {})) for t, kind in kinds.items()}, aggr=aggr).double()
    shared = {
        t: SharedGraph(pairs, number[t[0]] if t[0] == t[2] else (number[t[0]], number[t[2]]))
        for t, pairs in edges.items()
    }
    cuts = {t: each.nonzero().t() for t, each in cut.items()}
    deletions = {
        k: [torch.nonzero(~kept).flatten() for kept in keep[k].t()] if k in keep else [[]] * size for k in number
    }

    def of_types(x):
        return dict(zip(number, x.split(list(number.values())), strict=True))

    def mine(x, _):
        rows = {k: ChangedRows(of_k, deletions[k]) for k, of_k in of_types(x).items()}
        found = conv(rows, shared, cut_dict=cuts)
        if aggr != "cat" and aggr is not None:
            found = conv(found, shared, cut_dict=cuts)
        return torch.cat([found[k].grid().flatten() for k in number])

    def whole(x, _):
        found = {k: of_k.unsqueeze(1).expand(-1, size, -1) for k, of_k in of_types(x).items()}
        found = conv(found, shared, keep, cut_dict=cuts)
        if aggr != "cat" and aggr is not None:
            found = conv(found, shared, keep, cut_dict=cuts)
        if aggr is None:
            return torch.cat([found[k].transpose(1, 2).flatten() for k in number])
        return torch.cat([found[k].flatten() for k in number])

    with mock.patch.object(_changed_rows, "WHOLE", share):
        found = numbers(mine, x[:, 0], x[:0, 0], [conv])
    for one, other in zip(found, numbers(whole, x[:, 0], x[:0, 0], [conv]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def grid_of_stations(n=400, seed=0):
    """Return a ring with chords, both directions, and a sample that fails a station of each of eight places."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.arange(n)
    chords = torch.randint(n, (n // 2,), generator=generator)
    ends = torch.cat([(at + 1) % n, (chords + torch.randint(2, 9, chords.shape, generator=generator)) % n])
    lines = torch.stack([torch.cat([at, chords]), ends])
    return SharedGraph(torch.cat([lines, lines.flip(0)], dim=1), n), [[50 * b] for b in range(8)]


def test_a_layer_computes_the_rows_that_can_differ_and_no_others():
    shared, deletions = grid_of_stations()
    sizes = []
    nn = torch.nn.Linear(4, 4)
    nn.register_forward_hook(lambda module, rows, out: sizes.append(len(out)))
    conv = SharedGINConv(nn)
    rows = ChangedRows(torch.randn(400, 4), deletions)
    for _ in range(3):
        rows = conv(rows, shared)
    edges = shared._edge_index.long()
    reached = [set(sample) for sample in deletions]
    expected = []
    for _ in range(3):
        reached = [nodes | {t for s, t in edges.t().tolist() if s in nodes} for nodes in reached]
        expected.append(400 + sum(len(nodes - set(sample)) for nodes, sample in zip(reached, deletions, strict=True)))
    assert sizes == expected
    assert repr(rows) == f"ChangedRows(8 samples, 400 nodes; {expected[-1] - 400} rows differ)"


def test_a_batch_norm_in_training_is_of_every_row_and_afterwards_of_those_that_differ():
    shared, deletions = grid_of_stations()
    nn = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).double()
    conv, x = SharedGINConv(nn), torch.randn(400, 4, dtype=torch.float64)
    for training in (True, False):
        rows, keep = conv.train(training)(ChangedRows(x, deletions), shared), ChangedRows(x, deletions).keep()
        assert (rows.keys is None) == training
        whole = conv(x.unsqueeze(1).expand(-1, 8, -1), shared, keep)
        torch.testing.assert_close(rows.grid(), whole, rtol=1e-10, atol=1e-10)


WHOLES = pytest.mark.parametrize("share", [0.0, float("inf")])


@WHOLES
def test_rows_of_two_branches_are_combined_whichever_of_them_differ(monkeypatch, share):
    """A residual connection, rows side by side, and branches over two graphs that reach other nodes."""
    monkeypatch.setattr(_changed_rows, "WHOLE", share)
    shared, deletions = grid_of_stations()
    other = SharedGraph(torch.randint(400, (2, 300), generator=torch.Generator().manual_seed(2)), 400)
    sage, gcn = SharedSAGEConv(4, 4).double(), SharedGCNConv(4, 4).double()
    parameters = [*sage.parameters(), *gcn.parameters()]
    x = torch.randn(400, 4, dtype=torch.float64)
    before = ChangedRows(x, deletions)
    whole, keep = x.unsqueeze(1).expand(-1, 8, -1), before.keep()

    def combined(a, b, c):
        return torch.cat([a + c, b * c.tanh()], dim=-1)

    rows = sage(before, shared).map(combined, gcn(before, other), before)
    expected = combined(sage(whole, shared, keep), gcn(whole, other, keep), whole) * keep.unsqueeze(-1)
    torch.testing.assert_close(rows.grid(), expected, rtol=1e-10, atol=1e-10)
    gradients = (torch.autograd.grad(y.square().sum(), parameters) for y in (rows.grid(), expected))
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


@WHOLES
@pytest.mark.parametrize(("name", "options"), [("SAGEConv", {}), ("GATv2Conv", {}), ("GCNConv", {"normalize": False})])
def test_targets_of_one_graph_may_be_other_rows_than_its_sources(monkeypatch, name, options, share):
    """Each with rows of its own that differ, as PyG's `conv((x, y), edge_index)`."""
    monkeypatch.setattr(_changed_rows, "WHOLE", share)
    shared, deletions = grid_of_stations()
    _, conv = pair(name, options, channels=4)
    x, y, values = (torch.randn(n, 4, dtype=torch.float64) for n in (400, 400, 2))
    own = {"pairs": torch.tensor([[9, 3], [0, 5]]), "values": values}
    rows, others = ChangedRows(x, deletions), ChangedRows(y, deletions, **own)
    for both in ((rows, others), (others, rows)):
        whole = conv(tuple(each.grid() for each in both), shared, rows.keep())
        torch.testing.assert_close(conv(both, shared).grid(), whole, rtol=1e-10, atol=1e-10)
    with pytest.raises(InputError, match="rows of other samples"):
        conv((rows, ChangedRows(y, deletions[::-1])), shared)


@pytest.mark.parametrize("value", [1e9, float("inf"), float("nan")])
def test_what_a_deleted_row_holds_reaches_no_sum_and_no_gradient(value):
    """A sample's sum is the wild type's less what is deleted, which may be all but its last digits."""
    shared, deletions = grid_of_stations()
    x, conv = torch.randn(400, 4), SharedSAGEConv(4, 4)
    x[0] = value
    deletions = [{0, *nodes} for nodes in deletions]
    rows = ChangedRows(x, deletions)
    for each in (rows, conv(rows, shared)):
        torch.testing.assert_close(each.sum(), each.grid().sum(0), rtol=1e-5, atol=1e-4)
    each.mean().sum().backward()
    assert all(p.grad.isfinite().all() for p in conv.parameters())
    nearly_all = ChangedRows(torch.randn(1000, 3) + 1000, [range(999)])
    torch.testing.assert_close(nearly_all.mean(), nearly_all.grid()[999])


@WHOLES
def test_a_function_of_rows_sees_no_row_that_is_deleted(monkeypatch, share):
    """Of a row of zeros the length is 0, and a gradient of zeros times what is not finite is not zero."""
    monkeypatch.setattr(_changed_rows, "WHOLE", share)
    shared, deletions = grid_of_stations()
    conv, linear = SharedSAGEConv(4, 4), torch.nn.Linear(4, 4)
    rows = conv(ChangedRows(torch.randn(400, 4), deletions), shared)
    rows.map(lambda rows: linear(rows / rows.norm(dim=1, keepdim=True))).mean().sum().backward()
    assert all(p.grad.isfinite().all() for p in (*conv.parameters(), *linear.parameters()))


@WHOLES
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", [torch.nn.BatchNorm1d, pyg.GraphNorm, pyg.LayerNorm, pyg.PairNorm, pyg.BatchNorm])
def test_norms_over_rows_are_over_those_that_each_sample_keeps(monkeypatch, norm, training, share):
    """In `map`, and within a GIN, of `ChangedRows` and of whole samples."""
    monkeypatch.setattr(_changed_rows, "WHOLE", share)
    shared, deletions = grid_of_stations()
    x, before = torch.randn(400, 4, dtype=torch.float64), ChangedRows(torch.randn(400, 4), deletions)
    kept = before.keep().t()
    nets = [torch.nn.Sequential(torch.nn.Linear(4, 4), *([] if norm is pyg.PairNorm else [norm(4)])) for _ in range(4)]
    if norm is pyg.PairNorm:
        nets = [torch.nn.Sequential(*net, norm()) for net in nets]
    for net in nets:
        net.double().train(training).load_state_dict(nets[0].state_dict())
    whole, keep = x.unsqueeze(1).expand(-1, 8, -1), kept.t()
    sums = shared(whole, keep) + whole
    expected = nets[0](sums.transpose(0, 1)[kept])
    in_map = SharedGINConv(torch.nn.Identity())(ChangedRows(x, deletions), shared).map(nets[1]).grid()
    in_gin = SharedGINConv(nets[2])(ChangedRows(x, deletions), shared).grid()
    for grid in (in_map, in_gin, SharedGINConv(nets[3])(whole, shared, keep)):
        torch.testing.assert_close(grid.transpose(0, 1)[kept], expected, rtol=1e-10, atol=1e-10)
    for net in nets[1:]:
        torch.testing.assert_close(net.state_dict(), nets[0].state_dict(), rtol=1e-10, atol=1e-10)


def test_pools_and_single_rows_are_those_of_the_grid():
    x, own = torch.randn(6, 3), torch.tensor([[1, 4, 1], [0, 0, 2]])
    values = torch.randn(3, 3)
    rows = ChangedRows(x, [[0, 2], range(6), []], pairs=own, values=values)
    every = rows.like(rows.grid().transpose(0, 1).flatten(0, 1), None)
    for each in (rows, every, every.map(lambda rows: rows * 1)):
        kept = torch.tensor([4, 1, 6]).unsqueeze(1)
        torch.testing.assert_close(each.sum(), rows.grid().sum(0))
        torch.testing.assert_close(each.mean(), rows.grid().sum(0) / kept)
        nodes, samples = torch.tensor([1, 1, 0, 5, 4]), torch.tensor([0, 1, 2, 2, 0])
        assert torch.equal(each.take(nodes, samples), rows.grid()[nodes, samples])
    assert not rows.grid()[:, 1].any()
    assert torch.equal(rows.grid()[1, 0], values[0])


@pytest.mark.parametrize("conv", [SharedSAGEConv(4, 4), SharedGCNConv(4, 4), SharedGATv2Conv(4, 4)])
def test_graphs_and_batches_of_nothing_end(conv):
    for n, deletions in ((0, [[], []]), (5, []), (5, [range(5)])):
        shared = SharedGraph(torch.zeros(2, 0, dtype=torch.int64), n)
        rows = conv(ChangedRows(torch.randn(n, 4), deletions), shared).map(torch.relu)
        assert rows.mean().shape == (len(deletions), 4)
        assert not rows.sum().isnan().any()
        assert rows.grid().shape == (n, len(deletions), 4)


def test_sums_in_bfloat16_are_rounded_once():
    shared, deletions = grid_of_stations()
    rows = ChangedRows(torch.ones(400, 4, dtype=torch.bfloat16), deletions)
    assert torch.equal(rows.mean(), torch.ones(8, 4, dtype=torch.bfloat16))
    conv = SharedSAGEConv(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        rough = conv(rows.map(torch.Tensor.float), shared).mean()
    torch.testing.assert_close(rough.float(), conv(rows.map(torch.Tensor.float), shared).mean(), rtol=0.02, atol=0.02)


LINE = SharedGraph(torch.tensor([[0, 1], [1, 2]]), 3)
X = torch.randn(3, 4)
TWO = SharedGraph(torch.tensor([[0], [1]]), (3, 2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ChangedRows(X.unsqueeze(1), [[0]]), r"x is \[3, 1, 4\] torch.float32, expected \[N, F\] of floats"),
        (lambda: ChangedRows(X, [[3]]), "sample 0 deletes node 3, expected 0 to 2"),
        (lambda: ChangedRows(X, [[0]], pairs=torch.tensor([[0], [0]]), values=X[:1]), "a node that its sample deletes"),
        (
            lambda: ChangedRows(X, [[0]], pairs=torch.tensor([[5], [0]]), values=X[:1]),
            "outside the 3 nodes",
        ),
        (lambda: ChangedRows(X, [[0]], pairs=torch.tensor([[1, 1], [0, 0]]), values=X[:2]), "pair twice"),
        (lambda: ChangedRows(X, [[0]], pairs=torch.tensor([[1], [0]])), "values is None"),
        (lambda: ChangedRows(X, [[0]], pairs=torch.tensor([[1], [0]]), values=X), r"values are \[3, 4\]"),
        (
            lambda: ChangedRows(X, [[0]], pairs=torch.tensor([[1], [0]]), values=X[:1].double()),
            r"values are \[1, 4\] torch.float64, expected \[1, 4\] torch.float32",
        ),
        (lambda: ChangedRows(X.numpy(), [[0]]), r"x is .*, expected a tensor \[N, F\]"),
        (lambda: ChangedRows(X.to("meta"), [[0]]), "x is on meta"),
        (lambda: ChangedRows(X, Deletions(torch.tensor([-1]), torch.tensor([0, 1]), 1)), "a node outside the 3"),
        (lambda: ChangedRows(X, Deletions.of([[3]], num_nodes=4)), "deletions have a node outside the 3 that x has"),
        (
            lambda: ChangedRows(X, [[0], []]).take(torch.tensor([-1]), torch.tensor([1])),
            "outside the 3 nodes and 2 sam",
        ),
        (lambda: ChangedRows(X, [[0]]).take(torch.tensor([1]), torch.tensor([1])), "outside the 3 nodes and 1 samples"),
        (
            lambda: ChangedRows(X, [[0]]).take(torch.tensor([1, 2]), torch.tensor([0])),
            r"expected \[n\] torch.int64 each",
        ),
        (lambda: ChangedRows(X, [[0]]).map(lambda rows: rows.sum(1)), r"returns \[3\], expected \[3, F\]"),
        (lambda: ChangedRows(X, [[0]]).map(lambda rows: rows[:1]), r"returns \[1, 4\], expected \[3, F\]"),
        (lambda: torch.relu(ChangedRows(X, [[0]])), r"relu takes no ChangedRows: .* rows\.map\(torch\.relu\)"),
        (lambda: ChangedRows(X, [[0]]).relu(), r"have no 'relu': .* rows\.map\(torch\.relu\)"),
        (lambda: 1 + ChangedRows(X, [[0]]), r"not a tensor: .* rows\.map\(torch\.add, other\)"),
        (lambda: ChangedRows(X, [[0]]).map(torch.add, X), "expected ChangedRows of the same samples"),
        (lambda: ChangedRows(X, [[0]]).map(torch.add, ChangedRows(X, [[1]])), "rows of other samples"),
        (lambda: SharedSAGEConv(4, 4)(ChangedRows(X, [[0]]), LINE, cut=[[0], [0]]), "expected a tensor"),
        (lambda: SharedSAGEConv(4, 4)(X.unsqueeze(1).numpy(), LINE), r"expected a tensor \[3, B, F\], or ChangedRows"),
        (
            lambda: SharedHeteroConv({("a", "to", "b"): SharedSAGEConv(4, 4)})(
                {"b": ChangedRows(X, [[0]])}, {("a", "to", "b"): TWO}
            ),
            "unknown node type of x_dict 'a'",
        ),
        (lambda: SharedSAGEConv(4, 4)(ChangedRows(X, [[0]]), LINE, torch.ones(3, 1).bool()), "keep is given"),
        (lambda: SharedSAGEConv(4, 4)(ChangedRows(X[:2], [[0]]), LINE), "are 2 nodes, expected the graph's 3"),
        (lambda: SharedSAGEConv(4, 4)(ChangedRows(X, [[0]]), TWO), "ChangedRows of both sides"),
        (
            lambda: SharedSAGEConv(4, 4)((ChangedRows(X, [[0]]), ChangedRows(X[:2], [[0], []])), TWO),
            "are 1 samples, its targets 2",
        ),
        (
            lambda: SharedSAGEConv(4, 4)(ChangedRows(X, [[0]]), LINE, cut=torch.tensor([[9], [0]])),
            "outside the 2 edges and 1 samples",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_words(call, words):
    with pytest.raises((InputError, AttributeError), match=words):
        call()
