"""PyG's convolutions over a shared graph: as PyG's own on the batch of the subgraphs, and its unit tests' cases."""

import copy
import warnings
import weakref
from functools import partial
from unittest import mock

import pytest
import torch
import torch_geometric.nn as pyg
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.utils import bipartite_subgraph, subgraph

import tclab
from tclab import SharedGraph
from tclab.message_passing import (
    SharedGATv2Conv,
    SharedGCNConv,
    SharedGINConv,
    SharedHeteroConv,
    SharedSAGEConv,
    to_grid,
    to_rows,
)
from tclab.message_passing.kernels import _edge_blocks

# `--hypothesis-profile wide`, as make test-all has it: at least 300 cases a layer
CASES = settings(max_examples=300 if settings.default.max_examples > 12 else 8)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
ODD = ("any", "no edge", "one node", "all deleted", "isolated node", "multi-edges", "self-loops")


def mlp(before, after, norm=False):
    between = [torch.nn.BatchNorm1d(7)] if norm else []
    return torch.nn.Sequential(torch.nn.Linear(before, 7), *between, torch.nn.Tanh(), torch.nn.Linear(7, after))


# name → PyG's class, the shared one, and what each takes; "nn" stands for an MLP of its own
GCN = [{}, {"improved": True}, {"bias": False}, {"add_self_loops": False}, {"normalize": False}]
GIN = [{}, {"eps": 0.3}, {"train_eps": True}, {"norm": True}]
SAGE = [{}, {"aggr": "max"}, {"aggr": "sum"}, {"normalize": True}, {"project": True}, {"root_weight": False}]
GAT = [
    {},
    {"heads": 3},
    {"heads": 2, "concat": False},
    {"add_self_loops": False},
    {"share_weights": True, "bias": False},
    {"residual": True, "negative_slope": 0.5},
]


def pair(name, options, dtype=torch.float64):
    """Return PyG's layer and the shared one, with the same parameters."""
    theirs, ours = getattr(pyg, name), getattr(tclab.message_passing, f"Shared{name}")
    if name == "GINConv":
        options = dict(options)
        norm = options.pop("norm", False)
        first, second = (kind(mlp(4, 5, norm), **options) for kind in (theirs, ours))
    else:
        first, second = (kind(4, 5, **options) for kind in (theirs, ours))
    second.load_state_dict(first.state_dict(), strict=True)
    return first.to(dtype), second.to(dtype)


@st.composite
def graphs(draw, weighted=False):
    """Draw an odd graph or any: edges with duplicates and self-loops, masks, single edges that are cut, features."""
    odd = draw(st.sampled_from(ODD))
    event(odd)
    number, size = 1 if odd == "one node" else draw(st.integers(2, 7)), draw(st.integers(1, 3))
    node = st.integers(0, number - (2 if odd == "isolated node" else 1))
    edges = draw(st.lists(st.tuples(node, node), max_size=0 if odd == "no edge" else 20))
    edges += {"multi-edges": 2 * [(0, 1)] + edges[:4], "self-loops": [(0, 0), (number - 1, number - 1)]}.get(odd, [])
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t().contiguous()
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    kept = torch.rand(number, size, generator=generator) < (0.0 if odd == "all deleted" else draw(st.floats(0.5, 0.9)))
    others = torch.rand(number, size, generator=generator) < 0.7
    keep = {"one": kept, "both": (kept, kept), "in": (None, kept), "pair": (others, kept), "none": None}[
        "one" if odd == "all deleted" else draw(st.sampled_from(["one", "one", "both", "in", "pair", "none"]))
    ]
    cut = torch.rand(len(edges), size, generator=generator) < draw(st.sampled_from([0.0, 0.3]))
    weight = torch.rand(len(edges), generator=generator, dtype=torch.float64) + 0.1
    x = torch.randn(number, size, 4, generator=generator, dtype=torch.float64)
    weight = weight if weighted and draw(st.booleans()) else None
    return edge_index, weight, x, keep, cut


def by_subgraphs(conv, x, edge_index, weight, keep, cut, *, loops_stay):
    """By the definition, with PyG's layer on PyG's batch; also which rows [N, B] the batch has."""
    number, size = x.shape[:2]
    loops = edge_index[0] == edge_index[1]
    rows = keep if isinstance(keep, torch.Tensor) else torch.ones(number, size, dtype=torch.bool)
    samples = []
    for b in range(size):
        left = torch.ones_like(loops) if cut is None else ~cut[:, b]
        if isinstance(keep, tuple):
            for mask, ends in zip(keep, edge_index, strict=True):
                left &= True if mask is None else mask[ends, b]
        if loops_stay:
            left |= loops
        edges, weights = edge_index[:, left], None if weight is None else weight[left]
        if isinstance(keep, torch.Tensor):
            edges, weights = subgraph(keep[:, b], edges, weights, relabel_nodes=True, num_nodes=number)
        samples.append(Data(x=x[rows[:, b], b], edge_index=edges, edge_attr=weights))
    batch = Batch.from_data_list(samples)
    out = conv(batch.x, batch.edge_index) if weight is None else conv(batch.x, batch.edge_index, batch.edge_attr)
    return out, rows


