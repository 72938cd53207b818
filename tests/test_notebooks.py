"""Notebooks: committed clean, and run headlessly with parameters other than their defaults."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import altair as alt
import pytest
import torch
from test_compare import sweep as made_by_hand

import tclab
from tclab import InputError
from tclab.sweeps import write_rows
from tclab.sweeps.predict._epoch import read_epoch
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._row_files import read_rows
from tclab.timing._statistics import MIN_OBSERVATIONS

pytestmark = pytest.mark.clock

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
PORTS = sorted((FOLDER / "ports").glob("*.ipynb"))
NOTEBOOKS = sorted([*FOLDER.glob("*.ipynb"), *(FOLDER / "case_study").glob("*.ipynb"), *PORTS])


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


@pytest.mark.parametrize("kind", ["test_parameters", "picture_parameters"])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_smaller_and_larger_parameters_are_parameters(path, kind):
    notebook = json.loads(path.read_text())
    (source,) = ["".join(cell["source"]) for cell in notebook["cells"]
                 if "parameters" in cell["metadata"].get("tags", [])]  # fmt: skip
    defaults = {}
    exec(source, {}, defaults)
    for name, value in notebook["metadata"].get(kind, {}).items():
        assert name in defaults
        assert value != defaults[name]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_by_default_a_notebook_has_steps_enough_for_a_verdict(path):
    (source,) = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]
                 if "parameters" in cell["metadata"].get("tags", [])]  # fmt: skip
    found = {}
    exec(source, {}, found)
    steps = found.get("steps", MIN_OBSERVATIONS)
    assert steps == "auto" or steps >= MIN_OBSERVATIONS  # what "auto" is on a CPU, tests/test_grid.py holds


def chains(source):
    """Return the dotted names of a cell, `lab.charts.race_chart`; magics are no Python."""
    code = "" if source.startswith("%%") else source
    for node in ast.walk(compile(code, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)):
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if names and isinstance(node, ast.Name):
            yield [node.id, *names[::-1]]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_name_of_tclab_that_a_notebook_uses_is_there(path):
    cells = json.loads(path.read_text())["cells"]
    modules = {"tclab": tclab} | {name: getattr(tclab, name, None) or importlib.import_module(f"tclab.{name}")
                                  for name in ("lab", "sweeps", "timing", "trace", "case_study")}  # fmt: skip
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        for first, *names in chains("".join(cell["source"])):
            found = modules.get(first)
            for name in names if found is not None else ():
                assert hasattr(found, name), f"{cell['id']}: {first}.{'.'.join(names)}"
                found = getattr(found, name)
                if not isinstance(found, ModuleType):
                    break


def papermill(notebook, out, *parameters, folder=ROOT, **options):
    pairs = [word for name, value in parameters for word in ("-p", name, str(value))]
    return subprocess.run(
        [sys.executable, "-m", "papermill", "--no-progress-bar", "--execution-timeout", "300", str(notebook),
         str(out), *pairs],
        capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, **options,
    )  # fmt: skip


SMALL = (("scale", 0.02), ("steps", 2), ("gpus", 0), ("budget_seconds", 0))


def outputs(path):
    cells = json.loads(path.read_text())["cells"]
    return {cell["id"]: cell["outputs"] for cell in cells if cell["cell_type"] == "code"}


def plain_text(shown):
    """Return what the outputs of a cell show as plain text."""
    return "".join("".join(output.get("text") or output.get("data", {}).get("text/plain", "")) for output in shown)


def sentences(shown):
    """Return what the outputs of a cell show as plain text, in one line."""
    return " ".join(plain_text(shown).split())


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_by_its_defaults_it_ends_and_shows_charts(path, tmp_path, monkeypatch):
    if "test_parameters" not in path.read_text():
        pytest.skip("make test runs it by its defaults")
    monkeypatch.setenv("TCLAB_RUNS", str(tmp_path / "runs"))  # no rows of an earlier run
    done = papermill(path, tmp_path / "out.ipynb")
    assert done.returncode == 0, done.stderr[-3000:]
    shown = outputs(tmp_path / "out.ipynb")
    assert any("image/png" in output.get("data", {}) for cell in shown.values() for output in cell)
    for cell, what in shown.items():
        table = plain_text(what)
        assert not re.search(r"^\s*\d+(\s+NaN)+\s*$", table, re.MULTILINE), f"{cell}: a line of nothing in {table}"
        html = "".join("".join(output.get("data", {}).get("text/html", "")) for output in what)
        assert not re.search(r">(NaN|None|&lt;NA&gt;)<", html), f"{cell}: {html}"


@pytest.mark.slow
def test_a_notebook_that_was_opened_elsewhere_finds_the_project_after_its_first_cell_has_gone_there(tmp_path):
    """As docs/index.md says for Colab, but for the installation."""
    opened = json.loads((FOLDER / "cell_graph.ipynb").read_text())
    first = {"id": "first", "cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    opened["cells"].insert(0, {**first, "source": f"%cd {ROOT}"})
    (tmp_path / "opened.ipynb").write_text(json.dumps(opened))
    done = papermill("opened.ipynb", "out.ipynb", ("scale", 0.02), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert any("image/png" in output.get("data", {}) for output in outputs(tmp_path / "out.ipynb")["reach"])


@pytest.mark.slow
def test_sweep_runs_headlessly_with_lists_and_keeps_its_rows(tmp_path):
    wanted = (("batch_sizes", "1,2"), ("networks", "1,2"), ("strategies", "edge_mask,node_mask,indices"),
              ("results", tmp_path / "rows"), ("hidden", 16), ("retry", True))  # fmt: skip
    done = papermill(FOLDER / "sweep.ipynb", tmp_path / "out.ipynb", *SMALL, *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = Results(tmp_path / "rows").frame()
    steps = rows[rows["stage"] == "step"]
    assert set(steps["hidden"]) == {16}  # which the cell of parameters does not name
    assert (steps["status"] == "ok").sum() == 2 * 2 * 2 + 2 * 2  # hetero_cell by two ways; dango by one
    assert set(steps["scale"]) == {0.02}
    shown = outputs(tmp_path / "out.ipynb")
    assert "What to change, from 2 steps of hetero_cell with edge_mask" in " ".join(plain_text(shown["advice"]).split())
    assert (tmp_path / "rows" / "report.html").stat().st_size < 2_000_000
    assert len(read_rows(tmp_path / "rows" / "rows.csv")) == len(rows)
    for cell in ("overview", "by-batch-size", "by-networks"):
        assert any("image/png" in output.get("data", {}) for output in shown[cell]), cell
    assert "node_mask" in sentences(shown["answer"])
    assert (tmp_path / "out.ipynb").stat().st_size < 2_000_000
    assert "widgets" not in json.loads((tmp_path / "out.ipynb").read_text())["metadata"]


@pytest.mark.slow
def test_explore_runs_headlessly_and_shows_a_picture_for_its_live_chart(tmp_path):
    wanted = (("scale", 0.02), ("gpus", 0), ("strategies", "edge_mask,node_mask"), ("batch_sizes", "1,3"),
              ("networks", 2), ("hidden", 16), ("layers", 1), ("num_deletions", 1),
              ("dtype", "float64"), ("results", tmp_path / "rows"))  # fmt: skip
    done = papermill(FOLDER / "explore.ipynb", tmp_path / "out.ipynb", *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = Results(tmp_path / "rows").frame().query("stage == 'step' and status == 'ok'")
    assert len(steps) == 4
    assert set(zip(steps["hidden"], steps["layers"], steps["num_deletions"], steps["dtype"], strict=True)) == {
        (16, 1, 1, "float64")
    }
    shown = outputs(tmp_path / "out.ipynb")
    assert any("image/png" in output.get("data", {}) for output in shown["panel"])
    assert "widgets" not in json.loads((tmp_path / "out.ipynb").read_text())["metadata"]
    assert "papermill notebooks/sweep.ipynb" in "".join(shown["elsewhere"][0]["text"])
    said = sentences(shown["panel"])
    assert "run one after the other, not raced" in said  # the default steps are enough for a verdict, or for none
    assert "steps were timed, at least" not in said
    everywhere = " ".join(map(sentences, shown.values()))
    assert said.count("run one after the other, not raced") == everywhere.count("not raced")  # once


@pytest.mark.slow
def test_a_bad_parameter_stops_the_notebook_with_one_clear_line(tmp_path):
    wrong = ("strategies", "nodemask")
    done = papermill(FOLDER / "sweep.ipynb", tmp_path / "out.ipynb", *SMALL, wrong)
    assert done.returncode == 1
    assert "unknown strategy 'nodemask'; did you mean 'node_mask'" in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("strategies", "nodemask", "unknown strategy 'nodemask'; did you mean 'node_mask'"),
        ("gpus", "four", "gpus is 'four', expected 'auto' or a number from 0 up"),
        ("graph", "nowhere", "expected 'synthetic' or a folder or file that exists"),
    ],
)
def test_no_cell_runs_anything_with_a_bad_parameter(name, value, words):
    """The notebook's own cells, in this process: a kernel for each bad value would take most of a minute."""
    cells = json.loads((FOLDER / "sweep.ipynb").read_text())["cells"]
    here, through = {}, []
    with alt.renderers.enable(alt.renderers.active), pytest.raises(InputError, match=words):  # noqa: PT012
        for cell in cells:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), here)
                through.append(cell["id"])
                here |= {name: value} if cell["id"] == "parameters" else {}
    assert through == ["parameters", "imports"]


