"""Published tables of edges: which rows become which edges, in any order, and what a bad row says."""

from __future__ import annotations

import random

import pytest
import torch

from tclab import InputError
from tclab.readers import (
    ReadError,
    biogrid,
    dango_genes,
    sgd_features,
    sgd_regulation,
    string_dango,
    string_links,
    tflink,
)
from tclab.readers._genes import Genes

GENES = ["YAL001C", "YAL002W", "YBR001C"]
NAMED = Genes(("YEL009C", "YOR202W", "YPR015C"), also={"GCN4": ("YEL009C",), "HIS3": ("YOR202W",)})
BIOGRID = (
    "#BioGRID Interaction ID\tSystematic Name Interactor A\tSystematic Name Interactor B\t"
    "Experimental System Type\tOrganism ID Interactor A\tOrganism ID Interactor B\n"
    "1\tYAL001C\tYBR001C\tphysical\t559292\t559292\n"
    "2\tYBR001C\tYAL001C\tphysical\t559292\t559292\n"
    "3\tYAL001C\tYAL002W\tgenetic\t559292\t559292\n"
    "4\tYAL002W\tYAL002W\tphysical\t559292\t559292\n"
    "5\tYAL002W\t-\tphysical\t559292\t9606\n"
)
TFLINK = (
    "UniprotID.TF\tName.TF\tName.Target\tOrganism\n"
    "P1\tGCN4\tHIS3\tSaccharomyces cerevisiae\n"
    "P1\tGCN4\tGCN4\tSaccharomyces cerevisiae\n"
    "P1\tGCN4\t-\tSaccharomyces cerevisiae\n"
    "P1\tNANOG\tDKK1\tHomo sapiens\n"
)
REGULATION = (
    "! Regulation annotations\n\n"
    "Regulator\tRegulator Systematic Name\tTarget\tTarget Systematic Name\tDirection\n"
    "GCN4\tYEL009C\tHIS3\tYOR202W\tpositive\n"
    "GCN4\tYEL009C\tHIS3\tYOR202W\t\n"
)
LINKS_FILE = "4932.protein.links.detailed.v12.0.txt"
LINKS = (
    "protein1 protein2 neighborhood fusion cooccurence coexpression experimental database textmining combined_score\n"
    "4932.YAL001C 4932.YAL002W 0 0 0 300 900 0 0 910\n"
    "4932.YAL002W 4932.YAL001C 0 0 0 300 900 0 0 910\n"
    "4932.YBR001C 4932.YAL001C 0 0 0 200 0 0 0 200\n"
    "4932.YAL001C 4932.YBR001C 0 0 0 200 0 0 0 200\n"
    "4932.Q0010 4932.YAL001C 0 0 0 200 0 0 0 200\n"
)
DANGO_FILE = "yeast_string_fusion_adjacency.txt"
DANGO = "1\t3\t0.5\n3\t1\t0.5\n2\t4\t0.9\n4\t2\t0.9\n"


@pytest.fixture
def dango(write):
    """Return a function that writes an adjacency with its gene list, and gives its path."""

    def made(rows=DANGO, name=DANGO_FILE, genes="YAL001C\nYAL002W\nYBR001C\nYCL001W"):
        write("yeast_string_genes.txt", genes)
        return write(name, rows)

    return made


def test_biogrids_physical_interactions_of_yeast_become_a_network(write):
    path = write("BIOGRID-ALL-4.4.200.tab3.txt", BIOGRID)
    network = biogrid(path, GENES)
    assert (network.name, network.directed) == ("biogrid_physical", False)
    assert network.edge_index.tolist() == [[0, 1], [2, 1]]
    assert network.report.dropped == {
        "system_type is not physical": 1,
        "organism is not 559292": 1,
        "reverse of an undirected edge": 1,
    }
    assert biogrid(path, GENES, system_type="genetic").num_edges == 1
    both = biogrid(path, GENES, system_type=None, organism=None)
    assert (both.name, both.report.dropped["unknown gene"], both.num_edges) == ("biogrid", 1, 3)
    with pytest.raises(InputError, match="unknown experimental system type 'phsical'; did you mean 'physical'"):
        biogrid(path, GENES, system_type="phsical")


def test_tflink_is_filtered_by_organism(write):
    path = write("TFLink_x_simpleFormat_v1.0.tsv.gz", TFLINK)
    network = tflink(path, NAMED)
    assert network.edge_index.tolist() == [[0, 0], [0, 1]]
    assert network.directed
    assert network.report.dropped == {"organism is not Saccharomyces cerevisiae": 1, "unknown gene": 1}
    assert network.report.unknown == ("-",)
    assert tflink(path, ["NANOG", "DKK1"], organism="Homo sapiens").num_edges == 1


