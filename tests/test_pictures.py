"""Pictures that notebooks show without a kernel: small, there, and made from a run."""

import base64
import io
import json
import re

import pytest
from PIL import Image
from test_notebooks import NOTEBOOKS, ROOT

from tclab import InputError
from tclab.lab.pictures import MOST_BYTES, main, pictures, renew, small

_NAMED = re.compile(r"!\[[^\]]+\]\((pictures/[^)]+\.png)\)")
FOLDER = ROOT / "notebooks" / "pictures"


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
    wanted = {name for path in NOTEBOOKS for name in named(path)}
    readme = (ROOT / "README.md").read_text()
    wanted |= {name.removeprefix("notebooks/") for name in re.findall(r"\]\((notebooks/pictures/[^)]+)\)", readme)}
    assert {f"pictures/{path.name}" for path in FOLDER.iterdir()} == wanted


def test_the_readme_shows_pictures_that_are_there():
    found = re.findall(r"!\[[^\]]+\]\((notebooks/pictures/[^)]+)\)", (ROOT / "README.md").read_text())
    assert found
    assert all((ROOT / name).is_file() for name in found)


def png(size, *, noisy=False):
    picture = Image.effect_noise(size, 90).convert("RGBA") if noisy else Image.new("RGBA", size, (0, 0, 0, 0))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def test_pictures_become_small_on_a_white_page_and_keep_their_size_where_they_can():
    drawn = Image.open(io.BytesIO(small(png((600, 300)))))
    assert drawn.size == (600, 300)
    assert drawn.convert("RGB").getpixel((0, 0)) == (255, 255, 255)  # what was transparent
    noisy = png((900, 600), noisy=True)
    assert len(noisy) > 300_000
    made = small(noisy)
    assert len(made) <= MOST_BYTES
    width, height = Image.open(io.BytesIO(made)).size
    assert width / height == pytest.approx(1.5, rel=0.02)


def notebook(path, *cells):
    made = [
        {"cell_type": "code", "id": name, "metadata": {"tags": tags}, "source": "",
         "outputs": [{"data": {"image/png": base64.b64encode(data).decode()}}] if data else []}
        for name, tags, data in cells
    ]  # fmt: skip
    path.write_text(json.dumps({"cells": made}))
    return path


def test_tagged_cells_are_kept_and_what_was_kept_before_is_gone(tmp_path):
    own = tmp_path / "mine.ipynb"
    run = notebook(
        tmp_path / "run.ipynb", ("a", [], png((400, 200))), ("b", ["picture"], png((500, 200))), ("c", [], None)
    )
    assert [path.name for path in renew(own, run)] == ["mine-b.png"]
    (tmp_path / "pictures" / "other-x.png").write_bytes(b"")
    untagged = notebook(tmp_path / "run.ipynb", ("a", [], png((400, 200))), ("b", [], png((500, 200))))
    assert [path.name for path in renew(own, untagged)] == ["mine-a.png"]
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == ["mine-a.png", "other-x.png"]
    with pytest.raises(InputError, match="shows no picture"):
        renew(own, notebook(tmp_path / "none.ipynb", ("a", [], None)))
    assert [path.name for path in pictures(run, tmp_path)] == ["a.png", "b.png"]


def test_the_command_says_what_it_needs(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path / "one.ipynb")])
    assert "expected an executed notebook and a folder, or --run" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"none\.ipynb', expected one that exists"):
        main(["--run", str(tmp_path / "none.ipynb")])