@pytest.mark.slow
def test_sweep_runs_on_the_real_yeast_networks(tmp_path, shared_data):
    wanted = (("graph", shared_data), ("batch_sizes", "2"), ("networks", "2"), ("steps", 1),
              ("strategies", "subgraph,node_mask,indices"), ("results", tmp_path / "rows"))  # fmt: skip
    done = papermill(FOLDER / "sweep.ipynb", tmp_path / "out.ipynb", *SMALL, *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = Results(tmp_path / "rows").frame().query("stage == 'step' and status == 'ok'")
    assert set(steps["strategy"]) == {"subgraph", "node_mask", "indices"}
    assert steps["scale"].isna().all()
    assert (steps["edges"] > 40_000).all()  # of the real networks; a synthetic graph of these parameters has far fewer


@pytest.mark.slow
def test_sweep_runs_on_a_file_of_perturbations(tmp_path):
    samples = ROOT / "data_samples" / "cell"
    wanted = (("graph", samples), ("perturbations", samples / "aao1729_data_s1.tsv"), ("models", "hetero_cell"),
              ("strategies", "node_mask"), ("batch_sizes", 2), ("networks", 1), ("steps", 2), ("gpus", 0),
              ("results", tmp_path / "rows"))  # fmt: skip
    done = papermill(FOLDER / "sweep.ipynb", tmp_path / "out.ipynb", *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    (step,) = Results(tmp_path / "rows").frame().query("stage == 'step'").to_dict("records")
    assert (step["status"], step["num_deletions"]) == ("ok", None)  # the file says which genes are deleted
    run = "".join("".join(output.get("text", "")) for output in outputs(tmp_path / "out.ipynb")["run"])
    assert "samples of aao1729_data_s1.tsv" in run
    assert "unknown genes" in run


@pytest.mark.slow
def test_where_time_goes_runs_headlessly_and_every_part_has_its_figures(tmp_path):
    wanted = (("networks", 2), ("batch_size", 2), ("batch_sizes", "1,2,4"), ("strategies", "edge_mask,node_mask"),
              ("results", tmp_path / "rows"))  # fmt: skip
    done = papermill(FOLDER / "where_time_goes.ipynb", tmp_path / "out.ipynb", *SMALL, *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = Results(tmp_path / "rows").frame()
    assert set(rows["status"]) == {"ok"}
    steps = rows[rows["stage"] == "step"]
    assert set(steps["mode"]) == {"data", "empty", "model", "step", "fixed_batch"}
    assert steps["host_accounted"].between(0.98, 1.02).all()
    shown = outputs(tmp_path / "out.ipynb")
    for cell in ("step-stages", "bytes-chart"):
        assert any("image/png" in output.get("data", {}) for output in shown[cell]), cell
    assert "with edge_mask: a step takes" in sentences(shown["findings"])


@pytest.mark.slow
def test_hypotheses_runs_headlessly_and_each_has_a_verdict(tmp_path):
    wanted = (("networks", 2), ("batch_size", 2), ("ranks", 2), ("overheads", "zero_params_loss"),
              ("results", tmp_path / "rows"))  # fmt: skip
    done = papermill(FOLDER / "case_study" / "hypotheses.ipynb", tmp_path / "out.ipynb", *SMALL, *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    shown = outputs(tmp_path / "out.ipynb")
    assert any("image/png" in output.get("data", {}) for output in shown["ratios-chart"])
    words = sentences(shown["hypotheses"])
    for name in ("Data pipeline", "Mask generation", "DDP"):
        assert name in words
    assert "cpu · gloo · 2 ranks" in words
    assert any("image/png" in output.get("data", {}) for output in shown["costs-chart"])
    assert "zero_params_loss" in plain_text(shown["costs-table"])


@pytest.mark.slow
def test_your_model_runs_headlessly_with_a_graph_a_model_a_strategy_and_a_loop_of_ones_own(tmp_path):
    wanted = (
        ("batch_sizes", "3"),
        ("steps", 8),
        ("budget_seconds", 3),
        ("processes", 0),
        ("results", tmp_path / "own"),
    )
    done = papermill(FOLDER / "your_model.ipynb", tmp_path / "out.ipynb", *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = Results(tmp_path / "own" / "rows").frame().query("stage == 'step'")
    assert set(zip(steps["strategy"], steps["status"], steps["equivalence"], strict=True)) == {
        (name, "ok", "passed") for name in ("edge_mask", "node_mask", "closed_stations")
    }
    assert set(steps["batch_size"]) == {3}
    assert set(steps["nodes"]) == {600}
    shown = outputs(tmp_path / "out.ipynb")
    for cell in ("sweep", "stages", "advice", "loop"):
        assert any("image/png" in output.get("data", {}) for output in shown[cell]), cell
    assert "600 station nodes" in "".join(shown["check"][0]["text"])
    assert re.search(r"closed_stations +passed\.", "".join(shown["check-strategy"][0]["text"]))
    assert "from 40 steps of this loop" in "".join(shown["loop-advice"][0]["text"])


@pytest.mark.slow
def test_trust_runs_headlessly_and_compares_rows_that_are_there(tmp_path):
    for name, factor in (("old", 1.0), ("new", 0.5)):
        write_rows(made_by_hand(factor, commit=name), tmp_path / f"{name}.csv")
    wanted = (("first", tmp_path / "old.csv"), ("second", tmp_path / "new.csv"), ("margin", 0.1),
              ("scale", 0.01), ("strategies", "edge_mask,node_mask"), ("networks", 1), ("map_networks", "1"),
              ("batch_sizes", "1"), ("budget_seconds", 6), ("processes", 0),
              ("results", tmp_path / "trust"))  # fmt: skip
    done = papermill(FOLDER / "trust.ipynb", tmp_path / "out.ipynb", *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    shown = outputs(tmp_path / "out.ipynb")
    words = " ".join(plain_text(shown["runs"]).split())
    assert "new against old, step:" in words
    assert "they differ in commit: old → new" in words
    assert words.count("FASTER 0.5 × the time") == 4
    for cell in ("spike-chart", "race-chart", "winner-map", "comparison-chart"):
        assert any("image/png" in output.get("data", {}) for output in shown[cell]), cell


@pytest.mark.slow
def test_masks_runs_headlessly_and_shows_its_charts(tmp_path):
    wanted = (("edges", "200,2000"), ("widths", "4,16"), ("batch_sizes", 1), ("removed", "0.1,0.8"), ("rounds", 1),
              ("held_out", "500:8:1:0.5"), ("real_scale", 0.02), ("deleted", "3,30"), ("scale", 0.02),
              ("batch_size", 2), ("gpus", 0), ("budget_seconds", 3), ("processes", 0))  # fmt: skip
    done = papermill(FOLDER / "masks.ipynb", tmp_path / "out.ipynb", *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    shown = outputs(tmp_path / "out.ipynb")
    for cell in ("subgraph", "edge-mask", "gpu-mask", "gpu-filter", "node-mask", "delta", "khop", "race-chart",
                 "break-even", "roofline-chart"):  # fmt: skip
        assert any("image/png" in output.get("data", {}) for output in shown[cell]), cell
    assert "winners predicted" in json.dumps(shown)


@pytest.mark.slow
def test_scaling_runs_headlessly_says_what_the_ranks_were_and_keeps_predictions(tmp_path):
    wanted = (("scale", 0.01), ("models", "hetero_cell,dango"), ("strategies", "node_mask"), ("networks", "1"),
              ("steps", 6), ("ranks", "1,2"), ("budget_seconds", 0), ("epoch_strategies", "indices"),
              ("epoch_batch_size", 4), ("epoch_steps", 3), ("modes", "step,data"), ("workers", "0,2"),
              ("results", tmp_path))  # fmt: skip
    done = papermill(FOLDER / "scaling.ipynb", tmp_path / "out.ipynb", *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = Results(tmp_path / "rows").frame().query("stage == 'step'")
    assert set(steps["status"]) == {"ok"}
    assert set(steps[steps["ranks"] == 2]["backend"]) == {"gloo"}
    epochs = [read_epoch(path) for path in (tmp_path / "epochs").glob("*.measured.json")]
    assert {(e.point.mode, e.predicted.workers) for e in epochs} == {
        ("step", 0), ("step", 2), ("data", 0), ("data", 2)
    }  # fmt: skip
    assert all(e.written_at < e.began_at and e.predicted.steps == 3 for e in epochs)
    shown = outputs(tmp_path / "out.ipynb")
    for cell in ("speed-up", "exchange", "accumulation", "epoch-steps", "epoch-chart"):
        assert any("image/png" in output.get("data", {}) for output in shown[cell]), cell


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_more_gpus_than_there_are_become_ranks_that_every_sentence_names(tmp_path):
    wanted = (("batch_sizes", "1"), ("networks", "1"), ("strategies", "node_mask,indices"), ("scale", 0.02),
              ("steps", 2), ("budget_seconds", 0), ("results", tmp_path / "rows"))  # fmt: skip
    done = papermill(FOLDER / "sweep.ipynb", tmp_path / "out.ipynb", ("gpus", 2), *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    ok = Results(tmp_path / "rows").frame().query("status == 'ok'")
    assert set(ok["ranks"]) == {2}
    assert set(ok["backend"]) == {"gloo"}
    shown = outputs(tmp_path / "out.ipynb")
    said = sentences(shown["findings"]).split("• ")[1:]
    assert said
    assert all("cpu · gloo · 2 ranks" in s for s in said if "skipped" not in s)
    assert "cpu · gloo · 2 ranks" in "".join("".join(output.get("text", "")) for output in shown["run"])
