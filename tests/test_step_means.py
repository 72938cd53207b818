"""Means and shares over whole cycles of arrivals, their intervals, batches made ahead, and when warm-up is over."""

import numpy as np
import pytest
from scipy.signal import lfilter

from tclab.errors import InputError
from tclab.timing._step_means import STEADY, cycle_of, mean_step, share_of, steady_state, steps_wait


def bursts(workers, steps, *, batch=0.4, rest=0.016, begin=0):
    """The waits and the whole of each step, where each of some workers takes `batch` seconds a batch."""
    wait = np.array([batch - workers * rest if n % workers == 0 else 0.0 for n in range(begin, begin + steps)])
    return wait, wait + rest


@pytest.mark.parametrize("begin", range(4))
def test_a_mean_over_whole_cycles_is_right_wherever_they_begin(begin):
    wait, whole = bursts(4, 27, begin=begin)
    mean, share = mean_step(whole, 4), share_of(wait, whole, 4)
    assert (mean.value, share.value) == pytest.approx((0.1, 0.84))
    assert mean.interval_of_ratio() == pytest.approx((0.1, 0.1))  # cycles are alike, however steps differ
    assert share.interval() == pytest.approx((0.84, 0.84))
    assert np.median(whole) == pytest.approx(0.016)  # what a median would say


def test_a_cycle_holds_every_period_of_the_loop_and_the_first_steps_which_fill_none_are_left_out():
    assert (cycle_of(4, 1, None), cycle_of(4, 6), cycle_of(0, 1)) == (4, 12, 1)  # nobody waits for 0 workers
    assert [mean_step(np.arange(n), 4).value for n in (27, 24, 3)] == [14.5, 11.5, 1]  # 3: none is whole
    assert steps_wait(np.array([0.0, 0.1]), np.array([1.0, 1.0]))
    assert not steps_wait(np.array([0.0, 0.01]), np.array([1.0, 1.0]))


@pytest.mark.parametrize("cycle", [1, 4])
def test_intervals_hold_the_truth_as_often_as_they_say_where_costs_vary(cycle):
    generator = np.random.default_rng(5)
    hits = shares = 0
    for _ in range(400):
        wait, whole = bursts(cycle, 24)
        extra = 0.01 * generator.gamma(2.0, size=24)  # mean 0.02, skewed
        ends = mean_step(whole + extra, cycle).interval_of_ratio()
        hits += ends[0] < whole.mean() + 0.02 < ends[1]
        ends = share_of(wait, whole + extra, cycle).interval()
        shares += ends[0] < wait.mean() / (whole.mean() + 0.02) < ends[1]
    assert 0.9 < hits / 400 < 0.99
    assert 0.9 < shares / 400 < 0.99


def test_blocks_of_correlated_steps_are_joined():
    generator = np.random.default_rng(3)
    noise = lfilter([1.0], [1.0, -0.8], generator.standard_normal((200, 400)))
    ends = np.array([mean_step(10 + one).interval() for one in noise])
    assert ((ends[:, 0] < 10) & (ends[:, 1] > 10)).mean() > 0.85  # 0.5 with steps that count as independent


# ---- warm-up


def series(n, seed=0, memory=0.0):
    """Return steps of 20 ms with noise that remembers and now and then a step three times as long."""
    generator = np.random.default_rng(seed)
    noise = lfilter([(1 - memory**2) ** 0.5], [1.0, -memory], generator.standard_normal(n))
    return 0.02 * np.exp(0.03 * noise) * np.where(generator.random(n) < 0.02, 3, 1)


DECAY = 1 + np.exp(-np.arange(800) / 60)
# what the times are multiplied by, the memory of their noise, and whether they are called steady
# (of 40 steps that remember their last nine, no one can tell a drift from noise)
SERIES = {
    **{f"flat, {n} steps, memory {memory}": (np.ones(n), memory, True)
       for n, memory in ((40, 0.0), (40, 0.5), *((n, memory) for n in (150, 400) for memory in (0, 0.5, 0.8)))},
    "a change in the second half, up": (np.where(np.arange(200) < 150, 1, 1.1), 0, False),
    "a change in the second half, down": (np.where(np.arange(200) < 150, 1, 0.8), 0, False),
    "a drift without end": (np.linspace(1, 1.5, 300), 0, False),
    "a decay that has not ended": (DECAY[:100], 0, False),
    "slow first steps": (np.where(np.arange(200) < 30, 3, 1), 0, True),
    "a decay that has ended": (DECAY, 0, True),
    "a change of less than a percent": (np.where(np.arange(400) < 300, 1, 1.005), 0, True),
}  # fmt: skip


@pytest.mark.parametrize(("factor", "memory", "steady"), SERIES.values(), ids=SERIES)
def test_what_still_changes_is_not_steady_and_noise_is_seldom_called_a_change(factor, memory, steady):
    verdicts = [steady_state(series(len(factor), seed, memory) * factor).verdict for seed in range(200)]
    assert verdicts.count(STEADY) >= 180 if steady else verdicts.count(STEADY) <= 20


def test_too_few_steps_are_not_judged_and_a_step_that_took_no_time_is_refused():
    assert steady_state(series(19)) == (None, "")
    with pytest.raises(InputError, match="times above 0"):
        steady_state([0.0] * 50)
