"""The cell's public files: which rows become which genes, edges, samples and reactions, and what a bad file says."""

import random
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tclab import CellGraph, InputError, readers
from tclab.perturbation import Deletions
from tclab.perturbation._deletions import removed_by
from tclab.readers import ReadError, read_folder, read_perturbations
from tclab.readers._genes import Genes
from tclab.readers._yeast_gem import branches

pytestmark = pytest.mark.filterwarnings("ignore:.* were dropped")
SAMPLES = Path(__file__).resolve().parents[2] / "data_samples" / "cell"


def feature(kind, name, standard="", alias="", qualifier="Verified"):
    return "\t".join(["S0", kind, qualifier, name, standard, alias, *[""] * 10]) + "\n"


FEATURES = (
    feature("ORF", "YBR001C", "NTH2", "trehalase")
    + feature("CDS", "")
    + feature("ORF", "YAL001C", "TFC3", "FUN24|trehalase|NTH2|TSV115")
    + feature("ORF", "YAL069W", qualifier="Dubious")
)
NAMES = "Systematic_name\tStandard_name\nYAL001C\tTFC3\nYEL009C\tGCN4\n"
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
TFLINK_HEADER = "UniprotID.TF\tName.TF\tName.Target\tOrganism\n"
TFLINK = TFLINK_HEADER + (
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
COMBINED = "protein1 protein2 combined_score\n4932.YAL001C 4932.YEL009C 5\n4932.YEL009C 4932.YAL001C 5\n"
DANGO_FILE = "yeast_string_fusion_adjacency.txt"
DANGO_GENES = "YAL001C\nYAL002W\nYBR001C\nYCL001W"
DANGO = "1\t3\t0.5\n3\t1\t0.5\n2\t4\t0.9\n4\t2\t0.9\n"
SCREEN_HEADER = (
    "Query strain ID\tQuery allele name\tArray strain ID\tArray allele name\tCombined mutant type\t"
    "Raw genetic interaction score (epsilon)\tAdjusted genetic interaction score (epsilon or tau)\tP-value\t"
    "Query single/double mutant fitness\tArray single mutant fitness\tCombined mutant fitness\t"
    "Combined mutant fitness standard deviation\n"
)
A, B, C, HO = "YAL001C", "YAL002W", "YBR001C-A", "YDL227C"


def mutant(query, array, score, p="0.01", alleles=("aΔ+bΔ", "cΔ"), kind="trigenic"):
    return f"{query}\t{alleles[0]}\t{array}\t{alleles[1]}\t{kind}\t{score}\t{score}\t{p}\t\t0.9\t0.8\tNaN\n"


SCREEN = (
    SCREEN_HEADER
    + mutant(f"{A}+{B}_tm1", f"{C}_dma7", -0.5, "0.00E+00")
    + mutant(f"{A}+{HO}_tm2", f"{C}_dma7", 0.1, kind="digenic")
    + mutant(f"{HO}+{B}_tm3", f"{C}_tsa8", 0.2, "0.5", ("hoΔ+bΔ", "c-1"), kind="digenic")
    + mutant(f"{B}+{C}_tm4", f"{A}_tsa9", 0.3, "0.04", ("bΔ+cΔ", "a-11-supp1"))
    + mutant(f"{A}+{B}_tm5", f"{HO}_dma1", 0.4, "", kind="trigenic")
    + mutant(f"{A}+{B}_tm5", f"{C}_dma7", "NaN", "")
)
MODEL = """---
!!omap
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
RULE = "(A and B-C) or D"


def graph_of(*names):
    return CellGraph({"gene": len(names)}, {}, "gene", {"gene": names}, source="of a test")


# ---- genes


def test_names_and_aliases_lead_to_genes_and_nothing_is_guessed(write):
    genes = readers.sgd_features(write("SGD_features.tab", FEATURES))
    assert genes.names == ("YAL001C", "YAL069W", "YBR001C")
    assert genes.place("YAL001C") == genes.place("TFC3") == genes.place("FUN24") == 0
    assert genes.place("NTH2") == 2  # a standard name, though another gene has it as an alias
    assert (genes.place("trehalase"), genes.place("tfc3")) == (-1, -1)  # of two genes, and in another case
    assert genes.report.dropped == {"feature type CDS": 1}
    union = Genes.union([Genes(("B", "A"), also={"X": ("A",)}), Genes(("C",), also={"X": ("C",), "Y": ("C",)})])
    assert [union.place(name) for name in ("A", "B", "C", "Y", "X", "Z")] == [0, 1, 2, 2, -1, -1]  # X has two owners


# ---- edges


def test_biogrids_physical_interactions_of_yeast_become_a_network(write):
    path = write("BIOGRID-ALL-4.4.200.tab3.txt", BIOGRID)
    network = readers.biogrid(path, GENES)
    assert (network.name, network.directed) == ("biogrid_physical", False)
    assert network.edge_index.tolist() == [[0, 1], [2, 1]]
    dropped = ("system_type is not physical", "organism is not 559292", "reverse of an undirected edge")
    assert network.report.dropped == dict.fromkeys(dropped, 1)
    assert readers.biogrid(path, GENES, system_type="genetic").num_edges == 1
    both = readers.biogrid(path, GENES, system_type=None, organism=None)
    assert (both.name, both.report.dropped["unknown gene"], both.num_edges) == ("biogrid", 1, 3)
    with pytest.raises(InputError, match="unknown experimental system type 'phsical'; did you mean 'physical'"):
        readers.biogrid(path, GENES, system_type="phsical")


def test_tflink_is_filtered_by_organism(write):
    path = write("TFLink_x_simpleFormat_v1.0.tsv.gz", TFLINK)
    network = readers.tflink(path, NAMED)
    assert (network.edge_index.tolist(), network.directed) == ([[0, 0], [0, 1]], True)
    assert network.report.dropped == {"organism is not Saccharomyces cerevisiae": 1, "unknown gene": 1}
    assert network.report.unknown == ("-",)
    assert readers.tflink(path, ["NANOG", "DKK1"], organism="Homo sapiens").num_edges == 1


def test_sgds_and_yeastmines_tables_give_the_same(write):
    network = readers.sgd_regulation(write("GCN4_regulation.txt", REGULATION), NAMED)
    assert (network.edge_index.tolist(), network.report.dropped) == ([[0], [1]], {"duplicate edge": 1})
    mine = REGULATION.replace("Target Systematic", "Gene Systematic").replace("\t", ",")
    assert readers.sgd_regulation(write("x_regulation.csv", mine), NAMED).fingerprint() == network.fingerprint()


def test_each_channel_of_string_becomes_a_network_above_a_threshold(write):
    path = write(LINKS_FILE + ".gz", LINKS)
    networks = readers.string_links(path, GENES)
    channels = ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")
    assert list(networks) == [f"string12_0_{channel}" for channel in channels]
    network = networks["string12_0_coexpression"]
    assert (network.edge_index.tolist(), network.weight, network.directed) == ([[0, 0], [1, 2]], None, False)
    assert network.report.scores.tolist() == [300, 200]
    assert network.report.dropped == {"unknown gene": 1, "reverse of an undirected edge": 2}
    assert networks["string12_0_fusion"].num_edges == 0
    networks = readers.string_links(path, GENES, threshold=300, channels=["combined", "coexpression"])
    assert list(networks) == ["string12_0_combined", "string12_0_coexpression"]
    assert networks["string12_0_coexpression"].report.dropped["score below 300"] == 2
    with pytest.raises(InputError, match="unknown channel 'coexpresion'; did you mean 'coexpression'"):
        readers.string_links(path, GENES, channels=["coexpresion"])
    with pytest.raises(InputError, match="threshold is 1001, expected 0 to 1000"):
        readers.string_links(path, GENES, threshold=1001)
    assert list(readers.string_links(write("4932.protein.links.v11.5.txt", COMBINED), ["YAL001C", "YEL009C"])) == [
        "string11_5_combined"
    ]


def test_each_edge_of_dango_is_kept_once_from_the_lower_gene_to_the_higher_of_any_list(write):
    path = write(DANGO_FILE + ".gz", "\ufeff" + DANGO.replace("\n", "\r\n"))
    with pytest.raises(ReadError, match=r"yeast_string_genes\.txt: no such file.* \(read as a list of genes\)"):
        readers.string_dango(path)
    write("yeast_string_genes.txt", DANGO_GENES)
    network = readers.string_dango(path)
    assert (network.name, network.directed, network.weight) == ("string9_1_fusion", False, None)
    assert network.edge_index.tolist() == [[0, 1], [2, 3]]
    assert network.report.scores.tolist() == [0.5, 0.9]
    assert (network.report.rows, network.report.dropped) == (4, {"reverse of an undirected edge": 2})
    other = readers.string_dango(path, ["YCL001W", "YAL002W", "YBR001C"])
    assert other.edge_index.tolist() == [[0], [1]]
    assert (other.report.dropped["unknown gene"], other.report.unknown) == (2, ("YAL001C",))


TABLES = {
    "biogrid": (lambda path: readers.biogrid(path, GENES), BIOGRID),
    "tflink": (lambda path: readers.tflink(path, NAMED), TFLINK),
    "regulation": (lambda path: readers.sgd_regulation(path, NAMED), REGULATION),
    "links": (lambda path: readers.string_links(path, GENES), LINKS),
}


def prints(result):
    networks = result.values() if isinstance(result, dict) else [result]
    return [(each.fingerprint(), each.report, getattr(each.report.scores, "tolist", list)()) for each in networks]


@pytest.mark.parametrize("name", TABLES)
def test_columns_rows_and_line_ends_may_be_in_any_way(write, name):
    read, text = TABLES[name]
    sign = " " if name == "links" else "\t"
    header, *rows = [line.split(sign) for line in text.splitlines() if line and not line.startswith("!")]
    expected = prints(read(write(LINKS_FILE, text)))
    columns = list(range(len(header)))
    for seed, end in enumerate(["\n", "\r\n", "\r"]):
        random.Random(seed).shuffle(columns)
        random.Random(seed).shuffle(rows)
        lines = [sign.join(row[i] for i in columns) for row in [[cell.lstrip("#") for cell in header], *rows]]
        assert prints(read(write(LINKS_FILE, end.join(lines)))) == expected


# ---- screens


def deleted(found, graph):
    names = graph.node_names["gene"]
    return [{names[node] for node in found.deletions[i].tolist()} for i in range(len(found))]


def test_rows_are_samples_by_how_many_genes_they_delete(write):
    path, graph = write("aao1729_data_s1.tsv", SCREEN), graph_of(A, B, C)
    found = read_perturbations(path, graph)
    assert deleted(found, graph) == [{A, B, C}, {A, B, C}]
    assert found.scores.tolist() == pytest.approx([-0.5, 0.3])
    assert found.report.dropped == {"no score": 1, "not trigenic": 3}
    assert "1 rows delete the same genes as another row" in str(found)
    # a neutral deletion does not count: first, second, or in the array
    assert deleted(read_perturbations(path, graph, mutant_type="digenic"), graph) == [{A, C}, {B, C}, {A, B}]
    assert len(read_perturbations(path, graph, mutant_type="any")) == 5
    with pytest.raises(InputError, match="unknown mutant type 'trigenc'; did you mean 'trigenic'"):
        read_perturbations(path, graph, mutant_type="trigenc")


def test_genes_that_are_not_in_the_graph_are_dropped_and_reported(write):
    path, graph = write("aao1729_data_s1.tsv", SCREEN), graph_of(C, A)
    found = read_perturbations(path, graph, mutant_type="any", unknown_limit=0.9)
    assert deleted(found, graph) == [{A, C}]
    assert (found.report.dropped["unknown gene"], found.report.unknown) == (4, (B,))
    with pytest.raises(ReadError, match=r"4 of 5 rows name a gene that is not in the gene list of 2 .*'YAL002W'"):
        read_perturbations(path, graph, mutant_type="any")


@pytest.fixture(scope="module")
def cell():
    """A graph with the gene list of the samples, without their networks."""
    return graph_of(*(SAMPLES / "yeast_string_genes.txt").read_text().split())


# file → format, mutant type, samples
FORMATS = {
    "aao1729_data_s1.tsv": ("kuzmin", "trigenic", 20),
    "SGA_NxN.txt": ("costanzo", "digenic", 30),
    "scored_made_up_trigenic.txt": ("sga_trigenic", "trigenic", 20),
}


def numbers_of(found):
    return found.deletions.nodes.tolist(), found.deletions.ptr.tolist(), found.scores.tolist()


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_known_by_the_columns(name, cell, write):
    kind, mutant_type, samples = FORMATS[name]
    text = (SAMPLES / name).read_text()
    head, *rows = text.splitlines(keepends=True)
    found, comma = (read_perturbations(write("table", content), cell) for content in (text, text.replace("\t", ",")))
    assert f"format {kind}, {mutant_type} samples" in str(found)
    assert found.report.rows == found.report.kept + sum(found.report.dropped.values()) == 30
    assert found.report.kept == len(found) == samples
    assert numbers_of(comma) == numbers_of(found)
    turned = read_perturbations(write("again", head + "".join(reversed(rows))), cell)
    assert sorted(turned.scores) == sorted(found.scores)


def test_a_synthetic_graph_is_assigned_the_genes_of_most_samples_and_says_so(write):
    rows = mutant(f"{A}+{B}_tm1", f"{C}_dma7", -0.5) + mutant(f"{A}+{B}_tm1", "YZZ999W_dma8", 0.1)
    rows += mutant(f"{B}+{A}_tm1", "YZZ998W_dma8", 0.2) + mutant(f"{C}+{B}_tm1", "YZZ997W_dma8", 0.3)
    path = write("t.tsv", SCREEN_HEADER + rows)
    small = read_perturbations(path, CellGraph.synthetic(4 / 6607, metabolism=False))
    assert small.deletions.nodes.tolist() == [0, 1, 2, 0, 2, 3]
    assert small.scores.tolist() == pytest.approx([-0.5, 0.3])
    assert small.report.dropped["no node left for a gene"] == 2
    assert "no node names: 4 of the file's 6 genes were assigned to nodes" in str(small)
    with pytest.raises(ReadError, match="none of its 4 samples has all its genes among the 2 nodes"):
        read_perturbations(path, CellGraph.synthetic(2 / 6607, metabolism=False))
    with pytest.raises(InputError, match=r"'made in memory' has no names for its gene nodes.*expected node_names"):
        read_perturbations(path, CellGraph({"gene": 40}, {}, "gene"))


def test_a_workbook_is_read_too_and_a_damaged_one_refused(cell, tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book, path = openpyxl.Workbook(), tmp_path / "table.xlsx"
    book.active.append(["Data S1. Raw genetic interaction datasets"])
    for line in (SAMPLES / "aao1729_data_s1.tsv").read_text().splitlines():
        book.active.append([float(one) if re.fullmatch(r"\d+\.\d+", one) else one for one in line.split("\t")])
    book.active.append([])
    book.active["XFD20000"] = "x"  # one cell at a sheet's end, which would take minutes
    book.save(path)
    expected = read_perturbations(SAMPLES / "aao1729_data_s1.tsv", cell)
    assert numbers_of(read_perturbations(path, cell)) == numbers_of(expected)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ReadError, match="is damaged or cut short"):
        read_perturbations(path, cell)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "y")
    with pytest.raises(ReadError, match=r"KeyError: .*\(read as a table of samples or a genetic interaction screen\)"):
        read_perturbations(path, cell)


# ---- reactions


def test_a_model_becomes_nodes_for_reaction_branch_and_direction(write):
    path = write("yeast-GEM.yml.gz", MODEL)
    gpr, stoichiometry = readers.yeast_gem(path, ["A", "B-C", "D"])
    nodes = ("r_1 0 forward", "r_1 0 reverse", "r_1 1 forward", "r_1 1 reverse", "r_2 0 forward")
    assert (gpr.report.node_names, stoichiometry.report.node_names) == (nodes, ("s_1", "s_2"))
    assert gpr.edge_index.tolist() == [[0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 3]]
    assert gpr.cascades
    assert stoichiometry.weight.tolist() == [-1, 2.5, 1, -2.5, -1, 2.5, 1, -2.5, -1]
    graph = CellGraph({"gene": 3, "reaction": 5, "metabolite": 2}, {"gpr": gpr, "stoichiometry": stoichiometry}, "gene")
    removed = removed_by(graph, Deletions.of([[0], [1, 2]], num_nodes=3))["reaction"]
    assert (removed[0].tolist(), removed[1].tolist()) == ([0, 1], [0, 1, 2, 3])
    report = readers.yeast_gem(path, ["A", "D"]).gpr.report
    assert (report.dropped, report.unknown) == ({"unknown gene": 2}, ("B-C",))
    with pytest.raises(ReadError, match="6 of 6 gpr incidences"):
        readers.yeast_gem(path, ["X"])


SIGNS = st.sampled_from(["and", "or", "AND", "\tOr"])
RULES = st.recursive(st.sampled_from("ABCDE"), lambda inner: st.tuples(inner, SIGNS, inner), max_leaves=8)


def text_of(rule):
    return rule if isinstance(rule, str) else f"({text_of(rule[0])} {rule[1]} {text_of(rule[2])})"


def runs(rule, deleted):
    if isinstance(rule, str):
        return rule not in deleted
    left, right = runs(rule[0], deleted), runs(rule[2], deleted)
    return left and right if rule[1].lower() == "and" else left or right


@given(RULES, st.sets(st.sampled_from("ABCDE")))
def test_some_branch_is_left_exactly_when_the_rule_still_holds(rule, deleted):
    left = [branch for branch in branches(text_of(rule)) if not set(branch) & deleted]
    assert bool(left) == runs(rule, deleted)


# ---- what is wrong with a file

READ = {
    **{name: read for name, (read, _) in TABLES.items()},
    "dango": readers.string_dango,
    "features": readers.sgd_features,
    "genes": readers.dango_genes,
    "screen": lambda path: read_perturbations(path, graph_of(A, B, C)),
    "model": lambda path: readers.yeast_gem(path, ["A", "B-C", "D"]),
}
TOO_LARGE = " and ".join([f"(A{n} or B{n})" for n in range(20)])
REPEATED = MODEL.replace("reactions:\n    - !!omap", "reactions:\n    - &a !!omap") + "    - *a\n" * 9  # in few bytes
ONE_DIGENIC = SCREEN_HEADER + mutant(f"{A}+{HO}_tm2", f"{C}_dma7", 0.1)
BAD = [
    ("features", FEATURES + "S0\tORF\n", "row 5: Expected 16 columns, got 2"),
    ("features", FEATURES + feature("ORF", "YAL001C"), "gene 'YAL001C' appears twice"),
    ("features", feature("CDS", ""), "none of its 1 rows is a gene"),
    ("genes", "YAL001C\nYAL001C", "line 2: gene 'YAL001C' is already on line 1"),
    ("genes", "A,B", "line 1: 'A,B', expected one systematic name"),
    ("biogrid", BIOGRID.replace("559292", "9606"), "none of its rows is of organism 559292, but of 9606; organism="),
    ("biogrid", BIOGRID.replace("physical", "x"), "none of its rows is of system_type physical, but of x, genetic"),
    (
        "biogrid",
        BIOGRID.replace("Systematic Name", "ID"),
        "no column '.* Name Interactor A' between tabs; did you mean",
    ),
    ("links", LINKS.replace("protein2", "protein"), "no column 'protein2' between spaces; did you mean"),
    ("links", LINKS.replace("fusion", "fusion_transferred"), r"is STRING's full table; take links\.detailed"),
    ("links", LINKS.replace("300 900", "300 1001"), "row 1: experimental is 1001, expected 0 to 1000"),
    ("links", LINKS.replace("300 900", "300 0.9"), "column experimental: row 1: .* invalid value '0.9'"),
    ("links", LINKS.replace("4932.Y", "9606.ENSP"), "5 of 5 rows name a gene that is not in the gene list"),
    ("dango", DANGO + "5\t1\t0.1\n", "row 5: first gene is 5, expected 1 to 4"),
    ("dango", DANGO.replace("2\t4\t0.9", "2\t4\tnan"), "row 3: score is nan, expected 0 to 1"),
    ("screen", "a\tb\n1\t2\n", r"is not a screen that tclab reads, kuzmin, costanzo, .*'a \| b' lacks"),
    ("screen", SCREEN.replace("P-value", "P"), "the nearest is kuzmin, of whose columns .* lacks p-value"),
    ("screen", SCREEN.replace("\t0.3\t0.3", "\t0.3\t1e9"), r"row 4: .* is 1e\+09, expected -1e\+06 to 1e\+06"),
    ("screen", SCREEN.replace(f"{A}_tsa9", f"{A}tsa9"), "row 4: .* 'YAL001Ctsa9', expected one like"),
    ("screen", SCREEN.replace("_tm4", "_4"), "row 4: .*expected one like YAL015C"),
    ("screen", ONE_DIGENIC, "none of its 1 rows is a trigenic sample: 1 not trigenic"),
    ("model", MODEL.replace(RULE, "(A and B-C or D"), r"'r_1': ValueError: rule '\(A and B-C or D' cannot be read"),
    *(("model", MODEL.replace(RULE, rule), "cannot be read") for rule in ("A B", "and A", "(" * 100_000)),
    *(("model", MODEL.replace(RULE, rule), "is not made of genes") for rule in ("()", "A (B)")),
    ("model", MODEL.replace(RULE, TOO_LARGE), "is too large: more than 100,000 branches"),
    ("model", MODEL.replace("2.5", ".nan"), "reaction 'r_1': a bound or coefficient is not a finite number"),
    ("model", MODEL.replace("s_2: 2.5", "s_9: 2.5"), "reaction 'r_1': metabolite 's_9' is not in the model's list"),
    ("model", MODEL.replace("      - lower_bound: 0\n", ""), "reaction 'r_2': KeyError: 'lower_bound'"),
    ("model", MODEL.replace("upper_bound: 1000", "lower_bound: 1000", 1), "a key appears twice"),
    ("model", REPEATED, "reaction 'r_1' appears twice"),
    ("model", "!!python/object:os.system x", "could not determine a constructor"),
]


@pytest.mark.parametrize(("name", "text", "why"), BAD)
def test_a_bad_file_is_an_error_in_one_line_with_file_and_row(write, name, text, why):
    write("yeast_string_genes.txt", DANGO_GENES)
    path = write(LINKS_FILE, text)
    with pytest.raises(ReadError, match=why) as caught:
        READ[name](path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


# ---- a folder of them


def test_the_samples_become_a_graph():
    graph = CellGraph.from_folder(SAMPLES)
    assert graph.num_nodes["gene"] == 40
    kinds = [name.split("_")[0] for name in graph.networks]
    assert kinds == ["sgd", "biogrid", "tflink", *["string9"] * 6, *["string12"] * 6]
    assert "gpr" in graph.relations
    assert set(graph.report.ignored) == {*FORMATS, "edge_list.csv", "targets_of_P00000.tsv"}
    assert "tclab.readers.read_perturbations" in graph.report.ignored["SGA_NxN.txt"]


def test_a_nested_folder_becomes_one_graph(write, tmp_path):
    write("string/yeast_string_genes.txt", "YAL001C\nYOR202W\n")
    for channel in ("fusion", "neighborhood"):
        write(f"string/yeast_string_{channel}_adjacency.txt", "1\t2\t0.5\n2\t1\t0.5\n")
    write("SGDgeneNames.tsv", NAMES)
    write("tflink/simpleFormat.tsv", TFLINK_HEADER + "P1\tGCN4\tTFC3\tSaccharomyces cerevisiae\n")
    write("4932.protein.links.full.v10.5.txt", "what is in it is not read")
    write("SOURCE.md", "Where it is from.")
    write(".hidden/SGDgeneNames.tsv", "never opened")
    graph = CellGraph.from_folder(tmp_path)
    assert graph.node_names == {"gene": ("YAL001C", "YEL009C", "YOR202W")}
    assert list(graph.networks) == ["tflink", "string9_1_neighborhood", "string9_1_fusion"]
    assert graph.networks["tflink"].edge_index.tolist() == [[1], [0]]
    assert graph.networks["string9_1_fusion"].edge_index.tolist() == [[0], [2]]
    assert "take links.detailed" in graph.report.ignored["4932.protein.links.full.v10.5.txt"]
    assert "5 files read, 2 ignored" in str(graph.report)


def test_what_is_there_twice_or_empty_is_ignored_with_the_reason(write, tmp_path):
    write("SGDgeneNames.tsv", NAMES.replace("\tGCN4", "\tTFC3"))
    write("yeast_string_genes.txt", "YAL001C\nYEL009C\n")
    for name in (DANGO_FILE, DANGO_FILE + ".gz"):
        write(name, "1\t2\t0.5\n2\t1\t0.5\n")
    write("simpleFormat.tsv", TFLINK_HEADER + "P1\tNANOG\tDKK1\tHomo sapiens\n")
    copies = [
        f"4932.protein.links.v12.0{end}"
        for end in (".txt", " (1).txt", " - Copy.txt", " copy.txt", ".txt.1", ".txt.download")
    ]  # a second download
    for name in copies:
        write(name, COMBINED)
    graph = read_folder(tmp_path)
    ignored = graph.report.ignored
    assert list(graph.networks) == ["string9_1_fusion", "string12_0_combined"]
    assert "already read from" in ignored[DANGO_FILE + ".gz"]
    assert graph.networks["string12_0_combined"].num_edges == 1
    assert len(set(copies) & set(ignored)) == len(copies) - 1
    assert "is of organism Saccharomyces cerevisiae, but of Homo sapiens" in ignored["simpleFormat.tsv"]


def test_a_bad_folder_is_an_error_in_one_line(write, tmp_path, monkeypatch):
    file = write("file.txt", "x")
    for path, why in (("", "no such folder"), (file, "is a file, expected a folder"), (tmp_path, "no gene list in it")):
        with pytest.raises(ReadError, match=why):
            read_folder(path)
    with pytest.raises(InputError, match="path is 5, expected a folder"):
        read_folder(5)
    shutil.copy(SAMPLES / "SGDgeneNames.tsv", tmp_path)
    with pytest.raises(ReadError, match="no network in it"):
        read_folder(tmp_path)
    shutil.copy(SAMPLES / "yeast-GEM.yml", tmp_path)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InputError, match=r"pip install '\.\[data\]'"):
        read_folder(tmp_path)


# ---- the public files


@pytest.mark.slow  # all of yeast-GEM in YAML
def test_the_public_folder_is_read(shared_data):
    graph = read_folder(shared_data)
    assert graph.networks["string9_1_database"].num_edges == 33_486
    gpr, stoichiometry = graph.relations["gpr"], graph.relations["stoichiometry"]
    assert len({name.rsplit(" ", 2)[0] for name in graph.node_names["reaction"]}) == 4_131
    assert (len(gpr.edge_index[0].unique()), gpr.num_targets, stoichiometry.num_targets) == (1_161, 7_122, 2_806)
    assert (gpr.num_edges, stoichiometry.num_edges) == (5_450, 26_325)
    assert all(network.num_sources == graph.num_nodes["gene"] for network in graph.networks.values())


def test_the_public_tables_have_their_counts(shared_data):
    path = shared_data / "string_v9.1_dango/yeast_string_database_adjacency.txt.gz"
    network, listed = readers.string_dango(path), readers.dango_genes(path.with_name("yeast_string_genes.txt"))
    assert (network.num_edges, network.report.rows, len(torch.unique(network.edge_index))) == (33_486, 66_972, 2_712)
    assert (network.report.scores.min(), network.report.scores.max()) == (0.185, 0.949)
    pair = (listed.place("YAL001C"), listed.place("YBR123C"))  # subunits of TFIIIC: indices count from one
    assert pair in map(tuple, network.edge_index.T.tolist())
    genes = readers.sgd_features(shared_data / "sgd_features/SGD_features_barseq.tab.gz")
    assert (genes.report.rows, len(genes), len(listed)) == (16_454, 6_604, 6_400)
    assert sum(len(owners) > 1 for owners in genes.also.values()) > 300
    assert set(readers.sgd_gene_names(shared_data / "yeast_gem_9.0.2/SGDgeneNames.tsv").names) == set(genes.names)
    path = shared_data / "biogrid_tab2_whi2/BIOGRID-GENE-34444-3.1.84.tab2.txt"
    report = readers.biogrid(path, genes).report
    assert (report.rows, report.kept, report.dropped["system_type is not physical"]) == (294, 13, 275)
    whi2 = readers.biogrid(path, genes, system_type="genetic")
    assert (whi2.edge_index == genes.place("YOR043W")).any(dim=0).all()
    path = shared_data / "tflink_excerpt/simpleFormat_header_and_2_human_rows.tsv"
    with pytest.raises(ReadError, match="none of its rows is of organism Saccharomyces cerevisiae, but of Homo"):
        readers.tflink(path, genes)


PUBLIC = {
    "kuzmin2020_excerpt/aaz5667_Table_S1_excerpt.tsv": ("format kuzmin, trigenic", 4, 7),
    "kuzmin2020_excerpt/aaz5667_Table_S3_excerpt.tsv": ("format kuzmin, trigenic", 2, 3),
    "sga_trigenic_public/scored_triple_test_small_trigenic.txt.gz": ("4 rows delete the same genes", 4_606, 5_826),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_screens_become_perturbations_of_the_published_genes(shared_data, name):
    words, samples, digenic = PUBLIC[name]
    graph = graph_of(*(shared_data / "string_v9.1_dango/yeast_string_genes.txt").read_text().split())
    found = read_perturbations(shared_data / name, graph)
    assert words in str(found)
    assert (len(found), found.report.unknown) == (samples, ())
    assert len(read_perturbations(shared_data / name, graph, mutant_type="digenic")) == digenic
