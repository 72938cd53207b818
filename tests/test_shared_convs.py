"""PyG's convolutions and sums over a shared graph: as PyG's own on the batch of the subgraphs; what is refused."""

from functools import partial
from itertools import product
from unittest import mock

import drawn
import ports
import pytest
import torch
import torch_geometric.nn as pyg
from hypothesis import event, given, settings
from hypothesis import strategies as st
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
CASES = settings(max_examples=80 if settings.default.max_examples > 12 else 8)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
ODD = ("any", "no edge", "one node", "all deleted", "isolated node", "multi-edges", "self-loops")


def mlp(before, after, norm=False):
    between = [torch.nn.BatchNorm1d(7)] if norm else []
    return torch.nn.Sequential(torch.nn.Linear(before, 7), *between, torch.nn.Tanh(), torch.nn.Linear(7, after))


class Plain(torch.nn.Module):
    """The sums or means of a shared graph themselves."""

    def __init__(self, aggr):
        super().__init__()
        self.aggr = aggr

    def forward(self, x, shared, keep, *, cut=None):
        return shared(x[0] if isinstance(x, tuple) else x, keep, reduce=self.aggr, cut=cut)


# PyG's layer → what it is made with; "norm" stands for a batch norm in GIN's MLP
OPTIONS = {
    "SimpleConv": [{"aggr": "sum"}, {"aggr": "mean"}],
    "GCNConv": [{}, {"improved": True}, {"bias": False}, {"add_self_loops": False}, {"normalize": False}],
    "GINConv": [{}, {"eps": 0.3}, {"train_eps": True}, {"norm": True}],
    "SAGEConv": [{}, {"aggr": "max"}, {"aggr": "sum"}, {"normalize": True}, {"project": True}, {"root_weight": False}],
    "GATv2Conv": [{}, {"heads": 3}, {"heads": 2, "concat": False}, {"add_self_loops": False},
                  {"share_weights": True, "bias": False}, {"residual": True, "negative_slope": 0.5}],
}  # fmt: skip


WEIGHTED = ("SimpleConv", "GCNConv")  # of PyG's layers those that take weights


def pair(name, options, dtype=torch.float64, channels=4):
    """Return PyG's layer and the shared one, with the same parameters."""
    theirs = getattr(pyg, name)
    ours = Plain if name == "SimpleConv" else getattr(tclab.message_passing, f"Shared{name}")
    if name == "SimpleConv":
        first, second = theirs(**options), ours(**options)
    elif name == "GINConv":
        norm, options = options.get("norm", False), {key: value for key, value in options.items() if key != "norm"}
        first, second = (kind(mlp(4, 5, norm), **options) for kind in (theirs, ours))
    else:
        first, second = (kind(channels, 5, **options) for kind in (theirs, ours))
    second.load_state_dict(first.state_dict(), strict=True)
    return first.to(dtype), second.to(dtype)


@st.composite
def graphs(draw):
    """Draw an odd graph or any: edges with duplicates and self-loops, masks, single edges that are cut, features."""
    odd = draw(st.sampled_from(ODD))
    event(odd)
    number, size = 1 if odd == "one node" else draw(st.integers(2, 7)), draw(st.integers(1, 3))
    node = st.integers(0, number - (2 if odd == "isolated node" else 1))
    edges = draw(st.lists(st.tuples(node, node), max_size=0 if odd == "no edge" else 20))
    edges += {"multi-edges": 2 * [(0, 1)] + edges[:4], "self-loops": 2 * [(0, 0)] + [(number - 1,) * 2]}.get(odd, [])
    edge_index = drawn.index_of(edges)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    kept = torch.rand(number, size, generator=generator) < (0.0 if odd == "all deleted" else draw(st.floats(0.5, 0.9)))
    others = torch.rand(number, size, generator=generator) < 0.7
    keep = {"one": kept, "both": (kept, kept), "in": (None, kept), "pair": (others, kept), "none": None}[
        "one" if odd == "all deleted" else draw(st.sampled_from(["one", "one", "both", "in", "pair", "none"]))
    ]
    cut = torch.rand(len(edges), size, generator=generator) < draw(st.sampled_from([0.0, 0.3]))
    weight = torch.rand(len(edges), generator=generator, dtype=torch.float64) + 0.1
    x = torch.randn(number, size, 4, generator=generator, dtype=torch.float64)
    weight = weight if draw(st.booleans()) else None
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


