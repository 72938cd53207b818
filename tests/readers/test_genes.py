"""Gene lists: which names lead to which gene, and nothing is guessed."""

from __future__ import annotations

import pytest

from tclab.readers import ReadError, dango_genes, sgd_features, sgd_gene_names
from tclab.readers._genes import Genes


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
    assert (genes.place("trehalase"), genes.place("tfc3")) == (-1, -1)  # of two genes, and in another case
    assert genes.report.dropped == {"feature type CDS": 1}


def test_gene_names_are_read(write):
    genes = sgd_gene_names(write("SGDgeneNames.tsv", "Systematic_name\tStandard_name\nYAL001C\tTFC3\nYAL004W\t\n"))
    assert genes.names == ("YAL001C", "YAL004W")
    assert genes.place("TFC3") == 0


def test_lists_are_joined_and_a_name_with_two_owners_becomes_unknown():
    one = Genes(("B", "A"), also={"X": ("A",)})
    other = Genes(("C",), also={"X": ("C",), "Y": ("C",)})
    union = Genes.union([one, other])
    assert union.names == ("A", "B", "C")
    assert [union.place(name) for name in ("Y", "X", "Z", "B")] == [2, -1, -1, 1]


@pytest.mark.parametrize(
    ("read", "text", "why"),
    [
        (sgd_features, ROWS + "S0\tORF\n", "row 5: Expected 16 columns, got 2"),
        (sgd_features, ROWS + row("ORF", ""), "a gene has no name, expected one such as YAL001C"),
        (sgd_features, ROWS + row("ORF", "YAL001C"), "gene 'YAL001C' appears twice"),
        (sgd_features, row("CDS", ""), "none of its 1 rows is a gene"),
        (sgd_gene_names, "name\tStandard_name\nYAL001C\tTFC3\n", "no column 'Systematic_name'"),
        (dango_genes, "YAL001C\nYAL001C", "line 2: gene 'YAL001C' is already on line 1"),
        (dango_genes, "A,B", "line 1: 'A,B', expected one systematic name"),
    ],
)
def test_a_bad_list_is_an_error(write, read, text, why):
    with pytest.raises(ReadError, match=why):
        read(write("genes.tab", text))


def test_the_public_lists_have_their_counts(public):
    genes = sgd_features(public("sgd_features/SGD_features_barseq.tab.gz"))
    assert (genes.report.rows, len(genes)) == (16_454, 6_604)
    assert len(genes.also) > 5_000
    assert sum(len(owners) > 1 for owners in genes.also.values()) > 300
    names = sgd_gene_names(public("yeast_gem_9.0.2/SGDgeneNames.tsv"))
    assert set(names.names) == set(genes.names)
    assert len(dango_genes(public("string_v9.1_dango/yeast_string_genes.txt"))) == 6_400
