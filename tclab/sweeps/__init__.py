"""What the rows of points are made into: races, epochs, what happens inside a step; more in each module.

`tclab.Point`, `grid`, `run`, `sweep`, `rows`, `compare`, `advise` and `fits` are in `tclab`.

`tclab.sweeps.config` makes the points of a sweep, `predict` estimates memory and time before anything runs.
"""

from tclab._lazy import lazy
from tclab.errors import need

need(__name__, "sweep", "pandas", "pyarrow")

__getattr__, __dir__, __all__ = lazy(__name__, __file__)  # the command reads points without torch
