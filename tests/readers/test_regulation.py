from __future__ import annotations

import pytest

from tclab.readers import ReadError, sgd_features, sgd_regulation, tflink, yeastract
from tclab.readers._gene_names import Genes

GENES = Genes(("YEL009C", "YOR202W", "YPR015C"), standard={"GCN4": ("YEL009C",), "HIS3": ("YOR202W",)})
SIMPLE = "UniprotID.TF\tName.TF\tName.Target\tOrganism\tSmall-scale.evidence\n"
SIMPLE_ROWS = (
    "P1\tGCN4\tHIS3\tSaccharomyces cerevisiae\tYes\n"
    "P1\tGCN4\tGCN4\tSaccharomyces cerevisiae\tNo\n"
    "P1\tGCN4\t-\tSaccharomyces cerevisiae\tNo\n"
    "P1\tNANOG\tDKK1\tHomo sapiens\tYes\n"
)
REGULATION = (
    "! Regulation annotations\n\n"
    "Regulator\tRegulator Systematic Name\tTarget\tTarget Systematic Name\tDirection\n"
    "GCN4\tYEL009C\tHIS3\tYOR202W\tpositive\n"
    "GCN4\tYEL009C\tHIS3\tYOR202W\t\n"
)


def test_tflink_is_filtered_by_organism_and_evidence(write):
    path = write("TFLink_x_simpleFormat_v1.0.tsv.gz", SIMPLE + SIMPLE_ROWS)
    network = tflink(path, GENES)
    assert network.edge_index.tolist() == [[0, 0], [0, 1]]
    assert network.directed
    assert network.report.dropped == {"organism is not Saccharomyces cerevisiae": 1, "unknown gene": 1}
    assert network.report.unknown_examples == ("-",)
    assert tflink(path, GENES, small_scale=True).num_edges == 1
    assert tflink(path, ["NANOG", "DKK1"], organism="Homo sapiens").num_edges == 1


def test_a_factors_targets_need_its_name(write):
    path = write("targets_of_P1.tsv", SIMPLE + SIMPLE_ROWS)
    assert tflink(path, GENES, factor="GCN4").edge_index.tolist() == [[0, 0], [0, 1]]
    with pytest.raises(ReadError, match="factor 'GCN5' is not in the gene list"):
        tflink(path, GENES, factor="GCN5")


def test_sgds_and_yeastmines_tables_give_the_same(write):
    network = sgd_regulation(write("GCN4_regulation.txt", REGULATION), GENES)
    assert network.edge_index.tolist() == [[0], [1]]
    assert network.report.dropped == {"duplicate edge": 1}
    mine = REGULATION.replace("Target Systematic", "Gene Systematic").replace("\t", ",")
    assert sgd_regulation(write("x_regulation.csv", mine), GENES).fingerprint() == network.fingerprint()


def test_a_matrix_holds_an_edge_for_each_one(write):
    text = ";HIS3;GCN4;NIP100\nGcn4p;1;1;1\nYPR015C;1;0;0\n"
    network = yeastract(write("RegulationMatrix_both.csv", text), GENES)
    assert network.name == "yeastract_both"
    assert network.edge_index.tolist() == [[0, 0, 2], [0, 1, 1]]
    assert network.report.unknown_examples == ("NIP100",)


def test_pairs_name_the_target_first_and_the_protein_second(write):
    text = "YOR202W,Gcn4p\r\nYEL009C,YPR015C\r\nYOR202W,Gcn5p\r\n"
    network = yeastract(write("yeastract_orf_tf.csv", text), GENES)
    assert network.edge_index.tolist() == [[0, 2], [1, 0]]
    assert network.report.unknown_examples == ("Gcn5p",)


@pytest.mark.parametrize(
    ("read", "text", "why"),
    [
        (tflink, SIMPLE.replace("Organism", "Species") + SIMPLE_ROWS, "line 1: no column 'Organism'"),
        (tflink, SIMPLE + SIMPLE_ROWS + "P1\tGCN4\n", "line 6: 2 columns between tabs, expected 5"),
        (tflink, SIMPLE, "no rows"),
        (
            sgd_regulation,
            REGULATION.replace("Target Systematic", "Target"),
            "no column 'Target Systematic Name'",
        ),
        (sgd_regulation, REGULATION + "GCN4\n", "line 6: 1 column between tabs, expected 5"),
        (yeastract, ";HIS3;GCN4\nGcn4p;1\n", "line 2: 2 columns between semicolons, expected 3"),
        (yeastract, ";HIS3;GCN4\nGcn4p;1;2\n", "line 2: a cell is '2', expected 0 or 1"),
        (yeastract, ";HIS3;GCN4\n", "no rows"),
        (yeastract, "YOR202W,Gcn4p\nYOR202W\n", "line 2: 1 column between commas, expected 2"),
    ],
)
def test_a_bad_table_is_an_error_with_file_and_line(write, read, text, why):
    with pytest.raises(ReadError, match=why):
        read(write("table.tsv", text), GENES)


def test_a_files_name_says_which_of_the_three_tables_it_is_and_else_its_first_line(write):
    with pytest.raises(ReadError, match="line 1: 'HIS3;GCN4', expected an empty cell"):
        yeastract(write("RegulationMatrix_both.csv", "HIS3;GCN4\n"), GENES)
    assert yeastract(write("mine.csv", "HIS3;GCN4\n"), GENES).report.rows == 1
    assert yeastract(write("mine.csv", ";HIS3\nGCN4;1\n"), GENES).num_edges == 1
    with pytest.raises(ReadError, match="has systematic names; expected genes"):
        yeastract(write("yeastract_orf_tf.csv", "YOR202W,Gcn4p\n"))


def test_the_public_tables_have_their_rows(public):
    genes = sgd_features(public("sgd_features/SGD_features_barseq.tab.gz"))
    pairs = yeastract(public("yeastract/igem_yeastract_orf_tf_1_999.csv.gz"), genes)
    assert pairs.report.rows == 27_498
    targets = tflink(public("tflink_excerpt/targets_of_P03069_GCN4_excerpt.tsv"), genes, factor="GCN4")
    assert (targets.report.rows, targets.num_edges) == (14, 12)  # two have no name
    human = tflink(public("tflink_excerpt/simpleFormat_header_and_2_human_rows.tsv"), genes)
    assert human.report.dropped == {"organism is not Saccharomyces cerevisiae": 2}
