"""Pictures that notebooks show without a kernel: small, there, and made from a run."""

import base64
import io
import json
import re

import pytest
from notebook_pictures import MOST_BYTES, pictures, renew
from PIL import Image
from test_notebooks import NOTEBOOKS, ROOT

from tclab import InputError, Point, lab, timing
from tclab.lab.charts._style import empty_chart
from tclab.lab.charts._sweep_charts import sweep_chart

_NAMED = re.compile(r"!\[[^\]]+\]\((pictures/[^)]+\.png)\)")


def named(path):
    cells = json.loads(path.read_text())["cells"]
    near_the_top = [cell for cell in cells[:4] if cell["cell_type"] == "markdown"]
    return [name for cell in near_the_top for name in _NAMED.findall("".join(cell["source"]))]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
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


def png(size):
    file = io.BytesIO()
    Image.new("RGBA", size, (0, 0, 0, 0)).save(file, "PNG")
    return file.getvalue()


def notebook(path, *cells, outputs=()):
    made = [
        {"cell_type": "code", "id": name, "metadata": {"tags": tags}, "source": "",
         "outputs": [{"data": {"image/png": base64.b64encode(data).decode(), "text/plain": ["alt.Chart(...)"]}}]
         if data else []}
        for name, tags, data in cells
    ]  # fmt: skip
    made[0]["outputs"] += outputs
    path.write_text(json.dumps({"cells": made}))
    return path


def test_tagged_cells_are_kept_and_what_was_kept_before_is_gone(tmp_path):
    own = tmp_path / "mine.ipynb"
    run = notebook(
        tmp_path / "run.ipynb", ("a", [], png((400, 200))), ("b", ["picture"], png((500, 200))), ("c", [], None)
    )
    (kept,) = renew(own, run)
    assert kept.name == "mine-b.png"
    drawn = Image.open(kept)
    assert (drawn.size, drawn.convert("RGB").getpixel((0, 0))) == ((500, 200), (255, 255, 255))  # not transparent
    (tmp_path / "pictures" / "other-x.png").write_bytes(b"")
    untagged = notebook(tmp_path / "run.ipynb", ("a", [], png((400, 200))), ("b", [], png((500, 200))))
    assert [path.name for path in renew(own, untagged)] == ["mine-a.png"]
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == ["mine-a.png", "other-x.png"]
    with pytest.raises(InputError, match="shows no picture"):
        renew(own, notebook(tmp_path / "none.ipynb", ("a", [], None)))
    assert [path.name for path in pictures(run, tmp_path)] == ["a.png", "b.png"]


def test_pictures_of_a_run_that_was_cut_short_without_figures_or_in_a_cell_that_is_a_path_are_not_kept(tmp_path):
    own, chart = tmp_path / "mine.ipynb", ("a", ["picture"], png((400, 200)))
    sweep = lab.LiveSweep([Point(scale=0.01, batch_size=b, device="cpu") for b in (1, 2)], results=tmp_path / "rows")
    sweep.stop()
    rows = sweep.start().join()
    pair = timing.race({"a": lambda: sum(range(99)), "b": list}, budget_seconds=0.001, processes=None)
    for text in (repr(rows), str(pair)):
        run = notebook(tmp_path / "run.ipynb", chart, outputs=[{"name": "stdout", "text": [text]}])
        with pytest.raises(InputError, match=r"mine\.ipynb was cut short.*(not run|rounds ran|no round ran)"):
            renew(own, run)
    for empty in (empty_chart("No mode was measured."), sweep_chart(rows)):
        run = notebook(tmp_path / "run.ipynb", chart, outputs=[{"data": {"text/plain": [repr(empty)]}}])
        with pytest.raises(InputError, match=r"cell a has a picture without figures.*Nothing to show: No "):
            renew(own, run)
    with pytest.raises(InputError, match="has a cell with the id"):
        renew(own, notebook(tmp_path / "run.ipynb", ("../../x", ["picture"], png((40, 20)))))
    assert not (tmp_path / "pictures").exists()
