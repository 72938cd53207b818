"""What the rows of points are made into: races, epochs, what happens inside a step; more in each module.

`tclab.Point`, `grid`, `run`, `sweep`, `rows`, `compare`, `advise` and `fits` are in `tclab`.

`tclab.sweeps.config` makes the points of a sweep, `predict` estimates memory and time before anything runs.
"""

from tclab._lazy import lazy
from tclab.errors import need

need(__name__, "sweep", "pandas", "pyarrow")

_NAMES = {
    "inside": "tclab.sweeps._race_points:inside",
    "loop_of": "tclab.sweeps._race_points:loop_of",
    "race_points": "tclab.sweeps._race_points:race_points",
    "run_as_rank": "tclab.sweeps._worker:run_as_rank",
    "run_epoch": "tclab.sweeps.predict:run_epoch",
}
__getattr__, __dir__, __all__ = lazy(__name__, _NAMES, ("config", "predict"))  # the command reads points without torch