def pairs_of(cut):
    """Return [2, n]: the edges that samples cut, in the form that a shared graph takes."""
    return cut.nonzero().t()


def same_as_pyg(name, options, case, dtype):
    edge_index, weight, x, keep, cut = case
    first, second = pair(name, options, dtype)
    weight = None if weight is None else weight.to(dtype)
    rows = keep.sum() if isinstance(keep, torch.Tensor) else x[..., 0].numel()
    if options.get("norm") and rows < 2:
        return  # a batch norm refuses one row
    shared = SharedGraph(edge_index, len(x), weight=weight)
    cuts = pairs_of(cut) if cut.any() else None

    def mine(own):
        out = second(own, shared, keep, cut=cuts)
        if isinstance(keep, torch.Tensor):
            assert not out[~keep].any()
        return to_rows(out)

    def theirs(own):
        out, rows = by_subgraphs(first, own, edge_index, weight, keep, cut, loops_stay=name == "GCNConv")
        whole = out.new_zeros(rows.numel(), out.size(1))
        return whole.index_put((rows.t().flatten().nonzero().flatten(),), out)

    same(x.to(dtype), (mine, second), (theirs, first), TOLERANCE[dtype])
    if dtype == torch.float32 and not options.get("normalize"):  # SAGE's, which makes large what rounding leaves
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            rough, expected = mine(x.float()), theirs(x.float())
        assert (rough - expected).abs().max() <= 0.05 * expected.abs().max().clamp_min(1.0)


def same(x, ours, theirs, tolerance):
    """Compare results and all gradients of both (call, module), and ours with itself under a checkpoint, bit by bit."""
    found = []
    again = (lambda own: checkpoint(ours[0], own, use_reentrant=False), ours[1])
    for call, module in (ours, theirs, again):
        own = x.clone().requires_grad_()
        out = call(own)
        by = torch.randn(out.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(out.dtype)
        gradients = torch.autograd.grad((out * by).sum(), [own, *module.parameters()], allow_unused=True)
        found.append([torch.zeros(1) if each is None else each.detach() for each in (out, *gradients)])
    for one, other, once_more in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), other.double().expand_as(one), rtol=tolerance, atol=tolerance)
        assert torch.equal(one, once_more)


@CASES
@given(case=graphs(weighted=True), options=st.sampled_from(GCN))
def test_gcn_is_pygs_on_the_batch_of_subgraphs(case, options):
    for dtype in TOLERANCE:
        same_as_pyg("GCNConv", options, case, dtype)


@CASES
@given(case=graphs(), options=st.sampled_from(GIN))
def test_gin_is_pygs_on_the_batch_of_subgraphs(case, options):
    same_as_pyg("GINConv", options, case, torch.float64)
    if not options.get("norm"):  # which makes large what rounding leaves of a few rows' variance
        same_as_pyg("GINConv", options, case, torch.float32)


@CASES
@given(case=graphs(), options=st.sampled_from(SAGE))
def test_sage_is_pygs_on_the_batch_of_subgraphs(case, options):
    for dtype in TOLERANCE:
        same_as_pyg("SAGEConv", options, case, dtype)


@CASES
@given(case=graphs(), options=st.sampled_from(GAT))
def test_gatv2_is_pygs_on_the_batch_of_subgraphs(case, options):
    for dtype in TOLERANCE:
        same_as_pyg("GATv2Conv", options, case, dtype)


@given(case=graphs())
def test_blocks_of_a_few_edges_change_nothing(case):
    """A small graph is one block otherwise."""
    with mock.patch.multiple(_edge_blocks, _LEAST_EDGES=2, _BLOCK={"cpu": 3, "cuda": 3}):
        same_as_pyg("SAGEConv", {"aggr": "max"}, case, torch.float64)
        same_as_pyg("GATv2Conv", {"heads": 2}, case, torch.float64)


