"""Attacks on a verdict: noise that hits one arm alone, drifts, stretches, states, waves, the luck of processes.

`benchmarks/verdicts.py` has them, and measures their rates on 200 races each; here a few races stand for it, and with
the marker `nightly` 60 of each.
"""

import numpy as np
import pytest
from scipy.stats import binomtest
from synthetic_machine import pair_of, slow_in_turn
from verdicts import ALIKE, APART, EQUAL, MILD, NEARLY, UNSEEN, Attack, counted

from tclab.timing._statistics import Series, centre_of
from tclab.timing._verdict import ALPHA, FASTER, SAME, SLOWER, UNDECIDED

NIGHTLY = pytest.mark.nightly
STILL = {"quiet": True, "independent": 0.0}


def some(attacks, what, share, quick=()):
    """Return each attack with 60 races, and those that `quick` names with 12 in the quick part, too.

    Of its verdicts at most, or at least, a share are what it says.
    """
    named = [attack for attack in attacks if any(text in attack.name for text in quick)]
    return [
        *(pytest.param(attack, what, share, 60, marks=NIGHTLY, id=f"{what}: {attack.name}") for attack in attacks),
        *(pytest.param(attack, what, share, 12, id=f"{what}: {attack.name}, few") for attack in named),
    ]


FAR = [attack for attack in APART if "10 %" in attack.name]
NEAR = [attack for attack in APART if attack not in FAR]
LASTING = ["two states 6", "waves", "1/f", "luck of 1", "memory 60 s, one", "strength changes", "throttled"]


@pytest.mark.parametrize(
    ("attack", "what", "share", "races"),
    [
        *some([*EQUAL, *UNSEEN], "false", ALPHA, LASTING),
        *some(NEARLY, "wrongly SAME", ALPHA, ["0.3 %"]),
        *some(FAR, "found", 0.95, ["10 %"]),
        *some(NEAR, "found", 0.8),
        *some(ALIKE[1:2], "SAME", 0.9, ["equal"]),
    ],
)
def test_verdicts_are_as_seldom_wrong_and_as_often_found_as_is_promised(attack, what, share, races):
    hit, counts = counted(attack, what, races, 60.0)
    side = "greater" if what in ("false", "wrongly SAME") else "less"
    assert binomtest(hit, races, share, alternative=side).pvalue > 0.01, counts
    assert what != "found" or counts[SLOWER] == 0


LAWS = {
    "of no mean": lambda generator, size: generator.standard_cauchy(size),
    "of two values": lambda generator, size: generator.choice([-0.3, 0.3], size),
    "normal": lambda generator, size: generator.normal(0, 1, size),
    "of unlike parts": lambda generator, size: generator.normal(0, np.exp(generator.normal(0, 3, size)), size),
}


def test_a_verdict_says_what_it_excludes_and_how_long_noise_may_last():
    pair = Attack("mild", MILD, 1 / 1.1, quiet=True).pair(0, 60.0)
    assert pair.why == (
        "the 97.5% interval with all 8 parts of the race lies beyond ±2%; differences above "
        f"{100 * pair.excluded:.2g}% are excluded; it holds unless noise of one arm lasts longer than 7.5 s; "
        "it is of this process alone"
    )
    assert pair.excluded == max(1 - pair.interval[0], pair.interval[1] - 1)
    assert pair.needs_seconds is None
    same = ALIKE[1].pair(0, 60.0)
    assert same.verdict == SAME
    assert same.excluded < 0.02


def test_where_luck_decides_more_processes_are_what_is_needed():
    pair = Attack("lucky", processes=4, luck=0.03, quiet=True).pair(1, 60.0)
    assert pair.verdict == UNDECIDED
    assert "the luck of 4 processes limits it, not the seconds: more processes may decide, or this one" in pair.why
    assert pair.needs_seconds is None


@pytest.mark.parametrize("processes", [1, 4])
def test_an_interval_of_more_than_a_factor_of_ten_excludes_nothing(processes):
    samples = Attack("lucky", processes=processes, quiet=True).samples(1, 60.0)
    spread = np.random.default_rng(0).normal(0, 3, (max(one["round"] for one in samples) + 1) * (processes == 1))
    luck = dict(zip(range(4), (2.0, -2.0, 1.0, -1.0), strict=True)) if processes > 1 else {}
    for one in samples:
        if one["arm"] == "a":
            one["seconds"] *= np.exp(luck[one["process"]] if luck else spread[one["round"]])
    pair = pair_of(samples)
    assert (pair.verdict, pair.interval[1] > 10 * pair.interval[0]) == (UNDECIDED, True)
    assert "measurements differ too much from one another to say more; " in pair.why
    assert "excluded" not in pair.why
    assert ("the luck of 4 processes limits it" in pair.why) == (processes == 4)


def test_the_margin_that_is_asked_for_is_the_one_that_decides():
    samples = Attack("apart", MILD, 1 / 1.04, quiet=True).samples(0, 300.0)
    assert {margin: pair_of(samples, margin).verdict for margin in (0.02, 0.08)} == {0.02: FASTER, 0.08: SAME}


@pytest.mark.parametrize(("slower", "verdict"), [(0.06, SAME), (0.3, UNDECIDED)])
def test_noise_alone_calls_nothing_the_same_beyond_ten_percent(slower, verdict):
    """Their ratio is known well, but no arm is like itself."""
    pair = pair_of(slow_in_turn(Attack("still", **STILL, ratio=0.96).samples(0, 60.0), slower))
    assert pair.verdict == verdict, pair
    assert pair.margin == pytest.approx(slower, rel=0.1)
    assert " lies within ±" in pair.why
    assert ("a margin so wide by noise that nothing is called the same" in pair.why) == (verdict == UNDECIDED)


@pytest.mark.parametrize("rounds", [6, 8, 12, 24])
@pytest.mark.parametrize("law", LAWS)
def test_an_interval_of_few_rounds_misses_no_more_often_than_it_says(rounds, law):
    generator = np.random.default_rng(1)
    missed = 0
    for _ in range(60):
        values = 0.01 * LAWS[law](generator, rounds)
        low, high = centre_of(Series(values, np.arange(rounds) * 0.1, np.zeros(rounds, int))).interval(0.95)
        missed += not low <= 0 <= high
    assert binomtest(missed, 60, 0.05, alternative="greater").pvalue > 0.01


@pytest.mark.parametrize("processes", [1, 2])
def test_times_that_never_vary_have_an_interval_of_no_width(processes):
    series = Series(np.full(24, 0.1), np.arange(24) * 0.1, np.arange(24) * processes // 24)
    assert centre_of(series).interval(0.9999) == pytest.approx((0.1, 0.1), abs=1e-6)