@pytest.mark.parametrize(("name", "options"), [(name, each) for name, all_ in OPTIONS.items() for each in all_])
@CASES
@given(case=graphs())
def test_a_layer_is_pygs_on_the_batch_of_subgraphs(name, options, case):
    edge_index, weight, *rest = case
    for dtype in TOLERANCE:
        if dtype == torch.float32 and options.get("norm"):
            continue  # which makes large what rounding leaves of a few rows' variance
        same_as_pyg(name, options, (edge_index, weight if name in WEIGHTED else None, *rest), dtype)


@given(case=graphs())
def test_blocks_of_a_few_edges_change_nothing(case):
    """A small graph is one block otherwise."""
    case = (case[0], None, *case[2:])
    with mock.patch.multiple(_edge_blocks, _LEAST_EDGES=2, _BLOCK={"cpu": 3, "cuda": 3}):
        same_as_pyg("SAGEConv", {"aggr": "max"}, case, torch.float64)
        same_as_pyg("GATv2Conv", {"heads": 2}, case, torch.float64)


# Of PyG's own unit tests of these layers (its release 2.7) these are what the batches above have not.
TWO_KINDS = [("SimpleConv", {"aggr": "sum"}), ("SimpleConv", {"aggr": "mean"})]
TWO_KINDS += [("GINConv", {}), ("GINConv", {"train_eps": True})]
TWO_KINDS += [("SAGEConv", {"project": p, "aggr": a}) for p in (False, True) for a in ("mean", "sum", "max")]
TWO_KINDS += [
    ("GATv2Conv", {"heads": 2, "concat": c, "residual": r, "add_self_loops": loops})
    for c, r, loops in product((False, True), repeat=3)
]


@pytest.mark.parametrize(("name", "options"), TWO_KINDS)
def test_a_bipartite_graph_has_a_mask_for_each_side_and_may_lack_the_targets_rows(name, options):
    generator, widths = torch.Generator().manual_seed(0), (4, 4 if name == "GINConv" else 6)
    theirs, ours = pair(name, options, channels=widths)
    x = [torch.randn(n, 2, width, generator=generator).double() for n, width in zip((5, 4), widths, strict=True)]
    keep = [torch.rand(n, 2, generator=generator) < 0.7 for n in (5, 4)]
    masks = tuple(keep)
    if options.get("add_self_loops"):  # with which none may be deleted
        keep, masks = [torch.ones_like(mask) for mask in keep], None
    edge_index = torch.stack([torch.randint(n, (14,), generator=generator) for n in (5, 4)])
    attention = name == "GATv2Conv"  # which compares both sides' rows
    for edges, targets in product((edge_index, edge_index[:, :0]), x[1:] if attention else (x[1], None)):
        out = ours((x[0], targets), SharedGraph(edges, (5, 4)), masks)
        for b in range(2):
            sides = (keep[0][:, b], keep[1][:, b])
            left, _ = bipartite_subgraph(sides, edges, relabel_nodes=True, size=(5, 4))
            rows = (x[0][sides[0], b], None if targets is None else targets[sides[1], b])
            size = {} if attention else {"size": tuple(int(side.sum()) for side in sides)}
            expected = theirs(rows, left, **size)
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
        edges[t] = drawn.index_of(draw(st.lists(ends, max_size=0 if odd == "no edge" else 12)))
        cut[t] = torch.rand(edges[t].size(1), size, generator=generator) < draw(st.sampled_from([0.0, 0.3]))
    share = 0.0 if odd == "all deleted" else draw(st.floats(0.5, 0.9))
    masked = list(number) if odd == "all deleted" else draw(st.sampled_from([[], ["gene"], list(number)]))
    keep = {k: torch.rand(number[k], size, generator=generator) < share for k in masked}
    x = torch.randn(sum(number.values()), size, 4, generator=generator, dtype=torch.float64)
    return number, edges, x, keep, cut, draw(st.sampled_from(["sum", "mean", "min", "max", "cat", None]))