def two_kinds(seed=0):
    """Return 5 sources, 4 targets, 2 samples: edges, masks, features, and which edges are cut."""
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.stack([torch.randint(n, (14,), generator=generator) for n in (5, 4)])
    keep = [torch.rand(n, 2, generator=generator) < 0.7 for n in (5, 4)]
    x = [torch.randn(n, 2, width, generator=generator, dtype=torch.float64) for n, width in ((5, 4), (4, 6))]
    return edge_index, keep, x


LAYERS_OF_TWO = {
    "SAGEConv": [{}, {"aggr": "max"}, {"project": True}],
    "GATv2Conv": [{"heads": 2, "add_self_loops": False}, {"add_self_loops": False, "residual": True}],
}


@pytest.mark.parametrize(("name", "options"), [(name, each) for name, all_ in LAYERS_OF_TWO.items() for each in all_])
def test_a_bipartite_graph_has_a_mask_for_each_side(name, options):
    edge_index, keep, x = two_kinds()
    theirs = getattr(pyg, name)((4, 6), 5, **options).double()
    ours = getattr(tclab.message_passing, f"Shared{name}")((4, 6), 5, **options).double()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    out = ours(tuple(x), SharedGraph(edge_index, (5, 4)), tuple(keep))
    for b in range(2):
        sides = (keep[0][:, b], keep[1][:, b])
        edges, _ = bipartite_subgraph(sides, edge_index, relabel_nodes=True, size=(5, 4))
        expected = theirs((x[0][sides[0], b], x[1][sides[1], b]), edges)
        torch.testing.assert_close(out[sides[1], b], expected, rtol=1e-10, atol=1e-10)
        assert not out[~sides[1], b].any()


@st.composite
def two_types(draw):
    """Draw graphs between genes and reactions, masks of some types, edges that are cut, features, an aggregation."""
    odd = draw(st.sampled_from(("any", "no edge", "one node", "all deleted")))
    event(odd)
    most, size = 1 if odd == "one node" else 5, draw(st.integers(1, 3))
    number = {"gene": draw(st.integers(1, most)), "reaction.of": draw(st.integers(1, most))}
    types = [("gene", "binds", "gene"), ("gene", "makes", "reaction.of"), ("reaction.of", "needs", "gene")]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    edges, cut = {}, {}
    for t in types:
        ends = st.tuples(*(st.integers(0, number[k] - 1) for k in (t[0], t[2])))
        drawn = draw(st.lists(ends, max_size=0 if odd == "no edge" else 12))
        edges[t] = torch.tensor(drawn, dtype=torch.int64).reshape(-1, 2).t().contiguous()
        cut[t] = torch.rand(len(drawn), size, generator=generator) < draw(st.sampled_from([0.0, 0.3]))
    share = 0.0 if odd == "all deleted" else draw(st.floats(0.5, 0.9))
    masked = list(number) if odd == "all deleted" else draw(st.sampled_from([[], ["gene"], list(number)]))
    keep = {k: torch.rand(number[k], size, generator=generator) < share for k in masked}
    x = torch.randn(sum(number.values()), size, 4, generator=generator, dtype=torch.float64)
    return number, edges, x, keep, cut, draw(st.sampled_from(["sum", "mean", "min", "max", "cat", None]))


@CASES
@given(case=two_types())
def test_hetero_conv_is_pygs_on_the_batch_of_subgraphs(case):
    number, edges, x, keep, cut, aggr = case
    kinds = dict(zip(edges, ("GCNConv", "SAGEConv", "GATv2Conv"), strict=True))
    shared = {
        t: SharedGraph(pairs, number[t[0]] if t[0] == t[2] else (number[t[0]], number[t[2]]))
        for t, pairs in edges.items()
    }
    size = x.size(1)
    kept = {k: keep.get(k, torch.ones(n, size, dtype=torch.bool)) for k, n in number.items()}

    def layers(of, prefix):
        options = {"GATv2Conv": {"add_self_loops": False}}
        return {t: getattr(of, prefix + kind)(4, 5, **options.get(kind, {})) for t, kind in kinds.items()}

    first = pyg.HeteroConv(layers(pyg, ""), aggr=aggr)
    second = SharedHeteroConv(layers(tclab.message_passing, "Shared"), aggr=aggr)
    second.load_state_dict(first.state_dict(), strict=True)

    def of_types(own):
        return dict(zip(number, own.split(list(number.values())), strict=True))

    def mine(own):
        found = second(of_types(own), shared, keep, cut_dict={t: pairs_of(each) for t, each in cut.items()})
        graphs = {k: found[k].movedim(-2, 0) for k in number}  # graph after graph, as the batch's rows
        assert not any(graphs[k][~kept[k].t()].any() for k in number)
        return torch.cat([graphs[k][kept[k].t()].flatten() for k in number])

    def theirs(own):
        samples = []
        for b in range(size):
            sample = HeteroData()
            for k, rows in of_types(own).items():
                sample[k].x = rows[kept[k][:, b], b]
            for t, pairs in edges.items():
                left = ~cut[t][:, b]
                if kinds[t] == "GCNConv":
                    left |= pairs[0] == pairs[1]
                sides, sizes = (kept[t[0]][:, b], kept[t[2]][:, b]), (number[t[0]], number[t[2]])
                sample[t].edge_index, _ = bipartite_subgraph(sides, pairs[:, left], relabel_nodes=True, size=sizes)
            samples.append(sample)
        batch = Batch.from_data_list(samples)
        found = first(batch.x_dict, batch.edge_index_dict)
        return torch.cat([found[k].flatten() for k in number])

    for dtype, tolerance in TOLERANCE.items():
        first.to(dtype), second.to(dtype)
        same(x.to(dtype), (mine, second), (theirs, first), tolerance)


