"""Models and losses: each against its definition in loops, or PyG's layer; between ranks: test_ranks.py."""

import copy
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacfwd, jvp, vmap
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GINConv, SAGEConv

import tclab
from tclab import models
from tclab.graph._synthetic_graph import NETWORK_SIZES
from tclab.models import Dango, DangoLoss, HeteroCell, MleWassSupCR, _layers
from tclab.models._hetero_cell import HeteroCellOutput
from tclab.models._layers import GINUpdate, HyperSAGNN, LayerNorm, Linear, _blocks, _product
from tclab.models._losses import log_cosh, sup_cr
from tclab.perturbation import Deletions
from tclab.timing import syncs


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.fixture(scope="module")
def small():
    return tclab.CellGraph.synthetic(0.03)


def test_sizes_and_initial_embeddings_are_as_published():
    none = torch.zeros(2, 0, dtype=torch.int64)
    full = tclab.CellGraph.from_edges(dict.fromkeys(NETWORK_SIZES, none), num_nodes=6_607)  # edges have no parameters
    assert parameters(HeteroCell.profiling(full)) == 669_917
    assert parameters(HeteroCell.production(full)) == 1_781_187
    dango = Dango.string12(full)
    assert parameters(dango) == 3_138_270
    assert parameters(dango.hyper_sagnn) == 37_507
    assert parameters(dango.scorer) == 2_113
    assert dango.embedding.weight.std().item() == pytest.approx(0.1, rel=0.02)
    assert HeteroCell.profiling(full).embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_an_unknown_option_names_its_nearest():
    graph = tclab.CellGraph.synthetic(0.01)
    for made, words in (
        (lambda: HeteroCell(5, ["a"], aggregation="summ"), "'summ'; did you mean 'sum'"),
        (lambda: DangoLoss(graph, schedule="PreThenPast"), "schedule 'PreThenPast'; did you mean 'PreThenPost'"),
        (lambda: MleWassSupCR(capacity=0), "capacity is 0, expected a whole number, 1 or more"),
        (lambda: MleWassSupCR(gather_interval=0), "gather_interval is 0, expected 1 or more, or None"),
        (lambda: models.get("hetero_cell").loss(graph, "logcosh"), "loss of hetero_cell 'logcosh'; did you mean 'log_"),
    ):
        with pytest.raises(tclab.InputError, match=words):
            made()


def test_masked_gin_is_pyg_gin_when_nothing_is_deleted(small):
    torch.manual_seed(0)
    ours = GINUpdate("physical", 8, mlp_layers=2, dropout=0.0).double()
    ours.eps.data.fill_(0.3)
    mlp = torch.nn.Sequential(ours.linears[0], torch.nn.ReLU(), ours.linears[1])
    theirs = GINConv(mlp, eps=0.3, train_eps=True).double()
    x = torch.randn(small.num_nodes["gene"], 8, dtype=torch.float64)
    network = small.networks["physical"]
    expected = torch.relu(F.layer_norm(theirs(x, network.edge_index), (8,)))
    for strategy in ("edge_mask", "node_mask"):
        view = tclab.view(small, [[]], strategy)
        torch.testing.assert_close(
            ours(view.neighbour_sum("physical", view.lift(x), self_weight=1 + ours.eps)), expected
        )


def test_encoded_once_a_sample_is_the_wild_types_rows_without_its_nodes(small):
    n = small.num_nodes["gene"]
    model = models.get("hetero_cell_once").sized(hidden=8, layers=2).build(small, "off").double()
    assert parameters(model) == parameters(models.get("hetero_cell").sized(hidden=8, layers=2).build(small, "off"))
    samples = [[], [3], [5, 9, 11], list(range(n - 1)), list(range(n))]
    view = tclab.view(small, samples, "indices")
    x = model.encode(view.wild_type)
    score, z = model.gate(x), model.transform(x)
    left = [sorted({*range(n)} - {*sample}) for sample in [[], *samples]]
    pooled = [(score[kept].softmax(0) * z[kept]).sum(0) for kept in left]
    wild, *others = pooled  # of nothing it is 0
    predictions = model(view)
    torch.testing.assert_close(predictions, model.head(torch.stack([wild - other for other in others])).squeeze(1))
    predictions.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_dango_convolution_is_pyg_sage(small):
    torch.manual_seed(0)
    model = Dango.string12(small).double()
    assert len(model.networks) == 6
    assert Dango.string12(small.select(["physical", "tflink"])).networks == ["physical", "tflink"]
    view = tclab.view(small, [[1]], "indices").wild_type
    name = model.networks[0]
    first = model.convolutions[0][0]
    theirs = SAGEConv(64, 64).double()
    theirs.lin_l.load_state_dict(first.neighbours.state_dict())
    theirs.lin_r.load_state_dict(first.root.state_dict())
    x = model.embedding.weight
    torch.testing.assert_close(first(view, x), theirs(x, small.networks[name].edge_index))


