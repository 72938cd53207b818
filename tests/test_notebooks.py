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
from test_compare import sweep as made_by_hand

import tclab
from tclab import InputError
from tclab.sweeps.predict._epoch import read_epoch
from tclab.sweeps.store._row_files import Results
from tclab.timing._statistics import MIN_OBSERVATIONS

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(path for path in FOLDER.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def defaults(notebook):
    """Return the parameters of the one cell that is tagged so."""
    (cell,) = [cell for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    found = {}
    exec("".join(cell["source"]), {}, found)
    return found


@each_notebook
def test_notebooks_are_committed_clean_and_have_steps_enough_for_a_verdict(path):
    notebook = json.loads(path.read_text())
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert "widgets" not in notebook["metadata"]
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            assert not "".join(cell["source"]).rstrip().endswith(";")  # nbval shows such a cell's value
    given = defaults(notebook)
    for kind in ("test_parameters", "picture_parameters"):
        for name, value in notebook["metadata"].get(kind, {}).items():
            assert name in given
            assert value != given[name]
    steps = given.get("steps", MIN_OBSERVATIONS)
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


@each_notebook
def test_every_name_of_tclab_that_a_notebook_uses_is_there(path):
    modules = {name: importlib.import_module(f"tclab.{name}")
               for name in ("lab", "sweeps", "timing", "trace", "case_study")} | {"tclab": tclab}  # fmt: skip
    for cell in json.loads(path.read_text())["cells"]:
        for first, *names in chains("".join(cell["source"])) if cell["cell_type"] == "code" else ():
            found = modules.get(first)
            for name in names if found is not None else ():
                assert hasattr(found, name), f"{cell['id']}: {first}.{'.'.join(names)}"
                found = getattr(found, name)
                if not isinstance(found, ModuleType):
                    break


SMALL = {"scale": 0.02, "steps": 2, "gpus": 0, "budget_seconds": 0}


def papermill(notebook, out, folder=ROOT, **parameters):
    pairs = [word for name, value in parameters.items() for word in ("-p", name, str(value))]
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", "--execution-timeout", "900"]
    return subprocess.run([*command, str(notebook), str(out), *pairs], capture_output=True, text=True, cwd=folder,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip


class Run:
    """What a notebook showed and kept: its outputs by cell, and the rows of a folder."""

    def __init__(self, name, into, **parameters):
        path = into / "out.ipynb"
        done = papermill(name if Path(name).suffix else FOLDER / f"{name}.ipynb", path, **parameters)
        assert done.returncode == 0, done.stderr[-3000:]
        self.notebook = json.loads(path.read_text())
        self.shown = {cell["id"]: cell["outputs"] for cell in self.notebook["cells"] if cell["cell_type"] == "code"}
        assert "widgets" not in self.notebook["metadata"]

    def text(self, cell):
        """Return what a cell shows as plain text, in one line."""
        parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in self.shown[cell]]
        return " ".join("".join(map("".join, parts)).split())

    def has_pictures(self, *cells):
        return all(any("image/png" in one.get("data", {}) for one in self.shown[cell]) for cell in cells)


def step_rows(folder):
    return Results(folder).frame().query("stage == 'step'")


@pytest.mark.nightly
@each_notebook
def test_by_its_defaults_it_ends_and_shows_charts(path, tmp_path, monkeypatch):
    notebook = json.loads(path.read_text())
    if "test_parameters" not in notebook["metadata"]:
        pytest.skip("make test runs it by its defaults")
    monkeypatch.setenv("TCLAB_RUNS", str(tmp_path / "runs"))  # no rows of an earlier run
    run = Run(path, tmp_path, **({"budget_seconds": 10} if defaults(notebook).get("budget_seconds") else {}))
    assert any(run.has_pictures(cell) for cell in run.shown)
    for cell, what in run.shown.items():
        html = "".join("".join(output.get("data", {}).get("text/html", "")) for output in what)
        assert not re.search(r">(NaN|None|&lt;NA&gt;)<", html), f"{cell}: {html}"


@pytest.mark.slow
def test_a_notebook_that_was_opened_elsewhere_finds_the_project_after_its_first_cell_has_gone_there(tmp_path):
    """As docs/index.md says for Colab, but for the installation."""
    opened = json.loads((FOLDER / "cell_graph.ipynb").read_text())
    first = {"id": "first", "cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    opened["cells"].insert(0, {**first, "source": f"%cd {ROOT}"})
    (tmp_path / "opened.ipynb").write_text(json.dumps(opened))
    assert Run("opened.ipynb", tmp_path, folder=tmp_path, scale=0.02).has_pictures("reach")


@pytest.mark.slow
def test_sweep_takes_lists_and_keeps_its_rows(tmp_path):
    run = Run("sweep", tmp_path, **SMALL, batch_sizes="1,2", networks="1,2", hidden=16, retry=True,
              strategies="edge_mask,node_mask,indices", results=tmp_path / "rows")  # fmt: skip
    steps = step_rows(tmp_path / "rows")
    assert set(steps["hidden"]) == {16}  # which the cell of parameters does not name
    assert (steps["status"] == "ok").sum() == 2 * 2 * 2 + 2 * 2  # hetero_cell by two ways; dango by one
    assert run.has_pictures("overview", "by-batch-size", "by-networks")
    assert "node_mask" in run.text("answer")
    assert "What to change, from 2 steps of hetero_cell with edge_mask" in run.text("advice")
    for path in (tmp_path / "rows" / "report.html", tmp_path / "out.ipynb"):
        assert path.stat().st_size < 2_000_000


@pytest.mark.slow
def test_explore_runs_headlessly_and_shows_a_picture_for_its_live_chart(tmp_path):
    wanted = {"hidden": 16, "layers": 1, "perturbations": "1", "dtype": "float64"}
    run = Run("explore", tmp_path, **wanted, scale=0.02, gpus=0, strategies="edge_mask,node_mask", networks=2,
              batch_sizes="1,3", results=tmp_path / "rows")  # fmt: skip
    steps = step_rows(tmp_path / "rows").query("status == 'ok'")
    assert len(steps) == 4
    assert steps[list(wanted)].drop_duplicates().to_dict("records") == [wanted]
    assert run.has_pictures("panel")
    assert "papermill notebooks/sweep.ipynb" in run.text("elsewhere")
    assert "steps were timed, at least" not in run.text("panel")  # the default steps are enough for a verdict


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("gpus", "four", "gpus is 'four', expected 'auto' or a number from 0 up"),
        ("graph", "nowhere", "expected 'synthetic' or a folder or file that exists"),
        ("strategies", "nodemask", "unknown strategy 'nodemask'; did you mean 'node_mask'"),
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
    wanted = {**SMALL, "graph": shared_data, "batch_sizes": 2, "networks": 2, "steps": 1}
    Run("sweep", tmp_path, **wanted, strategies="subgraph,node_mask,indices", results=tmp_path / "rows")
    steps = step_rows(tmp_path / "rows").query("status == 'ok'")
    assert set(steps["strategy"]) == {"subgraph", "node_mask", "indices"}
    assert steps["scale"].isna().all()
    assert (steps["edges"] > 40_000).all()  # of the real networks; a synthetic graph of these parameters has far fewer


@pytest.mark.slow
def test_sweep_runs_on_a_file_of_perturbations(tmp_path):
    samples = ROOT / "data_samples" / "cell"
    wanted = {"graph": samples, "perturbations": samples / "aao1729_data_s1.tsv", "models": "hetero_cell", "steps": 2}
    Run("sweep", tmp_path, **wanted, strategies="node_mask", batch_sizes=2, networks=1, gpus=0,
        results=tmp_path / "rows")  # fmt: skip
    (step,) = step_rows(tmp_path / "rows").to_dict("records")
    assert (step["status"], step["perturbations"]) == ("ok", str(samples / "aao1729_data_s1.tsv"))


@pytest.mark.slow
def test_every_part_of_where_time_goes_has_its_figures(tmp_path):
    run = Run("where_time_goes", tmp_path, **SMALL, networks=2, batch_size=2, batch_sizes="1,2,4",
              strategies="edge_mask,node_mask", results=tmp_path / "rows")  # fmt: skip
    steps = step_rows(tmp_path / "rows")
    assert set(steps["status"]) == {"ok"}
    assert set(steps["mode"]) == {"data", "empty", "model", "step", "fixed_batch"}
    assert steps["host_accounted"].between(0.98, 1.02).all()
    assert run.has_pictures("step-stages", "bytes-chart")
    assert "with edge_mask: a step takes" in run.text("findings")


@pytest.mark.slow
def test_each_hypothesis_has_a_verdict_and_each_overhead_a_cost(tmp_path):
    run = Run("case_study/hypotheses", tmp_path, **SMALL, networks=2, batch_size=2, ranks=2,
              overheads="zero_params_loss", results=tmp_path / "rows")  # fmt: skip
    for words in ("Data pipeline", "Mask generation", "DDP", "cpu · gloo · 2 ranks"):
        assert words in run.text("hypotheses")
    assert run.has_pictures("ratios-chart", "costs-chart")
    assert "zero_params_loss" in run.text("costs-table")


@pytest.mark.slow
def test_your_model_has_a_graph_a_model_a_strategy_and_a_loop_of_ones_own(tmp_path):
    run = Run("your_model", tmp_path, batch_sizes=3, steps=8, budget_seconds=3, processes=0, results=tmp_path / "own")
    steps = step_rows(tmp_path / "own" / "rows")
    assert set(steps["strategy"]) == {"edge_mask", "node_mask", "closed_stations"}
    for column, value in {"status": "ok", "equivalence": "passed", "batch_size": 3, "nodes": 600}.items():
        assert set(steps[column]) == {value}
    assert run.has_pictures("sweep", "stages", "advice", "loop")
    assert "600 station nodes" in run.text("check")
    assert "closed_stations passed." in run.text("check-strategy")
    assert "from 40 steps of this loop" in run.text("loop-advice")


@pytest.mark.slow
def test_trust_compares_rows_that_are_there(tmp_path):
    for name, factor in (("old", 1.0), ("new", 0.5)):
        made_by_hand(factor, commit=name).to_parquet(tmp_path / f"{name}.parquet")
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    run = Run("trust", tmp_path, first=old, second=new, margin=0.1, scale=0.01,
              strategies="edge_mask,node_mask", networks=1, batch_sizes=1, budget_seconds=6,
              processes=0, results=tmp_path / "trust")  # fmt: skip
    assert "new against old, step:" in run.text("runs")
    assert "they differ in commit: old → new" in run.text("runs")
    assert run.text("runs").count("FASTER 0.5 × the time") == 4
    assert run.has_pictures("race-chart", "comparison-chart")


@pytest.mark.slow
def test_masks_shows_its_charts(tmp_path):
    run = Run("masks", tmp_path, edges="200,2000", widths="4,16", removed="0.1,0.8", rounds=1, held_out_edges=500,
              held_out_removed=0.5, real_scale=0.02, deleted="3,30", scale=0.02, batch_size=2, gpus=0,
              budget_seconds=3, processes=0)  # fmt: skip
    assert run.has_pictures("subgraph", "edge-mask", "gpu-mask", "gpu-filter", "node-mask", "delta", "khop",
                            "race-chart", "break-even")  # fmt: skip
    assert "predicted_filter_seconds" in run.text("held-out")


@pytest.mark.slow
def test_scaling_says_what_the_ranks_were_and_keeps_predictions(tmp_path):
    run = Run("scaling", tmp_path, scale=0.01, models="hetero_cell,dango", strategies="node_mask", networks=1, steps=6,
              ranks="1,2", budget_seconds=0, epoch_strategies="indices", epoch_batch_size=4, epoch_steps=3,
              modes="step,data", workers="0,2", results=tmp_path)  # fmt: skip
    steps = step_rows(tmp_path / "rows")
    assert set(steps["status"]) == {"ok"}
    assert set(steps[steps["ranks"] == 2]["backend"]) == {"gloo"}
    epochs = [read_epoch(path) for path in (tmp_path / "epochs").glob("*.measured.json")]
    assert {(e.point.mode, e.point.workers) for e in epochs} == {(m, w) for m in ("step", "data") for w in (0, 2)}
    assert all(e.written_at < e.began_at and e.predicted.steps == 3 for e in epochs)
    assert run.has_pictures("speed-up", "exchange", "epoch-chart")