class Related(torch.nn.Module):
    """A SharedHeteroConv of two relations between nodes of one type, called as the others are."""

    def __init__(self):
        super().__init__()
        self.relations = [("a", "to", "a"), ("a", "by", "a")]
        self.hetero = SharedHeteroConv(
            dict(zip(self.relations, (SharedGCNConv(8, 6), SharedSAGEConv(8, 6)), strict=True))
        )

    def forward(self, x, shared, keep, *, cut=None):
        graphs = dict.fromkeys(self.relations, shared)
        cuts = None if cut is None else dict.fromkeys(self.relations, cut)
        return self.hetero({"a": x}, graphs, {"a": keep}, cut_dict=cuts)["a"]


LAYERS = {
    "gcn": lambda: SharedGCNConv(8, 6),
    "gin": lambda: SharedGINConv(mlp(8, 6), train_eps=True),
    "sage": lambda: SharedSAGEConv(8, 6),
    "sage max": lambda: SharedSAGEConv(8, 6, aggr="max"),
    "gatv2": lambda: SharedGATv2Conv(8, 3, heads=2),
    "hetero": Related,
}


@pytest.fixture(scope="module")
def ring():
    nodes = torch.arange(40)
    edge_index = torch.cat([torch.stack([nodes, (nodes + step) % 40]) for step in (0, 1, 3, 3)], dim=1)
    generator = torch.Generator().manual_seed(0)
    keep = torch.rand(40, 4, generator=generator) < 0.8
    return SharedGraph(edge_index, 40), torch.randn(40, 4, 8, generator=generator), keep


def run(call, x, *args, **kwargs):
    own = x.clone().requires_grad_()
    out = call(own, *args, **kwargs)
    out.float().square().sum().backward()
    return out.detach(), own.grad


QUICK = ("gcn", "gatv2")  # a tracing takes a second; that of the others is as the sums' and the first one's


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param(name, backend, marks=() if name in QUICK and backend == "aot_eager" else pytest.mark.slow)
        for name in LAYERS
        for backend in ("aot_eager", "inductor")
    ],
)
def test_each_layer_goes_through_compile_whole_with_its_gradient(ring, name, backend):
    shared, x, keep = ring
    conv = LAYERS[name]()
    cut = torch.tensor([[0, 50, 90], [1, 2, 2]])
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own imports
        compiled = torch.compile(conv, backend=backend, fullgraph=True)
        for masks in [keep] if backend == "inductor" else [keep, (None, keep)]:  # each is compiled anew
            torch.testing.assert_close(run(compiled, x, shared, masks, cut=cut), run(conv, x, shared, masks, cut=cut))


