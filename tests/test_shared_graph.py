"""`tclab.SharedGraph`: what it sums, and that it stays right in any training program: it is data, not a module."""

import copy
import doctest
import io
import pickle

import drawn
import pytest
import torch
from test_shared_convs import LAYERS
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

import tclab
from tclab.message_passing import _shared_graph as shared_graph


class Holder(torch.nn.Module):
    """A user's module that holds a layer and a graph."""

    def __init__(self, layer, shared):
        super().__init__()
        self.layer, self.shared = layer, shared

    def forward(self, x, keep=None, cut=None):
        return self.layer(x, self.shared, keep, cut=cut)


class Sums(torch.nn.Module):
    """A layer that never changes what it is given: whatever changes in its sums has changed in the graph."""

    def forward(self, x, shared, keep, *, cut=None):
        return shared(x, keep, cut=cut)


@pytest.fixture(scope="module")
def ring():
    return drawn.ring()


def weighted_ring(nodes=6607):
    """Return a ring of many nodes, so that a node's number has many digits, with weights that no float32 holds."""
    source = torch.arange(nodes)
    return tclab.SharedGraph(torch.stack([source, (source + 1) % nodes]), nodes, weight=torch.full((nodes,), 0.3))


# ---- in a training program


AVERAGES = [{"avg_fn": get_ema_avg_fn(0.9)}, {"multi_avg_fn": get_ema_multi_avg_fn(0.9999)}, {}]


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("size", [7, 501, 6607])
def test_averaging_weights_and_buffers_moves_no_edge(average, size):
    model, x = Holder(Sums(), weighted_ring(size)), torch.randn(size, 1, 2)
    model.scale = torch.nn.Parameter(torch.ones(1))
    averaged = AveragedModel(model, use_buffers=True, **average)
    for _ in range(3):
        averaged.update_parameters(model)
    assert torch.equal(averaged(x), model(x))


def meta_and_back(holder):
    other = copy.deepcopy(holder).to("meta").to_empty(device="cpu")
    other.load_state_dict(holder.state_dict(), strict=True)
    return other


def through_a_file(holder):
    file = io.BytesIO()
    torch.save(holder, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def after_inference(holder):
    with torch.inference_mode():
        holder(*drawn.ring()[1:])
    return holder


JOURNEYS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda holder: pickle.loads(pickle.dumps(holder)),
    "torch.save": through_a_file,
    "meta, to_empty, load": meta_and_back,
    "half and back": lambda holder: copy.deepcopy(holder).half().float().requires_grad_(),
    "double and back": lambda holder: copy.deepcopy(holder).double().float(),
    "type(dtype) and back": lambda holder: copy.deepcopy(holder).type(torch.float64).type(torch.float32),
    "inference mode first": after_inference,
}


