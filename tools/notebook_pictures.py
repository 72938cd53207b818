"""The pictures of an executed notebook as files.

    python tools/notebook_pictures.py executed.ipynb folder             every picture, as it is
    python tools/notebook_pictures.py --run notebooks/*.ipynb  run each and renew notebooks/pictures/, small

Notebooks are committed without outputs; a small picture of a real run, named in a markdown cell, is what a reader
without a kernel sees.
"""

import argparse
import base64
import io
import itertools
import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tclab.errors import InputError
from tclab.lab.charts._style import EMPTY

TAG = "picture"  # of the cells whose pictures are kept; the first picture where no cell has it
MOST_BYTES = 60_000
# what a run says that a budget ended: a sweep, a race
_CUT_SHORT = ("not run: ", "run again to continue", "rounds? ran, at least", "no round ran")


def _found(notebook: Path) -> list[tuple[dict[str, Any], bytes]]:
    """Return each cell that shows a picture, with its PNG."""
    return [
        (cell, base64.b64decode(output["data"]["image/png"]))
        for cell in json.loads(notebook.read_text())["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]


def pictures(notebook: Path, folder: Path) -> list[Path]:
    """Write each PNG of an executed notebook to `folder`, named by its cell, and return the files."""
    found = {folder / f"{cell['id']}.png": png for cell, png in _found(notebook)}
    for path, png in found.items():
        path.write_bytes(png)
    return list(found)


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
        drawn.quantize(128, Image.Quantize.MAXCOVERAGE).save(file, "PNG", optimize=True)
        if file.tell() <= most_bytes or min(size) < 100:
            return file.getvalue()
        size = (size[0] * 4 // 5, size[1] * 4 // 5)


def renew(notebook: Path, executed: Path) -> list[Path]:
    """Keep the pictures of an executed notebook's tagged cells in `pictures/` beside the notebook itself.

    They are called `<notebook>-<cell>.png`; those of an earlier run are replaced, or removed.

    **Raises:** `InputError` where it shows no picture, or not what it is to show: a budget cut the run short, or a
    chart has no figures.
    """
    found = _found(executed)
    if not found:
        raise InputError(f"{notebook} shows no picture, expected a chart after lab.show_charts()")
    shown = [one for one in found if TAG in one[0]["metadata"].get("tags", [])] or found[:1]
    _check_whole(notebook, executed, [cell["id"] for cell, _ in shown])
    folder = notebook.parent / "pictures"
    folder.mkdir(exist_ok=True)
    for old in folder.glob(f"{notebook.stem}-*.png"):
        old.unlink()
    kept = {folder / f"{notebook.stem}-{cell['id']}.png": png for cell, png in shown}
    for path, png in kept.items():
        path.write_bytes(small(png))
    return list(kept)


def _check_whole(notebook: Path, executed: Path, shown: Sequence[str]) -> None:
    for cell in json.loads(executed.read_text())["cells"]:
        for output in cell.get("outputs", []):
            plain = "".join(output.get("data", {}).get("text/plain", []))
            said = " ".join("".join([*output.get("text", []), plain]).split())
            if short := re.search("|".join(_CUT_SHORT), said):
                near = said[max(0, short.start() - 60) :][:120]
                raise InputError(
                    f"{notebook} was cut short, so its pictures are not kept: … {near} … (cell {cell['id']}); "
                    "give it more by picture_parameters"
                )
            if cell["id"] in shown and plain.startswith(EMPTY):
                raise InputError(
                    f"{notebook}'s cell {cell['id']} has a picture without figures, which is not kept: {plain}"
                )


def run_and_renew(notebook: Path) -> list[Path]:
    """Run a notebook by papermill, with what it keeps in a folder that is gone afterwards, and renew its pictures.

    The notebook's own metadata may hold `picture_parameters`, name → value, where its defaults, which are small,
    make no picture worth showing.

    **Raises:** `InputError` with the error of a notebook that failed.
    """
    import papermill

    usual = json.loads(notebook.read_text())["metadata"].get("picture_parameters", {})
    with tempfile.TemporaryDirectory() as folder:
        executed = Path(folder) / "executed.ipynb"
        os.environ["TCLAB_RUNS"] = folder
        try:
            papermill.execute_notebook(notebook, executed, usual, progress_bar=False)
        except papermill.PapermillExecutionError as error:
            raise InputError(f"{notebook} failed: {error.ename}: {error.evalue}") from None
        return renew(notebook, executed)


def main() -> None:
    """Write pictures as the command line says, and print their paths."""
    parser = argparse.ArgumentParser(prog="python tools/notebook_pictures.py", description="pictures of notebooks")
    parser.add_argument("--run", action="store_true", help="run the notebooks and renew notebooks/pictures/")
    parser.add_argument("paths", nargs="+", type=Path, help="notebooks; without --run an executed one and a folder")
    told = parser.parse_args()
    if not told.run and len(told.paths) != 2:
        parser.error("expected an executed notebook and a folder, or --run and notebooks")
    for path in itertools.chain(*map(run_and_renew, told.paths)) if told.run else pictures(*told.paths):
        print(path)


if __name__ == "__main__":
    main()