@pytest.mark.slow
@settings(max_examples=300 if settings.default.max_examples >= 300 else 15)
@pytest.mark.parametrize("name", LAYERS)
@given(case=graphs())
def test_each_layer_gives_the_same_compiled_on_odd_graphs(name, case):
    edge_index, _, x, keep, cut = case
    conv, shared, x = LAYERS[name]().double(), SharedGraph(edge_index, len(x)), x.repeat(1, 1, 2)
    cuts = pairs_of(cut) if cut.any() else None
    torch.compiler.reset()
    compiled = torch.compile(conv, backend="aot_eager", fullgraph=True)
    found = (run(compiled, x, shared, keep, cut=cuts), run(conv, x, shared, keep, cut=cuts))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_what_a_layer_needs_of_a_new_graph_is_made_while_it_is_compiled():
    edge_index = torch.randint(20, (2, 60), generator=torch.Generator().manual_seed(0))
    x, keep = torch.randn(20, 2, 4), torch.rand(20, 2) < 0.8
    torch.compiler.reset()
    for conv in (SharedGCNConv(4, 3), SharedGATv2Conv(4, 3)):
        compiled = torch.compile(conv, backend="eager", fullgraph=True)
        for shared in (SharedGraph(edge_index, 20), SharedGraph(edge_index.flip(0), 20)):
            torch.testing.assert_close(compiled(x, shared, keep), conv(x, copy.deepcopy(shared), keep))
            shared.double()  # forgets what was made
            torch.testing.assert_close(compiled(x, shared, keep), conv(x, shared, keep))


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_runs_under_autocast_and_checkpoint_and_loses_nothing(ring, name):
    shared, x, keep = ring
    conv = LAYERS[name]()
    exact = run(conv, x, shared, keep)
    again = run(lambda *args: checkpoint(conv, *args, use_reentrant=False), x, shared, keep)
    assert all(torch.equal(a, b) for a, b in zip(exact, again, strict=True))
    with torch.autocast("cpu", torch.bfloat16):
        rough = run(conv, x, shared, keep)
    # By norms: bf16 turns the sign of a few sums next to the leaky ReLU's kink, whose gradients are then far off one
    # by one. Over 300 draws of the weights at most 0.005 and 0.01, attention's gradient 0.074 (half of them 0.0065).
    for ours, wanted, most in zip(rough[:2], exact[:2], (0.02, 0.2 if name == "gatv2" else 0.04), strict=True):
        assert (ours.float() - wanted).norm() < most * wanted.norm()


@pytest.mark.parametrize("name", LAYERS)
def test_what_deleted_rows_hold_reaches_nothing_even_if_it_is_not_finite(ring, name):
    shared, x, keep = ring
    conv = LAYERS[name]()
    expected = run(conv, x, shared, keep)
    wanted = [p.grad.clone() for p in conv.parameters()]
    conv.zero_grad()
    found = run(conv, x.masked_fill(~keep.unsqueeze(-1), float("nan")), shared, keep)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert all(torch.equal(p.grad, grad) for p, grad in zip(conv.parameters(), wanted, strict=True))


class Live(TorchDispatchMode):
    """The most numbers that tensors made in this block hold at once."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor._base is None:
                number = tensor.numel()
                self.now += number
                self.most = max(self.most, self.now)
                weakref.finalize(tensor.untyped_storage(), self.free, number)
        return out

    def free(self, number):
        self.now -= number


@pytest.mark.parametrize("name", ["gcn", "gin", "sage", "hetero"])
def test_rows_of_a_pyg_batch_go_through_a_layer_without_a_change_of_their_order(ring, name):
    shared, x, keep = ring
    out = LAYERS[name]()(to_grid(to_rows(x), 4), shared, keep)
    assert out.transpose(0, 1).is_contiguous()


@pytest.mark.parametrize("aggr", ["attention", "max"])
def test_rows_of_edges_and_samples_are_those_of_a_block(aggr):
    """Ten times the edges take ten times the blocks, and no more memory, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 5, 8, generator=generator, requires_grad=True)
    conv = SharedGATv2Conv(8, 8) if aggr == "attention" else SharedSAGEConv(8, 8, aggr="max")
    keep = torch.ones(300, 5, dtype=torch.bool)
    most = []
    with mock.patch.multiple(_edge_blocks, _LEAST_EDGES=2, _BLOCK={"cpu": 300 * 5 * 8, "cuda": 0}):
        for number in (3_000, 30_000):
            shared = SharedGraph(torch.randint(300, (2, number), generator=generator), 300)
            conv(x, shared, keep)  # sorts the edges
            with Live() as live:
                conv(x, shared, keep).square().sum().backward()
            most.append(live.most)
    assert most[1] < 2 * most[0] < 30_000 * 5 * 8


def test_dropout_leaves_out_weights_in_training_and_its_gradient_is_of_those_left(ring):
    shared, x, keep = ring
    conv = SharedGATv2Conv(8, 3, heads=2, dropout=0.5).double()
    torch.manual_seed(5)
    dropped = conv(x.double(), shared, keep)
    assert not torch.allclose(dropped, conv.eval()(x.double(), shared, keep))
    conv.train()

    def out(own):
        torch.manual_seed(5)
        return conv(own, shared, keep)

    own = x[:, :, :].double().requires_grad_()
    assert torch.equal(out(own), dropped)
    direction = torch.randn(own.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (gradient,) = torch.autograd.grad(out(own).sin().sum(), own)
    step = 1e-6
    with torch.no_grad():
        numeric = (out(own + step * direction).sin().sum() - out(own - step * direction).sin().sum()) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum(), numeric, rtol=1e-6, atol=1e-6)
    mean = torch.stack([conv(x.double(), shared, keep) for _ in range(300)]).mean(0)
    torch.testing.assert_close(mean, conv.eval()(x.double(), shared, keep), rtol=0.3, atol=0.35)


