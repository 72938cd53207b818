"""A batch in slices: the gradients are those of the whole batch, and nothing else changes.

Every strategy in slices, with a loss that is a mean, is in test_equality.py.
"""

import pytest
import torch

import tclab
from tclab import masking, models
from tclab.errors import InputError
from tclab.perturbation import synthetic_perturbations
from tclab.training._loading import Batches, Loader
from tclab.training._step import Step

GRAPH = tclab.CellGraph.synthetic(0.01, seed=2, metabolism=False).select(["physical", "regulatory"])
SAMPLES = synthetic_perturbations(GRAPH, 10, seed=3)
SIZE = 5


def gradients(model, strategy, *, loss=None, micro_batch=None, **options):
    """Return the losses and the gradients of two batches, the second one's after the first."""
    here = masking.get(strategy)(GRAPH)
    step = Step(models.get(model), here, mode="step", dtype="float64", loss=loss, clip=None, **options)
    found = []

    def update():
        found.append([p.grad.clone() for p in step.model.parameters() if p.grad is not None])

    data = Batches(masking.get(strategy)(GRAPH), SAMPLES, SIZE, micro_batch=micro_batch)
    losses = [step.run(step.transfer(item.batch), update=update) for item in Loader(data, workers=0)]
    return torch.stack(losses), found


@pytest.mark.parametrize(
    ("model", "strategy", "options"),
    [
        ("hetero_cell", "gpu_mask_cached", {}),
        ("dango", "indices", {"loss": "dango"}),
        ("hetero_cell", "node_mask", {"accumulate": 2}),
    ],
)
def test_slices_give_the_gradients_of_the_whole_batch(model, strategy, options):
    losses, expected = gradients(model, strategy, **options)
    for micro_batch in (1, 2, 5):
        same, found = gradients(model, strategy, micro_batch=micro_batch, **options)
        assert torch.allclose(same, losses, rtol=1e-10, atol=1e-14)
        for ours, theirs in zip(found, expected, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                assert (a - b).abs().max() <= 1e-9 * b.abs().max() + 1e-15


def test_a_loss_over_the_whole_batch_refuses_slices():
    with pytest.raises(InputError, match="the loss is over the whole batch"):
        gradients("hetero_cell", "node_mask", loss="mle_wass_supcr", micro_batch=2)


@pytest.mark.parametrize("strategy", ["edge_mask", "node_mask"])
def test_a_batch_in_slices_is_whole_again_wherever_it_goes(strategy):
    data = Batches(masking.get(strategy)(GRAPH), SAMPLES, SIZE, micro_batch=2)
    whole = Batches(masking.get(strategy)(GRAPH), SAMPLES, SIZE)[1].batch
    *_, loaded = Loader(data, workers=1)
    for batch in (data[1].batch, loaded.batch):
        assert [part.size for part in batch.slices] == [2, 2, 1]
        assert batch.size == whole.size == SIZE
        assert torch.equal(batch.target, whole.target)
        assert batch.edge_bytes == whole.edge_bytes  # each sample's edges, however they are cut
        assert batch.bytes == sum(part.bytes for part in batch.slices)
        assert torch.equal(batch.to("cpu").target, batch.target)
    for ours, theirs in zip(loaded.batch.slices, data[1].batch.slices, strict=True):
        assert all(torch.equal(ours.tensors[name], theirs.tensors[name]) for name in theirs.tensors)