def test_sgds_and_yeastmines_tables_give_the_same(write):
    network = sgd_regulation(write("GCN4_regulation.txt", REGULATION), NAMED)
    assert network.edge_index.tolist() == [[0], [1]]
    assert network.report.dropped == {"duplicate edge": 1}
    mine = REGULATION.replace("Target Systematic", "Gene Systematic").replace("\t", ",")
    assert sgd_regulation(write("x_regulation.csv", mine), NAMED).fingerprint() == network.fingerprint()


def test_each_channel_of_string_becomes_a_network(write):
    networks = string_links(write(LINKS_FILE, LINKS), GENES)
    assert list(networks) == [
        f"string12_0_{channel}"
        for channel in ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")
    ]
    network = networks["string12_0_coexpression"]
    assert network.edge_index.tolist() == [[0, 0], [1, 2]]
    assert (network.weight, network.directed) == (None, False)
    report = network.report
    assert report.scores.tolist() == [300, 200]
    assert (report.rows, report.kept, report.unknown) == (5, 2, ("4932.Q0010",))
    assert report.dropped == {"unknown gene": 1, "reverse of an undirected edge": 2}
    assert networks["string12_0_fusion"].num_edges == 0


def test_strings_threshold_and_channels_are_parameters(write):
    path = write(LINKS_FILE + ".gz", LINKS)
    networks = string_links(path, GENES, threshold=300, channels=["combined", "coexpression"])
    assert list(networks) == ["string12_0_combined", "string12_0_coexpression"]
    assert networks["string12_0_coexpression"].report.dropped["score below 300"] == 2
    with pytest.raises(InputError, match="unknown channel 'coexpresion'; did you mean 'coexpression'"):
        string_links(path, GENES, channels=["coexpresion"])
    with pytest.raises(InputError, match="threshold is 1001, expected 0 to 1000"):
        string_links(path, GENES, threshold=1001)
    plain = write("4932.protein.links.v11.5.txt", "protein1 protein2 combined_score\n4932.YAL001C 4932.YBR001C 7\n")
    (network,) = string_links(plain, GENES).values()
    assert network.name == "string11_5_combined"


def test_strings_full_table_is_refused_with_the_one_to_take(public):
    path = public("string_full_v10.5_excerpt/4932.protein.links.full.v10.5.excerpt.txt")
    with pytest.raises(ReadError, match=r"is STRING's full table; take links\.detailed"):
        string_links(path, GENES)


@pytest.mark.parametrize("rows", [DANGO, DANGO.replace("\n", "\r\n"), "\ufeff" + DANGO.rstrip()])
def test_each_edge_of_dango_is_kept_once_from_the_lower_gene_to_the_higher(dango, rows):
    network = string_dango(dango(rows, DANGO_FILE + ".gz"))
    assert (network.name, network.directed, network.weight) == ("string9_1_fusion", False, None)
    assert network.edge_index.tolist() == [[0, 1], [2, 3]]
    assert network.report.scores.tolist() == [0.5, 0.9]
    assert (network.report.rows, network.report.kept) == (4, 2)
    assert network.report.dropped == {"reverse of an undirected edge": 2}


def test_dangos_genes_are_matched_by_name_with_another_list(dango):
    network = string_dango(dango(), ["YCL001W", "YAL002W", "YBR001C"])
    assert network.edge_index.tolist() == [[0], [1]]
    assert (network.report.dropped["unknown gene"], network.report.unknown) == (2, ("YAL001C",))


READ = {
    "biogrid": (lambda path: biogrid(path, GENES), BIOGRID),
    "tflink": (lambda path: tflink(path, NAMED), TFLINK),
    "regulation": (lambda path: sgd_regulation(path, NAMED), REGULATION),
    "links": (lambda path: string_links(path, GENES), LINKS),
}


def prints(result):
    networks = result.values() if isinstance(result, dict) else [result]
    return [(each.fingerprint(), each.report, getattr(each.report.scores, "tolist", list)()) for each in networks]


