"""The pictures of an executed notebook as files: `python -m tclab.lab.pictures executed.ipynb folder`."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path


def pictures(notebook: str | Path, folder: str | Path) -> list[Path]:
    """Write each PNG of an executed notebook to `folder`, named by its cell, and return the files."""
    written = []
    for cell in json.loads(Path(notebook).read_text())["cells"]:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                path = Path(folder) / f"{cell['id']}.png"
                path.write_bytes(base64.b64decode(output["data"]["image/png"]))
                written.append(path)
    return written


if __name__ == "__main__":
    for path in pictures(*sys.argv[1:3]):
        print(path)