def hyper_sagnn_by_sets(model, x, sets):
    """The same, set after set, by torch's attention of each node to the others."""
    scores = []
    for nodes in x.split(sets.ptr.diff().tolist()):
        dynamic, others = nodes, ~torch.eye(len(nodes), dtype=torch.bool)
        for layer in model.attention:
            if len(nodes) < 2:
                continue
            parts = (part(dynamic).view(len(nodes), layer.heads, -1) for part in (layer.query, layer.key, layer.value))
            heads = scaled_dot_product_attention(*(part.transpose(0, 1) for part in parts), attn_mask=others)
            dynamic = dynamic + layer.beta * layer.output(heads.transpose(0, 1).flatten(1))
        own = model.score((dynamic - torch.relu(model.static(nodes))).square())
        scores.append(own.mean() if len(own) else own.sum())
    return torch.stack(scores)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_hyper_sagnn_and_its_gradient_are_those_of_each_set_alone(lengths):
    """An empty set scores 0, and one of a single node has finite gradients: NaN is equal to nothing."""
    torch.manual_seed(0)
    model = HyperSAGNN(8, heads=2).double()
    nodes = iter(range(100))
    sets = Deletions.of([[next(nodes) for _ in range(n)] for n in lengths], num_nodes=100)
    x = torch.randn(sum(lengths), 8, dtype=torch.float64, requires_grad=True)
    found, expected = model(x, sets), hyper_sagnn_by_sets(model, x, sets)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(scores.sum(), x, allow_unused=True)[0] for scores in (found, expected))
    torch.testing.assert_close(*(torch.zeros_like(x) if grad is None else grad for grad in gradients))


def test_log_cosh_never_overflows():
    errors = torch.tensor([-5e7, 0.0, 5e7])
    torch.testing.assert_close(log_cosh(errors, torch.zeros(3)), torch.tensor(1e8 / 3))


def test_used_metabolism_changes_predictions_and_carried_does_not(small):
    torch.manual_seed(0)
    used = HeteroCell.profiling(small, metabolism="used").double()
    gene = int(small.relations["gpr"].edge_index[0, 0])
    with_reactions = used(tclab.view(small, [[gene]]))
    blind = HeteroCell.profiling(small, metabolism="carried").double()
    blind.load_state_dict({k: v for k, v in used.state_dict().items() if ".metabolic." not in k})
    assert parameters(blind) == parameters(HeteroCell.profiling(small))
    carried = blind(tclab.view(small, [[gene]]))
    torch.testing.assert_close(carried, blind(tclab.view(small.without_metabolism(), [[gene]])))
    assert (with_reactions - carried).abs().item() > 1e-6


# ---- layers that have a ReLU of their own: what hooks hold, and every kind of derivative