def test_degrees_of_the_whole_graph_stay_where_they_are_cached(ring):
    """PDGrapher's: what goes into a node is cut, weights are those of the whole graph."""
    _, x, keep = ring
    edge_index = torch.stack([torch.arange(40), (torch.arange(40) * 7 + 1) % 40])
    edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    conv = SharedGCNConv(8, 6, add_self_loops=False, cached=True).double()
    out = conv(x.double(), SharedGraph(edge_index, 40), (None, keep))
    degree = torch.bincount(edge_index[1], minlength=40).double()
    root = degree.pow(-0.5).masked_fill(degree == 0, 0.0)
    for b in range(4):
        messages = (root[edge_index[0]] * root[edge_index[1]] * keep[edge_index[1], b]).unsqueeze(1)
        sent = conv.lin(x[:, b].double())[edge_index[0]] * messages
        expected = torch.zeros(40, 6, dtype=torch.float64).index_add_(0, edge_index[1], sent) + conv.bias
        torch.testing.assert_close(out[:, b], expected, rtol=1e-12, atol=1e-12)


def test_rows_of_a_batch_become_a_grid_and_rows_again():
    rows = torch.arange(12.0).view(6, 2)
    grid = to_grid(rows, 3)
    assert grid.shape == (2, 3, 2)
    assert grid[1, 2].tolist() == rows[5].tolist()
    assert torch.equal(to_rows(grid), rows)
    with pytest.raises(tclab.InputError, match="6 rows are not 4 graphs"):
        to_grid(rows, 4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g, x: SharedGCNConv(-1, 4), "in_channels is -1"),
        (lambda g, x: SharedGCNConv(8, 4, add_self_loops=True, normalize=False), "expected False where normalize"),
        (lambda g, x: SharedSAGEConv(8, 4, aggr="mix"), "unknown aggregation 'mix'; did you mean 'max'"),
        (lambda g, x: SharedSAGEConv(8, 4, aggr=["mean", "max"]), r"unknown aggregation \['mean', 'max'\]; known: add"),
        (lambda g, x: SharedSAGEConv(8, 4, aggr_kwargs={"p": 2}), r"aggr_kwargs is \{'p': 2\}, expected None: a sum"),
        (lambda g, x: SharedGATv2Conv(8, 4, edge_dim=3), "edge_dim is 3, expected None: edges have no features"),
        (
            lambda g, x: SharedGCNConv(8, 4, aggr="max"),
            "aggr is 'max', expected 'add': this layer is a sum; SharedSAGE",
        ),
        (lambda g, x: SharedGINConv(mlp(8, 4), flow="target_to_source"), "expected 'source_to_target': .*flip"),
        (lambda g, x: SharedGATv2Conv(8, 4, node_dim=0), r"node_dim is 0, expected -2: x is \[N, B, F\]"),
        (lambda g, x: SharedGCNConv(8, 4, decomposed_layers=2), "decomposed_layers is 2, expected 1: features"),
        (
            lambda g, x: SharedGCNConv(8, 4)(x, torch.zeros(2, 9).long()),
            r"shared is a Tensor, expected a SharedGraph\(",
        ),
        (lambda g, x: SharedGCNConv(8, 4)(x, g, edge_weight=x[:, 0, 0]), "edge_weight is a Tensor.*weight=weight"),
        (lambda g, x: SharedGATv2Conv(8, 4)(x, g, edge_attr=x), "edge_attr is a Tensor, expected None: edges have no"),
        (
            lambda g, x: SharedSAGEConv(8, 4)(x, g, size=(40, 40)),
            r"size is \(40, 40\), expected None: it is the graph's own",
        ),
        (
            lambda g, x: SharedGATv2Conv(8, 4)(x, g, return_attention_weights=False),
            "is False, expected None: they would",
        ),
        (
            lambda g, x: SharedHeteroConv({})({}, {}, edge_attr_dict={}),
            r"edge_attr_dict is \{\}, expected None: edges",
        ),
        (lambda g, x: SharedSAGEConv(8, 4)(x[:, 0], g), r"x is \[40, 8\], expected \[40, B, F\]"),
        (lambda g, x: SharedHeteroConv({("a", "to", "b"): SharedGATv2Conv(4, 4)}), "adds self-loops"),
        (lambda g, x: SharedHeteroConv({}, aggr="most"), "unknown aggregation 'most'"),
        (lambda g, x: g(x, cut=torch.tensor([[160], [0]])), "cut has an index outside the 160 edges and 4 samples"),
        (lambda g, x: g(x, cut=torch.tensor([[3, 3], [0, 0]])), "an edge of a sample twice"),
        (lambda g, x: g(x, cut=torch.tensor([3])), r"cut is \[1\] torch.int64, expected \[2, n\]"),
        (
            lambda g, x: SharedGATv2Conv(8, 4)(x, SharedGraph(torch.tensor([[0], [1]]), 40, weight=torch.ones(1))),
            "the graph's edges have weights, expected none",
        ),
        (lambda g, x: SharedGCNConv(8, 4)((x, x), SharedGraph(torch.tensor([[0], [1]]), (40, 40))), "is bipartite"),
    ],
)
def test_bad_input_is_named(ring, call, words):
    shared, x, _ = ring
    with pytest.raises(tclab.InputError, match=words):
        call(shared, x)


