"""Models and losses: each against its definition in loops, or PyG's layer; between ranks: test_ranks.py."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from torch_geometric.nn import GINConv, SAGEConv

import tclab
from tclab import models
from tclab.graph._synthetic_graph import NETWORK_SIZES
from tclab.models import Dango, DangoLoss, HeteroCell, MleWassSupCR
from tclab.models._dango import DangoOutput
from tclab.models._hetero_cell import HeteroCellOutput
from tclab.models._layers import GINUpdate, HyperSAGNN
from tclab.models._losses import log_cosh, sup_cr
from tclab.perturbation import Deletions
from tclab.sweeps.execution._overheads import make_dense_targets
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
    expected = torch.relu(ours.norm(theirs(x, network.edge_index)))
    for strategy in ("edge_mask", "node_mask"):
        view = tclab.view(small, [[]], strategy)
        torch.testing.assert_close(
            ours(view.neighbour_sum("physical", view.lift(x), self_weight=ours.self_weight)), expected
        )


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


def test_dango_loss_is_the_dense_definition(small):
    """The lab never makes the dense 0/1 targets; the figure must be the one that they give."""
    torch.manual_seed(0)
    edges = small.networks["tflink"].edge_index
    weights = {  # of zeros, as published
        "string9_1_coexpression": 0.1, "string11_0_experimental": 0.1, "string9_1_fusion": 1.0,
        "string12_0_coexpression": 1.0,
    }  # fmt: skip
    nodes = small.num_nodes["gene"]
    twice = torch.cat([edges, edges[:, :3]], dim=1)
    graph = tclab.CellGraph.from_edges(dict.fromkeys(weights, twice), num_nodes=nodes)
    dense = {name: torch.randn(nodes, nodes, dtype=torch.float64) for name in weights}
    predictions, targets = torch.randn(4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    log_cosh = torch.log(torch.cosh(predictions - targets)).mean()
    target = torch.zeros(nodes, nodes, dtype=torch.float64)
    target[tuple(edges)] = 1.0
    parts = [
        ((target + weight * (1 - target)) * (dense[name] - target).square()).mean() for name, weight in weights.items()
    ]
    for schedule, alphas in {
        "dango": {0: 1.0, 5: 0.75, 9: 0.55, 10: 0.5, 40: 0.5},
        "dango_pre_then_post": {0: 1.0, 9: 1.0, 10: 0.0},
        "dango_linear_until_flipped": {0: 1.0, 5: 0.5, 9: 0.1, 10: 0.0, 40: 0.0},
    }.items():
        loss = models.get("dango").loss(graph, schedule)
        for epoch, alpha in alphas.items():
            expected = alpha * sum(parts) / len(parts) + (1 - alpha) * log_cosh
            torch.testing.assert_close(loss(DangoOutput(predictions, dense), targets, epoch=epoch), expected)
    lean = loss.reconstruction(dense)
    make_dense_targets(loss)  # an overhead of the case study's
    torch.testing.assert_close(loss.reconstruction(dense), lean)


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