ROWS = (1000, 1500, 40_001)  # from 1,024 on oneDNN multiplies


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # of modules whose inputs need no gradient
@pytest.mark.parametrize("samples", [1, 8])  # 396 and 1,782 rows
def test_nothing_that_a_hook_was_given_is_written_to(small, samples):
    graph, options = small.select(2), {"width": 8, "local_heads": 2, "mlp_layers": 3, "combine": "gate"}
    kept = []

    def keep(module, *given):
        tensors = [t for each in given for t in (each if isinstance(each, tuple) else [each]) if torch.is_tensor(t)]
        kept.extend((t, t.detach().clone()) for t in tensors)

    for aggregation in ("sum", "pairwise"):
        model = HeteroCell(small.num_nodes["gene"], list(graph.networks), aggregation=aggregation, **options)
        view = tclab.view(graph, [[i] for i in range(samples)])
        expected = torch.autograd.grad(model(view).sum(), list(model.parameters()), allow_unused=True)
        for module in model.modules():
            module.register_forward_hook(keep)
            module.register_full_backward_pre_hook(keep)
            module.register_full_backward_hook(keep)
        found = torch.autograd.grad(model(view).sum(), list(model.parameters()), allow_unused=True)
        assert all(a is b or torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert len(kept) > 100
        assert all(torch.equal(tensor, before) for tensor, before in kept)


def derivatives(function, x, parameters):
    """Return the result, its gradients, and theirs, of something in which none is constant."""
    out = function(x)
    first = torch.autograd.grad(out.square().sum(), [x, *parameters], create_graph=True)
    return [out, *first, *torch.autograd.grad(sum(g.square().sum() for g in first), [x, *parameters])]


@pytest.mark.parametrize("rows", ROWS)
def test_linear_with_its_relu_is_torchs_in_first_and_second_derivatives(rows):
    torch.manual_seed(0)
    layer, x = Linear(8, 16, relu=True), torch.randn(rows, 8, requires_grad=True)
    parameters = list(layer.parameters())
    expected = derivatives(lambda x: F.linear(x, *parameters).relu(), x, parameters)
    ways = (layer, partial(checkpoint, layer, use_reentrant=False), lambda x: layer(x.view(rows, 1, 8)).view(rows, 16))
    with torch.autograd.set_detect_anomaly(True):
        for way in ways:
            for found, of in zip(derivatives(way, x, parameters), expected, strict=True):
                torch.testing.assert_close(found, of, rtol=1e-4, atol=1e-4 * of.abs().max().item())
    with torch.no_grad():
        x[rows // 2] = torch.nan
    assert layer(x).isnan().all(dim=1).nonzero().tolist() == [[rows // 2]]


def test_a_layer_gives_the_same_bits_whether_its_number_of_rows_is_usual_or_not():
    for rows, width, out in ((1024, 64, 64), (6607, 64, 1), (6607, 2000, 64), (40_001, 32, 64)):
        x, weight, bias = torch.randn(rows, width), torch.randn(out, width), torch.randn(out)
        assert torch.equal(_product(x, weight, bias, True), _product(x, weight, bias, False))
    # what oneDNN keeps memory for are few numbers of rows, and each row is in a block
    sizes = set()
    for rows in range(1024, 60_000, 77):
        blocks = list(_blocks(rows))
        sizes |= {block.stop - block.start for block in blocks}
        assert (blocks[0].start, blocks[-1].stop) == (0, rows)
        assert all(0 < later.start <= block.stop < later.stop for block, later in pairwise(blocks))
    assert sizes == {1024, 2048, 4096, 8192, 16_384}


def test_only_numbers_of_rows_that_come_back_are_multiplied_whole(monkeypatch):
    asked = []
    monkeypatch.setattr(_layers, "_product", lambda x, *rest: asked.append(rest[-1]) or _product(x, *rest))
    for calls, usual in (
        ([2000] * 4, [False, False, True, True]),
        ([1100, 2000] * 4, [False] * 4 + [True] * 4),  # a view of two parts: the wild type and the samples
        (range(1024, 1044), [False] * 20),  # what `delta` carries
        ([1100] * 3 + [*range(2000, 2008), 1100], [False, False, True] + [False] * 9),
    ):
        layer = Linear(8, 8)
        for rows in calls:
            layer(torch.randn(rows, 8))
        assert asked == usual
        asked.clear()


def test_what_onednn_would_misread_is_left_to_torch():
    x, layer = torch.randn(1500, 8), Linear(8, 16)
    strided = {"bias": torch.randn(32)[::2]}
    torch.testing.assert_close(
        functional_call(layer, strided, (x,)), F.linear(x, layer.weight, strided["bias"].contiguous())
    )
    nothing = {"weight": torch.zeros(0, 8), "bias": torch.zeros(0)}
    assert functional_call(layer, nothing, (x,)).shape == (1500, 0)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layer(torch.randn(1500, 9))
    with pytest.raises(RuntimeError, match="same dtype"):
        layer.double()(x)


@pytest.fixture(scope="module", params=[0.03, 0.2])  # 198 nodes, and 1,321: more than the 1,024 of oneDNN
def models_and_views(request):
    graph = tclab.CellGraph.synthetic(request.param, metabolism=False).select(2)
    torch.manual_seed(0)
    size = (graph.num_nodes["gene"], list(graph.networks))
    cell = HeteroCell(*size, width=8, layers=2, local_heads=2, combine="fixed", aggregation="pairwise", mlp_layers=3)
    view = tclab.view(graph, [[1, 2], [3]], "edge_mask")
    return [(model, view) for model in (cell, Dango(*size, width=8))]


def test_every_transform_of_torch_gives_the_models_derivatives(models_and_views):
    for model, view in models_and_views:
        at = {name: parameter.detach() for name, parameter in model.named_parameters()}
        way = {name: torch.randn_like(parameter) for name, parameter in at.items()}

        def along(gradients, way=way):
            return sum((gradient * way[name]).sum() for name, gradient in gradients.items() if gradient is not None)

        exact = copy.deepcopy(model).double()
        names = [name for name, _ in exact.named_parameters()]
        gradients = torch.autograd.grad(exact(view).square().mean(), list(exact.parameters()), allow_unused=True)
        expected = along(dict(zip(names, gradients, strict=True))).float()

        def loss(parameters, model=model, view=view):
            return functional_call(model, parameters, (view,)).square().mean()

        def shifted(t, at=at, way=way, loss=loss):
            return loss({name: parameter + t * way[name] for name, parameter in at.items()})

        with forward_ad.dual_level():
            dual = loss({name: forward_ad.make_dual(parameter, way[name]) for name, parameter in at.items()})
            found = {"dual": forward_ad.unpack_dual(dual).tangent}
        both = {name: torch.stack([parameter, parameter + way[name]]) for name, parameter in at.items()}
        scores = model(view)
        batched = torch.autograd.grad(  # `vmap` goes through the backward of what was computed before
            scores.square() / len(scores), list(model.parameters()), torch.eye(len(scores)),
            is_grads_batched=True, allow_unused=True,
        )  # fmt: skip
        found |= {
            "jvp": jvp(loss, (at,), (way,))[1],
            "jacfwd": jacfwd(shifted)(torch.zeros(())),
            "grad": along(grad(loss)(at)),
            "vmap": along({name: gradient[0] for name, gradient in vmap(grad(loss))(both).items()}),
            "batched": along({n: None if g is None else g.sum(0) for n, g in zip(names, batched, strict=True)}),
        }
        for transform, derivative in found.items():
            torch.testing.assert_close(derivative, expected, rtol=1e-4, atol=0.0, msg=transform)


def test_so_does_the_norm_of_rows_in_bfloat16():
    torch.manual_seed(0)
    norm, x, way = LayerNorm(8, relu=True), torch.randn(50, 8), torch.randn(50, 8)
    expected = jvp(lambda x: F.layer_norm(x, (8,)).relu(), (x.bfloat16().float(),), (way.bfloat16().float(),))[1]
    found = {"jvp": jvp(norm, (x.bfloat16(),), (way.bfloat16(),))[1], "vmap": vmap(norm)(x.bfloat16()[None])[0]}
    torch.testing.assert_close(found["jvp"].float(), expected, rtol=0.02, atol=0.02)
    assert torch.equal(found["vmap"], norm(x.bfloat16()))
    assert copy.deepcopy(norm).bfloat16()(x.bfloat16()).dtype == torch.bfloat16  # a model that is cast whole
    rows = x.bfloat16().requires_grad_()
    out = norm(rows).sum(1)
    (batched,) = torch.autograd.grad(out, rows, torch.eye(50, dtype=torch.bfloat16), is_grads_batched=True)
    (whole,) = torch.autograd.grad(norm(rows).sum(), rows)
    torch.testing.assert_close(batched.sum(0), whole)


# ---- losses


def sup_cr_by_loops(z, targets, temperature):
    """The definition, anchor by anchor and pair by pair."""
    unit = z / z.norm(dim=1, keepdim=True)
    number, total = len(z), 0.0 * z.sum()
    for i in range(number):
        for j in range(number):
            if j == i:
                continue
            distance = abs(float(targets[i]) - float(targets[j]))
            below = torch.zeros((), dtype=z.dtype)
            for k in range(number):
                if k != i and abs(float(targets[i]) - float(targets[k])) >= distance:
                    below = below + torch.exp(unit[i] @ unit[k] / temperature)
            total = total - (unit[i] @ unit[j] / temperature - torch.log(below))
    return total / max(number * (number - 1), 1)  # of no pair zero


@example([], 0.1, 0)
@example([0.5], 0.1, 0)
@given(
    st.lists(st.sampled_from([-1.0, -0.25, 0.0, 0.5, 2.0]), max_size=8),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.integers(0, 99),
)
def test_sup_cr_and_its_gradient_are_what_the_loops_say(targets, temperature, seed):
    generator = torch.Generator().manual_seed(seed)  # scores from five values: most of them have equals
    z = torch.randn(len(targets), 4, dtype=torch.float64, generator=generator)
    targets = torch.tensor(targets, dtype=torch.float64)
    ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    found, expected = sup_cr(ours, targets, temperature=temperature), sup_cr_by_loops(theirs, targets, temperature)
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def output(batch, *, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    predictions = torch.randn(batch, dtype=dtype, generator=generator)
    z_p = torch.randn(batch, 4, dtype=dtype, generator=generator)
    targets = torch.randn(batch, dtype=dtype, generator=generator)
    return HeteroCellOutput(predictions.requires_grad_(), z_p.requires_grad_()), targets


@pytest.mark.parametrize(("blur", "apart"), [(0.001, 2e-3), (0.05, 2e-3), (2.0, None)])
def test_the_sinkhorn_term_is_the_exact_one_where_the_blur_is_small(blur, apart):
    out, targets = output(200, dtype=torch.float64)
    targets = 0.5 * targets + 1.0
    with_term, without = (
        MleWassSupCR(wasserstein=weight, sup_cr=0.0, blur=blur)(out, targets) for weight in (1.0, 0.0)
    )
    # in one dimension the best transport pairs the smallest with the smallest
    exact = 0.5 * (out.predictions.sort().values - targets.sort().values).square().mean()
    found = (with_term - without).item()
    if apart is None:  # a blur as wide as the distributions sees their means alone
        assert found == pytest.approx(0.5 * (out.predictions.mean() - targets.mean()).square().item(), rel=0.1)
        assert found < 0.95 * exact
    else:
        assert found == pytest.approx(exact.item(), rel=apart)


def by_definition(out, targets, remembered=None):
    """Return the loss of a batch: its error, and both other terms also over what is remembered of earlier ones."""
    before, targets_before = remembered or (HeteroCellOutput(out.predictions[:0], out.z_p[:0]), targets[:0])
    predictions = torch.cat([out.predictions, before.predictions.detach()])
    z, every = torch.cat([out.z_p, before.z_p.detach()]), torch.cat([targets, targets_before])
    one = MleWassSupCR(sup_cr=0.0, wasserstein=1.0)(HeteroCellOutput(predictions, z), every)
    wasserstein = one - (predictions - every).square().mean()
    return (out.predictions - targets).square().mean() + 0.1 * wasserstein + 0.001 * sup_cr(z, every)


def test_the_loss_is_the_sum_of_its_three_terms_and_remembered_batches_count_and_get_no_gradient():
    first, second = output(6, seed=1), output(5, seed=2)
    loss = MleWassSupCR()
    torch.testing.assert_close(loss(*first), by_definition(*first))
    found = loss(*second)
    torch.testing.assert_close(found, by_definition(*second, remembered=first))
    found.backward()
    assert first[0].predictions.grad is None
    assert second[0].predictions.grad is not None
    assert second[0].z_p.grad.abs().sum() > 0  # z_p is reached by the contrast alone


def test_the_loss_lets_the_host_go_on_from_step_to_step():
    loss = MleWassSupCR(capacity=8)
    for seed in range(4):  # an empty, a filling, a full and a wrapped buffer
        out, targets = output(5, seed=seed)
        with syncs() as found:
            loss(out, targets).backward()
        assert found.count == 0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 6))
def test_the_last_rows_are_remembered(sizes, capacity):
    loss, pushed = MleWassSupCR(capacity=capacity), []
    for size in sizes:
        rows = torch.arange(len(pushed), len(pushed) + size, dtype=torch.float32)
        loss(HeteroCellOutput(rows, rows.unsqueeze(1).expand(-1, 3)), rows)
        pushed += rows.tolist()
    assert loss.remembered["targets"].tolist() == loss.remembered["predictions"].tolist() == pushed[-capacity:]
    assert torch.equal(loss.remembered["z_p"][:, 2], loss.remembered["targets"])


def test_under_autocast_it_is_worked_out_in_float32():
    out, targets = output(20)
    half = HeteroCellOutput(out.predictions.bfloat16(), out.z_p.bfloat16())
    whole = HeteroCellOutput(half.predictions.float(), half.z_p.float())
    with torch.autocast("cpu", torch.bfloat16):
        found = MleWassSupCR()(half, targets)
    assert torch.equal(found, MleWassSupCR()(whole, targets))
