"""Which code is the user's own: no installed package, no part of Python or of tclab, nothing generated."""

from __future__ import annotations

import linecache
import os
import sysconfig
from functools import cache
from pathlib import Path
from types import FrameType

# of any environment, and of code that torch.compile and PyG write
_PACKAGES = ("site-packages", "dist-packages", "torchinductor_", "torch_geometric.")
_CELL = "<ipython"  # as IPython of old names a cell; ipykernel's have a file
_TCLAB = str(Path(__file__).parents[1])
_STANDARD = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
_FOLDERS = tuple(f"{folder}{os.sep}" for folder in (_TCLAB, *_STANDARD, *map(os.path.realpath, _STANDARD)))


@cache
def is_user_file(filename: str) -> bool:
    """Return whether a function's file, its `co_filename`, is the user's; a notebook's cell is."""
    if filename.startswith("<"):  # generated code, or the interpreter's own
        return filename.startswith(_CELL)
    return not filename.startswith(_FOLDERS) and not any(name in filename for name in _PACKAGES)


def is_user_frame(frame: FrameType) -> bool:
    """Return whether a frame is the user's; what is typed at the interpreter's prompt is."""
    file = frame.f_code.co_filename
    typed = file.startswith("<") and frame.f_globals.get("__name__") == "__main__"
    return typed or is_user_file(file)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's from this one on; `None` where there is none."""
    while frame is not None and not is_user_frame(frame):
        frame = frame.f_back
    return frame


def source_of(file: str, line: int) -> str:
    """Return a line's text, stripped; empty where it is not known."""
    return linecache.getline(file, line).strip()


def short_place(file: str, line: int) -> str:
    """Return a place as "train.py:12", or as "cell:3" of a notebook."""
    cell = file.startswith(_CELL) or "ipykernel_" in file
    return f"{'cell' if cell else Path(file).name}:{line}"
