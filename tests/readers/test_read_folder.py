"""A folder of public files as one graph; the samples of the repository."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tclab import CellGraph, InputError
from tclab.readers import ReadError, read_folder

SAMPLES = Path(__file__).resolve().parents[2] / "data_samples" / "cell"
FUSION = "1\t2\t0.5\n2\t1\t0.5\n"
NAMES = "Systematic_name\tStandard_name\nYAL001C\tTFC3\nYEL009C\tGCN4\n"


def test_the_samples_become_a_graph():
    graph = CellGraph.from_folder(SAMPLES)
    assert graph.num_nodes["gene"] == 40
    kinds = [name.split("_")[0] for name in graph.networks]
    assert kinds == ["sgd", "biogrid", "tflink", *["string9"] * 6, *["string12"] * 6]
    assert "gpr" in graph.relations
    ignored = {"SGA_NxN.txt", "aao1729_data_s1.tsv", "edge_list.csv", "scored_made_up_trigenic.txt"}
    assert set(graph.report.ignored) == {*ignored, "targets_of_P00000.tsv"}
    assert "tclab.readers.read_perturbations" in graph.report.ignored["SGA_NxN.txt"]


def test_a_nested_folder_becomes_one_graph(write, tmp_path):
    write("string/yeast_string_genes.txt", "YAL001C\nYOR202W\n")
    write("string/yeast_string_fusion_adjacency.txt.gz", FUSION)
    write("string/yeast_string_neighborhood_adjacency.txt", FUSION)
    write("SGDgeneNames.tsv", NAMES)
    header = "UniprotID.TF\tName.TF\tName.Target\tOrganism\n"
    write("tflink/simpleFormat.tsv", header + "P1\tGCN4\tTFC3\tSaccharomyces cerevisiae\n")
    write("4932.protein.links.full.v10.5.txt", "what is in it is not read")
    write("SOURCE.md", "Where it is from.")
    write(".hidden/SGDgeneNames.tsv", "never opened")
    graph = CellGraph.from_folder(tmp_path)
    assert graph.node_names == {"gene": ("YAL001C", "YEL009C", "YOR202W")}
    assert (graph.deleted_type, graph.source) == ("gene", tmp_path.name)
    assert list(graph.networks) == ["tflink", "string9_1_neighborhood", "string9_1_fusion"]
    assert graph.networks["tflink"].edge_index.tolist() == [[1], [0]]
    assert graph.networks["string9_1_fusion"].edge_index.tolist() == [[0], [2]]
    full, source = graph.report.ignored.items()
    assert "take links.detailed" in full[1]
    assert (source[0], len(graph.report.read)) == ("SOURCE.md", 5)
    assert "5 files read, 2 ignored" in str(graph.report)
    assert graph.select(2).report is graph.report


def test_what_is_there_twice_or_empty_is_ignored_with_the_reason(write, tmp_path):
    write("SGDgeneNames.tsv", NAMES.replace("\tGCN4", "\tTFC3"))
    write("yeast_string_genes.txt", "YAL001C\nYEL009C\n")
    write("yeast_string_fusion_adjacency.txt", FUSION)
    write("yeast_string_fusion_adjacency.txt.gz", FUSION)
    header = "UniprotID.TF\tName.TF\tName.Target\tOrganism\n"
    write("simpleFormat.tsv", header + "P1\tNANOG\tDKK1\tHomo sapiens\n")
    links = "protein1 protein2 combined_score\n4932.YAL001C 4932.YEL009C 5\n4932.YEL009C 4932.YAL001C 5\n"
    for name in ("v12.0", "v12.0 (1)"):  # a second download
        write(f"4932.protein.links.{name}.txt", links)
    graph = read_folder(tmp_path)
    ignored = graph.report.ignored
    assert list(graph.networks) == ["string9_1_fusion", "string12_0_combined"]
    assert "already read from" in ignored["yeast_string_fusion_adjacency.txt.gz"]
    assert any("already read from" in ignored.get(f"4932.protein.links.v12.0{end}.txt", "") for end in ("", " (1)"))
    assert (
        "none of its rows is of organism Saccharomyces cerevisiae, but of Homo sapiens" in ignored["simpleFormat.tsv"]
    )


def test_a_bad_folder_is_an_error_in_one_line(write, tmp_path):
    for path, why in (
        (tmp_path / "nowhere", "no such folder"),
        ("", "no such folder"),
        ("no\0path", "no such folder|is no path|embedded null"),
        (write("file.txt", "x"), "is a file, expected a folder"),
        (tmp_path, "no gene list in it"),
    ):
        with pytest.raises(ReadError, match=why):
            read_folder(path)
    with pytest.raises(InputError, match="path is 5, expected a folder"):
        read_folder(5)
    os.mkfifo(tmp_path / "yeast_string_genes.txt")  # which would wait for ever
    with pytest.raises(ReadError, match="is neither a file nor a folder"):
        read_folder(tmp_path)
    (tmp_path / "yeast_string_genes.txt").unlink()
    write("yeast_string_genes.txt", "YAL001C\n")
    with pytest.raises(ReadError, match="no network in it"):
        read_folder(tmp_path)


def test_a_model_whose_package_is_not_installed_is_said(tmp_path, monkeypatch):
    for name in ("SGDgeneNames.tsv", "sgd_regulation.tsv", "yeast-GEM.yml"):
        shutil.copy(SAMPLES / name, tmp_path)
    assert read_folder(tmp_path).num_nodes["reaction"] > 12
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InputError, match=r"pip install 'tclab\[data\]'"):
        read_folder(tmp_path)


def test_the_public_folder_is_read(public):
    graph = read_folder(public("yeastract").parent)
    assert graph.networks["string9_1_database"].num_edges == 33_486
    assert graph.num_nodes["reaction"] == 7_122
    assert len(graph.relations["gpr"].edge_index[0].unique()) == 1_161
    assert all(network.num_sources == graph.num_nodes["gene"] for network in graph.networks.values())
