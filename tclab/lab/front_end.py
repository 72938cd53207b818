"""Whether somebody looks on at this kernel."""

from __future__ import annotations

import os
import sys

_SESSION = "JPY_SESSION_NAME"  # Jupyter Server gives it to each kernel that it starts; papermill and nbval do not
_VS_CODE = "__vsc_ipynb_file__"  # VS Code's extension puts it among the names of a notebook that it runs


def has_front_end() -> bool:
    """Return whether somebody looks on: this kernel was started by a Jupyter Server, or by VS Code.

    What is started from a cell inherits the server's word: where the parent has the same one, nobody looks on.
    """
    return _VS_CODE in _names() or (_SESSION in os.environ and _of_parent(_SESSION) != os.environ[_SESSION])


def _names() -> dict[str, object]:
    """Return the names of the notebook; none where there is no shell."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return {} if shell is None else shell.user_ns


def _of_parent(name: str) -> str | None:
    """Return a variable that this process's parent was started with; `None` without, or where it cannot be told."""
    import psutil

    try:
        return psutil.Process(os.getppid()).environ().get(name)
    except (psutil.Error, OSError):
        return None