def test_what_pyg_takes_by_default_is_taken_and_what_nobody_knows_is_not(ring):
    shared, x, _ = ring
    conv = SharedGCNConv(8, 4, aggr="add", flow="source_to_target", node_dim=-2, decomposed_layers=1)
    assert torch.equal(conv(x, shared, edge_weight=None), conv(x, shared))
    for call in (partial(SharedGCNConv, 8, 4), partial(conv, x, shared), partial(SharedHeteroConv({}), {}, {})):
        with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
            call(colour="red")


@pytest.mark.parametrize(
    "conv", [SharedGINConv(mlp(8, 4)), SharedSAGEConv(8, 4, "sum"), SharedGCNConv(8, 4, normalize=False)]
)
def test_an_edge_of_weight_two_counts_as_two_edges(ring, conv):
    _, x, keep = ring
    edge_index = torch.randint(40, (2, 90), generator=torch.Generator().manual_seed(1))
    times = torch.arange(90) % 4
    weighted = SharedGraph(edge_index, 40, weight=times.double())
    repeated = SharedGraph(edge_index.repeat_interleave(times, dim=1), 40)
    for masks in (None, keep, (None, keep), (keep, keep)):
        found = [conv.double()(x.double(), shared, masks) for shared in (weighted, repeated)]
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_sample_has_not_the_edges_it_cuts(ring, reduce, weighted):
    """N-1 and N-k of a power grid: a line out in a sample, or a few."""
    if weighted and reduce == "max":
        return
    generator = torch.Generator().manual_seed(2)
    edge_index = torch.randint(12, (2, 60), generator=generator)
    weight = torch.rand(60, generator=generator, dtype=torch.float64) if weighted else None
    x = torch.randn(12, 5, 3, generator=generator, dtype=torch.float64)
    keep = torch.rand(12, 5, generator=generator) < 0.8
    cut = torch.tensor([[0, 7, 7, 30, 31, 59], [0, 0, 4, 2, 2, 3]])
    found = SharedGraph(edge_index, 12, weight=weight)(x, keep, reduce=reduce, cut=cut)
    for b in range(5):
        left = torch.ones(60, dtype=torch.bool)
        left[cut[0, cut[1] == b]] = False
        own = SharedGraph(edge_index[:, left], 12, weight=None if weight is None else weight[left])
        expected = own(x[:, [b]], keep[:, [b]], reduce=reduce)
        torch.testing.assert_close(found[:, [b]], expected, rtol=1e-12, atol=1e-12)


# The cases of PyG's own unit tests of these layers (its release 2.7), written anew: at B = 1 and nothing deleted they
# are its layers on one graph.
FOUR = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]])


def alone(conv, x, shared, **kwargs):
    grid = tuple(None if part is None else part.unsqueeze(1) for part in x) if isinstance(x, tuple) else x.unsqueeze(1)
    return conv(grid, shared, **kwargs).squeeze(1)


def same_alone(theirs, ours, x, edge_index, size, *weight):
    ours.load_state_dict(theirs.state_dict(), strict=True)
    shared = SharedGraph(edge_index, size, weight=weight[0] if weight else None)
    found = alone(ours, x, shared)
    sizes = {"size": size} if isinstance(x, tuple) and x[1] is None else {}
    torch.testing.assert_close(found, theirs(x, edge_index, *weight, **sizes), rtol=1e-6, atol=1e-6)
    return found


