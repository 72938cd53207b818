"""Notebooks: committed clean, run headlessly by other parameters than their defaults, with pictures of a run."""

import base64
import io
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from notebook_outputs import text_of
from notebook_pictures import MOST_BYTES, pictures, renew
from PIL import Image
from test_compare import sweep as made_by_hand

from tclab import InputError, Point, lab, timing
from tclab.lab.charts._style import empty_chart
from tclab.sweeps._rows import Results
from tclab.timing._step_means import MIN_OBSERVATIONS

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(path for path in FOLDER.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def defaults(cells):
    """Return the parameters of the one cell that is tagged so."""
    (cell,) = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    found = {}
    exec("".join(cell["source"]), {}, found)
    return found


@each_notebook
def test_notebooks_are_committed_clean_and_have_steps_enough_for_a_verdict(path):
    notebook = json.loads(path.read_text())
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert "widgets" not in notebook["metadata"]
    for cell in notebook["cells"]:  # without outputs: tests/test_project.py
        assert not "".join(cell["source"]).rstrip().endswith(";")  # nbval shows such a cell's value
    given = defaults(notebook["cells"])
    for kind in ("test_parameters", "picture_parameters"):
        for name, value in notebook["metadata"].get(kind, {}).items():
            assert name in given
            assert value != given[name]
    steps = given.get("steps", MIN_OBSERVATIONS)
    assert steps == "auto" or steps >= MIN_OBSERVATIONS  # what "auto" is on a CPU, tests/test_grid.py holds


class Run:
    """What a notebook showed under papermill: its outputs by cell."""

    def __init__(self, name, into, **parameters):
        import papermill  # here, and not where every process of the tests would import it

        given = {name: str(value) if isinstance(value, Path) else value for name, value in parameters.items()}
        self.notebook = papermill.execute_notebook(
            FOLDER / name, into / "out.ipynb", given, cwd=ROOT, progress_bar=False, execution_timeout=900
        )
        self.shown = {cell["id"]: cell["outputs"] for cell in self.notebook["cells"] if cell["cell_type"] == "code"}
        assert "widgets" not in self.notebook["metadata"]

    def text(self, cell):
        return text_of(self.shown[cell])

    def has_pictures(self, *cells):
        return all(any("image/png" in one.get("data", {}) for one in self.shown[cell]) for cell in cells)


def step_rows(folder):
    return Results(folder).frame().query("stage == 'step'")


# papermill's warnings of its own, and of a parameter that the cell does not name
pytestmark = pytest.mark.filterwarnings("ignore")
SMALL = {"scale": 0.02, "steps": 2, "gpus": 0, "budget_seconds": 0}


@pytest.mark.slow
def test_sweep_takes_lists_and_keeps_its_rows_of_the_real_yeast_networks_too(tmp_path):
    real = ROOT.parent / "shared" / "data"
    graph = {"graph": real} if real.is_dir() else {}
    run = Run("sweep.ipynb", tmp_path, **SMALL, **graph, batch_sizes="1,2", networks="1,2", hidden=16, retry=True,
              strategies="edge_mask,node_mask,indices", results=tmp_path / "rows")  # fmt: skip
    steps = step_rows(tmp_path / "rows")
    assert set(steps["hidden"]) == {16}  # which the cell of parameters does not name
    assert (steps["status"] == "ok").sum() == 2 * 2 * 2 + 2 * 2  # hetero_cell by two ways; dango by one
    if graph:  # a synthetic graph of these parameters has far fewer
        assert (steps.query("status == 'ok' and networks == 2")["edges"] > 40_000).all()
    assert run.has_pictures("overview", "by-batch-size", "by-networks")
    assert "node_mask" in run.text("answer")
    for cell in ("overview", "by-batch-size", "by-networks"):  # a chart says its finding
        assert re.match(r"chart: .*(ha[ds] the highest|was measured|are level|Other programs)", run.text(cell))
    assert run.text("points").startswith("12 settings")
    assert "What to change, from 2 steps of hetero_cell with edge_mask" in run.text("advice")
    assert len(pd.read_csv(tmp_path / "rows" / "rows.csv")) == len(Results(tmp_path / "rows").frame())
    assert (tmp_path / "out.ipynb").stat().st_size < 2_000_000


@pytest.mark.slow
def test_trust_compares_rows_that_are_there(tmp_path):
    for name, factor in (("old", 1.0), ("new", 0.5)):
        made_by_hand(factor, commit=name).to_parquet(tmp_path / f"{name}.parquet")
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    run = Run("trust.ipynb", tmp_path, first=old, second=new, margin=0.1, scale=0.01,
              strategies="edge_mask,node_mask", networks=1, batch_sizes=1, budget_seconds=3,
              processes=0, results=tmp_path / "trust")  # fmt: skip
    assert "new against old, time of step:" in run.text("runs")
    assert "they differ in commit: old → new" in run.text("runs")
    assert run.text("runs").count("FASTER, 0.5× the time") == 4
    assert run.has_pictures("race-chart", "comparison-chart")


# ---- pictures that notebooks show without a kernel: small, there, and made from a run


def named(path):
    cells = json.loads(path.read_text())["cells"]
    near_the_top = "".join("".join(cell["source"]) for cell in cells[:4] if cell["cell_type"] == "markdown")
    return re.findall(r"!\[[^\]]+\]\((pictures/[^)]+\.png)\)", near_the_top)


@each_notebook
def test_every_notebook_shows_a_picture_near_its_top(path):
    found = named(path)
    assert 1 <= len(found) <= 2
    kept = {f"{path.stem}-{cell['id']}.png" for cell in json.loads(path.read_text())["cells"]
            if "picture" in cell["metadata"].get("tags", [])}  # fmt: skip
    assert {name.removeprefix("pictures/") for name in found} == kept
    for name in found:
        picture = path.parent / name
        assert picture.is_file(), f"{name} is missing: make pictures NOTEBOOKS=notebooks/{path.name}"
        assert picture.stat().st_size <= MOST_BYTES
        assert Image.open(io.BytesIO(picture.read_bytes())).size[0] >= 300


def test_no_picture_is_left_over():
    wanted = {path.parent / name for path in NOTEBOOKS for name in named(path)}
    readme = (ROOT / "README.md").read_text()
    wanted |= {ROOT / name for name in re.findall(r"\]\((notebooks/pictures/[^)]+)\)", readme)}
    assert set((ROOT / "notebooks").rglob("pictures/*")) == wanted


def executed(path, output):
    """Write a notebook with one cell, which has shown a picture and something else."""
    file = io.BytesIO()
    Image.new("RGBA", (400, 200), (0, 0, 0, 0)).save(file, "PNG")
    picture = {"data": {"image/png": base64.b64encode(file.getvalue()).decode()}}
    cell = {"cell_type": "code", "id": "a", "metadata": {"tags": ["picture"]}, "outputs": [picture, output]}
    path.write_text(json.dumps({"cells": [cell]}))
    return path


def test_pictures_of_a_run_cut_short_or_without_figures_are_not_kept_and_others_are(tmp_path, capsys):
    own = tmp_path / "mine.ipynb"
    sweep = lab.LiveSweep([Point(scale=0.01, batch_size=b, device="cpu") for b in (1, 2)], results=tmp_path / "rows")
    sweep.stop()
    sweep.start().join()
    said = capsys.readouterr().out
    pair = timing.race({"a": lambda: sum(range(99)), "b": list}, budget_seconds=0.001, processes=None)
    for text in (said, str(pair)):
        run = executed(tmp_path / "run.ipynb", {"name": "stdout", "text": [text]})
        with pytest.raises(InputError, match=r"mine\.ipynb was cut short.*(run again|rounds? ran|no round ran)"):
            renew(own, run)
    for empty in (empty_chart("No mode was measured."), lab.charts.throughput(sweep.rows())):
        run = executed(tmp_path / "run.ipynb", {"data": {"text/plain": [repr(empty)]}})
        with pytest.raises(InputError, match=r"cell a has a picture without figures.*Nothing to show: No "):
            renew(own, run)
    assert not (tmp_path / "pictures").exists()
    run = executed(tmp_path / "run.ipynb", {"data": {"text/plain": ["chart: times"]}})
    assert [path.name for path in (*renew(own, run), *pictures(run, tmp_path))] == ["mine-a.png", "a.png"]
    drawn = Image.open(tmp_path / "pictures" / "mine-a.png").convert("RGB")
    assert drawn.getpixel((0, 0)) == (255, 255, 255)  # not transparent
