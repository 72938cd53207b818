"""Means and shares over whole cycles of arrivals: bursts, partial cycles, varying costs, outliers, several runs."""

import numpy as np
import pytest

from tclab.timing._step_means import (
    LoaderPace,
    cycle_of,
    mean_step,
    outliers,
    ratio_of_means,
    share_of,
    steps_wait,
    whole_cycles,
)


def bursts(workers, steps, *, batch=0.4, rest=0.016, begin=0):
    """The waits and the whole of each step, where each of some workers takes `batch` seconds a batch."""
    wait = np.array([batch - workers * rest if n % workers == 0 else 0.0 for n in range(begin, begin + steps)])
    return wait, wait + rest


@pytest.mark.parametrize("begin", range(4))
def test_a_mean_over_whole_cycles_is_right_wherever_they_begin(begin):
    wait, whole = bursts(4, 27, begin=begin)
    mean, share = mean_step([whole], 4), share_of(wait, whole, 4)
    assert (mean.value, share.value) == pytest.approx((0.1, 0.84))
    assert mean.interval_of_ratio() == pytest.approx((0.1, 0.1))  # cycles are alike, however steps differ
    assert share.interval() == pytest.approx((0.84, 0.84))
    assert np.median(whole) == pytest.approx(0.016)  # what a median would say


def test_a_cycle_holds_every_period_of_the_loop_and_the_first_steps_which_fill_none_are_left_out():
    assert (cycle_of(4, 1, None), cycle_of(4, 6), cycle_of(0, 1)) == (4, 12, 1)  # nobody waits for 0 workers
    assert [whole_cycles(n, 4) for n in (27, 24, 3)] == [slice(3, 27), slice(0, 24), slice(0, 3)]  # 3: none is whole
    assert mean_step([np.array([9.0, 1, 3, 1, 3])], 2).value == 2
    assert steps_wait(np.array([0.0, 0.1]), np.array([1.0, 1.0]))
    assert not steps_wait(np.array([0.0, 0.01]), np.array([1.0, 1.0]))


def test_without_two_blocks_there_is_no_interval():
    _, whole = bursts(8, 8)
    one = mean_step([whole], 8)
    assert one.interval_of_ratio() is share_of(whole, whole, 8).interval() is None
    assert ratio_of_means(one, one, 0.95) == (pytest.approx(1.0), None, None)


@pytest.mark.parametrize("cycle", [1, 4])
def test_intervals_hold_the_truth_as_often_as_they_say_where_costs_vary(cycle):
    generator = np.random.default_rng(5)
    hits = shares = 0
    for _ in range(400):
        wait, whole = bursts(cycle, 24)
        extra = 0.01 * generator.gamma(2.0, size=24)  # mean 0.02, skewed
        ends = mean_step([whole + extra], cycle).interval_of_ratio()
        hits += ends[0] < whole.mean() + 0.02 < ends[1]
        ends = share_of(wait, whole + extra, cycle).interval()
        shares += ends[0] < wait.mean() / (whole.mean() + 0.02) < ends[1]
    assert 0.9 < hits / 400 < 0.99
    assert 0.9 < shares / 400 < 0.99


def test_blocks_of_correlated_steps_are_joined():
    generator = np.random.default_rng(3)
    hits = 0
    for _ in range(200):
        noise = generator.standard_normal(400)
        for n in range(1, 400):
            noise[n] += 0.8 * noise[n - 1]
        ends = mean_step([10 + noise]).interval()
        hits += ends[0] < 10 < ends[1]
    assert hits / 200 > 0.85  # 0.5 with steps that count as independent


def test_runs_that_differ_widen_the_interval():
    generator = np.random.default_rng(1)
    runs = [level + 0.001 * generator.standard_normal(30) for level in (1.0, 1.1, 1.2)]
    low, high = mean_step(runs).interval()
    assert low < 1.0
    assert high > 1.2
    assert mean_step(runs).freedom == 2  # 90 steps are three measurements
    assert mean_step(runs[:1]).interval()[1] < 1.001


def test_a_ratio_has_an_interval_and_a_p_value():
    generator = np.random.default_rng(2)
    fast, slow = (mean_step([level + 0.01 * generator.standard_normal(40)]) for level in (0.1, 0.2))
    ratio, (low, high), p = ratio_of_means(fast, slow, 0.95)
    assert low < ratio < high
    assert low < 2 < high
    assert p < 1e-6
    assert ratio_of_means(fast, fast, 0.95)[2] == pytest.approx(1)


def test_outliers_are_said_and_bursts_are_none():
    steps = np.full(40, 0.01)
    assert outliers(steps) == ""
    steps[7] = 0.5
    assert "1 of 40 steps" in outliers(steps)
    assert "55% of the whole time" in outliers(steps)
    _, whole = bursts(8, 64)
    assert outliers(whole, 8) == ""
    whole[20] += 4.0
    assert "1 of 8 cycles of 8 steps" in outliers(whole, 8)


@pytest.mark.parametrize(
    ("step", "waiting", "words"),
    [
        (0.1, 0.84, ""),  # 4 workers of 0.4 s give a batch every 0.1 s
        (0.016, 0.0, "4 workers cannot give a batch more often than every 100 ms: steps of 16 ms used batches that"),
        (0.2, 0.7, "the rest of a step takes 60 ms: waiting would be 40% of a step, and it is 70%"),
        (0.105, 0.52, ""),  # it would be 49.6 %: costs vary
    ],
)
def test_what_workers_cannot_have_given_is_refused(step, waiting, words):
    pace = LoaderPace(4, 0.4, step, waiting)
    assert words in pace.refusal()
    assert bool(pace.refusal()) == bool(words)
    assert bool(pace.impossible()) == (step < 0.09)
