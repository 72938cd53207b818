"""Notebooks: committed clean, and run headlessly with parameters other than their defaults."""

import json
import os
import subprocess
import sys
from pathlib import Path

import altair as alt
import pytest
import torch

from tclab import InputError
from tclab.sweeps import Results, read_rows
from tclab.sweeps.epoch import read_epoch

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_clean(path):
    notebook = json.loads(path.read_text())
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert "widgets" not in notebook["metadata"]
    tagged = [c for c in notebook["cells"] if "parameters" in c["metadata"].get("tags", [])]
    assert len(tagged) == 1
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            assert not "".join(cell["source"]).rstrip().endswith(";")  # nbval shows such a cell's value


def papermill(notebook, out, *parameters, **options):
    pairs = [word for name, value in parameters for word in ("-p", name, str(value))]
    return subprocess.run(
        [sys.executable, "-m", "papermill", "--no-progress-bar", "--execution-timeout", "300", str(notebook),
         str(out), *pairs],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **options,
    )  # fmt: skip


SMALL = (("scale", 0.02), ("steps", 2), ("gpus", 0), ("budget_seconds", 0))


def outputs(path):
    cells = json.loads(path.read_text())["cells"]
    return {cell["id"]: cell["outputs"] for cell in cells if cell["cell_type"] == "code"}


def test_sweep_runs_headlessly_with_lists_and_keeps_its_rows(tmp_path):
    wanted = (("batch_sizes", "1,2"), ("networks", "1,2"), ("strategies", "edge_mask,node_mask,indices"),
              ("results", tmp_path / "rows"))  # fmt: skip
    done = papermill(ROOT / "notebooks" / "sweep.ipynb", tmp_path / "out.ipynb", *SMALL, *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = Results(tmp_path / "rows").frame()
    steps = rows[rows["stage"] == "step"]
    assert (steps["status"] == "ok").sum() == 2 * 2 * 2 + 2 * 2  # hetero_cell by two ways; dango by one
    assert set(steps["scale"]) == {0.02}
    shown = outputs(tmp_path / "out.ipynb")
    assert "What to change, from 2 steps of hetero_cell with edge_mask" in shown["advice"][0]["text"][0]
    assert (tmp_path / "rows" / "report.html").stat().st_size < 2_000_000
    assert len(read_rows(tmp_path / "rows" / "rows.csv")) == len(rows)
    for cell in ("by-batch-size", "by-networks", "by-strategy", "stages", "bytes"):
        assert any("image/png" in output.get("data", {}) for output in shown[cell]), cell
    assert "node_mask" in "".join(shown["findings"][0]["text"])
    assert "skipped: dango reads no masked graph" in json.dumps(shown["findings"])
    assert (tmp_path / "out.ipynb").stat().st_size < 2_000_000
    assert "widgets" not in json.loads((tmp_path / "out.ipynb").read_text())["metadata"]


def test_explore_runs_headlessly_and_shows_a_picture_for_its_live_chart(tmp_path):
    wanted = (("scale", 0.02), ("steps", 1), ("gpus", 0), ("strategies", "edge_mask,node_mask"),
              ("batch_sizes", "1,3"), ("networks", 2), ("hidden", 16), ("layers", 1), ("deleted", 1),
              ("dtype", "float64"), ("results", tmp_path / "rows"))  # fmt: skip
    done = papermill(ROOT / "notebooks" / "explore.ipynb", tmp_path / "out.ipynb", *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = Results(tmp_path / "rows").frame().query("stage == 'step' and status == 'ok'")
    assert len(steps) == 4
    assert set(zip(steps["hidden"], steps["layers"], steps["deleted"], steps["dtype"], strict=True)) == {
        (16, 1, 1, "float64")
    }
    shown = outputs(tmp_path / "out.ipynb")
    assert any("image/png" in output.get("data", {}) for output in shown["panel"])
    assert "widgets" not in json.loads((tmp_path / "out.ipynb").read_text())["metadata"]
    assert "papermill notebooks/sweep.ipynb" in "".join(shown["elsewhere"][0]["text"])


def test_epoch_runs_headlessly_and_keeps_predictions_beside_what_was_measured(tmp_path):
    wanted = (("models", "dango"), ("strategies", "indices"), ("modes", "step,data"), ("workers", "0,2"),
              ("batch_sizes", 4), ("steps", 2), ("epoch_steps", 3), ("results", tmp_path / "record"))  # fmt: skip
    done = papermill(ROOT / "notebooks" / "epoch.ipynb", tmp_path / "out.ipynb", *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    epochs = [read_epoch(path) for path in (tmp_path / "record").glob("*.measured.json")]
    assert {(e.point.mode, e.predicted.workers) for e in epochs} == {
        ("step", 0), ("step", 2), ("data", 0), ("data", 2)
    }  # fmt: skip
    assert all(e.written_at < e.began_at and e.predicted.steps == 3 for e in epochs)
    shown = outputs(tmp_path / "out.ipynb")
    assert any("image/png" in output.get("data", {}) for output in shown["chart"])


def test_a_bad_parameter_stops_the_notebook_with_one_clear_line(tmp_path):
    wrong = ("strategies", "nodemask")
    done = papermill(ROOT / "notebooks" / "sweep.ipynb", tmp_path / "out.ipynb", *SMALL, wrong)
    assert done.returncode == 1
    assert "unknown strategy 'nodemask'; did you mean 'node_mask'" in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("strategies", "nodemask", "unknown strategy 'nodemask'; did you mean 'node_mask'"),
        ("gpus", "four", "gpus is 'four', expected 'auto' or a number from 0 up"),
        ("graph", "nowhere", "expected 'synthetic' or a folder that exists"),
    ],
)
def test_no_cell_runs_anything_with_a_bad_parameter(name, value, words):
    """The notebook's own cells, in this process: a kernel for each bad value would take most of a minute."""
    cells = json.loads((ROOT / "notebooks" / "sweep.ipynb").read_text())["cells"]
    here, through = {}, []
    with alt.renderers.enable(alt.renderers.active), pytest.raises(InputError, match=words):  # noqa: PT012
        for cell in cells:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), here)
                through.append(cell["id"])
                here |= {name: value} if cell["id"] == "parameters" else {}
    assert through == ["parameters", "imports"]


