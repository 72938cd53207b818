"""The reader of a folder, for `CellGraph.from_folder`: by its name, since `tclab.readers` imports `tclab.graph`."""

from pathlib import Path
from pkgutil import resolve_name
from typing import Any


def read_folder(path: str | Path) -> Any:
    """Return the graph that a folder of any known format holds."""
    return resolve_name("tclab.readers:read_folder")(path)