@settings(max_examples=300 if settings.default.max_examples > 12 else 8)
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
        convs = zip(self.relations, (SharedGCNConv(8, 6), SharedSAGEConv(8, 6)), strict=True)
        self.hetero = SharedHeteroConv(dict(convs))

    def forward(self, x, shared, keep, *, cut=None):
        cuts = None if cut is None else dict.fromkeys(self.relations, cut)
        return self.hetero({"a": x}, dict.fromkeys(self.relations, shared), {"a": keep}, cut_dict=cuts)["a"]


LAYERS = {
    "sum": lambda: Plain("sum"),
    "mean": lambda: Plain("mean"),
    "gcn": lambda: SharedGCNConv(8, 6),
    "gin": lambda: SharedGINConv(mlp(8, 6), train_eps=True),
    "sage": lambda: SharedSAGEConv(8, 6),
    "sage max": lambda: SharedSAGEConv(8, 6, aggr="max"),
    "gatv2": lambda: SharedGATv2Conv(8, 3, heads=2),
    "hetero": Related,
}


@pytest.fixture(scope="module")
def ring():
    return drawn.ring()


def run(call, x, *given, **options):
    """Return what a call gives, and the gradient of the sum of its squares."""
    own = x.clone().requires_grad_()
    out = call(own, *given, **options)
    out.float().square().sum().backward()
    return out.detach(), own.grad


@pytest.mark.parametrize("name", LAYERS)
def test_what_deleted_rows_and_their_gradients_hold_reaches_nothing_even_if_it_is_not_finite(ring, name):
    (shared, x, keep), conv = ring, LAYERS[name]()
    deleted, cut, found = ~keep.unsqueeze(-1), torch.stack([torch.arange(0, 154, 7), torch.arange(22) % 4]), []
    for held in (0.0, float("nan"), float("inf"), -float("inf"), -1e30):
        own = x.masked_fill(deleted, held).requires_grad_()
        out = conv(own, shared, keep, cut=cut)
        inputs, outer = [own, *conv.parameters()], out.detach().masked_fill(deleted, held)
        found.append([out.detach(), *torch.autograd.grad(out, inputs, outer)])
    for clean, *poisoned in zip(*found, strict=True):
        assert all(torch.equal(clean, one) for one in poisoned)


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_runs_under_autocast(ring, name):
    (shared, x, keep), conv = ring, LAYERS[name]()
    exact = run(conv, x, shared, keep)
    with torch.autocast("cpu", torch.bfloat16):
        rough = run(conv, x, shared, keep)
    # By norms: bf16 turns the sign of a few sums next to the leaky ReLU's kink, whose gradients are then far off one
    # by one. Over 300 draws of the weights at most 0.005 and 0.01, attention's gradient 0.074 (half of them 0.0065).
    for ours, wanted, most in zip(rough, exact, (0.02, 0.2 if name == "gatv2" else 0.04), strict=True):
        assert (ours.float() - wanted).norm() < most * wanted.norm()


