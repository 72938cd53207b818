"""tclab: a performance lab for graph neural networks on perturbed copies of one large graph."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tclab import (
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
    from tclab.sweeps import Point, advise, compare, fits, grid, run, sweep
    from tclab.training import check

__version__ = "0.1.0"

# `import tclab` must stay cheap, so each name is fetched from its room when it is first asked for
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
    "run",
    "sweep",
    "sweeps",
    "timing",
    "trace",
    "training",
    "view",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in __all__:  # a room
        return importlib.import_module(f"tclab.{name}")
    raise AttributeError(f"module 'tclab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
