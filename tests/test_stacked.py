"""Several networks computed as one, as on a GPU: forced here on a CPU, where it equals one network after the other.

What the device would launch is counted and not timed: no GPU has run it.
"""

from contextlib import contextmanager

import pytest
import torch
from kernel_count import kernels
from replay_on_cpu import captured_on_cpu
from torch import distributed, nn

import tclab
from tclab import models
from tclab.masking import get
from tclab.message_passing import _stacked
from tclab.perturbation import Perturbations
from tclab.training._equivalence import EquivalenceReference
from tclab.training._step import Exchange, Step

GRAPH = tclab.CellGraph.synthetic(0.01, seed=1)
GENES = GRAPH.without_metabolism()
MODELS = ("hetero_cell", "hetero_cell_production")


@contextmanager
def stacked():
    _stacked.STACKED_ON = {"cpu"}
    try:
        yield
    finally:
        _stacked.STACKED_ON = {"cuda"}


def batch(seed, graph=GENES, strategy="node_mask", deleted=3):
    return get(strategy)(graph).batch(Perturbations.synthetic(graph, 2, deleted=deleted, seed=seed))


def built(model="hetero_cell", graph=GENES, metabolism="off"):
    """Return a model of nine networks in float64, no two of whose weights are equal."""
    torch.manual_seed(0)
    model = models.get(model).sized(hidden=8, layers=2).build(graph, metabolism).double()
    for weight in model.parameters():
        weight.data.add_(0.1 * torch.randn_like(weight))
    return model


def results(model, view):
    """Return predictions, and the gradients of a sum in which each sample has another weight."""
    predictions = model(view)
    weighted = predictions @ torch.linspace(-1.0, 2.0, len(predictions), dtype=predictions.dtype)
    return [predictions, *torch.autograd.grad(weighted, list(model.parameters()))]


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10 * (1e-3 + b.abs().max().item()))


def test_a_step_of_nine_networks_launches_a_third_of_the_kernels():
    step = Step(models.get("hetero_cell").sized(hidden=8), get("node_mask")(GENES))
    with stacked():
        step(batch(0))  # matrices are made
    assert 200 < kernels(step, batch(1)).total() <= 320  # 1,006 for one network after the other


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", ["node_mask", "dense", "delta"])
def test_predictions_and_gradients_are_those_of_one_network_after_the_other(model, strategy):
    module = built(model)
    for samples in ([[1, 2, 3], [5], []], [[7], [*range(GENES.num_nodes["gene"])]]):
        expected = results(module, tclab.view(GENES, samples, strategy))
        with stacked():
            assert_close(results(module, tclab.view(GENES, samples, strategy)), expected)
    found = []  # by the branches that CUDA takes
    kernels(lambda: found.extend(results(module, tclab.view(GENES, samples, strategy))))
    assert_close(found, expected)


def test_second_derivatives_of_stacked_layers_are_right():
    x, *affine = (torch.randn(2, n, 4, dtype=torch.float64, requires_grad=True) for n in (3, 1, 1))

    def norm(x, *affine):
        return models._layers._NormInFloat32.apply(x, *(w.squeeze(1) for w in affine), 1e-5)

    assert torch.autograd.gradcheck(norm, (x, *affine))
    assert torch.autograd.gradgradcheck(norm, (x, *affine))


@pytest.mark.parametrize("captured", [False, True])
def test_steps_train_as_those_of_one_network_after_the_other_do(captured):
    kind = models.get("hetero_cell").sized(hidden=8, layers=2)
    with captured_on_cpu():
        apart, together = (
            Step(kind, get("node_mask")(GENES), dtype="float64", capture=capture, learning_rate=0.001)
            for capture in (False, captured)
        )
        for seed in range(6):
            losses = [apart(batch(seed))]
            with stacked():
                losses.append(together(batch(seed)))
            assert_close(losses[:1], losses[1:])
    names = dict(together.model.named_parameters())
    assert [(name, p.shape) for name, p in names.items()] == [(n, p.shape) for n, p in apart.model.named_parameters()]
    for a, b in zip(apart.model.parameters(), names.values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)  # where a gradient is 0 in theory, noise moves weights


def test_they_pass_the_check_in_every_dtype():
    with stacked():
        reference = EquivalenceReference(lambda graph: built(graph=graph, metabolism="used"), GRAPH.select(3))
        result = reference.compare("node_mask", dtype="bfloat16")
    assert result.passed, result


def test_ddp_exchanges_the_same_gradients():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        steps = [
            Step(models.get("hetero_cell").sized(hidden=8, layers=1), get("node_mask")(GENES), exchange=exchange)
            for exchange in (None, Exchange())
        ]
        with stacked():
            for seed in range(3):
                assert_close(*([step(batch(seed))] for step in steps))
    finally:
        distributed.destroy_process_group()


def watched(model):
    model.layers[0].convolutions[4].norm.register_forward_hook(lambda module, inputs, output: 2 * output)


def of_another_class(model):
    class Doubled(models._layers.LayerNorm):
        def forward(self, x):
            return 2 * super().forward(x)

    theirs, norm = Doubled(8), model.layers[0].convolutions[4].norm
    theirs.weight, theirs.bias = norm.weight, norm.bias
    model.layers[0].convolutions[4].norm = theirs.double()


def with_another_option(model):
    model.layers[0].convolutions[4].norm.eps = 0.5


def with_a_forward_of_its_own(model):
    linear = model.layers[0].convolutions[0].linears[0]
    linear.forward = lambda x: x


def with_an_aggregation_of_its_own(model):
    class Last(nn.Module):
        def forward(self, parts):
            next(parts)
            return [*parts][-1]

    model.layers[0].aggregation = Last()


CHANGES = (watched, of_another_class, with_another_option, with_a_forward_of_its_own, with_an_aggregation_of_its_own)


def test_weights_may_be_plain_tensors():
    model, view = built(), tclab.view(GENES, [[1, 2], [3]])
    fast = {name: weight.detach() * 1.1 for name, weight in model.named_parameters()}
    expected = torch.func.functional_call(model, fast, (view,))
    with stacked():
        assert_close([torch.func.functional_call(model, fast, (view,))], [expected])


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_user_hooks_or_puts_in_is_called_by_itself(change):
    model, view = built(), tclab.view(GENES, [[1, 2], [3]])
    before = model(view)
    change(model)
    after = model(view)
    assert (after - before).abs().max() > 1e-6
    with stacked():
        assert_close([model(view)], [after])
