"""What the rows of points are made into: races, epochs, what happens inside a step; more in each sub-package.

`tclab.Point`, `grid`, `run`, `sweep`, `rows`, `compare`, `advise` and `fits` are in `tclab`.

`tclab.sweeps.config` makes the points of a sweep, `predict` estimates memory and time before anything runs.
"""

import pkgutil
from typing import TYPE_CHECKING, Any

from tclab.errors import need

need(__name__, "sweep", "pandas", "pyarrow")

if TYPE_CHECKING:
    from tclab.sweeps import config as config
    from tclab.sweeps import predict as predict
    from tclab.sweeps._epoch import run_epoch as run_epoch
    from tclab.sweeps._inside import inside as inside
    from tclab.sweeps._race_points import loop_of as loop_of
    from tclab.sweeps._race_points import race_points as race_points
    from tclab.sweeps._worker import run_as_rank as run_as_rank

_NAMES = {
    "config": "config",
    "inside": "_inside:inside",
    "loop_of": "_race_points:loop_of",
    "predict": "predict",
    "race_points": "_race_points:race_points",
    "run_as_rank": "_worker:run_as_rank",
    "run_epoch": "_epoch:run_epoch",
}
__all__ = [*_NAMES]
__dir__ = __all__.copy  # completion offers these


def __getattr__(name: str) -> Any:  # the command reads what a point is without torch
    if name not in _NAMES:
        raise AttributeError(f"module 'tclab.sweeps' has no attribute {name!r}")
    return pkgutil.resolve_name(f"{__name__}.{_NAMES[name]}")
