"""DANGO's reconstruction loss, by factors, against its dense definition: values, gradients, precision and memory."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import tclab
from tclab import masking, models
from tclab.graph import Network
from tclab.models._dango import DangoOutput, Reconstruction
from tclab.models._losses import ReconstructionLoss, zero_weight
from tclab.perturbation import Perturbations
from tclab.sweeps._overheads import add_overheads
from tclab.training._loading import Batches, LoadedBatch
from tclab.training._loops import run_plain
from tclab.training._step import Step

NODES = 30
NAMES = {  # → λ, as published
    "string9_1_coexpression": 0.1, "string11_0_experimental": 0.1, "string9_1_fusion": 1.0,
    "string12_0_coexpression": 1.0,
}  # fmt: skip
LOSSES = {  # the published shares of the reconstruction, by epoch
    "dango": {0: 1.0, 5: 0.75, 9: 0.55, 10: 0.5, 40: 0.5},
    "dango_pre_then_post": {0: 1.0, 9: 1.0, 10: 0.0},
    "dango_linear_until_flipped": {0: 1.0, 5: 0.5, 9: 0.1, 10: 0.0, 40: 0.0},
}


def drawn(seed=0):
    """Return a generator, and 90 edges, of which some are self-loops and some nodes have none."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(NODES - 3, (2, 90), generator=generator)
    return generator, torch.cat([edges, torch.tensor([[0, 4], [0, 4]])], dim=1)


def networks_of(edges):
    """Return kinds of networks of some edges: each once, several times, weighted, in one direction, and no edge."""
    alike = partial(Network, "edges", source="gene", target="gene", num_sources=NODES, num_targets=NODES)
    once, weight = edges.unique(dim=1), torch.linspace(-2, 3, edges.size(1))
    return {
        "simple": alike(once), "repeated": alike(torch.cat([edges, edges[:, :9]], dim=1)), "empty": alike(edges[:, :0]),
        "weighted": alike(edges, weight=weight), "undirected": alike(once, directed=False), "one": alike(once[:, :1]),
    }  # fmt: skip


def factors(generator, width=7, dtype=torch.float64):
    return [torch.randn(NODES, width, generator=generator, dtype=dtype, requires_grad=True) for _ in range(2)]


def dense_loss(rows, columns, edges, weight):
    target = torch.zeros(len(rows), len(columns), dtype=rows.dtype)
    target[tuple(edges)] = 1.0
    squared = (rows @ columns.t() - target).square()
    return ((target + weight * (1 - target)) * squared).mean()


