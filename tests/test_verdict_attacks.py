"""Attacks on a verdict: noise that hits one arm alone, drifts, stretches, pulses, the luck of processes.

`benchmarks/race_verdicts.py` has them, and measures their rates on 200 races each; here 100 stand for it.
"""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest, rankdata
from synthetic_machine import SyntheticMachine, memory_noise, pair_of, slow_in_turn
from tclab.timing._noise_model import Series, centre_of

from tclab.timing import race
from tclab.timing._statistics import alpha_of, average_ranks
from tclab.timing._verdict import FASTER, SAME, SLOWER, UNDECIDED

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from race_verdicts import APART, EQUAL, NEARLY, Attack

SEEDS = range(100)


@pytest.mark.slow
@pytest.mark.parametrize("attack", EQUAL, ids=lambda attack: attack.name)
def test_equal_arms_are_hardly_ever_told_apart(attack):
    verdicts = [attack.verdict(seed, 60.0) for seed in SEEDS]
    false = sum(verdict in (FASTER, SLOWER) for verdict in verdicts)
    assert binomtest(false, len(verdicts), 0.05, alternative="greater").pvalue > 0.01, verdicts


@pytest.mark.slow
@pytest.mark.parametrize("attack", NEARLY, ids=lambda attack: attack.name)
def test_arms_just_beyond_the_margin_are_hardly_ever_the_same(attack):
    verdicts = [attack.verdict(seed, 60.0) for seed in SEEDS]
    assert binomtest(verdicts.count(SAME), len(verdicts), 0.05, alternative="greater").pvalue > 0.01, verdicts


@pytest.mark.slow
@pytest.mark.parametrize(("attack", "share"), [(APART[0], 0.8), (APART[1], 0.95)], ids=["5 %", "10 %"])
def test_a_real_difference_is_found_under_mild_noise(attack, share):
    verdicts = [attack.verdict(seed, 60.0) for seed in SEEDS]
    assert SLOWER not in verdicts
    assert binomtest(verdicts.count(FASTER), len(verdicts), share, alternative="less").pvalue > 0.01, verdicts


def test_noise_of_one_arm_that_lasts_as_long_as_the_race_decides_nothing_and_is_the_reason():
    """A race by the clock, whose arms each have noise with a memory of 15 s: it holds two independent measurements."""
    machine = SyntheticMachine(3, noise=0.01, outliers=0.0)
    generator = np.random.default_rng(3)
    own = [memory_noise(generator, 90.0, deviation=0.05, memory=15.0) for _ in range(2)]
    arms = {name: machine.arm(name, 0.02, path) for name, path in zip("ab", own, strict=True)}
    pair = race(arms, budget_seconds=60, clock=machine.clock).pair("a", "b")
    assert pair.verdict == UNDECIDED
    assert re.search(r"too few independent rounds \(\d+ rounds count as 0\.\d\) for this noise", pair.why)
    assert pair.independent < 6


def test_a_difference_that_comes_during_the_race_is_undecided():
    samples = Attack("still", quiet=True).samples(0, 60.0)
    for sample in samples:
        sample["seconds"] *= 1 + 0.2 * (sample["arm"] == "a") * max(0.0, sample["spent_seconds"] - 20) / 40
    pair = pair_of(samples)
    assert pair.verdict == UNDECIDED
    assert "reaches across" in pair.why


@pytest.mark.parametrize(("slower", "verdict"), [(0.06, SAME), (0.3, UNDECIDED)])
def test_noise_alone_calls_nothing_the_same_beyond_ten_percent(slower, verdict):
    """Their ratio is known well, but no arm is like itself."""
    pair = pair_of(slow_in_turn(Attack("still", quiet=True, ratio=0.96).samples(0, 60.0), slower))
    assert pair.verdict == verdict, pair
    assert pair.margin == pytest.approx(slower, rel=0.1)
    assert pair.why.startswith("the 97.50% interval [0.96, 0.96] lies within ±")
    assert ("beyond ±10% noise calls nothing the same" in pair.why) == (verdict == UNDECIDED)


def test_an_arm_that_differs_from_itself_voids_the_race():
    """Every other round the first block of `a` takes long: no comparison with `b` can be believed."""
    samples = Attack("still", quiet=True, ratio=0.5).samples(0, 60.0)
    assert pair_of(samples).verdict == FASTER
    seen = set()
    for sample in samples:
        first = (sample["round"], sample["arm"]) not in seen
        seen.add((sample["round"], sample["arm"]))
        if sample["arm"] == "a" and first == (sample["round"] % 2 == 0):
            sample["seconds"] *= 1.2
    pair = pair_of(samples)
    assert pair.verdict == UNDECIDED
    assert "the control failed: a takes 1.2" in pair.why


@pytest.mark.parametrize("rounds", [6, 8, 12, 24])
@pytest.mark.parametrize(
    "draw",
    [
        lambda generator, n: generator.normal(0, 0.02, n),
        lambda generator, n: generator.standard_t(2, n) * 0.01,
        lambda generator, n: generator.exponential(0.02, n) - generator.exponential(0.02, n),
    ],
    ids=["normal", "t2", "exponential"],
)
def test_an_interval_of_few_rounds_misses_no_more_often_than_it_says(rounds, draw):
    generator = np.random.default_rng(1)
    missed = 0
    for _ in range(60):
        one = Series(draw(generator, rounds), np.arange(rounds) * 0.1, [0] * rounds)
        low, high = centre_of([one]).interval(0.95)
        missed += not low <= 0 <= high
    assert binomtest(missed, 60, 0.05, alternative="greater").pvalue > 0.01


def test_times_that_never_vary_have_an_interval_of_no_width():
    one = Series(np.full(12, 0.1), np.arange(12) * 0.1, [0] * 12)
    assert centre_of([one]).interval(0.99) == pytest.approx((0.1, 0.1), abs=1e-6)
    assert centre_of([one, one]).interval(0.9999) == pytest.approx((0.1, 0.1), abs=1e-6)


@pytest.mark.parametrize("values", [[], [3.0], [2.0, 1.0, 2.0, 2.0, -1.0, 1.0], [1.0, np.inf, -np.inf, 1.0, 5.0]])
def test_ranks_are_those_of_scipy(values):
    np.testing.assert_array_equal(average_ranks(np.array(values)), rankdata(values))


def test_what_is_left_of_alpha_is_never_spent_however_often_a_race_goes_on():
    assert 0.0499 < sum(alpha_of(extension) for extension in range(50)) < 0.05 + 1e-12
