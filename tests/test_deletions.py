from decimal import Decimal

import numpy as np
import pytest
import torch

from tclab import CellGraph, InputError
from tclab.perturbation import Deletions, synthetic_perturbations
from tclab.perturbation._dataset import steps_per_epoch

GRAPH = CellGraph.synthetic(0.02, metabolism=False)


@pytest.mark.parametrize(
    "samples",
    [
        [[3, 1], []],
        (iter([3, 1]), range(0)),
        [torch.tensor([3, 1]), torch.tensor([], dtype=torch.int64)],
        [np.array([3, 1], dtype=np.uint8), ()],
        [[np.int64(3), torch.tensor(1)], []],
    ],
)
def test_lists_of_whole_numbers_are_samples(samples):
    assert [nodes.tolist() for nodes in Deletions.of(samples, num_nodes=5)] == [[3, 1], []]


# what the error says → what is no sample
NO_SAMPLE = {
    "expected the numbers of nodes": [[1.0], torch.tensor([1.7]), [np.float32(1)], [Decimal(1)], [float("nan")], [1j]],
    "expected the numbers": [["YAL001C"], [None], [2**70]],
    "expected a list of the nodes": [[[1]], np.array([[1], [2]]), {1: 2}, "12", None, 1, torch.tensor(3)],
    "is a mask": [[True, False], [np.True_], torch.tensor([True, False])],
    "expected 0 to 4": [[-1], [5]],
    "deletes a node twice": [[1, 1]],
}


@pytest.mark.parametrize(("words", "sample"), [(w, one) for w, some in NO_SAMPLE.items() for one in some], ids=repr)
def test_nothing_else_is_one(words, sample):
    with pytest.raises(InputError, match=f"sample 1 .*{words}"):
        Deletions.of([[0], sample], num_nodes=5)
    for samples in (None, 3, "12", {0: [1]}):
        with pytest.raises(InputError, match="for each expected a list of the nodes it deletes"):
            Deletions.of(samples, num_nodes=5)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda value: synthetic_perturbations(GRAPH, value), "the samples are"),
        (lambda value: synthetic_perturbations(GRAPH, 3, deleted=value), "of 132 gene nodes a sample deletes"),
        (lambda value: synthetic_perturbations(GRAPH, 3, seed=value), "the seed is"),
        (lambda value: CellGraph.synthetic(0.02, seed=value), "the seed is"),
        (lambda value: steps_per_epoch(value, 1), "batch_size is"),
        (lambda value: steps_per_epoch(1, value), "ranks is"),
    ],
)
@pytest.mark.parametrize("value", [-1, 2.5, "3", None, True, float("nan")])
def test_a_count_or_seed_that_is_none_is_refused(make, why, value):
    with pytest.raises(InputError, match=f"{why} .*, expected a whole number"):
        make(value)


def test_a_sample_deletes_no_more_nodes_than_there_are():
    assert synthetic_perturbations(GRAPH, 2, deleted=132).deletions.most == 132
    with pytest.raises(InputError, match=r"a sample deletes 133, expected a whole number from 0 to 132"):
        synthetic_perturbations(GRAPH, 2, deleted=133)
