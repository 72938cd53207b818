"""yeast-GEM: gene rules and the nodes for reaction, branch and direction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tclab import CellGraph
from tclab.perturbation import Deletions
from tclab.perturbation._deletions import removed_by
from tclab.readers import ReadError, yeast_gem
from tclab.readers._yeast_gem import branches

YML = """---
!!omap
- metaData:
    id: "small"
- metabolites:
    - !!omap
      - id: "s_1"
      - name: "ATP"
    - !!omap
      - id: "s_2"
- reactions:
    - !!omap
      - id: "r_1"
      - metabolites: !!omap
          - s_1: -1
          - s_2: 2.5
      - lower_bound: -1000
      - upper_bound: 1000
      - gene_reaction_rule: "(A and B-C) or D"
    - !!omap
      - id: "r_2"
      - metabolites: !!omap
          - s_1: -1
      - lower_bound: 0
      - upper_bound: 1000
"""
GENES = ["A", "B-C", "D"]
# an alias that repeats a reaction in a few bytes
REPEATED = YML.replace("- reactions:\n    - !!omap", "- reactions:\n    - &a !!omap") + "    - *a\n" * 9


def test_a_model_becomes_nodes_for_reaction_branch_and_direction(write):
    gpr, stoichiometry = yeast_gem(write("yeast-GEM.yml", YML), GENES)
    nodes = ("r_1 0 forward", "r_1 0 reverse", "r_1 1 forward", "r_1 1 reverse", "r_2 0 forward")
    assert (gpr.report.node_names, stoichiometry.report.node_names) == (nodes, ("s_1", "s_2"))
    assert gpr.edge_index.tolist() == [[0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 3]]
    assert gpr.cascades
    assert stoichiometry.weight.tolist() == [-1, 2.5, 1, -2.5, -1, 2.5, 1, -2.5, -1]
    graph = CellGraph({"gene": 3, "reaction": 5, "metabolite": 2}, {"gpr": gpr, "stoichiometry": stoichiometry}, "gene")
    removed = removed_by(graph, Deletions.of([[0], [1, 2]], num_nodes=3))["reaction"]
    assert (removed[0].tolist(), removed[1].tolist()) == ([0, 1], [0, 1, 2, 3])


def test_unknown_genes_are_counted_and_a_limit_is_kept(write):
    path = write("yeast-GEM.yml.gz", YML)
    report = yeast_gem(path, ["A", "D"]).gpr.report
    assert (report.dropped, report.unknown) == ({"unknown gene": 2}, ("B-C",))
    with pytest.raises(ReadError, match="6 of 6 gpr incidences"):
        yeast_gem(path, ["X"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            YML.replace("(A and B-C)", "(A and B-C"),
            r"'r_1': ValueError: rule '\(A and B-C or D' cannot be read",
        ),
        (YML.replace("s_1: -1", "s_1: x", 1), "reaction 'r_1': ValueError: could not convert string to float: 'x'"),
        (YML.replace("2.5", ".nan"), "reaction 'r_1': a bound or coefficient is not a finite number"),
        (YML.replace("s_2: 2.5", "s_9: 2.5"), "reaction 'r_1': metabolite 's_9' is not in the model's list"),
        (YML.replace("      - lower_bound: 0\n", ""), "reaction 'r_2': KeyError: 'lower_bound'"),
        (YML.replace('      - id: "r_2"\n', ""), "KeyError: 'id'"),
        (YML.replace("upper_bound: 1000", "lower_bound: 1000", 1), "a key appears twice"),
        (YML.replace('"s_1"\n', '"s_1\n'), r"ScannerError|ParserError"),
        (YML.encode().replace(b"ATP", b"AT\xff"), "byte 0xff is not UTF-8"),
        ("[" * 100_000, "nested too deeply|ParserError"),
        (REPEATED, "reaction 'r_1' appears twice"),
        ("!!python/object:os.system x", "could not determine a constructor"),
    ],
)
def test_a_bad_model_is_an_error_in_one_line(write, text, why):
    with pytest.raises(ReadError, match=why) as caught:
        yeast_gem(write("yeast-GEM.yml", text), GENES)
    assert "yeast-GEM.yml: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yeast_gem_has_its_counts(public):
    gpr, stoichiometry = yeast_gem(public("yeast_gem_9.0.2/yeast-GEM.yml.gz"))
    assert len({name.rsplit(" ", 2)[0] for name in gpr.report.node_names}) == 4_131
    assert (gpr.num_sources, gpr.num_targets, stoichiometry.num_targets) == (1_161, 7_122, 2_806)
    assert (gpr.num_edges, stoichiometry.num_edges) == (5_450, 26_325)


RULES = st.recursive(
    st.sampled_from("ABCDE"), lambda inner: st.tuples(inner, st.sampled_from(["and", "or"]), inner), max_leaves=8
)


def text_of(rule):
    return rule if isinstance(rule, str) else f"({text_of(rule[0])} {rule[1]} {text_of(rule[2])})"


def runs(rule, deleted):
    if isinstance(rule, str):
        return rule not in deleted
    left, right = runs(rule[0], deleted), runs(rule[2], deleted)
    return left and right if rule[1] == "and" else left or right


@given(RULES, st.sets(st.sampled_from("ABCDE")))
def test_some_branch_is_left_exactly_when_the_rule_still_holds(rule, deleted):
    left = [branch for branch in branches(text_of(rule)) if not set(branch) & deleted]
    assert bool(left) == runs(rule, deleted)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("", []),
        ("A", [("A",)]),
        ("A and B or C", [("A", "B"), ("C",)]),
        (" (A\tor B) and YAR002C-A ", [("A", "YAR002C-A"), ("B", "YAR002C-A")]),
        ("((A AND A) Or B)", [("A",), ("B",)]),
        ("A or (A and B)", [("A",), ("A", "B")]),
    ],
)
def test_the_branches_of_a_rule(rule, expected):
    assert branches(rule) == expected


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        *((rule, "cannot be read") for rule in ("(A and B", "A B", "and A", "(" * 100_000)),
        ("()", "is not made of genes"),
        ("A (B)", "is not made of genes"),
        (" and ".join([f"(A{n} or B{n})" for n in range(20)]), "is too large: more than 100,000 branches"),
    ],
)
def test_a_bad_rule_is_an_error(rule, why):
    with pytest.raises(ValueError, match=why):
        branches(rule)
