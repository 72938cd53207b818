"""The simulation of an epoch: its bounds and exact cases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tclab import InputError
from tclab.timing._epoch_simulation import ContentionFactors, LoaderOverheads, simulate

seconds = st.floats(0.001, 10.0)
epochs = st.lists(st.tuples(seconds, seconds), min_size=1, max_size=30)


def split(epoch):
    return [load for load, _ in epoch], [step for _, step in epoch]


@given(epochs)
def test_without_workers_loading_and_training_add_up(epoch):
    load, step = split(epoch)
    assert simulate(load, step, workers=0) == pytest.approx(sum(load) + sum(step))


@given(epochs, st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_no_epoch_is_faster_than_its_bounds(epoch, workers, ahead, cores):
    load, step = split(epoch)
    contention = ContentionFactors.of_cores(cores, workers)
    found = simulate(load, step, workers=workers, prefetch_factor=ahead, contention=contention)
    slack = 1 + 1e-9
    assert found * slack >= load[0] + sum(step)
    assert found * slack >= max(sum(load[worker::workers]) for worker in range(workers)) + step[-1]
    assert found * slack >= (sum(load) + sum(step)) / cores
    assert found <= (sum(load) + sum(step)) * max(1, (workers + 1) / cores) * slack


@given(epochs, st.integers(1, 3), st.integers(1, 4))
def test_more_batches_ahead_are_never_slower_where_each_process_has_a_core(epoch, workers, ahead):
    load, step = split(epoch)
    found = [simulate(load, step, workers=workers, prefetch_factor=ahead + more) for more in (0, 1)]
    assert found[1] <= found[0] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("load", "step", "workers", "ahead", "expected"),
    [
        (1, 2, 1, 2, 1 + 10 * 2),  # the first batch is waited for, then training never stops
        (2, 1, 1, 2, 10 * 2 + 1),  # batch after batch, and the last step
        (2, 1, 1, 1, 10 * 2 + 1),  # the next batch is asked for when one is taken: one ahead is enough
        (2, 1, 2, 2, 5 * 2 + 2),  # two at a time; the last two steps
        (4, 1, 2, 1, 5 * 4 + 2),
        (3, 1, 3, 2, 3 * 4 + 1),  # batches 0, 3, 6 and 9 are one worker's
    ],
)  # fmt: skip
def test_regular_epochs_take_what_they_take_by_hand(load, step, workers, ahead, expected):
    found = simulate([load] * 10, [step] * 10, workers=workers, prefetch_factor=ahead)
    assert found == pytest.approx(expected)


def test_batches_are_taken_in_order_and_no_more_are_ahead_than_allowed():
    # batch 0 is late: worker 1 has made 1 and 3 by then, and may not begin 5 before one is taken
    found = simulate([10, 1, 1, 1, 1, 1], [1] * 6, workers=2, prefetch_factor=2)
    assert found == pytest.approx(10 + 6)
    # one ahead for each: the second may make 1 alone, so 3 begins when 1 is taken
    slow = simulate([4, 1, 1, 5], [1] * 4, workers=2, prefetch_factor=1)
    assert slow == pytest.approx(5 + 5 + 1)  # 1 is taken at 5, 3 is made at 10


def test_processes_share_cores_fairly():
    one = simulate([1.0] * 50, [1.0] * 50, workers=1, contention=ContentionFactors.of_cores(1, 1))
    assert one == pytest.approx(100)  # a core does no more than there is to do
    measured = ContentionFactors(load=(1.0,), load_while_training=(0.5,), step=(1.0, 0.8))
    # training at 0.8 beside a batch in the making, which goes on at 0.5: 2 s of wall for 1.6 s of step, then alone
    found = simulate([1.0, 1.0], [2.0, 2.0], workers=1, contention=measured)
    assert found == pytest.approx(1 + 2 + 0.4 + 2)


def test_speeds_of_more_processes_than_were_measured_get_no_more_done_together():
    contention = ContentionFactors(load=(1.0, 0.8), load_while_training=(0.9, 0.6), step=(1.0, 0.9, 0.7))
    assert contention.of_load(4, training=False) == pytest.approx(0.4)
    assert contention.of_load(3, training=True) == pytest.approx(0.4)
    assert contention.of_step(5) == pytest.approx(0.35)


def test_machinery_is_paid_where_it_is_due():
    costs = LoaderOverheads(send=0.5, receive=0.25, start=2.0, wake=3.0, end=7.0)
    found = simulate([1.0] * 4, [1.0] * 4, workers=2, prefetch_factor=2, loader_overheads=costs)
    # both started by 4, the first batches at 8.5, the second ones at 10, each step 1.25, the end
    assert found == pytest.approx(4 + 4.5 + 4 * 1.25 + 7)
    assert simulate([1.0], [1.0], workers=0, loader_overheads=costs) == pytest.approx(2)  # none without workers
    early = LoaderOverheads(send=-2.0)  # more than a batch takes: no time is given back
    assert simulate([1.0] * 4, [1.0] * 4, workers=1, loader_overheads=early) == pytest.approx(4)


@pytest.mark.parametrize("fields", [{"workers": -1}, {"workers": 1, "prefetch_factor": 0}])
def test_what_no_loader_can_be_is_refused(fields):
    with pytest.raises(InputError, match="expected"):
        simulate([1.0], [1.0], **fields)
