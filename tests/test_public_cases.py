"""Inputs of public bug reports that are neither a file nor a trace: a sentence, or the right value."""

import os
import subprocess
import sys

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from tclab import CellGraph, InputError, lab

EDGES = torch.tensor([[0, 1], [1, 2]])


def test_what_is_no_whole_heterodata_is_refused_in_a_sentence():
    data = HeteroData()
    data["gene", "binds", "gene"].edge_index = EDGES
    with pytest.raises(InputError, match=r"node type 'gene' of 'binds' is not counted: set data\['gene'\]\.num_nodes"):
        CellGraph.from_hetero_data(data, deleted_type="gene")
    with pytest.raises(InputError, match="data is a Data, expected a HeteroData"):
        CellGraph.from_hetero_data(Data(edge_index=EDGES, num_nodes=3), deleted_type="gene")


def test_weights_in_edge_attr_are_left_out_with_a_word():
    data = HeteroData()
    data["gene"].num_nodes = 3
    data["gene", "binds", "gene"].edge_index = EDGES
    data["gene", "binds", "gene"].edge_attr = torch.tensor([0.5, 2.0])
    with pytest.warns(UserWarning, match="edge_attr of 'binds' is left out: edge_weight holds"):
        graph = CellGraph.from_hetero_data(data, deleted_type="gene")
    assert graph.networks["binds"].weight is None


def test_a_parameter_that_papermill_reads_as_none_is_refused_in_a_sentence():
    with pytest.raises(InputError, match="a notebook's parameter is None, expected the path of a file or a folder"):
        lab.project_path(None)


def test_a_folder_of_the_users_own_that_is_called_notebooks_is_theirs(tmp_path, monkeypatch):
    monkeypatch.delenv("TCLAB_RUNS", raising=False)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert lab.project_path("runs/x") == tmp_path / "notebooks" / "runs" / "x"
    (tmp_path / "notebooks" / "sweep.ipynb").touch()
    assert lab.project_path("runs/x") == tmp_path / "runs" / "x"


def test_an_output_that_cannot_hold_a_letter_gets_a_question_mark(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 10}]')
    code = f"import sys; from tclab.command import main; sys.exit(main(['trace', {str(path)!r}]))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, "10 ?s" in done.stdout) == (0, True), done.stderr
