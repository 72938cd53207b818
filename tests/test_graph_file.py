"""A graph in a file: it comes back equal, and what is no such file is refused."""

import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import tclab
from tclab import CellGraph, InputError
from tclab.graph._cell_graph import keep_graph
from tclab.sweeps.config._point_inputs import cell_graph_of


@pytest.fixture
def graph():
    graph = CellGraph.synthetic(scale=0.05)
    names = {"gene": [f"gene {i}" for i in range(graph.num_nodes["gene"])]}
    return CellGraph(graph.num_nodes, graph.relations, "gene", names, source="made up")


def test_a_graph_comes_back_equal(graph, tmp_path):
    nothing = CellGraph.from_edges({"none": torch.empty(2, 0, dtype=torch.int64)}, num_nodes=3)
    for number, one in enumerate((graph, nothing)):
        path = tmp_path / str(number) / "graph"  # under the very name
        path.parent.mkdir()
        one.save(path)
        again = CellGraph.from_file(path)
        assert os.listdir(path.parent) == ["graph"]
        assert again.fingerprint() == one.fingerprint()  # of counts, edges and weights
        assert list(again.relations) == list(one.relations)
        for name in ("deleted_type", "source", "node_names"):
            assert getattr(again, name) == getattr(one, name)
        assert [n.directed for n in again.relations.values()] == [n.directed for n in one.relations.values()]


def header(path, **values):
    with np.load(path) as file:
        arrays = dict(file)
    changed = json.loads(str(arrays["header"])) | values
    np.savez(path, **{**arrays, "header": np.array(json.dumps(changed))})


def without_edges(path):
    with np.load(path) as file:
        arrays = {key: array for key, array in file.items() if key != "0/edge_index"}
    np.savez(path, **arrays)


def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed, packed.open("header.npy", "w") as part:
        for _ in range(300):
            part.write(bytes(1 << 20))


def pickled(path):
    with path.open("wb") as file:
        np.save(file, np.array([print], dtype=object))


def bits_flipped(path):
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as packed:
        at = packed.getinfo("0/edge_index.npy").header_offset + 300
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.unlink(), r"graph.npz: no such file \(read as a graph that CellGraph.save wrote\)"),
        (lambda path: path.write_text("gene,gene"), "is damaged or cut short"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "is damaged or cut short"),
        (bits_flipped, "CRC"),
        (bomb, "times its size or more"),
        (without_edges, "KeyError: '0/edge_index"),
        (pickled, "is damaged or cut short"),
        (lambda path: header(path, format="tclab graph 99"), "has another format than 'tclab graph 2'"),
        (lambda path: header(path, num_nodes={"gene": 3}), "the graph 3"),
        (lambda path: header(path, relations=3), "TypeError"),
    ],
)
def test_a_spoilt_file_is_an_error(graph, tmp_path, spoil, why):
    path = tmp_path / "graph.npz"
    graph.save(path)
    spoil(path)
    with pytest.raises(InputError, match=why):
        CellGraph.from_file(path)


def test_a_folder_that_is_not_there_is_said(graph, tmp_path):
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        graph.save(tmp_path / "nowhere" / "graph.npz")


def test_a_graph_is_kept_once_for_points_to_read(graph, tmp_path):
    kept = keep_graph(graph, tmp_path / "new")
    written = Path(kept).stat().st_mtime_ns
    assert keep_graph(graph, tmp_path / "new") == kept
    assert Path(kept).stat().st_mtime_ns == written
    assert cell_graph_of(tclab.Point(graph=kept, networks=1)).deleted_type == graph.deleted_type
