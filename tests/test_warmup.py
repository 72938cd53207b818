"""When warm-up is over: series whose answer is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tclab.errors import InputError
from tclab.timing._warmup import mser, pettitt, steady_state


def series(n, seed=0, *, noise=0.03, memory=0.0, outliers=0.02):
    """Return steps of 20 ms with noise that remembers and now and then a step three times as long."""
    generator = np.random.default_rng(seed)
    values, state = np.empty(n), 0.0
    for i, draw in enumerate(generator.standard_normal(n)):
        state = memory * state + (1 - memory**2) ** 0.5 * draw
        values[i] = 0.02 * np.exp(noise * state)
    values[generator.random(n) < outliers] *= 3
    return values


def shares(make, number=200):
    verdicts = [steady_state(make(seed)).verdict for seed in range(number)]
    return {verdict: verdicts.count(verdict) / number for verdict in ("steady", "not steady", None)}


# of 40 steps that remember their last nine, no one can tell a drift from noise, so that pair is left out
@pytest.mark.parametrize(("n", "memory"), [(40, 0.0), (40, 0.5), *((n, m) for n in (150, 400) for m in (0, 0.5, 0.8))])
def test_flat_noise_is_seldom_called_unsteady(n, memory):
    found = shares(lambda seed: series(n, seed, memory=memory))
    print(f"{n} steps, memory {memory}: {found}")
    assert found["not steady"] <= 0.1
    assert found["steady"] >= 0.9


def test_slow_first_steps_are_left_out_and_little_more():
    begins = []
    for seed in range(20):
        steps = series(200, seed)
        steps[:30] *= 3
        found = steady_state(steps)
        assert found.verdict == "steady"
        begins.append(found.begin)
    assert min(begins) >= 28
    assert np.median(begins) <= 45


@pytest.mark.parametrize("change", [0.1, -0.2])
def test_a_change_in_the_second_half_is_not_steady(change):
    found = shares(lambda seed: series(200, seed) * np.where(np.arange(200) < 150, 1, 1 + change), 50)
    assert found["not steady"] >= 0.9


def test_a_slow_decay_is_not_steady_until_it_has_ended():
    decay = 1 + np.exp(-np.arange(800) / 60)
    early = [steady_state(series(100, seed) * decay[:100]).verdict for seed in range(30)]
    assert early.count("not steady") >= 27
    late = [steady_state(series(800, seed) * decay) for seed in range(30)]
    assert sum(found.verdict == "steady" for found in late) >= 20
    # the mean of what is kept is close to what the steps come down to
    for seed, found in enumerate(late):
        if found.verdict == "steady":
            kept = np.median((series(800, seed) * decay)[found.begin :])
            assert kept == pytest.approx(0.02, rel=0.06)


def test_a_drift_without_end_is_not_steady():
    found = shares(lambda seed: series(300, seed) * np.linspace(1, 1.5, 300), 50)
    assert found["not steady"] >= 0.9


def test_what_is_real_but_below_a_percent_is_no_warm_up():
    steps = np.where(np.arange(400) < 300, 0.02, 0.0201) * (1 + 1e-5 * np.arange(400) % 7)
    assert steady_state(steps).verdict == "steady"


@given(st.integers(0, 19))
def test_too_few_steps_are_not_judged(n):
    found = steady_state([0.02] * n)
    assert found.verdict is None
    assert found.begin is None
    assert "at least 20" in found.why


@given(st.integers(20, 300), st.integers(0, 1000))
def test_the_steady_part_is_the_larger_half_and_is_steady_itself(n, seed):
    steps = series(n, seed)
    found = steady_state(steps)
    assert found.verdict in ("steady", "not steady")
    if found.verdict == "steady":
        assert 0 <= found.begin <= n / 2 + 5
    else:
        assert found.begin is None


@given(st.integers(0, 1000), st.floats(1e-6, 1e3))
def test_units_do_not_matter(seed, factor):
    steps = series(120, seed)
    assert steady_state(steps * factor) == steady_state(steps)


def test_steps_before_the_loader_was_primed_are_warm_up_whatever_the_clock_says():
    steps = [0.02 + 1e-6 * (i % 3) for i in range(100)]
    assert steady_state(steps).verdict == "steady"
    assert steady_state(steps, primed=8).begin >= 8
    late = steady_state(steps, primed=60)
    assert late.verdict == "not steady"
    assert "primed only at step 60" in late.why
    with pytest.raises(InputError, match="times above 0"):
        steady_state([0.0] * 50)


def test_pettitt_finds_the_place_and_its_p_is_no_smaller_than_it_should_be():
    step = np.r_[np.zeros(30), np.ones(20)] + np.random.default_rng(0).normal(0, 0.1, 50)
    at, p = pettitt(step)
    assert at == 29
    assert p < 1e-4
    generator = np.random.default_rng(1)
    below = np.mean([pettitt(generator.normal(size=50))[1] < 0.05 for _ in range(400)])
    assert below <= 0.07


def test_mser_leaves_out_a_start_that_is_unlike_the_rest():
    values = np.r_[np.full(10, 5.0), np.zeros(90)] + np.random.default_rng(0).normal(0, 0.1, 100)
    assert 10 <= mser(values) <= 15
    brute = [np.var(values[d:]) / (100 - d) for d in range(51)]
    assert mser(values) == int(np.argmin(brute))
