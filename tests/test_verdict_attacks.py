"""Attacks on a verdict: noise that hits one arm alone, waves and drifts that hit both, stalls, the luck of processes.

`benchmarks/verdicts.py` has them, and measures their rates on 200 races each; here a few races stand for it, and with
the marker `nightly` 60 of each.
"""

import numpy as np
import pytest
from scipy.stats import binomtest
from synthetic_machine import pair_of
from verdicts import ALIKE, APART, EQUAL, MILD, NEARLY, UNSEEN, Attack, folders, hits

from tclab.timing._verdict import FASTER, SAME, SLOWER, UNDECIDED, _ends

NIGHTLY = pytest.mark.nightly


def some(attacks, what, share, quick=()):
    """Return each attack with 60 races a cell, and those that `quick` names with 12 of the last in the quick part, too.

    Of its verdicts at most, or at least, a share are what it says.
    """
    named = [attack for attack in attacks if any(text in attack.name for text in quick)]
    return [
        *(pytest.param(one, one.cells, what, share, 60, marks=NIGHTLY, id=f"{what}: {one.name}") for one in attacks),
        *(pytest.param(one, one.cells[-1:], what, share, 12, id=f"{what}: {one.name}, few") for one in named),
    ]


QUICK = ["redrawn every 5 s", "30 %, memory 5 s", "period of 2 rounds", "first position", "stalls", "luck of 3", "four"]


@pytest.mark.parametrize(
    ("attack", "cells", "what", "share", "races"),
    [
        *some([*EQUAL, *UNSEEN], "false", 0.05, [*QUICK, "eight rounds"]),
        *some(NEARLY, "wrongly SAME", 0.05, ["2.02 % apart, noise"]),
        *some([attack for attack in APART if "10 %" in attack.name], "found", 0.95, ["10 %"]),
        *some([attack for attack in APART if "5 %" in attack.name], "found", 0.8),
        *some(ALIKE, "SAME", 0.85, ["memory 0.5"]),
    ],
)
def test_verdicts_are_as_seldom_wrong_and_as_often_found_as_is_promised(attack, cells, what, share, races):
    for cell in cells:
        told = hits(attack, what, races, cell)
        side = "greater" if what in ("false", "wrongly SAME") else "less"
        assert binomtest(told, races, share, alternative=side).pvalue > 0.01, (cell, told)


def test_the_margin_that_is_asked_for_is_the_one_that_decides():
    samples = Attack("apart", MILD, ratio=1 / 1.04).samples(0, 1280, 0.01)
    assert {margin: pair_of(samples, margin).verdict for margin in (0.01, 0.08)} == {0.01: FASTER, 0.08: SAME}


@pytest.mark.parametrize(("largest", "verdict"), [(0.0186, SAME), (0.019, UNDECIDED)])
def test_same_leaves_an_eighth_of_the_way_between_processes_that_ran_two_parts_each(largest, verdict):
    parts = np.array([-0.005, -0.005, 0.0, 0.0, 0.01, 0.01, largest, largest])
    said, _, high = _ends(parts, 0.02, apart=False)
    assert (said, high < 1.02, _ends(parts, 0.02)[0]) == (verdict, said == SAME, SAME)


@pytest.mark.parametrize("factor", [0.01, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("heavy", [False, True])
def test_independent_noise_of_any_form_and_strength_finds_no_difference(heavy, factor):
    """Eight parts lie on one side of the truth with probability 0.8 %: three of 60 races have a chance of 1 %."""
    generator, false = np.random.default_rng(1), 0
    for seed in range(60):
        samples = Attack("still").samples(seed, 8, 0.0)
        for one in samples:
            draw = generator.standard_cauchy() if heavy else generator.standard_normal()
            one["seconds"] *= np.exp(np.clip(factor * draw, -20, 20))
        false += pair_of(samples).verdict in (FASTER, SLOWER)
    assert false <= 3


# ---- folders


@pytest.mark.parametrize(
    ("runs", "pairs", "found"), [((1, 1), 8, 0.0), ((4, 1), 8, 0.0), ((3, 3), 60, 0.5), ((5, 5), 60, 0.95)]
)
def test_folders_of_equal_points_are_told_apart_in_at_most_five_percent_and_one_run_decides_nothing(runs, pairs, found):
    false = told = 0
    for seed in range(pairs):
        generator = np.random.default_rng([seed, 17])
        equal, apart = (folders(generator, runs, (0.02, 0.02), ratio) for ratio in (1.0, 0.9))
        false += equal[FASTER] + equal[SLOWER] > 0
        told += apart[FASTER]
        assert min(runs) > 1 or {*equal, *apart} == {UNDECIDED}
    assert false <= 7  # more have a chance of 1 % where each has 5 %
    assert told >= found * pairs * 8
