from __future__ import annotations

import sys

import pytest

from tclab import CellGraph
from tclab.readers import ReadError, read_folder

FUSION = "1\t2\t0.5\n2\t1\t0.5\n"


def test_a_nested_folder_becomes_one_graph(write, tmp_path):
    write("string/yeast_string_genes.txt", "YAL001C\nYEL009C\n")
    write("string/yeast_string_fusion_adjacency.txt.gz", FUSION)
    write("string/yeast_string_neighborhood_adjacency.txt", FUSION)
    write("yeastract/orftogene.txt", "Name\tORF\nGCN4\tYEL009C\nHIS3\tYOR202W\n")
    write("yeastract/RegulationTwoColumnTable_both.tsv", "GCN4;HIS3\n")
    write("SOURCE.md", "Where it is from.")
    graph = CellGraph.from_folder(tmp_path)
    assert graph.node_names == {"gene": ("YAL001C", "YEL009C", "YOR202W")}
    assert graph.deleted_type == "gene"
    assert list(graph.networks) == ["yeastract_both", "string9_1_neighborhood", "string9_1_fusion"]
    assert graph.networks["yeastract_both"].edge_index.tolist() == [[1], [2]]
    assert graph.source == tmp_path.name
    assert list(graph.report.ignored) == ["SOURCE.md"]
    assert len(graph.report.read) == 5
    assert "5 files read, 1 ignored" in str(graph.report)
    assert graph.select(2).report is graph.report


def test_a_name_that_two_lists_give_to_two_genes_is_reported(write, tmp_path):
    write("SGDgeneNames.tsv", "Systematic_name\tStandard_name\nYAL001C\tGCN4\nYEL009C\t\n")
    write("orftogene.txt", "Name\tORF\nGCN4\tYEL009C\nTFC3\tYAL001C\n")
    write("RegulationTwoColumnTable_both.tsv", "GCN4;TFC3\n")
    graph = read_folder(tmp_path)
    assert graph.report.ambiguous == {"GCN4": ("YAL001C", "YEL009C")}
    assert "1 names belong to several genes and are treated as unknown, such as GCN4" in str(graph.report)
    # the table came with orftogene.txt, which knows what it means by GCN4
    assert graph.networks["yeastract_both"].edge_index.tolist() == [[1], [0]]


def test_a_network_that_appears_twice_is_read_once(write, tmp_path):
    write("yeast_string_genes.txt", "YAL001C\nYEL009C\n")
    write("yeast_string_fusion_adjacency.txt", FUSION)
    write("yeast_string_fusion_adjacency.txt.gz", FUSION)
    graph = read_folder(tmp_path)
    assert graph.num_edges == 1
    assert "already read" in graph.report.ignored["yeast_string_fusion_adjacency.txt.gz"]


def test_a_bad_folder_is_an_error_in_one_line(write, tmp_path):
    with pytest.raises(ReadError, match="no such folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(ReadError, match="expected a folder"):
        read_folder(write("file.txt", "x"))
    with pytest.raises(ReadError, match="no gene list in it"):
        read_folder(tmp_path)
    write("yeast_string_genes.txt", "YAL001C\n")
    with pytest.raises(ReadError, match="no network in it"):
        read_folder(tmp_path)


def test_models_screens_and_empty_networks_find_their_place(write, tmp_path):
    write("SGDgeneNames.tsv", "Systematic_name\tStandard_name\nYAL001C\tTFC3\nYEL009C\tGCN4\n")
    write(
        "yeast-GEM.txt",
        "Rxn name\tFormula\tGene-reaction association\tLB\tUB\nr_1\tA[c] => \tYAL001C\t0\t1\n",
    )
    write("iMM904.json", "never opened")
    write("SGA_NxN.txt", "never opened")
    write("targets_of_P03069.tsv", "never opened")
    header = "UniprotID.TF\tName.TF\tName.Target\tOrganism\tSmall-scale.evidence\n"
    write("simpleFormat.tsv", header + "P1\tNANOG\tDKK1\tHomo sapiens\tYes\n")
    seen = []
    graph = read_folder(tmp_path, progress=seen.append)
    assert graph.num_nodes == {"gene": 2, "reaction": 1, "metabolite": 1}
    assert graph.node_names["reaction"] == ("r_1 0 forward",)
    assert graph.metabolism.gpr.edge_index.tolist() == [[0], [0]]
    assert graph.report.ignored["iMM904.json"].startswith("a second metabolic model")
    assert "tclab.readers.costanzo" in graph.report.ignored["SGA_NxN.txt"]
    assert "tclab.readers.tflink and factor=" in graph.report.ignored["targets_of_P03069.tsv"]
    assert graph.report.ignored["simpleFormat.tsv"].startswith("keeps no edge")
    assert seen == ["SGDgeneNames.tsv", "simpleFormat.tsv", "yeast-GEM.txt"]


def test_a_model_whose_reader_is_not_installed_is_passed_over(write, tmp_path, monkeypatch):
    write("SGDgeneNames.tsv", "Systematic_name\tStandard_name\nYAL001C\tTFC3\n")
    write("yeast-GEM.yml", "never parsed")
    columns = "Rxn name\tFormula\tGene-reaction association\tLB\tUB\n"
    write("yeast-GEM.txt", columns + "r_1\tA[c] => \tYAL001C\t0\t1\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    graph = read_folder(tmp_path)
    assert graph.num_nodes["reaction"] == 1
    assert "pip install 'tclab[data]'" in graph.report.ignored["yeast-GEM.yml"]


def test_the_public_folder_is_read(public, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph = read_folder(public("yeastract").parent)
    assert graph.networks["string9_1_database"].num_edges == 33_486
    assert graph.networks["yeastract_both"].num_edges == 90_895  # SGD knows the names that orftogene lacks
    assert graph.num_nodes["reaction"] == 7_122
    assert len(graph.metabolism.gpr.edge_index[0].unique()) == 1_161
    assert list(graph.networks)[:2] == ["yeastract_activator", "yeastract_both"]
    assert all(network.num_sources == graph.num_nodes["gene"] for network in graph.networks.values())