@pytest.mark.parametrize("weight", [0.0, 0.1, 1.0, 2.5])
@pytest.mark.parametrize("kind", networks_of(drawn()[1]))
def test_the_loss_and_its_gradient_are_those_of_the_dense_target(kind, weight):
    generator, edges = drawn()
    network, (a, b) = networks_of(edges)[kind], factors(generator)
    losses = ReconstructionLoss(network, weight)(Reconstruction(a, b)), dense_loss(a, b, network.edge_index, weight)
    torch.testing.assert_close(*losses, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(*(torch.autograd.grad(loss, (a, b)) for loss in losses), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_is_its_published_sum_in_every_epoch(loss):
    """The lab never makes the dense 0/1 targets; the figure must be the one that they give."""
    generator, edges = drawn()
    graph = tclab.CellGraph.from_edges(dict.fromkeys(NAMES, torch.cat([edges, edges[:, :3]], dim=1)), num_nodes=NODES)
    assert {name: zero_weight(name) for name in NAMES} == NAMES
    made = {name: factors(generator) for name in NAMES}
    dense = torch.stack([dense_loss(*made[name], edges, weight) for name, weight in NAMES.items()]).mean()
    predictions, targets = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    inputs = [predictions.requires_grad_(), *(factor for pair in made.values() for factor in pair)]
    output = DangoOutput(predictions, {name: Reconstruction(*pair) for name, pair in made.items()})
    log_cosh = torch.log(torch.cosh(predictions - targets)).mean()
    our_loss = models.get("dango").loss(graph, loss)
    for epoch, alpha in LOSSES[loss].items():
        expected, ours = alpha * dense + (1 - alpha) * log_cosh, our_loss(output, targets, epoch=epoch)
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)
        found = (torch.autograd.grad(of, inputs, retain_graph=True) for of in (ours, expected))
        torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("weight", [0.1, 1.0])
def test_a_second_derivative_is_right_or_refused(weight):
    """It is right where λ is 1; elsewhere it would lack the part through the edges' own entries, without a word."""
    generator, edges = drawn()
    a, b = factors(generator, width=2)
    loss = ReconstructionLoss(networks_of(edges)["simple"], weight)

    def of(*pair):
        return NODES**2 * loss(Reconstruction(*pair))

    torch.autograd.gradcheck(of, (a, b))
    if weight == 1:
        torch.autograd.gradgradcheck(of, (a, b))
    else:
        (first,) = torch.autograd.grad(of(a, b), a, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            first.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight", [0.1, 1.0])
def test_a_good_fit_is_exact_to_the_rounding_of_its_numbers(weight, dtype):
    """Its sums are a thousand times the loss, which is what is left of them."""
    generator, groups = torch.Generator().manual_seed(0), torch.eye(10).repeat(30, 1)
    edges = (groups @ groups.t()).nonzero().t()  # those within a group, of which the groups are a perfect fit
    network = Network("groups", edges, "gene", "gene", 300, 300)
    noisy = [(groups + 0.01 * torch.randn(300, 10, generator=generator)).to(dtype) for _ in range(2)]
    losses, gradients = [], []
    for exact in (False, True):
        pair = [factor.to(torch.float64 if exact else dtype, copy=True).requires_grad_() for factor in noisy]
        with torch.autocast("cpu", torch.bfloat16, enabled=not exact):
            loss = ReconstructionLoss(network, weight)(Reconstruction(*pair))
        (2**16 * loss).backward()
        losses.append(loss.item())
        gradients.append(torch.cat([factor.grad.double().flatten() for factor in pair]))
    assert losses[1] < 1e-3 * network.num_edges / 300**2 * 10
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    error = (gradients[0] - gradients[1]).norm() / gradients[1].norm()
    assert error < (1e-4 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps)


# ---- the model's steps


def made(scale, overheads, hidden, networks, **options):
    """Return a step on a small graph of one or two networks, the first with the λ of older STRINGs, and 4 batches."""
    graph = tclab.CellGraph.synthetic(scale).without_metabolism().select(networks)
    names = dict(zip(graph.networks, ("string11_0_coexpression", "string12_0_fusion"), strict=False))
    relations = {new: replace(graph.networks[name], name=new) for name, new in names.items()}
    step = Step(
        models.get("dango").sized(hidden=hidden), masking.get("indices")(graph.with_relations(relations)), **options
    )
    add_overheads(step, overheads)
    data = Batches(step.strategy, Perturbations.synthetic(graph, 12), 3)
    return step, [data[i].batch for i in range(4)]


def trained(overheads, steps):
    step, batches = made(0.003, overheads, 8, 1, dtype="float64", learning_rate=1e-2)
    return torch.stack(run_plain(step, [LoadedBatch(batches[i % 4], None) for i in range(steps)], steps=steps))


@pytest.mark.parametrize("steps", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_a_model_trains_as_with_dense_targets(steps):
    lean, dense = trained((), steps), trained(("dense_targets",), steps)
    assert lean[-1] < 0.9 * lean[0]
    torch.testing.assert_close(lean, dense, rtol=1e-9, atol=1e-9)


def test_a_step_makes_nothing_of_n_by_n_numbers():
    largest = []
    for overheads in ((), ("dense_targets",)):
        step, batches = made(0.1, overheads, 64, 2)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            for batch in batches[:2]:  # the first makes what is kept
                step(batch)
        events = found.profiler.kineto_results.events()
        largest.append(max(event.nbytes() for event in events if event.name() == "[memory]"))
    assert largest[0] < 4 * step.strategy.graph.num_nodes["gene"] ** 2 <= largest[1]
