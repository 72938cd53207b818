from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tclab import CellGraph, InputError
from tclab.graph._cell_graph import keep_graph


@pytest.fixture
def graph():
    graph = CellGraph.synthetic(scale=0.05)
    names = {"gene": [f"gene {place}" for place in range(graph.num_nodes["gene"])]}
    return CellGraph(graph.num_nodes, graph.relations, "gene", names, source="made up")


def test_a_graph_comes_back_equal(graph, tmp_path):
    graph.to_folder(tmp_path / "graph")
    again = CellGraph.from_folder(tmp_path / "graph")
    assert again.fingerprint() == graph.fingerprint()
    assert list(again.relations) == list(graph.relations)
    assert again.num_nodes == graph.num_nodes
    assert (again.deleted_type, again.source) == (graph.deleted_type, graph.source)
    assert again.node_names == {"gene": tuple(graph.node_names["gene"])}
    for name, network in graph.relations.items():
        other = again.relations[name]
        assert (other.directed, other.cascades) == (network.directed, network.cascades)
        assert (other.weight is None) == (network.weight is None)
        assert network.weight is None or torch.equal(other.weight, network.weight)


def test_a_graph_without_names_or_edges_comes_back(tmp_path):
    graph = CellGraph.from_edges({"none": torch.empty(2, 0, dtype=torch.int64)}, num_nodes=3)
    graph.to_folder(tmp_path / "graph")
    again = CellGraph.from_folder(tmp_path / "graph")
    assert again.fingerprint() == graph.fingerprint()
    assert again.node_names is None


def test_nothing_is_overwritten(graph, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        graph.to_folder(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: (folder / "relation_0.parquet").unlink(), r"relation_0\.parquet: cannot be read"),
        (lambda folder: (folder / "relation_0.parquet").write_bytes(b"PAR1"), "its SHA-256 is another"),
        (lambda folder: (folder / "graph.json").write_text("{"), r"graph\.json: is not JSON"),
        (
            lambda folder: (folder / "graph.json").write_text("[1]"),
            "expected 'tclab graph 1'",
        ),
        (lambda folder: change(folder, num_nodes={"gene": 3}), "KeyError|outside the 3 gene nodes"),
        (lambda folder: change(folder, relations=3), "is not what was written: TypeError"),
        (lambda folder: change(folder, deleted_type="protein"), r"graph\.json: unknown node type 'protein'"),
        (lambda folder: change(folder, num_nodes={"gene": float("inf")}), r"graph\.json: is not what .*OverflowError"),
    ],
)
def test_a_spoilt_folder_is_an_error(graph, tmp_path, spoil, why):
    graph.to_folder(tmp_path / "graph")
    spoil(tmp_path / "graph")
    with pytest.raises(InputError, match=why):
        CellGraph.from_folder(tmp_path / "graph")


def change(folder, **values):
    header = json.loads((folder / "graph.json").read_text())
    (folder / "graph.json").write_text(json.dumps({**header, **values}))


def test_a_folder_that_a_killed_process_began_is_written_anew(graph, tmp_path):
    kept = Path(keep_graph(graph, tmp_path))
    (kept / "graph.json").unlink()
    (kept / "relation_1.parquet").write_bytes(b"half")
    (kept / ".writing-0123.parquet").write_bytes(b"half")
    assert keep_graph(graph, tmp_path) == str(kept)
    assert CellGraph.from_folder(kept).fingerprint() == graph.fingerprint()


def test_a_folder_with_other_files_is_left_as_it_is(graph, tmp_path):
    (tmp_path / "relation_0.parquet").write_bytes(b"half")
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        graph.to_folder(tmp_path)
    assert (tmp_path / "relation_0.parquet").read_bytes() == b"half"


def test_a_path_that_is_none_is_refused(graph):
    with pytest.raises(InputError, match="cannot be written"):
        graph.to_folder("no\0path")