def test_pygs_cases_of_gcn():
    x, edge_index = torch.randn(4, 16), torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]])
    value = torch.rand(6)
    for weight in ((), (value,)):
        for options in ({}, {"normalize": False}, {"cached": True}, {"add_self_loops": False}, {"improved": True}):
            found = same_alone(
                pyg.GCNConv(16, 32, **options), SharedGCNConv(16, 32, **options), x, edge_index, 4, *weight
            )
            assert found.shape == (4, 32)
    assert repr(SharedGCNConv(16, 32)).startswith("SharedGCNConv(\n  16, 32")
    conv = SharedGCNConv(16, 32)
    torch.manual_seed(0)
    conv.reset_parameters()
    assert not conv.bias.any()
    bound = (6 / 48) ** 0.5  # Glorot's
    assert conv.lin.weight.abs().max() <= bound
    assert conv.lin.weight.abs().max() > 0.9 * bound


def test_pygs_cases_of_gin():
    x1, x2 = torch.randn(4, 16), torch.randn(2, 16)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32))
    for train_eps in (True, False):
        theirs, ours = pyg.GINConv(net, train_eps=train_eps), SharedGINConv(copy.deepcopy(net), train_eps=train_eps)
        assert same_alone(theirs, ours, x1, FOUR, 4).shape == (4, 32)
        assert same_alone(theirs, ours, (x1, x2), FOUR, (4, 2)).shape == (2, 32)
        assert same_alone(theirs, ours, (x1, None), FOUR, (4, 2)).shape == (2, 32)
        assert isinstance(ours.eps, torch.nn.Parameter) == train_eps
    edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])  # a node alone has its own row and nothing else
    same_alone(pyg.GINConv(net, eps=2.0), SharedGINConv(copy.deepcopy(net), eps=2.0), torch.randn(5, 16), edges, 5)


@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize("aggr", ["mean", "sum", "max"])
def test_pygs_cases_of_sage(project, aggr):
    x1, x2 = torch.randn(4, 8), torch.randn(2, 16)
    options = {"project": project, "aggr": aggr}
    found = same_alone(pyg.SAGEConv(8, 32, **options), SharedSAGEConv(8, 32, **options), x1, FOUR, 4)
    assert found.shape == (4, 32)
    assert repr(SharedSAGEConv(8, 32, **options)).startswith(f"SharedSAGEConv(\n  8, 32, aggr={aggr}")
    theirs, ours = pyg.SAGEConv((8, 16), 32, **options), SharedSAGEConv((8, 16), 32, **options)
    assert same_alone(theirs, ours, (x1, x2), FOUR, (4, 2)).shape == (2, 32)
    assert same_alone(theirs, ours, (x1, None), FOUR, (4, 2)).shape == (2, 32)
    normalized = same_alone(pyg.SAGEConv(8, 32, normalize=True), SharedSAGEConv(8, 32, normalize=True), x1, FOUR, 4)
    torch.testing.assert_close(normalized.norm(dim=-1), torch.ones(4))


@pytest.mark.parametrize("residual", [False, True])
def test_pygs_cases_of_gatv2(residual):
    x1, x2 = torch.randn(4, 8), torch.randn(2, 8)
    options = {"heads": 2, "residual": residual}
    found = same_alone(pyg.GATv2Conv(8, 32, **options), SharedGATv2Conv(8, 32, **options), x1, FOUR, 4)
    assert found.shape == (4, 64)
    options["concat"] = False
    assert same_alone(pyg.GATv2Conv(8, 32, **options), SharedGATv2Conv(8, 32, **options), x1, FOUR, 4).shape == (4, 32)
    for both in (8, (8, 8)):
        theirs, ours = pyg.GATv2Conv(both, 32, **options), SharedGATv2Conv(both, 32, **options)
        assert same_alone(theirs, ours, (x1, x2), FOUR, (4, 2)).shape == (2, 32)
    with pytest.raises(tclab.InputError, match="x has no targets"):
        alone(SharedGATv2Conv(8, 4), (x1, None), SharedGraph(FOUR, (4, 2)))
    nobody = torch.empty(2, 0, dtype=torch.int64)
    same_alone(pyg.GATv2Conv(8, 32, heads=2), SharedGATv2Conv(8, 32, heads=2), x1, nobody, 4)


def test_the_benchmark_of_ports_has_both_ways_of_each_and_prints_a_line(root, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    import ports

    for name in ports.SIZES:
        arms = ports.arms_of(name)(20, 60, 3, 4)
        for one, other in zip(arms["original"](), arms["shared"](), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    ports.main(["--ports", "gatv2", "--sizes", "natural", "--scale", "0.01", "--seconds", "0.2", "--threads", "1"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert lines[0] == ports.HEAD
    assert lines[2].startswith("| gatv2 | 27, 106, 16, 16 |")
    assert lines[2].count("|") == ports.HEAD.count("|")
