from __future__ import annotations

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
    assert "5 files read, 1 passed over" in str(graph.report)
    assert graph.select(2).report is graph.report


def test_a_network_that_stands_twice_is_read_once(write, tmp_path):
    write("yeast_string_genes.txt", "YAL001C\nYEL009C\n")
    write("yeast_string_fusion_adjacency.txt", FUSION)
    write("yeast_string_fusion_adjacency.txt.gz", FUSION)
    graph = read_folder(tmp_path)
    assert graph.num_edges == 1
    assert "again" in graph.report.ignored["yeast_string_fusion_adjacency.txt.gz"]


def test_a_bad_folder_is_told_in_one_line(write, tmp_path):
    with pytest.raises(ReadError, match="no such folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(ReadError, match="expected a folder"):
        read_folder(write("file.txt", "x"))
    with pytest.raises(ReadError, match="no gene list in it"):
        read_folder(tmp_path)
    write("yeast_string_genes.txt", "YAL001C\n")
    with pytest.raises(ReadError, match="no network in it"):
        read_folder(tmp_path)


def test_the_public_folder_is_read(public):
    graph = read_folder(public("yeastract").parent)
    assert graph.networks["string9_1_database"].num_edges == 33_486
    assert graph.networks["yeastract_both"].report.rows == 90_895
    assert all(network.num_sources == graph.num_nodes["gene"] for network in graph.networks.values())
