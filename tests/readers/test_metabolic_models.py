from __future__ import annotations

import json

import pytest
import torch

from tclab import CellGraph
from tclab.perturbation import Deletions
from tclab.perturbation._deletions import removed_by
from tclab.readers import ReadError, bigg_json, metabolism_of, sbml, sgd_features, yeast_gem

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
      - gene_reaction_rule: "(A and B) or C"
    - !!omap
      - id: "r_2"
      - metabolites: !!omap
          - s_1: -1
      - lower_bound: 0
      - upper_bound: 1000
"""
# an alias that repeats a reaction in a few bytes
REPEATED = YML.replace("- reactions:\n    - !!omap", "- reactions:\n    - &a !!omap") + "    - *a\n" * 9
TXT = (
    "Rxn name\tFormula\tGene-reaction association\tLB\tUB\tObjective\n"
    "r_1\tATP[c] <=> 2.5 beta-D (1 + 2)[c] \t(A and B) or C\t-1000.00\t1000.00\t  0.00\n"
    "r_2\tATP[c] => \t\t  0.00\t1000.00\t  0.00\n"
)
JSON = {
    "metabolites": [{"id": "atp_c"}, {"id": "x_c"}],
    "reactions": [
        {
            "id": "R1",
            "metabolites": {"atp_c": -1, "x_c": 2.5},
            "lower_bound": -1000,
            "upper_bound": 1000,
            "gene_reaction_rule": "(A and B) or C",
        },
        {
            "id": "R2",
            "metabolites": {"atp_c": -1},
            "lower_bound": 0,
            "upper_bound": 1000,
            "gene_reaction_rule": "",
        },
    ],
}
SBML = """<?xml version="1.0" encoding="UTF-8"?>
<sbml xmlns="http://www.sbml.org/sbml/level2" level="2" version="1" xmlns:html="http://www.w3.org/1999/xhtml">
<model id="small">
<listOfCompartments><compartment id="c"/></listOfCompartments>
<listOfSpecies><species id="M_atp_c" compartment="c"/><species id="M_x_c" compartment="c"/></listOfSpecies>
<listOfReactions>
<reaction id="R_R1"><notes><html:p>GENE_ASSOCIATION: ( A and B ) or C</html:p></notes>
<listOfReactants><speciesReference species="M_atp_c" stoichiometry="1"/></listOfReactants>
<listOfProducts><speciesReference species="M_x_c" stoichiometry="2.5"/></listOfProducts>
<kineticLaw><math xmlns="http://www.w3.org/1998/Math/MathML"><ci>FLUX_VALUE</ci></math>
<listOfParameters><parameter id="LOWER_BOUND" value="-1000"/><parameter id="UPPER_BOUND" value="1000"/>
</listOfParameters></kineticLaw></reaction>
<reaction id="R_R2" reversible="false">
<listOfReactants><speciesReference species="M_atp_c" stoichiometry="1"/></listOfReactants>
<kineticLaw><math xmlns="http://www.w3.org/1998/Math/MathML"><ci>FLUX_VALUE</ci></math>
<listOfParameters><parameter id="LOWER_BOUND" value="0"/><parameter id="UPPER_BOUND" value="1000"/>
</listOfParameters></kineticLaw></reaction>
</listOfReactions></model></sbml>
"""


def read_yml(write, text=YML):
    return yeast_gem(write("yeast-GEM.yml", text), cache=False)


def read_txt(write, text=TXT):
    return yeast_gem(write("yeast-GEM.txt", text))


def read_json(write, text=None):
    return bigg_json(write("iX.json", text or json.dumps(JSON)))


def read_sbml(write, text=SBML):
    pytest.importorskip("cobra")
    return sbml(write("iX.xml", text), cache=False)


@pytest.mark.parametrize("read", [read_yml, read_txt, read_json, read_sbml])
def test_a_model_becomes_nodes_for_reaction_branch_and_direction(write, read):
    model = read(write)
    metabolism = metabolism_of(model, ["A", "B", "C"])
    assert [name.split(" ", 1)[1] for name in metabolism.gpr.report.node_names] == [
        "0 forward",
        "0 reverse",
        "1 forward",
        "1 reverse",
        "0 forward",
    ]
    assert metabolism.stoichiometry.num_targets == 2
    assert metabolism.gpr.edge_index.tolist() == [[0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 3]]
    assert metabolism.gpr.cascades
    assert metabolism.stoichiometry.weight.tolist() == [-1, 2.5, 1, -2.5, -1, 2.5, 1, -2.5, -1]


def test_deleting_a_gene_loses_the_nodes_whose_branch_needs_it(write):
    metabolism = metabolism_of(read_yml(write), ["A", "B", "C"])
    graph = CellGraph(
        {"gene": 3, "reaction": 5, "metabolite": 2},
        {"gpr": metabolism.gpr, "stoichiometry": metabolism.stoichiometry},
        "gene",
    )
    removed = removed_by(graph, Deletions.of([[0], [1, 2]], num_nodes=3))["reaction"]
    assert removed[0].tolist() == [0, 1]
    assert removed[1].tolist() == [0, 1, 2, 3]


def test_unknown_genes_are_counted_and_a_limit_is_kept(write):
    model = read_yml(write)
    metabolism = metabolism_of(model, ["A", "C"])
    assert metabolism.gpr.report.dropped == {"unknown gene": 2}
    assert metabolism.gpr.report.unknown_examples == ("B",)
    with pytest.raises(ReadError, match="6 of 6 gpr incidences"):
        metabolism_of(model, ["X"])


def test_an_underscore_may_replace_a_hyphen(write):
    text = json.dumps(JSON).replace("(A and B) or C", "YER060W_A")
    metabolism = metabolism_of(read_json(write, text), ["YER060W-A"])
    assert metabolism.gpr.num_edges == 2
    assert metabolism.gpr.report.mapped == 1


@pytest.mark.parametrize(
    ("read", "text", "why"),
    [
        (
            read_yml,
            YML.replace("(A and B)", "(A and B"),
            r"reaction r_1: a bracket is opened that is never closed",
        ),
        (
            read_yml,
            YML.replace("s_1: -1", "s_1: x", 1),
            r"yeast-GEM\.yml, line 15: coefficient of s_1 is 'x'",
        ),
        (
            read_yml,
            YML.replace("s_2: 2.5", "s_9: 2.5"),
            r"line 16: metabolite 's_9' is not in the model's list",
        ),
        (read_yml, YML.replace("      - lower_bound: 0\n", ""), "line 20: lower_bound is missing"),
        (read_yml, YML.replace('      - id: "r_2"\n', ""), "expected id with a word"),
        (read_yml, YML.replace("- reactions:", "- reaction:"), "has no reactions"),
        (read_yml, YML.replace('"s_1"\n', '"s_1\n'), r"line \d+: is not YAML|is not YAML"),
        (read_yml, YML[: len(YML) // 2], r"has no reactions|not YAML|expected"),
        (read_yml, YML.encode().replace(b"ATP", b"AT\xff"), "line 8: byte 0xff is not UTF-8"),
        (read_yml, "[" * 5000, "is not YAML"),
        (read_yml, "- a: &a [x]\n- b: [*a, *a]\n", "has no metabolites"),
        (read_yml, REPEATED, "reaction 'r_1' appears twice"),
        (read_txt, TXT.replace("ATP[c] =>", "ATP[c]" + " " * 200_000), "reaction r_2: no => or <=>"),
        (read_txt, "(" * 300_000 + TXT, "line 1: no column"),
        (read_txt, TXT.replace("\tLB", "\tLower"), "line 1: no column 'LB'"),
        (read_txt, TXT.replace("ATP[c] =>", "ATP[c]"), "reaction r_2: no => or <=>"),
        (read_txt, TXT.replace("ATP[c] =>", "ATP =>"), "reaction r_2: 'ATP', expected one like"),
        (read_txt, TXT.replace("-1000.00", "low"), "reaction r_1: the bounds"),
        (read_txt, TXT[:-8], "line 3: 5 columns between tabs, expected 6"),
        (read_json, json.dumps(JSON)[:100], r"line 1: is not JSON"),
        (read_json, "[" * 100_000, "not JSON"),
        (read_json, "{}", "has no lists called metabolites and reactions"),
        (read_json, json.dumps(JSON).replace("-1000", '"low"'), "reaction R1 has lower_bound 'low'"),
        (read_json, json.dumps(JSON).replace("2.5", "NaN"), "reaction R1 has 'nan'"),
        (read_sbml, SBML.replace("<sbml", '<!DOCTYPE x [<!ENTITY a "aa">]><sbml'), "line 2: holds <!DOCTYPE"),
        (read_sbml, SBML.replace("UTF-8", "UTF-16"), "line 1: is encoded in UTF-16"),
        (read_sbml, SBML.encode() + b"\xff", "is not UTF-8"),
        (read_sbml, SBML[: len(SBML) // 2], "is not SBML that cobra can read"),
        (read_sbml, "<html></html>", "has no <sbml> element"),
        (read_sbml, SBML.replace("( A and B )", "( A and B"), "holds a rule that cannot be read"),
    ],
)
def test_a_bad_model_is_an_error_in_one_line(write, read, text, why):
    with pytest.raises(ReadError, match=why) as caught:
        metabolism_of(read(write, text), ["A", "B", "C"])
    assert "\n" not in str(caught.value)


def test_a_missing_metabolite_is_an_error(write):
    text = json.dumps(JSON).replace('{"id": "x_c"}', '{"id": "y_c"}')
    with pytest.raises(ReadError, match="reaction R1 has no known metabolite 'x_c'"):
        metabolism_of(read_json(write, text), ["A", "B", "C"])


def test_what_was_read_once_is_kept_under_its_hash(write, tmp_path):
    path = write("yeast-GEM.yml", YML)
    cache = tmp_path / "cache"
    model = yeast_gem(path, cache=cache)
    (kept,) = cache.iterdir()
    assert yeast_gem(path, cache=cache) == model
    kept.write_text(kept.read_text().replace("r_2", "from the cache"))
    assert yeast_gem(path, cache=cache).reactions[1].name == "from the cache"
    kept.write_text("{")
    assert yeast_gem(path, cache=cache) == model
    write("yeast-GEM.yml", YML.replace("r_2", "r_3"))
    assert yeast_gem(path, cache=cache).reactions[1].name == "r_3"
    assert len(list(cache.iterdir())) == 2


@pytest.fixture(scope="module")
def public_model(public, tmp_path_factory):
    return yeast_gem(public("yeast_gem_9.0.2/yeast-GEM.yml.gz"), cache=tmp_path_factory.mktemp("cache"))


def test_yeast_gem_has_its_counts(public_model):
    assert (len(public_model.reactions), len(public_model.metabolites), len(public_model.genes)) == (
        4_131,
        2_806,
        1_161,
    )
    metabolism = metabolism_of(public_model)
    assert (metabolism.gpr.num_targets, metabolism.stoichiometry.num_targets) == (7_122, 2_806)
    assert (metabolism.gpr.num_edges, metabolism.stoichiometry.num_edges) == (5_450, 26_325)


def test_both_files_of_yeast_gem_say_the_same(public_model, public):
    table = yeast_gem(public("yeast_gem_9.0.2/yeast-GEM.txt.gz"))
    metabolism, again = metabolism_of(public_model), metabolism_of(table)
    assert torch.equal(metabolism.gpr.edge_index, again.gpr.edge_index)
    assert again.stoichiometry.num_targets == 2_806
    for one, other in zip(public_model.reactions, table.reactions, strict=True):
        assert (one.name, one.lower, one.upper) == (other.name, other.lower, other.upper)
        weights = [sorted(each.coefficients.values()) for each in (one, other)]
        assert weights[1] == pytest.approx(weights[0], rel=1e-4)  # the table writes five digits
    rules = [reaction.rule for reaction in table.reactions]
    both = sum(" and " in rule and " or " in rule for rule in rules)
    assert both == 50
    assert sum(" and " in rule for rule in rules) - both == 159
    assert sum(" or " in rule for rule in rules) - both == 541
    assert rules.count("") == 1_422


def test_the_bigg_models_have_their_counts(public):
    model = bigg_json(public("bigg_yeast/iMM904.json.gz"))
    assert (len(model.reactions), len(model.metabolites), len(model.genes)) == (1_577, 1_226, 905)
    rules = [reaction.rule for reaction in model.reactions]
    both = sum(" and " in rule and " or " in rule for rule in rules)
    assert (rules.count(""), both) == (534, 51)
    genes = sgd_features(public("sgd_features/SGD_features_barseq.tab.gz"))
    report = metabolism_of(model, genes).gpr.report
    assert report.mapped == 10
    assert "UNKNOWN" in report.unknown_examples


def test_the_sbml_model_has_its_counts(public):
    pytest.importorskip("cobra")
    model = sbml(public("bigg_yeast/iMM904.xml.gz"), cache=False)
    assert (len(model.reactions), len(model.metabolites)) == (1_577, 1_392)
    assert sum(bool(reaction.rule) for reaction in model.reactions) == 1_043
