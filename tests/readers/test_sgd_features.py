from __future__ import annotations

import pytest

from tclab.readers import ReadError, sgd_features, sgd_gene_names
from tclab.readers._gene_names import Genes


def row(kind, name, standard="", alias="", qualifier="Verified"):
    return "\t".join(["S0", kind, qualifier, name, standard, alias, *[""] * 10]) + "\n"


ROWS = (
    row("ORF", "YBR001C", "NTH2", "trehalase")
    + row("CDS", "")
    + row("ORF", "YAL001C", "TFC3", "FUN24|trehalase|NTH2|TSV115")
    + row("ORF", "YAL069W", qualifier="Dubious")
)


def test_names_and_aliases_lead_to_genes_and_nothing_is_guessed(write):
    genes = sgd_features(write("SGD_features.tab", ROWS))
    assert genes.names == ("YAL001C", "YAL069W", "YBR001C")
    assert genes.place("YAL001C") == genes.place("TFC3") == genes.place("FUN24") == 0
    assert genes.place("NTH2") == 2  # a standard name, though another gene has it as an alias
    assert genes.place("trehalase") == -2
    assert genes.place("tfc3") == -1
    assert genes.ambiguous == {"trehalase": ("YAL001C", "YBR001C")}
    assert genes.report.dropped == {"feature type CDS": 1}
    assert len(genes.report.notes) == 2


def test_which_features_are_genes_is_a_parameter(write):
    genes = sgd_features(write("SGD_features.tab", ROWS), qualifiers=["Verified", "Uncharacterized"])
    assert genes.names == ("YAL001C", "YBR001C")
    assert genes.report.dropped["qualifier Dubious"] == 1


def test_lists_are_joined_and_a_name_with_two_owners_becomes_ambiguous():
    one = Genes(("B", "A"), standard={"X": ("A",)})
    other = Genes(("C",), standard={"X": ("C",), "Y": ("C",)})
    union = Genes.union([one, other])
    assert union.names == ("A", "B", "C")
    assert union.ambiguous == {"X": ("A", "C")}
    assert [union.place(name) for name in ("Y", "X", "Z", "B")] == [2, -2, -1, 1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (ROWS + "S0\tORF\n", "line 5: 2 columns between tabs, expected 16"),
        (ROWS.replace("\t", ";"), "line 1: 1 column between tabs"),
        (ROWS + row("ORF", ""), "ORF 'S0' has no feature name"),
        (ROWS + row("ORF", "YAL001C"), "gene 'YAL001C' appears twice"),
        (row("CDS", ""), "none of its 1 rows is a gene"),
        (ROWS.encode() + row("ORF", "Y").encode()[:-1] + b"\xff\n", "not UTF-8"),
    ],
)
def test_bad_features_are_errors(write, text, why):
    if "UTF-8" in why:
        text = text.replace(b"TFC3", b"TFC\xff")
    with pytest.raises(ReadError, match=why):
        sgd_features(write("SGD_features.tab", text))


def test_gene_names_are_read(write):
    genes = sgd_gene_names(write("SGDgeneNames.tsv", "Systematic_name\tStandard_name\nYAL001C\tTFC3\nYAL004W\t\n"))
    assert genes.names == ("YAL001C", "YAL004W")
    assert genes.place("TFC3") == 0
    with pytest.raises(ReadError, match="line 1: no column 'Systematic_name'"):
        sgd_gene_names(write("SGDgeneNames.tsv", "name\tStandard_name\nYAL001C\tTFC3\n"))


def test_the_public_lists_have_their_counts(public):
    genes = sgd_features(public("sgd_features/SGD_features_barseq.tab.gz"))
    assert (genes.report.rows, len(genes)) == (16_454, 6_604)
    assert len(genes) - len({gene for owners in genes.standard.values() for gene in owners}) == 1_460
    assert "407 aliases belong to several genes" in genes.report.notes
    assert "100 aliases are another gene's standard name" in genes.report.notes
    assert sum(name.startswith("Q") for name in genes.names) == 28
    verified = sgd_features(public("sgd_features/SGD_features_barseq.tab.gz"), qualifiers=["Verified"])
    assert len(verified) == 5_155 + 4  # four of them are "Verified|silenced_gene"
    names = sgd_gene_names(public("yeast_gem_9.0.2/SGDgeneNames.tsv"))
    assert len(names) == 6_604
    assert set(names.names) == set(genes.names)