@pytest.mark.parametrize("name", READ)
def test_columns_rows_and_line_ends_may_be_in_any_way(write, name):
    read, text = READ[name]
    sign = " " if name == "links" else "\t"
    header, *rows = [line.split(sign) for line in text.splitlines() if line and not line.startswith("!")]
    expected = prints(read(write(LINKS_FILE, text)))
    columns = list(range(len(header)))
    for seed, end in enumerate(["\n", "\r\n", "\r"]):
        random.Random(seed).shuffle(columns)
        random.Random(seed).shuffle(rows)
        lines = [sign.join(row[i] for i in columns) for row in [[cell.lstrip("#") for cell in header], *rows]]
        assert prints(read(write(LINKS_FILE, end.join(lines)))) == expected


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("biogrid", BIOGRID.replace("ID Interactor B", "Interactor X"), "no column 'Organism ID Interactor B'"),
        ("biogrid", BIOGRID + "1\tYAL001C\tYBR001C\n", "row 6: Expected 6 columns, got 3.*between tabs"),
        ("biogrid", BIOGRID.replace("physical", "x"), "none of its rows is of system_type physical, but of x, genetic"),
        ("tflink", TFLINK.replace("Organism", "Species"), "no column 'Organism' between tabs; the header has"),
        ("links", LINKS.replace(" ", "\t"), "no column 'protein1' between spaces"),
        ("links", LINKS.replace("protein2", "protein"), "no column 'protein2' between spaces; did you mean"),
        ("links", LINKS.replace("900 0 0 910", "900 0 910"), "row 1: Expected 10 columns, got 9"),
        ("links", LINKS.replace("300 900", "300 1001"), "row 1: experimental is 1001, expected 0 to 1000"),
        ("links", LINKS.replace("300 900", "300 0.9"), "column experimental: row 1: .* invalid value '0.9'"),
        ("links", LINKS.encode().replace(b"Q0010", b"Q\xff10"), "column protein1: row 5: .* invalid UTF8"),
        ("links", LINKS.replace("4932.Y", "9606.ENSP"), "5 of 5 rows name a gene that is not in the gene list"),
        ("links", "x" * (2 << 20), "has a line longer than 1,048,576 bytes, so it is no table"),
        ("dango", DANGO + "5\t1\t0.1\n", "row 5: first gene is 5, expected 1 to 4"),
        ("dango", DANGO.replace("0.9", "1.9"), "row 3: score is 1.9, expected 0 to 1"),
        ("dango", DANGO.replace("2\t4\t0.9", "2\t4\tnan"), "row 3: score is nan, expected 0 to 1"),
        ("dango", DANGO.replace("2\t4\t0.9", "2\t4.5\t0.9"), "column second gene: row 3: .* invalid value '4.5'"),
        ("dango", "\n\n", "holds nothing but blank lines"),
    ],
)
def test_a_bad_table_is_an_error_with_file_and_row(write, name, text, why):
    write("yeast_string_genes.txt", "YAL001C\nYAL002W\nYBR001C\nYCL001W")
    path = write(LINKS_FILE, text)
    with pytest.raises(ReadError, match=why) as caught:
        string_dango(path) if name == "dango" else READ[name][0](path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_an_adjacency_needs_its_gene_list(write):
    with pytest.raises(ReadError, match=r"yeast_string_genes\.txt: no such file.* \(read as a list of genes\)"):
        string_dango(write(DANGO_FILE, DANGO))


@pytest.mark.parametrize(
    ("channel", "edges", "nodes", "low", "high"),
    [
        ("cooccurence", 2_664, 1_271, 0.009, 0.525),
        ("database", 33_486, 2_712, 0.185, 0.949),
        ("fusion", 1_361, 1_191, 0.001, 0.9),
        ("neighborhood", 45_610, 2_172, 0.064, 0.794),
    ],
)
def test_the_public_channels_have_their_counts(public, channel, edges, nodes, low, high):
    path = public(f"string_v9.1_dango/yeast_string_{channel}_adjacency.txt.gz")
    network = string_dango(path)
    assert (network.num_edges, network.report.rows) == (edges, 2 * edges)
    assert len(torch.unique(network.edge_index)) == nodes
    assert (network.report.scores.min(), network.report.scores.max()) == (low, high)
    if channel == "database":  # indices count from one
        genes = dango_genes(path.with_name("yeast_string_genes.txt"))
        pair = (genes.place("YAL001C"), genes.place("YBR123C"))  # subunits of TFIIIC
        assert pair in map(tuple, network.edge_index.T.tolist())


def test_the_public_tables_have_their_counts(public):
    genes = sgd_features(public("sgd_features/SGD_features_barseq.tab.gz"))
    path = public("biogrid_tab2_whi2/BIOGRID-GENE-34444-3.1.84.tab2.txt")
    report = biogrid(path, genes).report
    assert (report.rows, report.kept) == (294, 13)
    assert report.dropped["system_type is not physical"] == 275
    whi2 = biogrid(path, genes, system_type="genetic")
    assert (whi2.edge_index == genes.place("YOR043W")).any(dim=0).all()
    path = public("tflink_excerpt/simpleFormat_header_and_2_human_rows.tsv")
    with pytest.raises(
        ReadError, match="none of its rows is of organism Saccharomyces cerevisiae, but of Homo sapiens"
    ):
        tflink(path, genes)
