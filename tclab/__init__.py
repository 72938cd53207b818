"""tclab: a performance lab for graph neural networks on perturbed copies of one large graph."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from tclab._version import __version__ as __version__

if TYPE_CHECKING:
    from tclab import case_study, graph, lab, masking, message_passing, models  # isort: skip
    from tclab import perturbation, readers, sweeps, timing, trace, training  # isort: skip
    from tclab.errors import InputError
    from tclab.graph._cell_graph import CellGraph
    from tclab.masking._strategy import view
    from tclab.message_passing._shared_graph import SharedGraph
    from tclab.sweeps._fits import fits
    from tclab.sweeps._grid import grid
    from tclab.sweeps._point import Point
    from tclab.sweeps._row_files import rows_of as rows
    from tclab.sweeps._run import run
    from tclab.sweeps._sweep import sweep
    from tclab.sweeps.analysis._advise import advise
    from tclab.sweeps.analysis._compare_runs import compare
    from tclab.training._check import check


# `import tclab` must stay cheap, so each name is fetched from its module at first use
_NAMES = {
    "CellGraph": "tclab.graph._cell_graph:CellGraph",
    "InputError": "tclab.errors:InputError",
    "fits": "tclab.sweeps._fits:fits",
    "Point": "tclab.sweeps._point:Point",
    "SharedGraph": "tclab.message_passing._shared_graph:SharedGraph",
    "advise": "tclab.sweeps.analysis._advise:advise",
    "check": "tclab.training._check:check",
    "compare": "tclab.sweeps.analysis._compare_runs:compare",
    "grid": "tclab.sweeps._grid:grid",
    "rows": "tclab.sweeps._row_files:rows_of",
    "run": "tclab.sweeps._run:run",
    "sweep": "tclab.sweeps._sweep:sweep",
    "view": "tclab.masking._strategy:view",
}
__all__ = [
    "CellGraph", "InputError", "Point", "SharedGraph", "advise", "case_study", "check", "compare", "fits", "graph",
    "grid", "lab", "masking", "message_passing", "models", "perturbation", "readers", "rows", "run", "sweep", "sweeps",
    "timing", "trace", "training", "view",
]  # fmt: skip
__dir__ = __all__.copy  # completion offers these


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return pkgutil.resolve_name(_NAMES[name])
    if name in __all__:  # a package
        return importlib.import_module(f"tclab.{name}")
    raise AttributeError(f"module 'tclab' has no attribute {name!r}")