def test_sweep_runs_on_the_real_yeast_networks(tmp_path, shared_data):
    wanted = (("graph", shared_data), ("batch_sizes", "2"), ("networks", "2"), ("steps", 1),
              ("strategies", "subgraph,node_mask,indices"), ("results", tmp_path / "rows"))  # fmt: skip
    done = papermill(ROOT / "notebooks" / "sweep.ipynb", tmp_path / "out.ipynb", *SMALL, *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = Results(tmp_path / "rows").frame().query("stage == 'step' and status == 'ok'")
    assert set(steps["strategy"]) == {"subgraph", "node_mask", "indices"}
    assert steps["scale"].isna().all()
    assert (steps["edges"] > 100_000).any()


def test_where_time_goes_runs_headlessly_and_every_part_has_its_figures(tmp_path):
    wanted = (("networks", 2), ("habits", "zero_params_loss"), ("batch_size", 2), ("batch_sizes", "1,2,4"),
              ("strategies", "edge_mask,node_mask"), ("results", tmp_path / "rows"))  # fmt: skip
    done = papermill(ROOT / "notebooks" / "where_time_goes.ipynb", tmp_path / "out.ipynb", *SMALL, *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = Results(tmp_path / "rows").frame()
    assert set(rows["status"]) == {"ok"}
    steps = rows[(rows["stage"] == "step") & (rows["habits"] == "")]
    assert set(steps["mode"]) == {"data", "empty", "model", "step", "fixed_batch"}
    assert steps["host_closure"].between(0.98, 1.02).all()
    shown = outputs(tmp_path / "out.ipynb")
    for cell in ("step-stages", "stage-spread", "published-chart", "habits-chart", "bytes-chart"):
        assert any("image/png" in output.get("data", {}) for output in shown[cell]), cell
    said = "".join("".join(output["text"]) for output in shown["hypotheses"])
    for name in ("Data pipeline", "Mask generation", "DDP: not measured here"):
        assert name in said
    assert "with edge_mask: a step takes" in "".join(shown["findings"][0]["text"])


def test_a_bad_habit_stops_the_notebook_with_one_clear_line(tmp_path):
    wanted = (("habits", "isnan"), ("strategies", "node_mask"), ("models", "dango"), ("networks", 1),
              ("results", tmp_path / "rows"))  # fmt: skip
    done = papermill(ROOT / "notebooks" / "where_time_goes.ipynb", tmp_path / "out.ipynb", *SMALL, *wanted)
    assert done.returncode == 1
    assert "unknown habit 'isnan'; did you mean 'isnan_checks'" in done.stderr


def test_your_model_runs_headlessly_with_a_graph_a_model_a_strategy_and_a_loop_of_ones_own(tmp_path):
    wanted = (("batch_sizes", "3"), ("steps", 8), ("budget_seconds", 3), ("results", tmp_path / "own"))
    done = papermill(ROOT / "notebooks" / "your_model.ipynb", tmp_path / "out.ipynb", *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = Results(tmp_path / "own" / "rows").frame().query("stage == 'step'")
    assert set(zip(steps["strategy"], steps["status"], steps["gate"], strict=True)) == {
        (name, "ok", "passed") for name in ("edge_mask", "node_mask", "closed_stations")
    }
    assert set(steps["batch_size"]) == {3}
    assert set(steps["nodes"]) == {600}
    shown = outputs(tmp_path / "out.ipynb")
    for cell in ("sweep", "stages", "advice", "loop"):
        assert any("image/png" in output.get("data", {}) for output in shown[cell]), cell
    assert "600 station nodes" in "".join(shown["check"][0]["text"])
    assert "closed_stations: passed." in "".join(shown["check-strategy"][0]["text"])
    assert "from 40 steps of this loop" in "".join(shown["loop-advice"][0]["text"])


def test_mask_or_filter_runs_headlessly_and_shows_its_charts(tmp_path):
    wanted = (("edges", "200,2000"), ("widths", "4,16"), ("batch_sizes", 1), ("removed", "0.1,0.8"), ("rounds", 1),
              ("held_out", "500:8:1:0.5"), ("scale", 0.02), ("batch_size", 2), ("gpus", 0))  # fmt: skip
    done = papermill(ROOT / "notebooks" / "mask_or_filter.ipynb", tmp_path / "out.ipynb", *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    shown = outputs(tmp_path / "out.ipynb")
    pictures = [c for c, o in shown.items() if any("image/png" in one.get("data", {}) for one in o)]
    assert len(pictures) == 3
    assert "winners predicted" in json.dumps(shown)


def test_scaling_runs_headlessly_and_says_what_the_ranks_were(tmp_path):
    wanted = (("scale", 0.01), ("models", "hetero_cell"), ("networks", "1"), ("steps", 6), ("ranks", "1,2"),
              ("budget_seconds", 0), ("results", tmp_path / "rows"))  # fmt: skip
    done = papermill(ROOT / "notebooks" / "scaling.ipynb", tmp_path / "out.ipynb", *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = Results(tmp_path / "rows").frame().query("stage == 'step'")
    assert set(steps["status"]) == {"ok"}
    assert set(steps[steps["ranks"] == 2]["backend"]) == {"gloo"}
    shown = outputs(tmp_path / "out.ipynb")
    for cell in ("speed-up", "exchange", "accumulation", "epoch-steps"):
        assert any("image/png" in output.get("data", {}) for output in shown[cell]), cell
    said = "".join(shown["ddp"][0]["text"])
    assert "Exposed communication is" in said
    assert "cpu · gloo · 2 ranks" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_more_gpus_than_there_are_become_ranks_that_every_sentence_names(tmp_path):
    wanted = (("batch_sizes", "1"), ("networks", "1"), ("strategies", "node_mask,indices"), ("scale", 0.02),
              ("steps", 2), ("budget_seconds", 0), ("results", tmp_path / "rows"))  # fmt: skip
    done = papermill(ROOT / "notebooks" / "sweep.ipynb", tmp_path / "out.ipynb", ("gpus", 2), *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    ok = Results(tmp_path / "rows").frame().query("status == 'ok'")
    assert set(ok["ranks"]) == {2}
    assert set(ok["backend"]) == {"gloo"}
    shown = outputs(tmp_path / "out.ipynb")
    sentences = "".join("".join(output["text"]) for output in shown["findings"]).splitlines()
    assert sentences
    assert all("cpu · gloo · 2 ranks" in s for s in sentences if "skipped" not in s)
    assert "cpu · gloo · 2 ranks" in "".join("".join(output.get("text", "")) for output in shown["run"])
