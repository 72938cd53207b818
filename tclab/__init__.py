"""tclab: a performance lab for graph neural networks on perturbed copies of one large graph."""

from __future__ import annotations

from tclab._lazy import lazy
from tclab._version import __version__ as __version__

# `import tclab` must stay cheap, so each name is fetched from its module at first use; for type checkers: __init__.pyi
_NAMES = {
    "CellGraph": "tclab.graph._cell_graph:CellGraph",
    "InputError": "tclab.errors:InputError",
    "fits": "tclab.sweeps.predict:fits",
    "Point": "tclab.sweeps._point:Point",
    "SharedGraph": "tclab.message_passing._shared_graph:SharedGraph",
    "advise": "tclab.sweeps._advise:advise",
    "check": "tclab.training._check:check",
    "compare": "tclab.sweeps._compare:compare",
    "grid": "tclab.sweeps._grid:grid",
    "rows": "tclab.sweeps._row_files:rows_of",
    "run": "tclab.sweeps._run:run",
    "sweep": "tclab.sweeps._sweep:sweep",
    "view": "tclab.masking._strategy:view",
}
_PACKAGES = (
    "case_study", "graph", "lab", "masking", "message_passing", "models", "perturbation", "readers", "sweeps", "timing",
    "trace", "training",
)  # fmt: skip
__getattr__, __dir__, __all__ = lazy(__name__, _NAMES, _PACKAGES)
