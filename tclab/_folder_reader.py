"""The function that reads a graph from a folder of any known format; `tclab/__init__.py` sets it.

`CellGraph.from_folder` calls it, since `tclab.readers` imports `tclab.graph` and not the other way round.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

read_folder: Callable[[str | Path], Any]
