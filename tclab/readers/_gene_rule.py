"""Gene-protein-reaction rules: `(A and B) or C` to its disjunctive normal form."""

from __future__ import annotations

import re

from tclab.errors import InputError

MOST_WORK = 3_000_000  # gene names copied while a rule is expanded: a second or so
MOST_BRANCHES = 10_000  # yeast-GEM's longest rule has a few dozen; ands of ors grow without end

Branches = frozenset[frozenset[str]]

_TOKEN = re.compile(r"\(|\)|[^\s()]+")


def branches(rule: str) -> list[tuple[str, ...]]:
    """Return the branches of a rule's disjunctive normal form, each its genes in order; none for no rule.

    A reaction can run by any one branch, and a branch needs all its genes. `and` binds before `or`; `AND`,
    `&`, `&&`, `OR`, `|` and `||` say the same. A branch that needs all that another needs, and more, is kept:
    it is another enzyme.

    **Raises:** `InputError` for unbalanced brackets, a gene or an operator in the wrong place, more than
    `MOST_BRANCHES` branches, or a rule that would take more than `MOST_WORK`.
    """
    values: list[Branches] = []
    # operators and open brackets: Dijkstra's shunting yard, so that depth costs nothing
    waiting: list[str] = []
    before = "("
    work = 0

    def apply(operator: str) -> None:
        nonlocal work
        right, left = values.pop(), values.pop()
        work += _work(operator, left, right)
        if work > MOST_WORK or (operator == "and" and len(left) * len(right) > MOST_BRANCHES):
            raise InputError(f"rule {_cut(rule)} is too large: more than {MOST_BRANCHES:,} branches, or nearly")
        both = (one | other for one in left for other in right)
        values.append(left | right if operator == "or" else frozenset(both))

    for token in _TOKEN.findall(rule):
        word = _word(token)
        needs_value = before in ("(", "and", "or")
        if needs_value != (word not in ("and", "or", ")")):
            expected = "a gene or an opening bracket" if needs_value else "and, or, or a closing bracket"
            raise InputError(f"{_cut(token)} after {_cut(before)} in rule {_cut(rule)}, expected {expected}")
        if word == "(":
            waiting.append(word)
        elif word == ")":
            while waiting and waiting[-1] != "(":
                apply(waiting.pop())
            if not waiting:
                raise InputError(f"a bracket is closed that was never opened in rule {_cut(rule)}")
            waiting.pop()
        elif word in ("and", "or"):
            while waiting and (waiting[-1] == "and" or waiting[-1] == word):
                apply(waiting.pop())
            waiting.append(word)
        else:
            values.append(frozenset([frozenset([token])]))
        before = word
    if not values and not waiting:
        return []
    if before in ("(", "and", "or"):
        raise InputError(f"rule {_cut(rule)} ends after {_cut(before)}, expected a gene")
    while waiting:
        if waiting[-1] == "(":
            raise InputError(f"a bracket is opened that is never closed in rule {_cut(rule)}")
        apply(waiting.pop())
    return sorted(tuple(sorted(genes)) for genes in values[0])


def _word(token: str) -> str:
    lower = token.lower()
    if lower in ("and", "&", "&&"):
        return "and"
    return "or" if lower in ("or", "|", "||") else token


def _work(operator: str, left: Branches, right: Branches) -> int:
    """Return how many names are copied when two parts of a rule are joined."""
    if operator == "or":
        return len(left) + len(right)
    return len(right) * sum(map(len, left)) + len(left) * sum(map(len, right))


def _cut(rule: str) -> str:
    return repr(rule if len(rule) <= 60 else rule[:59] + "…")