@pytest.mark.parametrize("conv", [SharedGATv2Conv(8, 8), SharedSAGEConv(8, 8, aggr="max")])
def test_rows_of_edges_and_samples_are_those_of_a_block(conv):
    """Ten times the edges take ten times the blocks, and no more memory, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 5, 8, generator=generator, requires_grad=True)
    keep, most = torch.ones(300, 5, dtype=torch.bool), []
    with mock.patch.multiple(_edge_blocks, _LEAST_EDGES=2, _BLOCK={"cpu": 300 * 5 * 8, "cuda": 0}):
        for number in (3_000, 30_000):
            shared = SharedGraph(torch.randint(300, (2, number), generator=generator), 300)
            conv(x, shared, keep)  # sorts the edges
            most.append(ports.peak_mebibytes(lambda: conv(x, shared, keep).square().sum().backward()))  # noqa: B023
    assert most[1] < 2 * most[0] < 30_000 * 5 * 8 * 4 / 2**20


def test_dropout_leaves_out_weights_in_training_and_its_gradient_is_of_those_left(ring):
    shared, x, keep = ring
    conv, x = SharedGATv2Conv(8, 3, heads=2, dropout=0.5).double(), x.double()
    whole = conv.eval()(x, shared, keep)
    conv.train()

    def out(own):
        torch.manual_seed(5)
        return conv(own, shared, keep)

    assert torch.equal(out(x), out(x))
    assert not torch.allclose(out(x), whole)
    assert torch.autograd.gradcheck(out, x.clone().requires_grad_(), fast_mode=True)
    mean = torch.stack([conv(x, shared, keep) for _ in range(300)]).mean(0)
    torch.testing.assert_close(mean, whole, rtol=0.3, atol=0.35)


@pytest.mark.parametrize(("name", "options"), [("GCNConv", {}), ("SAGEConv", {}), ("GATv2Conv", {"heads": 3})])
def test_parameters_begin_as_widely_as_pygs(name, options):
    theirs, ours = pair(name, options, channels=200)
    ours.reset_parameters()
    for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert one.std().item() == pytest.approx(other.std().item(), rel=0.6)
        assert one.abs().max().item() == pytest.approx(other.abs().max().item(), rel=0.4)


@pytest.mark.parametrize("name", ["GCNConv", "GATv2Conv"])
def test_parameters_are_drawn_anew_where_a_bias_is_parametrized(name):
    _, conv = pair(name, {}, channels=4)
    torch.nn.utils.parametrize.register_parametrization(conv, "bias", torch.nn.ReLU())
    before = conv.lin_l.weight.clone() if name == "GATv2Conv" else conv.lin.weight.clone()
    conv.reset_parameters()
    assert not torch.equal(before, conv.lin_l.weight if name == "GATv2Conv" else conv.lin.weight)


FOUR = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]])
WEIGHED = SharedGraph(torch.tensor([[0], [1]]), 40, weight=torch.ones(1))
ONE = torch.tensor([[0], [1]])


def hetero(shared_dict, **dicts):
    """Return what one relation over a graph gives of types a and b."""
    x_dict = dict.fromkeys("ab", torch.ones(40, 2, 8))
    return SharedHeteroConv({each: SharedSAGEConv(8, 4) for each in shared_dict})(x_dict, shared_dict, **dicts)


REFUSED = [
    (lambda g, x, k: g(x, k, reduce="avg"), "unknown reduction 'avg'"),
    (lambda g, x, k: g(x[:, 0], k), r"x is \[40, 8\] torch.float32, expected \[40, B, H\]"),
    (lambda g, x, k: g(x.long(), k), r"torch.int64, expected \[40, B, H\] of floats"),
    (lambda g, x, k: g(x, k[:, :2]), r"keep is \[40, 2\] torch.bool, expected \[40, 4\]"),
    (lambda g, x, k: g(x, k.float()), "torch.float32, expected"),
    (lambda g, x, k: tclab.SharedGraph(torch.tensor([[0], [9]]), 5), "index 9 is not among the 5 nodes of type"),
    (lambda g, x, k: tclab.SharedGraph(torch.zeros(2, 0).long(), (5, 4))(x[:5], k), "for a bipartite graph"),
    (lambda g, x, k: tclab.SharedGraph(ONE, 5, weight=torch.ones(1, requires_grad=True)), "weight requires a grad"),
    (lambda g, x, k: g(x, cut=torch.tensor([[160], [0]])), "cut has an index outside the 160 edges and 4 samples"),
    (lambda g, x, k: g(x, cut=torch.tensor([[3, 3], [0, 0]])), "lists the same .edge, sample. pair twice"),
    (lambda g, x, k: g(x, cut=torch.tensor([3])), r"cut is \[1\] torch.int64, expected \[2, n\]"),
    (lambda g, x, k: SharedGCNConv(-1, 4), "in_channels is -1"),
    (lambda g, x, k: SharedGCNConv(8, 4, add_self_loops=True, normalize=False), "expected False where normalize"),
    (lambda g, x, k: SharedGCNConv(8, 4, aggr="max"), "aggr is 'max', expected 'add': this layer is a sum; SharedSAGE"),
    (lambda g, x, k: SharedSAGEConv(8, 4, aggr="mix"), "unknown aggregation 'mix'; did you mean 'max'"),
    (lambda g, x, k: SharedSAGEConv(8, 4, aggr=["mean", "max"]), r"unknown aggregation \['mean', 'max'\]; known: add"),
    (lambda g, x, k: SharedGCNConv(8, 4)(x, torch.zeros(2, 9).long()), r"shared is a Tensor, expected a SharedGraph\("),
    (lambda g, x, k: SharedGCNConv(8, 4)(x, g, edge_weight=x), "edge_weight is a Tensor.*weight=weight"),
    (lambda g, x, k: SharedHeteroConv({})({}, {}, edge_attr_dict={}), r"edge_attr_dict is \{\}, expected None: edges"),
    (lambda g, x, k: SharedSAGEConv(8, 4)(x[:, 0], g), r"x is \[40, 8\], expected \[40, B, F\]"),
    (lambda g, x, k: SharedHeteroConv({("a", "to", "b"): SharedGATv2Conv(4, 4)}), "adds self-loops"),
    (lambda g, x, k: hetero({("a", "to", "a"): g}, keep_dict={"A": k}), "unknown node type of keep_dict 'A'; known: a"),
    (lambda g, x, k: hetero({("a", "to", "a"): g}, cut_dict={("a", "b"): k}), "unknown relation of cut_dict"),
    (lambda g, x, k: hetero({("a", "to", "b"): g}), "expected bipartite just between two types"),
    (lambda g, x, k: hetero({("a", "to", "a"): SharedGraph(FOUR, (40, 40))}), "SharedGraph.* expected bipartite just"),
    (lambda g, x, k: SharedHeteroConv({}, aggr="most"), "unknown aggregation 'most'"),
    (lambda g, x, k: SharedGATv2Conv(8, 4)(x, WEIGHED), "the graph's edges have weights, expected none"),
    (lambda g, x, k: SharedGCNConv(8, 4)((x, x), SharedGraph(FOUR, (40, 40))), "is bipartite"),
    (lambda g, x, k: SharedGATv2Conv(8, 4)((x, None), SharedGraph(FOUR, (40, 2))), "x has no targets"),
    (lambda g, x, k: to_grid(x[:, 0], 3), "40 rows are not 3 graphs"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_bad_input_is_named(ring, call, words):
    with pytest.raises(tclab.InputError, match=words):
        call(*ring)


def test_what_pyg_takes_by_default_is_taken_and_what_nobody_knows_is_not(ring):
    shared, x, keep = ring
    sage, sides = SharedSAGEConv(8, 4), (SharedGraph(FOUR, (40, 40)), (keep, ~keep))
    assert torch.equal(sage((x, x), *sides), sage((x, x.clone()), *sides))  # one tensor is masked on each side
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


def test_the_benchmark_of_ports_has_both_ways_of_each():
    pytest.importorskip("altair", reason="notebooks/ports imports tclab.lab")
    for name in ports.SIZES:
        arms = ports.arms_of(name)(20, 60, 3, 4)
        for one, other in zip(arms["original"](), arms["shared"](), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
