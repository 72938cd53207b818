"""tclab: a performance lab for graph neural networks on perturbed copies of one large graph."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tclab import _folder_reader
from tclab._version import __version__ as __version__

if TYPE_CHECKING:
    from tclab import (
        case_study,
        graph,
        lab,
        masking,
        message_passing,
        models,
        perturbation,
        readers,
        sweeps,
        timing,
        trace,
        training,
    )
    from tclab.errors import InputError
    from tclab.graph import CellGraph
    from tclab.masking import view
    from tclab.message_passing import SharedGraph
    from tclab.sweeps import Point, advise, compare, fits, grid, rows, run, sweep
    from tclab.training import check


# `import tclab` must stay cheap, so each name is fetched from its package at first use
_NAMES = {
    "CellGraph": "tclab.graph",
    "InputError": "tclab.errors",
    "fits": "tclab.sweeps",
    "Point": "tclab.sweeps",
    "SharedGraph": "tclab.message_passing",
    "advise": "tclab.sweeps",
    "check": "tclab.training",
    "compare": "tclab.sweeps",
    "grid": "tclab.sweeps",
    "rows": "tclab.sweeps",
    "run": "tclab.sweeps",
    "sweep": "tclab.sweeps",
    "view": "tclab.masking",
}
__all__ = [
    "CellGraph",
    "InputError",
    "Point",
    "SharedGraph",
    "advise",
    "case_study",
    "check",
    "compare",
    "fits",
    "graph",
    "grid",
    "lab",
    "masking",
    "message_passing",
    "models",
    "perturbation",
    "readers",
    "rows",
    "run",
    "sweep",
    "sweeps",
    "timing",
    "trace",
    "training",
    "view",
]
__dir__ = __all__.copy  # completion offers these


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in __all__:  # a package
        return importlib.import_module(f"tclab.{name}")
    raise AttributeError(f"module 'tclab' has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """Make `%%ledger` and `%%race` known; called by `%load_ext tclab`."""
    importlib.import_module("tclab.command._magics").register(shell)


def _read_folder(path: str | Path) -> CellGraph:
    return importlib.import_module("tclab.readers").read_folder(path)


_folder_reader.read_folder = _read_folder
