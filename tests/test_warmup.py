"""When warm-up is over: series whose answer is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tclab.timing._warmup import NOT_STEADY, STEADY, steady_state

from tclab.errors import InputError


def series(n, seed=0, *, memory=0.0):
    """Return steps of 20 ms with noise that remembers and now and then a step three times as long."""
    generator = np.random.default_rng(seed)
    values, state = np.empty(n), 0.0
    for i, draw in enumerate(generator.standard_normal(n)):
        state = memory * state + (1 - memory**2) ** 0.5 * draw
        values[i] = 0.02 * np.exp(0.03 * state)
    values[generator.random(n) < 0.02] *= 3
    return values


# of 40 steps that remember their last nine, no one can tell a drift from noise, so that pair is left out
FLAT = [(40, 0.0), (40, 0.5), *((n, memory) for n in (150, 400) for memory in (0, 0.5, 0.8))]
DECAY = 1 + np.exp(-np.arange(800) / 60)
CHANGES = {
    "a change in the second half, up": (200, np.where(np.arange(200) < 150, 1, 1.1)),
    "a change in the second half, down": (200, np.where(np.arange(200) < 150, 1, 0.8)),
    "a drift without end": (300, np.linspace(1, 1.5, 300)),
    "a decay that has not ended": (100, DECAY[:100]),
}


@pytest.mark.parametrize(("n", "memory"), FLAT)
def test_flat_noise_is_seldom_called_unsteady(n, memory):
    found = [steady_state(series(n, seed, memory=memory)).verdict for seed in range(200)]
    assert found.count(STEADY) >= 0.9 * 200


@pytest.mark.parametrize("change", CHANGES)
def test_what_still_changes_is_not_steady(change):
    n, factor = CHANGES[change]
    found = [steady_state(series(n, seed) * factor).verdict for seed in range(50)]
    assert found.count(NOT_STEADY) >= 0.9 * 50


@pytest.mark.parametrize(("slow", "latest"), [(30, 45), (10, 25)])
def test_slow_first_steps_are_left_out_and_little_more(slow, latest):
    begins = []
    for seed in range(20):
        steps = series(200, seed)
        steps[:slow] *= 3
        found = steady_state(steps)
        assert found.verdict == STEADY
        begins.append(found.begin)
    assert min(begins) >= slow - 2
    assert np.median(begins) <= latest


def test_a_slow_decay_is_steady_once_it_has_ended():
    late = [(seed, steady_state(series(800, seed) * DECAY)) for seed in range(30)]
    kept = [(seed, found.begin) for seed, found in late if found.verdict == STEADY]
    assert len(kept) >= 20
    for seed, begin in kept:  # what is kept is close to what the steps come down to
        assert np.median((series(800, seed) * DECAY)[begin:]) == pytest.approx(0.02, rel=0.06)


def test_what_is_real_but_below_a_percent_is_no_warm_up():
    steps = np.where(np.arange(400) < 300, 0.02, 0.0201) * (1 + 1e-5 * np.arange(400) % 7)
    assert steady_state(steps).verdict == STEADY


@given(st.integers(0, 300), st.integers(0, 1000), st.floats(1e-6, 1e3))
def test_the_steady_part_is_the_larger_half_whatever_the_unit_and_too_few_steps_are_not_judged(n, seed, factor):
    steps = series(n, seed)
    found = steady_state(steps)
    assert steady_state(steps * factor) == found
    if n < 20:
        assert (found.verdict, found.begin) == (None, None)
        assert "at least 20" in found.why
    elif found.verdict == STEADY:
        assert 0 <= found.begin <= n / 2 + 5
    else:
        assert (found.verdict, found.begin) == (NOT_STEADY, None)


def test_a_step_that_took_no_time_is_refused():
    with pytest.raises(InputError, match="times above 0"):
        steady_state([0.0] * 50)