@pytest.mark.parametrize("journey", JOURNEYS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_module_that_holds_it_is_right_after(name, journey):
    shared, x, keep = drawn.ring()
    torch.manual_seed(0)
    holder = Holder(LAYERS[name](), shared)
    with torch.no_grad():  # so that halves hold them
        for parameter in holder.parameters():
            parameter.copy_(parameter.half().float())
    cut = torch.tensor([[0, 50, 90], [1, 2, 2]])

    def outcome(holder):
        own = x.clone().requires_grad_()
        out = holder(own, keep, cut)
        return [out, *torch.autograd.grad(out.square().sum(), [own, *holder.parameters()])]

    expected = outcome(copy.deepcopy(Holder(holder.layer, drawn.ring()[0])))
    for mine, theirs in zip(outcome(JOURNEYS[journey](holder)), expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", LAYERS)
def test_meta_features_have_shapes_and_a_stateless_call_is_the_call(ring, name):
    shared, x, keep = ring
    holder = Holder(LAYERS[name](), shared)
    expected = holder(x, keep)
    state = {**dict(holder.named_parameters()), **dict(holder.named_buffers())}
    assert torch.equal(functional_call(holder, state, (x, keep)), expected)
    on_meta = copy.deepcopy(holder).to("meta")(x.to("meta"), keep.to("meta"))
    assert (on_meta.shape, on_meta.device.type) == (expected.shape, "meta")
    assert torch.equal(holder(x, keep), expected)


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.filterwarnings("ignore")  # torch's own
def test_an_exported_program_is_the_module_which_stays_right(name, strict):
    shared, x, keep = drawn.ring()
    holder = Holder(LAYERS[name](), shared)
    program = torch.export.export(holder, (x, keep), strict=strict)
    expected = Holder(holder.layer, drawn.ring()[0])(x, keep)
    torch.testing.assert_close(program.module()(x, keep), expected)
    assert torch.equal(holder(x, keep), expected)


# ---- under torch's function transforms

EDGES = torch.randint(7, (2, 14), generator=torch.Generator().manual_seed(0))
CUT = torch.tensor([[0, 3], [1, 0]])


@pytest.mark.parametrize("cut", [None, CUT], ids=["whole", "cut"])
@pytest.mark.parametrize("name", LAYERS)
def test_forward_mode_vmap_and_grad_are_reverse_modes_derivatives(name, cut):
    generator = torch.Generator().manual_seed(1)
    shared, layer = tclab.SharedGraph(EDGES, 7), LAYERS[name]().double()
    keep = torch.rand(7, 2, generator=generator) < 0.8
    x, direction = torch.randn(2, 7, 2, 8, dtype=torch.float64, generator=generator)

    def call(x, keep=keep):
        return layer(x, shared, keep, cut=cut)

    def loss(parameters, x):
        return functional_call(layer, parameters, (x, shared, keep), {"cut": cut}).square().sum()

    close = torch.testing.assert_close
    jacobian = torch.autograd.functional.jacobian(call, x)
    along = torch.einsum("abcdef,def->abc", jacobian, direction)
    close(jvp(call, (x,), (direction,)), (call(x), along))
    with forward_ad.dual_level():
        close(forward_ad.unpack_dual(call(forward_ad.make_dual(x, direction))).tangent, along)
    close(jacfwd(call)(x), jacobian)
    close(jacrev(call)(x), jacobian)
    both, masks = torch.stack([x, direction]), torch.stack([keep, keep.flip(0)])
    close(vmap(call)(both, masks), torch.stack([call(x), call(direction, masks[1])]))
    parameters = dict(layer.named_parameters())
    of_each = vmap(grad(loss, argnums=(0, 1)), (None, 0))(parameters, both)
    for i, own in enumerate(both):
        inputs = [own.clone().requires_grad_(), *layer.parameters()]
        expected = torch.autograd.grad(layer(inputs[0], shared, keep, cut=cut).square().sum(), inputs)
        close(of_each[1][i], expected[0])
        for by_name, theirs in zip(of_each[0].values(), expected[1:], strict=True):
            close(by_name[i], theirs)


@pytest.mark.parametrize("name", ["sum", pytest.param("gatv2", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore")  # the compiler's own imports
def test_a_compiled_transform_is_right_too_and_never_zero(name):
    torch.compiler.reset()
    shared, layer, x = tclab.SharedGraph(EDGES, 7), LAYERS[name](), torch.randn(7, 2, 8)

    def along(x):
        return jvp(lambda x: layer(x, shared, None), (x,), (x.cos(),))[1]

    expected = along(x)
    assert expected.abs().max() > 0
    torch.testing.assert_close(torch.compile(along, backend="eager")(x), expected)


# ---- what it sums and what it refuses


def test_the_example_of_its_docstring_runs():
    found = doctest.testmod(shared_graph)
    assert found.attempted >= 5
    assert found.failed == 0


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
    holder = Holder(torch.nn.Linear(8, 8), graph)
    assert set(holder.state_dict()) == {"layer.weight", "layer.bias"}
    assert list(holder.buffers()) == []
    assert repr(graph) == "SharedGraph(40 → 40, 160 edges)"
    grid = tclab.message_passing.to_grid(tclab.message_passing.to_rows(x), 4)
    for reduce in ("sum", "mean"):
        assert graph(grid, keep, reduce=reduce).transpose(0, 1).is_contiguous()


def test_in_another_dtype_and_back_it_has_the_bits_of_the_first_run(ring):
    _, x, keep = ring
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(400, generator=generator, dtype=torch.float64)
    graph = tclab.SharedGraph(torch.randint(40, (2, 400), generator=generator), 40, weight=weight)
    first = graph(x.double(), keep)
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


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("shape", [(0, 3, 8), (5, 0, 8), (0, 0, 8)])
def test_every_layer_ends_without_nodes_or_samples(name, shape):
    shared = tclab.SharedGraph(torch.zeros(2, 0, dtype=torch.int64), shape[0])
    x = torch.zeros(shape, requires_grad=True)
    keep = torch.ones(shape[:2], dtype=torch.bool)
    out = LAYERS[name]()(x, shared, keep)
    assert out.shape[:2] == shape[:2]
    out.sum().backward()
    assert not x.grad.any()


def test_a_maximum_of_minus_infinity_is_one_and_of_nothing_is_zero():
    lowest = float("-inf")
    shared = tclab.SharedGraph(torch.tensor([[0, 1, 2, 3], [2, 2, 3, 4]]), 6)
    x = torch.tensor([lowest, lowest, 1.0, lowest, 0.0, 0.0]).view(6, 1, 1)
    assert shared(x, reduce="max").flatten().tolist() == [0.0, 0.0, lowest, 1.0, lowest, 0.0]
    keep = torch.tensor([[True], [True], [True], [False], [True], [True]])
    assert shared(x, keep, reduce="max").flatten().tolist() == [0.0, 0.0, lowest, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["sum", "mean", "gcn", "sage", "gatv2", "sage max"])
def test_sums_in_two_bytes_are_rounded_once_whatever_the_degree(name, dtype):
    """A hub of 6,607 neighbours is as exact as one of 100, its sums, its gradients and what is left after a cut."""
    errors = []
    for leaves in (100, 6_607):
        generator = torch.Generator().manual_seed(0)
        ends = torch.arange(1, leaves + 1)
        hub = torch.zeros_like(ends)
        shared = tclab.SharedGraph(torch.stack([torch.cat([ends, hub]), torch.cat([hub, ends])]), leaves + 1)
        x = (torch.rand(leaves + 1, 2, 8, generator=generator) / 16).to(dtype)
        cut = torch.stack([torch.arange(3, leaves), torch.ones(leaves - 3, dtype=torch.int64)])
        layer = LAYERS[name]().to(dtype)
        outcomes = []
        for module, rows in ((layer, x), (copy.deepcopy(layer).double(), x.double())):
            own = rows.requires_grad_()
            out = module(own, shared, None, cut=cut)
            gradients = torch.autograd.grad(out.sum(), [own, *module.parameters()])
            outcomes.append([out[0].detach().double(), torch.cat([each.flatten().double() for each in gradients])])
        errors += [float((mine - exact).norm() / exact.norm()) for mine, exact in zip(*outcomes, strict=True)]
    assert max(errors) < 6 * torch.finfo(dtype).eps
