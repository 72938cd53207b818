from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tclab import InputError
from tclab.readers._metabolic_model import branches

RULES = st.recursive(
    st.sampled_from("ABCDE"),
    lambda inner: st.tuples(inner, st.sampled_from(["and", "or"]), inner),
    max_leaves=8,
)


def text(rule):
    return rule if isinstance(rule, str) else f"({text(rule[0])} {rule[1]} {text(rule[2])})"


def runs(rule, deleted):
    if isinstance(rule, str):
        return rule not in deleted
    left, right = runs(rule[0], deleted), runs(rule[2], deleted)
    return left and right if rule[1] == "and" else left or right


@given(RULES, st.sets(st.sampled_from("ABCDE")))
def test_some_branch_is_left_exactly_when_the_rule_still_holds(rule, deleted):
    left = [branch for branch in branches(text(rule)) if not set(branch) & deleted]
    assert bool(left) == runs(rule, deleted)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("", []),
        ("A", [("A",)]),
        ("A and B or C", [("A", "B"), ("C",)]),
        ("(A or B) and C", [("A", "C"), ("B", "C")]),
        ("((A AND A) | B)", [("A",), ("B",)]),
        ("A or (A and B)", [("A",), ("A", "B")]),
    ],
)
def test_the_branches_of_a_rule(rule, expected):
    assert branches(rule) == expected


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("(A and B", "opened that is never closed"),
        ("A and B)", "closed that was never opened"),
        ("A B", "'B' after 'A'"),
        ("A and", "ends after 'and'"),
        ("and A", "'and' after"),
        ("()", r"'\)' after '\('"),
        ("(" * 100_000, "ends after"),
        (" and ".join([f"(A{n} or B{n})" for n in range(20)]), "more than 10,000 branches"),
        (" or ".join(f"A{n}" for n in range(100_000)), "is too large"),
        ("(" + " or ".join(f"A{n}" for n in range(5_000)) + ")" + " and X" * 100_000, "is too large"),
    ],
)
def test_a_bad_rule_is_an_error(rule, why):
    with pytest.raises(InputError, match=why):
        branches(rule)
