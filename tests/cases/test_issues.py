"""Inputs of public issues of other tools, of no reader, trace or graph; sources, and the other tests: `README.md`."""

import json
import os
import subprocess
import sys

import pytest

from tclab import InputError, lab


def test_a_notebooks_path_may_hold_an_equals_sign_is_not_none_and_a_folder_notebooks_is_the_users(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("TCLAB_RUNS", raising=False)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert lab.project_path("runs/a=b") == tmp_path / "notebooks" / "runs" / "a=b"  # 41
    (tmp_path / "notebooks" / "sweep.ipynb").touch()
    assert lab.project_path("runs/x") == tmp_path / "runs" / "x"
    with pytest.raises(InputError, match="a notebook's parameter is None, expected the path of a file or a folder"):
        lab.project_path(None)


def test_an_output_that_cannot_hold_a_letter_gets_a_question_mark(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"ph": "X", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 10}]))
    code = f"import sys; from tclab.command import main; sys.exit(main(['trace', {str(path)!r}]))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, "10 ?s" in done.stdout) == (0, True), done.stderr
