"""The pictures of an executed notebook as files.

    python tools/notebook_pictures.py executed.ipynb folder             every picture, as it is
    python tools/notebook_pictures.py --run notebooks/*.ipynb  run each and renew notebooks/pictures/, small

Notebooks are committed without outputs; a small picture of a real run, named in a markdown cell, is what a reader
without a kernel sees.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tclab.errors import InputError
from tclab.lab.charts._style import EMPTY

TAG = "picture"  # of the cells whose pictures are kept; the first picture where no cell has it
MOST_BYTES = 60_000
# what a run says that a budget ended: a sweep, a race
_CUT_SHORT = ("not run: ", "rounds ran, at least", "no round ran")


def _found(notebook: str | Path) -> list[tuple[dict[str, Any], bytes]]:
    """Return each cell that shows a picture, with its PNG.

    **Raises:** `InputError` for an id that no notebook has: pictures are named by it.
    """
    found = [
        (cell, base64.b64decode(output["data"]["image/png"]))
        for cell in json.loads(Path(notebook).read_text())["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    for cell, _ in found:
        if not re.fullmatch(r"[\w-]+", cell["id"]):
            raise InputError(f"{notebook} has a cell with the id {cell['id']!r}, expected letters, digits, - and _")
    return found


def pictures(notebook: str | Path, folder: str | Path) -> list[Path]:
    """Write each PNG of an executed notebook to `folder`, named by its cell, and return the files."""
    written = []
    for cell, png in _found(notebook):
        path = Path(folder) / f"{cell['id']}.png"
        path.write_bytes(png)
        written.append(path)
    return written


def small(png: bytes, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return a picture as a PNG of few colours, made smaller until it has at most so many bytes."""
    from PIL import Image

    picture = Image.open(io.BytesIO(png)).convert("RGBA")
    page = Image.new("RGBA", picture.size, "white")
    page.alpha_composite(picture)
    size = picture.size
    while True:
        file = io.BytesIO()
        drawn = page.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        drawn.quantize(128).save(file, "PNG", optimize=True)
        if file.tell() <= most_bytes or min(size) < 100:
            return file.getvalue()
        size = (size[0] * 4 // 5, size[1] * 4 // 5)


def renew(notebook: str | Path, executed: str | Path) -> list[Path]:
    """Keep the pictures of an executed notebook's tagged cells in `pictures/` beside the notebook itself.

    They are called `<notebook>-<cell>.png`; those of an earlier run are replaced, or removed.

    **Raises:** `InputError` where it shows no picture, or not what it is to show: a budget cut the run short, or a
    chart has no figures.
    """
    found = _found(executed)
    if not found:
        raise InputError(f"{notebook} shows no picture, expected a chart after lab.show_charts()")
    tagged = [(cell, png) for cell, png in found if TAG in cell["metadata"].get("tags", [])]
    _check_whole(notebook, executed, [cell["id"] for cell, _ in tagged or found[:1]])
    folder = Path(notebook).parent / "pictures"
    folder.mkdir(exist_ok=True)
    stem = Path(notebook).stem
    kept = {folder / f"{stem}-{cell['id']}.png": png for cell, png in tagged or found[:1]}
    for old in folder.glob(f"{stem}-*.png"):
        if old not in kept:
            old.unlink()
    for path, png in kept.items():
        path.write_bytes(small(png))
    return list(kept)


def _check_whole(notebook: str | Path, executed: str | Path, shown: Sequence[str]) -> None:
    for cell in json.loads(Path(executed).read_text())["cells"]:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            said = " ".join("".join([*output.get("text", []), *data.get("text/plain", [])]).split())
            for words in (words for words in _CUT_SHORT if words in said):
                at = said.index(words)
                raise InputError(
                    f"{notebook} was cut short, so its pictures are not kept: … {said[max(0, at - 60) : at + 60]} … "
                    f"(cell {cell['id']}); give it more by -p budget_seconds=… or picture_parameters"
                )
            if cell["id"] in shown and "".join(data.get("text/plain", [])).startswith(EMPTY):
                raise InputError(
                    f"{notebook}'s cell {cell['id']} has a picture without figures, which is not kept: "
                    f"{''.join(data['text/plain'])}"
                )


def run_and_renew(notebook: str | Path, parameters: Sequence[str] = ()) -> list[Path]:
    """Run a notebook by papermill, with what it keeps in a folder that is gone afterwards, and renew its pictures.

    The notebook's own metadata may hold `picture_parameters`, name → value, where its defaults, which are small,
    make no picture worth showing.

    **Arguments:**

    - `notebook`: any, committed clean.
    - `parameters`: "name=value" for each that is to be another.

    **Raises:** `InputError` with the last line of a notebook that failed.
    """
    if not Path(notebook).is_file():
        raise InputError(f"notebook is {str(notebook)!r}, expected one that exists")
    with tempfile.TemporaryDirectory() as folder:
        executed = Path(folder) / "executed.ipynb"
        usual = json.loads(Path(notebook).read_text())["metadata"].get("picture_parameters", {})
        told = [*(f"{name}={value}" for name, value in usual.items()), *parameters]
        given = [word for pair in told for word in ("-p", *pair.split("=", 1))]
        done = subprocess.run(
            [sys.executable, "-m", "papermill", "--no-progress-bar", str(notebook), str(executed), *given],
            env={**os.environ, "TCLAB_RUNS": folder}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            last = next(iter(done.stderr.strip().splitlines()[::-1]), "")
            raise InputError(f"{notebook} failed: {last}")
        return renew(notebook, executed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write pictures as the command line says, and print their paths."""
    parser = argparse.ArgumentParser(prog="python tools/notebook_pictures.py", description="pictures of notebooks")
    parser.add_argument("--run", action="store_true", help="run the notebooks and renew notebooks/pictures/")
    parser.add_argument("-p", dest="parameters", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("paths", nargs="+", help="notebooks; without --run an executed one and a folder")
    told = parser.parse_args(arguments)
    if not told.run and len(told.paths) != 2:
        parser.error("expected an executed notebook and a folder, or --run and notebooks")
    every = (
        [path for notebook in told.paths for path in run_and_renew(notebook, told.parameters)]
        if told.run
        else pictures(*told.paths)
    )
    for path in every:
        print(path)


if __name__ == "__main__":
    main()
